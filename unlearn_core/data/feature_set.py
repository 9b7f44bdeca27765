"""The feature set: one file format for all work on frozen features.

An ``.npz`` with ``train_x`` (N, d), ``train_y`` (N,), ``test_x``, ``test_y`` and, optionally, ``superclass`` (C,) mapping a
fine label to its superclass, ``class_names`` (C,), ``ids`` (N,) record ids of the training rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.labelled import LabelledSet, fingerprint, named_by
from unlearn_core.errors import BadInput

__all__ = ["FeatureSet", "fingerprint", "load_feature_set", "save_feature_set"]


@dataclass(frozen=True, eq=False)
class FeatureSet(LabelledSet):
    """A labelled set whose rows are (d,) float16, float32 or float64 vectors, all finite."""

    KIND: ClassVar[str] = "feature set"
    ROWS: ClassVar[str] = "x"
    WRITER: ClassVar[str] = "save_feature_set"

    train_x: NDArray[np.floating]
    test_x: NDArray[np.floating]
    backbone: str = "features"
    """What made the features: a folder of the results tree."""

    @property
    def dim(self) -> int:
        return self.train_x.shape[1]

    def _check_rows(self, what: str, x: NDArray) -> None:
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

    def _check_parts_match(self) -> None:
        if self.train_x.shape[1] != self.test_x.shape[1]:
            raise BadInput(
                f"{self.name}: test_x has {self.test_x.shape[1]} features and train_x {self.train_x.shape[1]}; "
                "both must come from the same backbone"
            )


def load_feature_set(path: str | Path, needs_test: bool = True) -> FeatureSet:
    """Read and check a feature set file. Nothing in it is unpickled."""
    path = Path(path)
    name, backbone = named_by(path.stem)
    return FeatureSet.from_arrays(name, FeatureSet.read_arrays(path, needs_test), source=str(path), backbone=backbone)


def save_feature_set(path: str | Path, features: FeatureSet) -> None:
    """Write ``features`` in the file format that ``load_feature_set`` reads."""
    features.write(path)
