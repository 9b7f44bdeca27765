"""Which training rows are forgotten: pure functions that give a boolean mask over D, never empty and never all of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput
from unlearn_core.grid import Scenario
from unlearn_core.seeding import derive_seed

Mask = NDArray[np.bool_]


def scenario_mask(
    scenario: Scenario, key: int, fine_labels: NDArray[np.int64], seed: int, pool: int | None = None
) -> Mask:
    """The forget mask of a grid cell; only ``random`` depends on the seed.

    Args:
        key: the fine label to forget (class, subclass) or the number of rows (random).
        fine_labels: (N,) fine labels of the training set.
        pool: draw random rows from so many that are the same for every seed, as an audit needs them.
    """
    if pool is not None:
        return _pooled_mask(key, pool, len(fine_labels), seed)
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


def pool_rows(pool: int, n_rows: int) -> NDArray[np.int64]:
    """(pool,) the rows from which every shadow of an audit draws what it forgets."""
    if not 1 <= pool < n_rows:
        raise BadInput(f"cannot draw from {pool} of {n_rows} rows; the pool has 1..{n_rows - 1}")
    return np.random.default_rng(derive_seed(0, "audit", "pool")).permutation(n_rows)[:pool]


def _pooled_mask(n_forget: int, pool: int, n_rows: int, seed: int) -> Mask:
    """A part of the pool. Seeds 2j and 2j + 1 take the two ends of one shuffled pool: of a pool twice as large as the
    request, either has what the other lacks, so that every record is forgotten under exactly one of the two."""
    rows = pool_rows(pool, n_rows)
    if not 1 <= n_forget <= pool:
        raise BadInput(f"cannot forget {n_forget} rows of a pool of {pool}")
    order = np.random.default_rng(derive_seed(seed // 2, "audit", "forget")).permutation(rows)
    mask = np.zeros(n_rows, dtype=bool)
    mask[order[:n_forget] if seed % 2 == 0 else order[pool - n_forget :]] = True
    return mask


def checked_mask(mask: Mask, source: str) -> Mask:
    """``mask`` itself, once it is known to leave something on either side."""
    n_forget = int(mask.sum())
    if n_forget == 0:
        raise BadInput(f"{source} forgets no row of {len(mask)}; there is nothing to do")
    if n_forget == len(mask):
        raise BadInput(f"{source} forgets all {len(mask)} rows; delete the model instead")
    return mask
