"""Feature sets and forget masks."""

from unlearn_core.data.datasets import load_dataset
from unlearn_core.data.feature_set import FeatureSet, load_feature_set, save_feature_set
from unlearn_core.data.splits import ids_mask, rows_mask, scenario_mask

__all__ = [
    "FeatureSet",
    "ids_mask",
    "load_dataset",
    "load_feature_set",
    "rows_mask",
    "save_feature_set",
    "scenario_mask",
]
