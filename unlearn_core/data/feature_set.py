"""The feature set: one file format for all work on frozen features.

An ``.npz`` with ``train_x`` (N, d), ``train_y`` (N,), ``test_x``, ``test_y`` and, optionally, ``superclass`` (C,) mapping a
fine label to its superclass, ``class_names`` (C,), ``ids`` (N,) record ids of the training rows.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput
from unlearn_core.spec import LabelSpace

REQUIRED = ("train_x", "train_y", "test_x", "test_y")
OPTIONAL = ("superclass", "class_names", "ids")


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Checked at construction: whatever exists is usable.

    Attributes:
        train_x: (N, d) float16, float32 or float64.
        train_y: (N,) int64 fine labels in 0..C-1; each class occurs.
        superclass: (C,) int64, or None where the data set has none.
        ids: (N,) integers or strings, unique, or None: then the row number is the id.
    """

    name: str
    train_x: NDArray[np.floating]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.floating]
    test_y: NDArray[np.int64]
    class_names: tuple[str, ...]
    superclass: NDArray[np.int64] | None = None
    ids: NDArray | None = None
    backbone: str = "features"
    """What made the features: a folder of the results tree."""

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            x, y = getattr(self, f"{part}_x"), getattr(self, f"{part}_y")
            _check_features(f"{self.name}: {part}_x", x)
            _check_labels(f"{self.name}: {part}_y", y, len(x), len(self.class_names))
        if self.train_x.shape[1] != self.test_x.shape[1]:
            raise BadInput(
                f"{self.name}: test_x has {self.test_x.shape[1]} features and train_x {self.train_x.shape[1]}; "
                "both must come from the same backbone"
            )
        counts = np.bincount(self.train_y, minlength=self.n_fine)
        if missing := np.flatnonzero(counts == 0).tolist():
            raise BadInput(
                f"{self.name}: train_y has no row of class {missing[0]} ({len(missing)} of {self.n_fine} classes are "
                "missing); renumber the labels 0..C-1 without gaps"
            )
        if self.superclass is not None:
            self._check_superclass(self.superclass)
        if self.ids is not None:
            self._check_ids(self.ids)

    def _check_superclass(self, superclass: NDArray[np.int64]) -> None:
        if superclass.shape != (self.n_fine,):
            raise BadInput(
                f"{self.name}: superclass has shape {superclass.shape}; it needs one entry for each of the "
                f"{self.n_fine} fine labels"
            )
        occurring = np.unique(superclass)
        if not np.array_equal(occurring, np.arange(len(occurring))):
            raise BadInput(
                f"{self.name}: superclass has the values {occurring.tolist()[:8]}; number the superclasses from 0 "
                "without gaps"
            )

    def _check_ids(self, ids: NDArray) -> None:
        if ids.shape != (len(self.train_y),):
            raise BadInput(
                f"{self.name}: ids has shape {ids.shape}; it needs one record id for each of the "
                f"{len(self.train_y)} training rows"
            )
        if ids.dtype.kind not in "iuU":
            raise BadInput(f"{self.name}: ids has dtype {ids.dtype}; record ids are integers or strings")
        unique, counts = np.unique(ids, return_counts=True)
        if len(unique) < len(ids):
            doubled = unique[counts > 1]
            raise BadInput(
                f"{self.name}: ids has {len(doubled)} duplicates, the first is {doubled[0]!s}; a record id must name "
                "one row"
            )

    @property
    def n_fine(self) -> int:
        return len(self.class_names)

    @property
    def dim(self) -> int:
        return self.train_x.shape[1]

    def n_classes(self, space: LabelSpace) -> int:
        return self.n_fine if space is LabelSpace.FINE else int(self._superclass().max()) + 1

    def train_labels(self, space: LabelSpace) -> NDArray[np.int64]:
        return self.train_y if space is LabelSpace.FINE else self._superclass()[self.train_y]

    def test_labels(self, space: LabelSpace) -> NDArray[np.int64]:
        return self.test_y if space is LabelSpace.FINE else self._superclass()[self.test_y]

    def _superclass(self) -> NDArray[np.int64]:
        if self.superclass is None:
            raise BadInput(
                f"{self.name} has no 'superclass' array, which the subclass scenario needs; add one (fine label -> "
                "superclass) or choose the class or random scenario"
            )
        return self.superclass


def load_feature_set(path: str | Path) -> FeatureSet:
    """Read and check a feature set file. Nothing in it is unpickled."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no feature set at {path}; it is an .npz with {', '.join(REQUIRED)}")
    if not zipfile.is_zipfile(path):
        raise BadInput(f"{path} is not an .npz archive; write it with numpy.savez or save_feature_set")
    with np.load(path, allow_pickle=False) as archive:
        names = set(archive.files)
        if unknown := sorted(names - set(REQUIRED) - set(OPTIONAL)):
            raise BadInput(
                f"{path}: unknown array {unknown[0]!r}; a feature set holds {', '.join(REQUIRED)} and optionally "
                f"{', '.join(OPTIONAL)}"
            )
        if absent := [name for name in REQUIRED if name not in names]:
            raise BadInput(f"{path}: array {absent[0]!r} is missing; a feature set needs {', '.join(REQUIRED)}")
        arrays = {name: _read(archive, name, path) for name in names}
    return feature_set_from_arrays(path.stem, arrays, source=str(path))


def feature_set_from_arrays(name: str, arrays: dict[str, NDArray], source: str) -> FeatureSet:
    """Build a feature set from plain arrays named as in the file format."""
    labels = {part: _as_labels(f"{source}: {part}", arrays[part]) for part in ("train_y", "test_y")}
    superclass = arrays.get("superclass")
    class_names = arrays.get("class_names")
    if class_names is not None:
        if class_names.ndim != 1 or class_names.dtype.kind != "U":
            raise BadInput(
                f"{source}: class_names has shape {class_names.shape}, dtype {class_names.dtype}; it is a list of strings"
            )
        names = tuple(str(c) for c in class_names)
    else:
        largest = int(labels["train_y"].max()) if labels["train_y"].size else -1
        n_classes = len(superclass) if superclass is not None and superclass.ndim == 1 else largest + 1
        names = tuple(str(c) for c in range(n_classes))
    return FeatureSet(
        name=name,
        train_x=arrays["train_x"],
        train_y=labels["train_y"],
        test_x=arrays["test_x"],
        test_y=labels["test_y"],
        class_names=names,
        superclass=None if superclass is None else _as_labels(f"{source}: superclass", superclass),
        ids=arrays.get("ids"),
    )


def save_feature_set(path: str | Path, features: FeatureSet) -> None:
    """Write ``features`` in the file format that ``load_feature_set`` reads."""
    arrays: dict[str, NDArray] = {name: getattr(features, name) for name in REQUIRED}
    arrays["class_names"] = np.asarray(features.class_names)
    for name in ("superclass", "ids"):
        if (value := getattr(features, name)) is not None:
            arrays[name] = value
    np.savez(path, allow_pickle=False, **arrays)


def fingerprint(features: FeatureSet) -> str:
    """SHA-256 over every array, whatever file it came from: the identity of the data."""
    digest = hashlib.sha256()
    for name in (*REQUIRED, "superclass"):
        value = getattr(features, name)
        if value is not None:
            digest.update(f"{name} {value.dtype.str} {value.shape}".encode())
            digest.update(np.ascontiguousarray(value).data)
    digest.update("\0".join(features.class_names).encode())
    return digest.hexdigest()


def _read(archive: np.lib.npyio.NpzFile, name: str, path: Path) -> NDArray:
    try:
        return archive[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise BadInput(f"{path}: array {name!r} cannot be read ({error})") from error
        raise BadInput(
            f"{path}: array {name!r} is pickled (dtype object) and is not loaded; save it as plain numbers or strings"
        ) from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise BadInput(f"{path}: array {name!r} is damaged ({error}); write the file again") from error


def _as_labels(what: str, values: NDArray) -> NDArray[np.int64]:
    if values.dtype.kind not in "iu":
        raise BadInput(f"{what} has dtype {values.dtype}; labels are integers, save them as int64")
    return values.astype(np.int64)


def _check_features(what: str, x: NDArray) -> None:
    if x.ndim != 2 or 0 in x.shape:
        raise BadInput(f"{what} has shape {x.shape}; it must be (rows, features) with at least one of each")
    if x.dtype not in (np.float16, np.float32, np.float64):
        raise BadInput(f"{what} has dtype {x.dtype}; save features as float16, float32 or float64")
    finite = np.isfinite(x)
    if not finite.all():
        rows = np.flatnonzero(~finite.all(axis=1))
        raise BadInput(
            f"{what} has {int((~finite).sum())} NaN or infinite values in {len(rows)} rows, the first is row "
            f"{rows[0]}; remove those rows or recompute their features"
        )


def _check_labels(what: str, y: NDArray[np.int64], n_rows: int, n_classes: int) -> None:
    if y.shape != (n_rows,):
        raise BadInput(f"{what} has shape {y.shape}; it needs one label for each of the {n_rows} rows")
    outside = np.flatnonzero((y < 0) | (y >= n_classes))
    if outside.size:
        raise BadInput(
            f"{what} has {outside.size} labels outside 0..{n_classes - 1}, the first is {y[outside[0]]} in row "
            f"{outside[0]}; labels must be 0..C-1 (class_names and superclass set C)"
        )
