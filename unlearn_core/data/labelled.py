"""What feature sets and image sets share: labelled rows in two parts, the checks of them, their ``.npz`` files."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.mapped import map_npz
from unlearn_core.data.npz import npz_names, read_npz
from unlearn_core.errors import BadInput
from unlearn_core.grid import PAPER_DATASETS, LabelSpace

PARTS = ("train", "test")
OPTIONAL = ("superclass", "class_names", "ids")


@dataclass(frozen=True, eq=False)
class LabelledSet(ABC):
    """Checked at construction: whatever exists is usable.

    Attributes:
        train_x: (N, ...) one row per example; what a row may be is the subclass's to say.
        train_y: (N,) int64 fine labels in 0..C-1; each class occurs.
        superclass: (C,) int64, or None if the data set has none.
        ids: (N,) integers or strings, unique, or None: then the row number is the id.
        has_test: whether there are test rows; without any, ``test_x`` and ``test_y`` are empty.
    """

    KIND: ClassVar[str]
    """What a file of it is called."""
    ROWS: ClassVar[str]
    """What a file calls the rows: ``train_ROWS`` and ``test_ROWS``."""
    WRITER: ClassVar[str]
    """The function that writes such a file."""

    name: str
    train_x: NDArray[Any]
    train_y: NDArray[np.int64]
    test_x: NDArray[Any]
    test_y: NDArray[np.int64]
    class_names: tuple[str, ...]
    superclass: NDArray[np.int64] | None = None
    ids: NDArray | None = None
    has_test: bool = True

    def __post_init__(self) -> None:
        for part in PARTS if self.has_test else PARTS[:1]:
            x, y = getattr(self, f"{part}_x"), getattr(self, f"{part}_y")
            self._check_rows(f"{self.name}: {part}_{self.ROWS}", x)
            _check_labels(f"{self.name}: {part}_y", y, len(x), len(self.class_names))
        self._check_parts_match()
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

    @classmethod
    def from_arrays(cls, name: str, arrays: Mapping[str, NDArray], source: str, **more: Any) -> Self:
        """Build a set from arrays named as its attributes; labels may have any integer dtype.

        Without ``class_names`` the classes are called by their numbers.

        Args:
            source: where the arrays come from, for messages.
            more: attributes that are no arrays.
        """
        arrays, has_test = _with_test(arrays), "test_y" in arrays
        train_y, test_y = (_as_labels(f"{source}: {part}", arrays[part]) for part in ("train_y", "test_y"))
        superclass = arrays.get("superclass")
        if "class_names" in arrays:
            given = arrays["class_names"]
            if given.ndim != 1 or given.dtype.kind != "U":
                raise BadInput(
                    f"{source}: class_names has shape {given.shape}, dtype {given.dtype}; it is a list of strings"
                )
            class_names = tuple(str(name) for name in given)
        else:
            largest = int(train_y.max()) if train_y.size else -1
            n_classes = len(superclass) if superclass is not None and superclass.ndim == 1 else largest + 1
            if n_classes > max(train_y.size, 1):  # before a name is made for each
                raise BadInput(
                    f"{source}: {n_classes} classes and {train_y.size} labels in train_y, so that some class has no row; "
                    "renumber the labels 0..C-1 without gaps"
                )
            class_names = tuple(str(c) for c in range(n_classes))
        return cls(
            name=name,
            train_x=arrays["train_x"],
            train_y=train_y,
            test_x=arrays["test_x"],
            test_y=test_y,
            class_names=class_names,
            superclass=None if superclass is None else _as_labels(f"{source}: superclass", superclass),
            ids=arrays.get("ids"),
            has_test=has_test,
            **more,
        )

    @classmethod
    def mapped(cls, name: str, path: Path) -> Self:
        """A file whose rows were checked before, when they were prepared: mapped, and not read."""
        arrays = cls.map_arrays(name, path)
        found = object.__new__(cls)
        given = arrays.get("class_names")
        counted = int(arrays["train_y"].max()) + 1 if given is None else len(given)
        superclass, train_x = arrays.get("superclass"), arrays[f"train_{cls.ROWS}"]
        values = {
            "name": name,
            "train_x": train_x,
            "train_y": arrays["train_y"],
            "test_x": arrays.get(f"test_{cls.ROWS}", train_x[:0]),
            "test_y": arrays.get("test_y", arrays["train_y"][:0]).astype(np.int64),
            "class_names": tuple(str(one) for one in (range(counted) if given is None else given)),
            "superclass": None if superclass is None else superclass.astype(np.int64),
            "ids": arrays.get("ids"),
            "has_test": "test_y" in arrays,
        }
        for field, value in values.items():
            object.__setattr__(found, field, value)
        return found

    @classmethod
    def map_arrays(cls, name: str, path: Path) -> dict[str, NDArray]:
        """The arrays of a file of this name, mapped."""
        return map_npz(path, (f"train_{cls.ROWS}", "train_y", f"test_{cls.ROWS}", "test_y", *OPTIONAL))

    @classmethod
    def read_arrays(cls, path: Path, needs_test: bool = True) -> dict[str, NDArray]:
        """The arrays of a file, named as ``from_arrays`` wants them. Nothing is unpickled.

        Args:
            needs_test: whether a file without test rows, and without their labels, is refused.
        """
        train, test = (f"train_{cls.ROWS}", "train_y"), (f"test_{cls.ROWS}", "test_y")
        has_test = needs_test or bool(set(test) & npz_names(path))  # one of the two calls for the other
        required, optional = (*train, *test) if has_test else train, OPTIONAL if has_test else (*test, *OPTIONAL)
        arrays = read_npz(path, cls.KIND, required, optional, writer=f"numpy.savez or {cls.WRITER}")
        for part in PARTS if has_test else PARTS[:1]:
            arrays[f"{part}_x"] = arrays.pop(f"{part}_{cls.ROWS}")
        return arrays

    def write(self, path: str | Path) -> None:
        """Write the file that ``read_arrays`` reads."""
        arrays: dict[str, NDArray] = {
            f"train_{self.ROWS}": self.train_x,
            "train_y": self.train_y,
            "class_names": np.asarray(self.class_names),
        }
        if self.has_test:
            arrays |= {f"test_{self.ROWS}": self.test_x, "test_y": self.test_y}
        for name in ("superclass", "ids"):
            if (value := getattr(self, name)) is not None:
                arrays[name] = value
        np.savez(path, allow_pickle=False, **arrays)

    @abstractmethod
    def _check_rows(self, what: str, x: NDArray) -> None:
        """Refuse inputs that are not rows of this kind of set."""

    @abstractmethod
    def _check_parts_match(self) -> None:
        """Refuse a test part whose rows are not of the training part's shape."""

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


def named_by(stem: str) -> tuple[str, str]:
    """(data set, backbone): ``cifar10_r50`` is CIFAR-10 seen by r50, and any other name a data set of its own."""
    dataset, _, backbone = stem.partition("_")
    return (dataset, backbone) if dataset in PAPER_DATASETS and backbone else (stem, "features")


def fingerprint(data: LabelledSet) -> str:
    """SHA-256 over every array, whatever file it came from: the identity of the data."""
    digest = hashlib.sha256()
    for name in ("train_x", "train_y", "test_x", "test_y", "superclass"):
        value = getattr(data, name)
        if value is not None:
            digest.update(f"{name} {value.dtype.str} {value.shape}".encode())
            digest.update(np.ascontiguousarray(value).data)
    digest.update("\0".join(data.class_names).encode())
    return digest.hexdigest()


def _with_test(arrays: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
    """The arrays, with empty test rows if there are none."""
    if "test_y" in arrays:
        return arrays
    return {**arrays, "test_x": arrays["train_x"][:0], "test_y": arrays["train_y"][:0]}


def _as_labels(what: str, values: NDArray) -> NDArray[np.int64]:
    if values.dtype.kind not in "iu":
        raise BadInput(f"{what} has dtype {values.dtype}; labels are integers, save them as int64")
    return values.astype(np.int64)


def _check_labels(what: str, y: NDArray[np.int64], n_rows: int, n_classes: int) -> None:
    if y.shape != (n_rows,):
        raise BadInput(f"{what} has shape {y.shape}; it needs one label for each of the {n_rows} rows")
    outside = np.flatnonzero((y < 0) | (y >= n_classes))
    if outside.size:
        raise BadInput(
            f"{what} has {outside.size} labels outside 0..{n_classes - 1}, the first is {y[outside[0]]} in row "
            f"{outside[0]}; labels must be 0..C-1 (class_names and superclass set C)"
        )
