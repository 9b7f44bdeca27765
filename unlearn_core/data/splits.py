"""Which training rows are forgotten: pure functions that give a boolean mask over D, never empty and never all of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput
from unlearn_core.grid import Scenario
from unlearn_core.seeding import derive_seed

Mask = NDArray[np.bool_]


def scenario_mask(scenario: Scenario, key: int, fine_labels: NDArray[np.int64], seed: int) -> Mask:
    """The forget mask of a grid cell; only ``random`` depends on the seed.

    Args:
        key: the fine label to forget (class, subclass) or the number of rows (random).
        fine_labels: (N,) fine labels of the training set.
    """
    if scenario is Scenario.RANDOM:
        return _random_mask(key, len(fine_labels), seed)
    n_fine = int(fine_labels.max()) + 1
    if not 0 <= key < n_fine:
        raise BadInput(f"{scenario} key {key} is not a label; labels are 0..{n_fine - 1}")
    return checked_mask(fine_labels == key, f"{scenario} {key}")


def _random_mask(n_forget: int, n_rows: int, seed: int) -> Mask:
    if not 1 <= n_forget < n_rows:
        raise BadInput(f"cannot forget {n_forget} random rows of {n_rows}; ask for 1..{n_rows - 1}")
    mask = np.zeros(n_rows, dtype=bool)
    order = np.random.default_rng(derive_seed(seed, "forget")).permutation(n_rows)
    mask[order[:n_forget]] = True
    return mask


def checked_mask(mask: Mask, source: str) -> Mask:
    """``mask`` itself, once it is known to leave something on either side."""
    n_forget = int(mask.sum())
    if n_forget == 0:
        raise BadInput(f"{source} forgets no row of {len(mask)}; there is nothing to do")
    if n_forget == len(mask):
        raise BadInput(f"{source} forgets all {len(mask)} rows; delete the model instead")
    return mask
