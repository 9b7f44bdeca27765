"""Sets of images, their file format, and how they are brought to a network's size.

An ``.npz`` with ``train_images`` (N, H, W, 3) uint8, ``train_y`` (N,), ``test_images``, ``test_y`` and, optionally,
``superclass`` (C,), ``class_names`` (C,), ``ids`` (N,) as in a feature set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.labelled import LabelledSet, named_by
from unlearn_core.errors import BadInput

RESIZED_AT_ONCE = 128
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_VEHICLES = frozenset({"airplane", "automobile", "ship", "truck"})


def cifar10_superclass() -> NDArray[np.int64]:
    """0 animal, 1 vehicle."""
    return np.array([name in CIFAR10_VEHICLES for name in CIFAR10_CLASSES], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ImageSet(LabelledSet):
    """A labelled set whose rows are (H, W, 3) uint8 RGB images, all of one size."""

    KIND: ClassVar[str] = "image file"
    ROWS: ClassVar[str] = "images"
    WRITER: ClassVar[str] = "save_image_file"

    train_x: NDArray[np.uint8]
    test_x: NDArray[np.uint8]

    @classmethod
    def from_arrays(cls, name: str, arrays: Mapping[str, NDArray], source: str, **more: Any) -> Self:
        """As for any labelled set; CIFAR-10's own class names and superclasses need not be there."""
        return super().from_arrays(name, _with_own_names(name, arrays), source, **more)

    @classmethod
    def mapped(cls, name: str, path: Path) -> Self:
        return super().mapped(named_by(name)[0], path)

    @classmethod
    def map_arrays(cls, name: str, path: Path) -> dict[str, NDArray]:
        return _with_own_names(name, super().map_arrays(name, path))

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


def _with_own_names(name: str, arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """CIFAR-10 with the class names and superclasses that a file may leave out."""
    found, labels = dict(arrays), arrays["train_y"]
    usable = name == "cifar10" and labels.dtype.kind in "iu" and labels.size
    if not usable or int(labels.max()) + 1 != len(CIFAR10_CLASSES):
        return found
    found.setdefault("class_names", np.array(CIFAR10_CLASSES))
    if tuple(found["class_names"]) == CIFAR10_CLASSES:  # other names may mean another order of the classes
        found.setdefault("superclass", cifar10_superclass())
    return found


def load_image_file(path: str | Path, needs_test: bool = True) -> ImageSet:
    """Read and check an image file. Nothing in it is unpickled."""
    path = Path(path)
    name, _ = named_by(path.stem)
    return ImageSet.from_arrays(name, ImageSet.read_arrays(path, needs_test), source=str(path))


def save_image_file(path: str | Path, images: ImageSet) -> None:
    """Write ``images`` in the file format that ``load_image_file`` reads."""
    images.write(path)


def resize_images(
    images: NDArray[np.uint8], size: int, out: NDArray[np.uint8], on_chunk: Callable[[int], None] | None = None
) -> None:
    """Fill ``out`` (N, size, size, 3) with ``images`` (N, H, W, 3): bilinear, and antialiased if they shrink.

    Each image is resized once, straight from its original. Both arrays may be memory-mapped: only a chunk of them is ever
    held as floats.

    Args:
        on_chunk: called with the number of images done.
    """
    import torch
    from torch.nn import functional

    for start in range(0, len(images), RESIZED_AT_ONCE):
        rows = slice(start, start + RESIZED_AT_ONCE)
        if images.shape[1:3] == (size, size):
            out[rows] = images[rows]
        else:
            batch = torch.from_numpy(np.ascontiguousarray(images[rows])).permute(0, 3, 1, 2).float()
            resized = functional.interpolate(batch, (size, size), mode="bilinear", antialias=True)
            out[rows] = resized.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
        if on_chunk is not None:
            on_chunk(min(start + RESIZED_AT_ONCE, len(images)))
