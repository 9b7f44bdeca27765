"""Feature sets, image sets and forget masks."""

from unlearn_core.data.datasets import holds_images, load_dataset, load_images
from unlearn_core.data.feature_set import FeatureSet, load_feature_set, save_feature_set
from unlearn_core.data.images import ImageSet, load_image_file, save_image_file
from unlearn_core.data.labelled import LabelledSet, fingerprint
from unlearn_core.data.splits import scenario_mask

__all__ = [
    "FeatureSet",
    "ImageSet",
    "LabelledSet",
    "fingerprint",
    "holds_images",
    "load_dataset",
    "load_feature_set",
    "load_image_file",
    "load_images",
    "save_feature_set",
    "save_image_file",
    "scenario_mask",
]
