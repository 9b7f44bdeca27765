"""Membership inference by the loss: records that are to be forgotten against held-out rows of their classes.

Records stand out if they are surer than held-out rows, and as much if they are less sure: what was pushed too far tells
that it was there. So the attack is two-sided, and its distance from chance is what counts.

A score means something only beside the retrain's own: an honest retrain is not at 0.5 where the records are easier or
harder than the held-out rows. It is one attack and a weak one: a low score shows little, a high one shows leakage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearn_core.closeness import class_weights

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Attack:
    """All of it is undefined (NaN) if there are no records or no held-out rows."""

    auc: float
    """Probability that a record is surer than a held-out row; ties count half."""
    balanced_accuracy: float
    """Of the best threshold above which rows count as members, chosen with knowledge of the answer.

    One-sided: records that were pushed too far, and stand out by a low confidence, count as safe.
    """
    two_sided_accuracy: float
    """Of the best threshold above which, or below which, rows count as members: (1 + Kolmogorov's distance) / 2."""
    chance: float
    """What |auc - 0.5| may be by chance: twice its standard error if nothing tells the records from held-out rows."""

    @property
    def distance(self) -> float:
        """From chance, on either side: 0.44 is 0.06 away, and so is 0.56."""
        return abs(self.auc - 0.5)

    @property
    def stands_out(self) -> bool:
        return self.distance > self.chance


@dataclass(frozen=True, eq=False)
class Matched:
    """Held-out rows of the classes that some records have.

    Attributes:
        rows: (m,) their numbers among the held-out rows.
        labels: (m,).
        weights: (m,) of mean 1, which give them the records' class shares.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.integer]
    weights: Array

    @staticmethod
    def to(records: NDArray[np.integer], heldout: NDArray[np.integer], most: int | None = None) -> Matched | None:
        """None if there are no such rows.

        Args:
            records, heldout: (n,) and (M,) labels.
            most: as many, evenly spread, are enough.
        """
        rows = np.flatnonzero(np.isin(heldout, records))
        if most is not None and len(rows) > most:
            rows = rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]
        if not len(rows):
            return None
        return Matched(rows, heldout[rows], class_weights(records, heldout[rows]))

    def of(self, log_p: Array) -> Array:
        """(m,) log probabilities of the true class, from (M, C) on all held-out rows."""
        return log_p[self.rows, self.labels]


def threshold_attack(records: Array, heldout: Array, weights: Array | None = None) -> Attack:
    """How well a threshold on the confidence tells records from held-out rows.

    Args:
        records, heldout: (n,) and (m,) probability, or log probability, that a model gives to the true class.
        weights: (m,) of the held-out rows, at least 0; by default they count alike.
    """
    n, m = len(records), len(heldout)
    weights = np.ones(m) if weights is None else weights
    if n == 0 or not weights.sum() > 0:
        return Attack(math.nan, math.nan, math.nan, math.nan)
    order = np.argsort(heldout, kind="stable")
    shares = np.concatenate([[0.0], np.cumsum(weights[order]) / weights.sum()])
    found, others = np.sort(records), heldout[order]

    def below(values: Array, side: str) -> Array:
        """The share of held-out rows below each value, or up to it."""
        return shares[np.searchsorted(others, values, side=side)]  # pyright: ignore[reportArgumentType, reportCallIssue]

    auc = float((below(found, "left") + below(found, "right")).mean() / 2)
    # members are those at or above a threshold, or those below it; each that tells most lies at one of the values
    places = np.concatenate([found, others])
    missed = np.searchsorted(found, places, side="left") / n
    surplus = below(places, "left") - missed
    effective = weights.sum() ** 2 / (weights**2).sum()
    return Attack(
        auc,
        0.5 + 0.5 * max(float(surplus.max()), 0.0),
        0.5 + 0.5 * float(np.abs(surplus).max()),
        2 * math.sqrt((n + effective + 1) / (12 * n * effective)),
    )
