"""Which records an audit asks about: the same ones of every shadow, so that a record has many networks' answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.splits import pool_rows, scenario_mask
from unlearn_core.errors import BadInput
from unlearn_core.grid import Scenario
from unlearn_core.seeding import derive_seed

RowNumbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AuditRows:
    """Row numbers, ascending.

    Attributes:
        forget: training rows that are forgotten: by every shadow (class, subclass), or by some (random).
        retain: training rows that no shadow forgets.
        test: rows of the test set, whatever their class.
    """

    forget: RowNumbers
    retain: RowNumbers
    test: RowNumbers


def audit_rows(
    scenario: Scenario, key: int, pool: int | None, fine_labels: NDArray[np.int64], n_test: int, most: int
) -> AuditRows:
    """At most ``most`` rows of each part, drawn once for the request, whatever the shadow.

    Args:
        key: the fine label to forget (class, subclass) or the number of rows (random).
        pool: of how many rows random requests are drawn; None for class and subclass.
        fine_labels: (N,) of the training set.
    """
    n_rows = len(fine_labels)
    if pool is None:
        if scenario is Scenario.RANDOM:
            raise BadInput("an audit of random requests draws from a pool; say how large it is")
        forgotten = np.flatnonzero(scenario_mask(scenario, key, fine_labels, 0))
    else:
        forgotten = pool_rows(pool, n_rows)
    return draw_rows(forgotten, n_rows, n_test, most)


def draw_rows(forgotten: RowNumbers, n_rows: int, n_test: int, most: int) -> AuditRows:
    """At most ``most`` of the forgotten rows, of the others and of the test rows."""
    others = np.setdiff1d(np.arange(n_rows), forgotten)

    def some(rows: RowNumbers, name: str) -> RowNumbers:
        return np.sort(np.random.default_rng(derive_seed(0, "audit", name)).permutation(rows)[:most])

    return AuditRows(some(forgotten, "forget"), some(others, "retain"), some(np.arange(n_test), "test"))


def forgotten_by(rows: AuditRows, key: int, pool: int, n_rows: int, seed: int) -> NDArray[np.bool_]:
    """(n,) which of the ``forget`` rows one shadow of a random request forgets."""
    return scenario_mask(Scenario.RANDOM, key, np.zeros(n_rows, dtype=np.int64), seed, pool)[rows.forget]
