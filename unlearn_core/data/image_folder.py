"""A data set as a folder of image files: ``train/CLASS/*.png``, ``test/CLASS/*.png``, optionally ``superclasses.csv``."""

from __future__ import annotations

import contextlib
import csv
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.images import ImageSet
from unlearn_core.errors import BadInput

if TYPE_CHECKING:
    from PIL.Image import Image

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
EIGHT_BIT_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
SUPERCLASSES = "superclasses.csv"


def load_image_folder(path: Path, size: int | None = None) -> ImageSet:
    """Read a folder; classes are its ``train`` folders in alphabetical order, rows follow classes and file names.

    Args:
        size: makes every image ``size`` x ``size``: shorter side to ``size``, centre crop. Needed unless all images are
            of one size already.
    """
    if size is not None and size < 1:
        raise BadInput(f"--image-size {size} is no size; it is a number of pixels, such as 32")
    if not path.is_dir():
        raise BadInput(f"no image folder at {path}; it has train/CLASS and test/CLASS folders of images")
    class_names = tuple(_subfolders(path / "train"))
    train_files, train_labels = _labelled_files(path / "train", class_names)
    if empty := [name for label, name in enumerate(class_names) if label not in train_labels]:
        raise BadInput(f"{path / 'train' / empty[0]} holds no image; fill the folder or delete it")
    if strange := [name for name in _subfolders(path / "test") if name not in class_names]:
        raise BadInput(f"{path / 'test' / strange[0]} is no class of {path / 'train'}; test classes must occur there")
    test_files, test_labels = _labelled_files(path / "test", class_names)
    if not test_files:
        raise BadInput(f"{path / 'test'} holds no image; put test/CLASS/*.png there")
    shape = (size, size) if size is not None else _common_shape([*train_files, *test_files])
    return ImageSet(
        name=path.resolve().name,
        train_x=_decoded(train_files, shape),
        train_y=np.array(train_labels, dtype=np.int64),
        test_x=_decoded(test_files, shape),
        test_y=np.array(test_labels, dtype=np.int64),
        class_names=class_names,
        superclass=_read_superclasses(path / SUPERCLASSES, class_names),
        ids=np.array([file.relative_to(path).as_posix() for file in train_files]),
    )


def _labelled_files(folder: Path, class_names: Sequence[str]) -> tuple[list[Path], list[int]]:
    """The image files of one part, and the label of each."""
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(class_names):
        if (folder / name).is_dir():
            found = _images_in(folder / name)
            files += found
            labels += [label] * len(found)
    return files, labels


def _visible(folder: Path) -> list[Path]:
    """What lies in a folder, apart from hidden files (.DS_Store), in an order that is the same everywhere."""
    return sorted((entry for entry in folder.iterdir() if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _subfolders(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise BadInput(f"{folder} is missing; an image folder has train/CLASS and test/CLASS folders of images")
    entries = _visible(folder)
    for entry in entries:
        if not entry.is_dir():
            raise BadInput(f"{entry} is in no class; move it into a folder named after its class, or delete it")
    if not entries:
        raise BadInput(f"{folder} is empty; it needs a folder of images for each class")
    return [entry.name for entry in entries]


def _images_in(folder: Path) -> list[Path]:
    """All files of a folder; refuses what is no image, because leaving it out in silence would change every result."""
    files = _visible(folder)
    for file in files:
        if not file.is_file() or file.suffix.lower() not in EXTENSIONS:
            raise BadInput(f"{file} is no image file ({', '.join(EXTENSIONS)}); convert it or delete it")
    return files


def _common_shape(files: Sequence[Path]) -> tuple[int, int]:
    """(height, width) of all files, from their headers alone."""
    first = _header_shape(files[0])
    for file in files[1:]:
        if (shape := _header_shape(file)) != first:
            raise BadInput(
                f"{files[0]} is {first[0]}x{first[1]} and {file} is {shape[0]}x{shape[1]} (height x width); bring all "
                "to one size with --image-size, such as --image-size 32"
            )
    return first


def _header_shape(file: Path) -> tuple[int, int]:
    with _opened(file) as image:
        return image.height, image.width


def _decoded(files: Sequence[Path], shape: tuple[int, int]) -> NDArray[np.uint8]:
    images = np.empty((len(files), *shape, 3), dtype=np.uint8)
    for row, file in enumerate(files):
        images[row] = np.asarray(_fitted(_rgb(file), shape))
    return images


def _rgb(file: Path) -> Image:
    with _opened(file) as image:
        mode, rgb = image.mode, image.convert("RGB")
    if mode not in EIGHT_BIT_MODES:  # PIL cuts off what is above 255
        raise BadInput(f"{file} has pixels of mode {mode}; save it with 8 bits per channel")
    return rgb


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Image]:
    from PIL import Image

    try:
        with Image.open(file) as image:
            yield image
    # what PIL's decoders raise on a damaged file
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise BadInput(f"{file} cannot be decoded ({error}); replace it or delete it") from error


def _fitted(image: Image, shape: tuple[int, int]) -> Image:
    """Shorter side to the asked one, longer in proportion, then the centre; bilinear, as torchvision does it."""
    if (image.height, image.width) == shape:
        return image
    from PIL.Image import Resampling

    side, shorter = shape[0], min(image.size)
    width, height = (side if length == shorter else int(side * length / shorter) for length in image.size)
    left, top = round((width - side) / 2), round((height - side) / 2)
    return image.resize((width, height), Resampling.BILINEAR).crop((left, top, left + side, top + side))


def _read_superclasses(path: Path, class_names: Sequence[str]) -> NDArray[np.int64] | None:
    """Superclasses are numbered in alphabetical order of their names."""
    if not path.is_file():
        return None
    superclass_of: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [(number, [field.strip() for field in row]) for number, row in enumerate(csv.reader(file), 1) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(
            f"{path} is not a CSV file in UTF-8 ({error}); write it with the columns class,superclass"
        ) from error
    if not rows or rows[0][1] != ["class", "superclass"]:
        raise BadInput(f"{path} does not start with the line class,superclass; add it")
    for number, row in rows[1:]:
        if len(row) != 2 or not all(row):
            raise BadInput(f"{path}: line {number} has {len(row)} fields; it needs a class and its superclass")
        name, superclass = row
        if name not in class_names:
            raise BadInput(f"{path}: line {number} names {name!r}, which is no class folder of train; correct the name")
        if superclass_of.setdefault(name, superclass) != superclass:
            raise BadInput(f"{path}: line {number} gives {name!r} a second superclass; a class has one")
    if missing := [name for name in class_names if name not in superclass_of]:
        raise BadInput(f"{path}: {missing[0]!r} has no superclass; add a line for each of {len(class_names)} classes")
    numbers = {name: number for number, name in enumerate(sorted(set(superclass_of.values())))}
    return np.array([numbers[superclass_of[name]] for name in class_names], dtype=np.int64)
