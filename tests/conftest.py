"""Shared small problems; everything is seeded and single-threaded, so that every run gives the same bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

torch.set_num_threads(1)


@dataclass(frozen=True)
class GaussianData:
    """Three Gaussian classes, the first made of two subclasses; some rows of it are to be forgotten."""

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    forget: NDArray[np.bool_]
    logits: NDArray[np.float64]
    n_classes: int = 3


@pytest.fixture(scope="session")
def data() -> GaussianData:
    rng = np.random.default_rng(7)
    n, d = 600, 6
    y = np.arange(n) % 3
    x = rng.normal(size=(n, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d))) + 0.7 * rng.normal(size=(3, d))[y]
    second_half = (y == 0) & (np.arange(n) % 2 == 0)
    x[second_half, :2] += 1.5
    forget = second_half & (rng.random(n) < 0.8)
    forget[1] = True  # one row of class 1, so that a class loses very little
    logits = 3.0 * np.eye(3)[y] + rng.normal(size=(n, 3))
    return GaussianData(x, y, forget, logits)
