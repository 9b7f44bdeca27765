"""Read what the store holds so that it stays as it was read.

A mapped file that is cut short afterwards changes what was read from it: the rest of its last page turns to zeros, without
an error, and steps would go on with such weights. What is small is therefore read whole. Beyond that page, a reader of a
large, mapped array is killed, which is noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load

MAPPED_BYTES = 2**24
"""Larger arrays are mapped, so that workers of a machine share them."""


def read_weights(file: Path) -> dict[str, torch.Tensor]:
    return load(file.read_bytes())


def read_array(file: Path) -> NDArray[Any]:
    mapped = file.stat().st_size > MAPPED_BYTES
    return np.load(file, mmap_mode="c" if mapped else None, allow_pickle=False)
