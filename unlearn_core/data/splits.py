"""Which training rows are forgotten: pure functions that give a boolean mask over D, never empty and never all of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.labelled import LabelledSet
from unlearn_core.errors import BadInput
from unlearn_core.seeding import derive_seed
from unlearn_core.spec import Scenario

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


def rows_mask(rows: Sequence[int] | NDArray[np.integer], n_rows: int, source: str = "the request") -> Mask:
    """The forget mask of an explicit list of row numbers."""
    wanted = np.asarray(rows)
    if wanted.size == 0:
        raise BadInput(f"{source} names no row; there is nothing to forget")
    if wanted.dtype.kind not in "iu":
        raise BadInput(f"{source} has dtype {wanted.dtype}; row numbers are integers")
    outside = wanted[(wanted < 0) | (wanted >= n_rows)]
    if outside.size:
        raise BadInput(f"{source}: rows {_some(outside)} do not exist; the training set has rows 0..{n_rows - 1}")
    _refuse_duplicates(wanted, f"{source}: row")
    mask = np.zeros(n_rows, dtype=bool)
    mask[wanted] = True
    return checked_mask(mask, source)


def ids_mask(ids: Sequence[int | str] | NDArray, data: LabelledSet, source: str = "the request") -> Mask:
    """The forget mask of a list of record ids; without an ``ids`` array, an id is a row number."""
    if data.ids is None:
        return rows_mask(np.asarray(ids), len(data.train_y), source)
    wanted = np.asarray(ids)
    if wanted.size == 0:
        raise BadInput(f"{source} names no record; there is nothing to forget")
    wanted = wanted.astype(str)
    _refuse_duplicates(wanted, f"{source}: id")
    row_of = {str(record): row for row, record in enumerate(data.ids)}
    missing = [record for record in wanted if record not in row_of]
    if missing:
        raise BadInput(f"{source}: ids {_some(np.asarray(missing))} are not in {data.name}; it has {len(row_of)} rows")
    mask = np.zeros(len(row_of), dtype=bool)
    mask[[row_of[record] for record in wanted]] = True
    return checked_mask(mask, source)


def checked_mask(mask: Mask, source: str) -> Mask:
    """``mask`` itself, once it is known to leave something on either side."""
    n_forget = int(mask.sum())
    if n_forget == 0:
        raise BadInput(f"{source} forgets no row of {len(mask)}; there is nothing to do")
    if n_forget == len(mask):
        raise BadInput(f"{source} forgets all {len(mask)} rows; delete the model instead")
    return mask


def _refuse_duplicates(wanted: NDArray, what: str) -> None:
    unique, counts = np.unique(wanted, return_counts=True)
    if len(unique) < len(wanted):
        doubled = unique[counts > 1]
        raise BadInput(f"{what} {doubled[0]!s} is asked for {counts.max()} times; name every record once")


def _some(values: NDArray) -> str:
    shown = ", ".join(str(value) for value in values[:5])
    return shown if len(values) <= 5 else f"{shown} (and {len(values) - 5} more)"
