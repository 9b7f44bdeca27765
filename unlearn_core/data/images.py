"""Sets of images, and their file format.

An ``.npz`` with ``train_images`` (N, H, W, 3) uint8, ``train_y`` (N,), ``test_images``, ``test_y`` and, optionally,
``superclass`` (C,), ``class_names`` (C,), ``ids`` (N,) as in a feature set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.labelled import FileFormat, LabelledSet, labels_from_arrays, named_by
from unlearn_core.errors import BadInput

CIFAR10_CLASSES: tuple[str, ...] = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
CIFAR10_VEHICLES = frozenset({"airplane", "automobile", "ship", "truck"})


def cifar10_superclass() -> NDArray[np.int64]:
    """0 animal, 1 vehicle."""
    return np.array([name in CIFAR10_VEHICLES for name in CIFAR10_CLASSES], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ImageSet(LabelledSet):
    """A labelled set whose rows are (H, W, 3) uint8 RGB images, all of one size."""

    FORMAT: ClassVar[FileFormat] = FileFormat("image file", inputs="images", writer="save_image_file")

    train_x: NDArray[np.uint8]
    test_x: NDArray[np.uint8]

    def _check_rows(self, what: str, x: NDArray) -> None:
        if x.ndim != 4 or x.shape[-1] != 3 or 0 in x.shape:
            raise BadInput(
                f"{what} has shape {x.shape}; it must be (rows, height, width, 3) with at least one row: move colour "
                "channels to the end, repeat a grey one three times"
            )
        if x.dtype != np.uint8:
            raise BadInput(f"{what} has dtype {x.dtype}; save pixels as uint8, 0..255")

    def _check_parts_match(self) -> None:
        train, test = self.train_x.shape[1:3], self.test_x.shape[1:3]
        if train != test:
            raise BadInput(
                f"{self.name}: test_images are {test[0]}x{test[1]} and train_images {train[0]}x{train[1]}; resize both "
                "to one size"
            )


def load_image_file(path: str | Path) -> ImageSet:
    """Read and check an image file. Nothing in it is unpickled."""
    path = Path(path)
    name, _ = named_by(path.stem)
    return image_set_from_arrays(name, ImageSet.FORMAT.read(path), source=str(path))


def image_set_from_arrays(name: str, arrays: dict[str, NDArray], source: str) -> ImageSet:
    """Build an image set from plain arrays named as in the file format; CIFAR-10's own class names need not be there."""
    labels = labels_from_arrays(arrays, source)
    if name == "cifar10" and len(labels.class_names) == len(CIFAR10_CLASSES):
        if "class_names" not in arrays:
            labels = replace(labels, class_names=CIFAR10_CLASSES)
        # other names may mean another order of the classes
        if "superclass" not in arrays and labels.class_names == CIFAR10_CLASSES:
            labels = replace(labels, superclass=cifar10_superclass())
    return ImageSet(
        name=name,
        train_x=arrays["train_images"],
        train_y=labels.train_y,
        test_x=arrays["test_images"],
        test_y=labels.test_y,
        class_names=labels.class_names,
        superclass=labels.superclass,
        ids=arrays.get("ids"),
    )


def save_image_file(path: str | Path, images: ImageSet) -> None:
    """Write ``images`` in the file format that ``load_image_file`` reads."""
    ImageSet.FORMAT.write(path, images)
