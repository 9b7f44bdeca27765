"""Data sets by name, or by the path of a feature set file. A new one is a loader in a file of its own and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from unlearn_core.data.digits import load_digits
from unlearn_core.data.feature_set import FeatureSet, load_feature_set
from unlearn_core.errors import BadInput

DATASETS: Mapping[str, Callable[[], FeatureSet]] = MappingProxyType({"digits": load_digits})


def load_dataset(name_or_path: str) -> FeatureSet:
    """The named data set, or the feature set at that path."""
    if name_or_path in DATASETS:
        return DATASETS[name_or_path]()
    if name_or_path.endswith(".npz"):
        return load_feature_set(name_or_path)
    raise BadInput(
        f"unknown data set {name_or_path!r}; there are {', '.join(DATASETS)}, or give the path of a feature set (.npz)"
    )
