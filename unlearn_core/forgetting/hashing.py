"""SHA-256 of what a certificate speaks of: files by their bytes, arrays and weights by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def arrays_sha256(arrays: Mapping[str, NDArray]) -> str:
    """Over names, types, shapes and values, whatever file the arrays came from and whatever order they are in."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {value.dtype.str} {value.shape}\0".encode())
        digest.update(value.tobytes() if value.dtype.kind == "U" else value.data)
    return digest.hexdigest()
