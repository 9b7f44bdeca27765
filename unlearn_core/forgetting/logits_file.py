"""The logits of a black box: an ``.npz`` with ``train_logits`` (N, C) and ``test_logits`` (M, C)."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput

NAMES = ("train_logits", "test_logits")


@dataclass(frozen=True, eq=False)
class Logits:
    train: NDArray[np.floating]
    test: NDArray[np.floating]


def load_logits(path: Path, n_train: int, n_test: int) -> Logits:
    """Read and check them; nothing is unpickled."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise BadInput(f"no logits at {path}; it is an .npz with {' and '.join(NAMES)}, written with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if absent := [name for name in NAMES if name not in archive.files]:
                raise BadInput(f"{path}: array {absent[0]!r} is missing; logits are {' and '.join(NAMES)}")
            train, test = (archive[name] for name in NAMES)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BadInput(f"{path} is damaged ({error}); write it again") from error
    except ValueError as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} holds pickled objects, which are not loaded; save logits as plain floats") from error
    for name, values, n_rows in (("train_logits", train, n_train), ("test_logits", test, n_test)):
        if values.ndim != 2 or values.dtype.kind != "f" or len(values) != n_rows:
            raise BadInput(
                f"{path}: {name} has shape {values.shape}, dtype {values.dtype}; the data needs floats ({n_rows}, "
                "classes)"
            )
    if train.shape[1] != test.shape[1]:
        raise BadInput(f"{path}: train_logits are of {train.shape[1]} classes, test_logits of {test.shape[1]}")
    return Logits(train, test)
