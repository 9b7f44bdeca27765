"""What was read from the store stays as it was read, whatever happens to the file afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from tasks.compute.reading import MAPPED_BYTES, read_array, read_weights
from unlearn_core.data.weights import save_safetensors


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def test_weights_that_were_read_outlive_their_file(tmp_path):
    """A head on the digits is smaller than a page, of which a mapped file's lost half would turn to zeros."""
    file = tmp_path / "weights.safetensors"
    save_safetensors(file, {"weight": torch.ones(64, 10), "bias": torch.ones(10)})
    read = read_weights(file)
    cut(file)
    assert all(bool((tensor == 1).all()) for tensor in read.values())


def test_a_small_array_that_was_read_outlives_its_file_and_a_large_one_is_mapped(tmp_path):
    small, large = tmp_path / "small.npy", tmp_path / "large.npy"
    np.save(small, np.ones(360))
    np.save(large, np.ones(MAPPED_BYTES // 8 + 1))
    read = read_array(small)
    cut(small)
    assert np.array_equal(read, np.ones(360))
    assert isinstance(read_array(large), np.memmap)
