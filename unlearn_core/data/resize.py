"""Images at a network's size, each resized once and straight from its original."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

CHUNK = 128  # images that are floats at a time


def resize_images(
    images: NDArray[np.uint8], size: int, out: NDArray[np.uint8], on_chunk: Callable[[int], None] | None = None
) -> None:
    """Fill ``out`` (N, size, size, 3) with ``images`` (N, H, W, 3), bilinear, antialiased where they shrink.

    Both may be memory-mapped: only a chunk of them is ever held as floats.

    Args:
        on_chunk: called with the number of images done.
    """
    for start in range(0, len(images), CHUNK):
        rows = slice(start, start + CHUNK)
        if images.shape[1:3] == (size, size):
            out[rows] = images[rows]
        else:
            batch = torch.from_numpy(np.ascontiguousarray(images[rows])).permute(0, 3, 1, 2).float()
            resized = functional.interpolate(batch, (size, size), mode="bilinear", antialias=True)
            out[rows] = resized.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
        if on_chunk is not None:
            on_chunk(min(start + CHUNK, len(images)))
