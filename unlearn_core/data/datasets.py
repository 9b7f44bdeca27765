"""Data sets by name or by path. A new one is a loader in a file of its own and a line here."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from unlearn_core.data.cifar import PUBLISHED, PublishedSet, load_cifar
from unlearn_core.data.digits import load_digits
from unlearn_core.data.feature_set import FeatureSet, load_feature_set
from unlearn_core.data.image_folder import load_image_folder
from unlearn_core.data.images import ImageSet, load_image_file
from unlearn_core.data.npz import opened_zip
from unlearn_core.errors import BadInput

__all__ = ["DATASETS", "PUBLISHED", "PublishedSet", "holds_images", "load_dataset", "load_images"]

DATASETS: Mapping[str, Callable[[], FeatureSet]] = MappingProxyType({"digits": load_digits})


def load_dataset(name_or_path: str) -> FeatureSet:
    """The named data set of features, or the feature set at that path.

    Examples:
        >>> load_dataset("digits").train_x.shape
        (1437, 64)
    """
    if name_or_path in DATASETS:
        return DATASETS[name_or_path]()
    if holds_images(name_or_path):
        raise BadInput(
            f"{name_or_path} holds images; compute features from them first, or use a network that reads images"
        )
    if name_or_path.endswith(".npz"):
        return load_feature_set(name_or_path)
    raise _unknown(name_or_path)


def load_images(name_or_path: str, data_root: Path, download: bool = False, image_size: int | None = None) -> ImageSet:
    """The named data set of images, looked for in ``data_root``, or the image file or image folder at that path."""
    if name_or_path in DATASETS:
        raise BadInput(f"{name_or_path} holds features; use a network that reads features")
    if name_or_path not in PUBLISHED and Path(name_or_path).is_dir():
        return load_image_folder(Path(name_or_path), image_size)
    if name_or_path in PUBLISHED:
        images = load_cifar(name_or_path, data_root, download)
    elif name_or_path.endswith(".npz"):
        images = load_image_file(name_or_path)
    else:
        raise _unknown(name_or_path)
    height, width = images.train_x.shape[1:3]
    if image_size is not None and (height, width) != (image_size, image_size):
        raise BadInput(
            f"--image-size {image_size}: the images of {name_or_path} are {height}x{width}, and only image folders are "
            "resized; leave the option out"
        )
    return images


def holds_images(name_or_path: str) -> bool:
    """Whether ``load_images`` is the one to read it; False for what does not exist."""
    if name_or_path in DATASETS:
        return False
    path = Path(name_or_path)
    if name_or_path in PUBLISHED or path.is_dir():
        return True
    if not (name_or_path.endswith(".npz") and zipfile.is_zipfile(path)):
        return False
    with opened_zip(path) as archive:
        return "train_images.npy" in archive.namelist()


def _unknown(name_or_path: str) -> BadInput:
    return BadInput(
        f"unknown data set {name_or_path!r}; there are {', '.join((*DATASETS, *PUBLISHED))}, or give the path of a feature "
        "set or image file (.npz) or of an image folder"
    )
