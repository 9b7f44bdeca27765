"""CIFAR-10 and CIFAR-100 from their published files.

torchvision knows their names and md5 sums, and downloads them. It does not read them here, because it would unpickle
anything.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import pickle
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.images import CIFAR10_CLASSES, ImageSet, cifar10_superclass
from unlearn_core.errors import BadInput

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

SIDE = 32
PIXEL_BYTES = 3 * SIDE * SIDE


@dataclass(frozen=True)
class PublishedSet:
    """The numbers of a published data set, for plans that are made before it is there."""

    n_train: int
    n_test: int
    n_fine: int
    n_super: int


PUBLISHED: Mapping[str, PublishedSet] = MappingProxyType(
    {
        "cifar10": PublishedSet(n_train=50_000, n_test=10_000, n_fine=10, n_super=2),
        "cifar100": PublishedSet(n_train=50_000, n_test=10_000, n_fine=100, n_super=20),
    }
)


@dataclass(frozen=True)
class BinaryVersion:
    """The version for C programs, which torchvision does not know: records of label bytes and 3072 pixel bytes."""

    folder: str
    archive: str
    md5: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    names_file: str
    label_bytes: int
    """1: the label. 2: the coarse label, then the fine one."""


BINARY: Mapping[str, BinaryVersion] = MappingProxyType(
    {
        "cifar10": BinaryVersion(
            folder="cifar-10-batches-bin",
            archive="cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            train_files=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
            test_files=("test_batch.bin",),
            names_file="batches.meta.txt",
            label_bytes=1,
        ),
        "cifar100": BinaryVersion(
            folder="cifar-100-binary",
            archive="cifar-100-binary.tar.gz",
            md5="03b5dce01913d631647c71ecec9e9cb8",
            train_files=("train.bin",),
            test_files=("test.bin",),
            names_file="fine_label_names.txt",
            label_bytes=2,
        ),
    }
)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The records of one file, with (n, 3072) pixels channel by channel, or of one part, with (n, 32, 32, 3)."""

    pixels: NDArray[np.uint8]
    fine: NDArray[np.int64]
    coarse: NDArray[np.int64] | None
    """CIFAR-100's superclasses; CIFAR-10's files have none."""


_Content = tuple[_Rows, _Rows, tuple[str, ...] | None]
"""Training rows, test rows, and class names if their file is there."""


def load_cifar(
    name: str,
    root: Path,
    download: bool = False,
    authority: type[CIFAR10] | None = None,
    binary: BinaryVersion | None = None,
) -> ImageSet:
    """Read ``cifar10`` or ``cifar100`` from its folder or archive in ``root``: the python version or the binary one.

    Args:
        authority: the torchvision class whose files and md5 sums hold; torchvision's own unless given.
        binary: the same for the binary version.
    """
    if name not in PUBLISHED:
        raise BadInput(f"unknown CIFAR {name!r}; there are {', '.join(PUBLISHED)}")
    published = PUBLISHED[name]
    authority = authority or _torchvision_class(name)
    binary = binary or BINARY[name]
    folder = _find_or_fetch(name, root, download, authority, binary)
    if folder == root / authority.base_folder:
        train, test, names = _read_python(folder, authority, published)
    else:
        train, test, names = _read_binary(folder, binary, published)
    if names is None:
        names = CIFAR10_CLASSES if name == "cifar10" else tuple(str(c) for c in range(published.n_fine))
    if train.coarse is None or test.coarse is None:
        superclass = cifar10_superclass()
    else:
        fine, coarse = np.concatenate((train.fine, test.fine)), np.concatenate((train.coarse, test.coarse))
        superclass = _superclass(folder, fine, coarse, published.n_fine)
    return ImageSet(
        name=name,
        train_x=train.pixels,
        train_y=train.fine,
        test_x=test.pixels,
        test_y=test.fine,
        class_names=names,
        superclass=superclass,
    )


def _torchvision_class(name: str) -> type[CIFAR10]:
    from torchvision.datasets import CIFAR10, CIFAR100  # seconds to load, which users of features need not wait for

    return {"cifar10": CIFAR10, "cifar100": CIFAR100}[name]


def _find_or_fetch(name: str, root: Path, download: bool, authority: type[CIFAR10], binary: BinaryVersion) -> Path:
    """The folder that holds the data set, extracted or downloaded if need be."""
    versions = (
        (root / authority.base_folder, root / authority.filename, authority.tgz_md5),
        (root / binary.folder, root / binary.archive, binary.md5),
    )
    for folder, _, _ in versions:
        if folder.is_dir():
            return folder
    if download and not any(archive.is_file() for _, archive, _ in versions):
        _download(root, authority)
    for folder, archive, md5 in versions:
        if archive.is_file():
            _extract(archive, md5, folder)
            return folder
    raise BadInput(
        f"{name} is not in {root}; put {authority.filename} there, name the folder that has it with --data-root, or let "
        "--download fetch it"
    )


def _download(root: Path, authority: type[CIFAR10]) -> None:
    from torchvision.datasets.utils import download_url

    try:
        root.mkdir(parents=True, exist_ok=True)
        # under its own name the archive is whole or not there at all
        with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as unfinished:
            download_url(authority.url, unfinished, authority.filename, authority.tgz_md5)
            os.replace(Path(unfinished, authority.filename), root / authority.filename)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise BadInput(
            f"--download tried {authority.url} and failed ({error}); get {authority.filename} another way and put it in "
            f"{root}"
        ) from error


def _extract(archive: Path, md5: str, folder: Path) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    _check_md5(archive, found, md5, "delete it and put a good one there or use --download")
    try:
        # under its own name the folder is whole or not there at all
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".extract-") as unfinished:
            with tarfile.open(archive) as tar:
                _extract_plain_files(tar, Path(unfinished))
            os.rename(Path(unfinished, folder.name), folder)
    except (OSError, tarfile.TarError) as error:
        if folder.is_dir():
            return  # another process was faster
        raise BadInput(
            f"{archive} cannot be extracted to {folder} ({error}); free the space, or extract it elsewhere and name that "
            "folder with --data-root"
        ) from error


def _check_md5(path: Path, found: str, published: str, remedy: str) -> None:
    if found != published:
        raise BadInput(f"{path} is damaged (md5 {found}, published {published}); {remedy}")


def _extract_plain_files(tar: tarfile.TarFile, into: Path) -> None:
    """The archives hold plain files alone; anything else, or a path that leads out, is refused.

    By hand, because the filters of ``tarfile`` came with Python 3.11.4, and Debian's is older.
    """
    for member in tar:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name} is no plain file or lies outside the destination")
        content = tar.extractfile(member)
        if content is not None:
            place = into / path
            place.parent.mkdir(parents=True, exist_ok=True)
            with content, place.open("wb") as file:
                shutil.copyfileobj(content, file)


def _read_python(folder: Path, authority: type[CIFAR10], published: PublishedSet) -> _Content:
    remedy = f"delete {folder} and put {authority.filename} beside it or use --download"

    def read(file: str, md5: str) -> _Rows:
        batch = _unpickle(folder / file, md5, remedy)
        fine = np.asarray(batch["labels" if "labels" in batch else "fine_labels"], dtype=np.int64)
        coarse = np.asarray(batch["coarse_labels"], dtype=np.int64) if "coarse_labels" in batch else None
        return _checked(_Rows(batch["data"], fine, coarse), folder / file, published, remedy)

    train, test = (_joined([read(*file) for file in files]) for files in (authority.train_list, authority.test_list))
    meta = authority.meta
    if not (folder / meta["filename"]).is_file():
        return train, test, None
    return train, test, tuple(_unpickle(folder / meta["filename"], meta["md5"], remedy)[meta["key"]])


class _ArraysOnly(pickle.Unpickler):
    """Loads containers, strings, numbers and numpy arrays: all that a CIFAR file holds, and nothing that can act."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        match module_name, global_name:
            case "numpy", "dtype":
                return _dtype
            case "numpy", "ndarray":
                return np.ndarray
            case (("numpy.core.multiarray" | "numpy._core.multiarray"), "_reconstruct"):  # numpy 1, numpy 2
                return super().find_class("numpy._core.multiarray", "_reconstruct")
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")


def _dtype(kind: str, align: int, copy: int) -> np.dtype:
    """The published files say 0 and 1 for False and True, of which numpy 2.4.0 to 2.4.4 warn."""
    return np.dtype(kind, bool(align), bool(copy))


def _unpickle(path: Path, md5: str, remedy: str) -> dict[str, Any]:
    if not path.is_file():
        raise BadInput(f"{path} is missing; {remedy}")
    content = path.read_bytes()  # read once, so that what is checked is what is loaded
    _check_md5(path, hashlib.md5(content, usedforsecurity=False).hexdigest(), md5, remedy)
    try:
        return _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise BadInput(f"{path} is not loaded ({error}); {remedy}") from error


def _read_binary(folder: Path, binary: BinaryVersion, published: PublishedSet) -> _Content:
    remedy = f"delete {folder} and put {binary.archive} beside it"

    def read(path: Path) -> _Rows:
        if not path.is_file():
            raise BadInput(f"{path} is missing; {remedy}")
        size, record = path.stat().st_size, binary.label_bytes + PIXEL_BYTES
        if size == 0 or size % record:
            raise BadInput(f"{path} has {size} bytes, not a whole number of records of {record}; {remedy}")
        records = np.fromfile(path, dtype=np.uint8).reshape(-1, record)
        labels = records[:, : binary.label_bytes].astype(np.int64)
        coarse = labels[:, 0] if binary.label_bytes == 2 else None
        return _checked(_Rows(records[:, binary.label_bytes :], labels[:, -1], coarse), path, published, remedy)

    train, test = (
        _joined([read(folder / file) for file in files]) for files in (binary.train_files, binary.test_files)
    )
    names_file = folder / binary.names_file
    if not names_file.is_file():
        return train, test, None
    names = tuple(names_file.read_text(encoding="utf-8", errors="replace").split())
    if len(names) != published.n_fine:
        raise BadInput(f"{names_file} has {len(names)} class names, not {published.n_fine}; {remedy}")
    return train, test, names


def _checked(rows: _Rows, path: Path, published: PublishedSet, remedy: str) -> _Rows:
    for what, labels, n in (("label", rows.fine, published.n_fine), ("coarse label", rows.coarse, published.n_super)):
        if labels is not None and (outside := np.flatnonzero((labels < 0) | (labels >= n))).size:
            raise BadInput(
                f"{path}: record {outside[0]} has the {what} {labels[outside[0]]}, outside 0..{n - 1}; {remedy}"
            )
    return rows


def _joined(files: Sequence[_Rows]) -> _Rows:
    """The rows of several files, one after the other, as images with the channels last."""
    images = np.empty((sum(len(rows.fine) for rows in files), SIDE, SIDE, 3), dtype=np.uint8)
    done = 0
    for rows in files:
        images[done : done + len(rows.fine)] = rows.pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        done += len(rows.fine)
    coarse = [rows.coarse for rows in files if rows.coarse is not None]
    return _Rows(images, np.concatenate([rows.fine for rows in files]), np.concatenate(coarse) if coarse else None)


def _superclass(folder: Path, fine: NDArray[np.int64], coarse: NDArray[np.int64], n_fine: int) -> NDArray[np.int64]:
    """The coarse label of each fine one, as the rows have it."""
    superclass = np.zeros(n_fine, dtype=np.int64)
    superclass[fine] = coarse
    disagreeing = np.flatnonzero(superclass[fine] != coarse)
    if disagreeing.size:
        label, first = fine[disagreeing[0]], coarse[disagreeing[0]]
        raise BadInput(
            f"{folder}: class {label} has the coarse labels {first} and {superclass[label]}; a class has one superclass, "
            "so the files are mixed up: get them again"
        )
    return superclass
