"""How many queries an attacker needs to tell the unlearned model from a retrained one.  [app:stein]

The bound is for an attacker who sees *predicted labels drawn from the model's posterior, at points drawn at random*. One who
picks the points of greatest divergence may need fewer: ``picked_queries``. One who reads the probabilities themselves may,
too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput

UNBOUNDED = 2**63 - 1


def min_queries(kl: float, alpha: float = 1e-3) -> int:
    """N(alpha) = ceil((1 - 2 alpha) ln((1 - alpha) / alpha) / KL): fewer random queries do not reach error rates alpha.

    ``UNBOUNDED`` for KL = 0, where no number of queries is enough; 0 for an infinite KL, where the bound says nothing.

    Examples:
        >>> min_queries(0.01), min_queries(1.0)
        (690, 7)
    """
    if not 0 < alpha < 0.5:
        raise BadInput(f"alpha {alpha} must lie between 0 and 0.5; it is the attacker's error rate")
    if math.isnan(kl) or kl < 0:
        raise BadInput(f"KL divergence {kl} must be a number of at least 0")
    needed = _needed(alpha)
    if kl * UNBOUNDED <= needed:
        return UNBOUNDED
    return math.ceil(needed / kl)


def picked_queries(kl_rows: NDArray[np.floating], alpha: float = 1e-3) -> int | None:
    """The fewest of these rows, each asked once, that may be enough for an attacker who picks them: those of greatest KL.

    Labels at different rows are independent, so that their KL adds up: the bound of ``min_queries``, with the sum over the
    rows that are asked in the place of N times the mean. None: all of the rows together are too few.

    Args:
        kl_rows: (n,) KL(retrain || model) of each row.
    """
    if len(kl_rows) and not np.min(kl_rows) >= -1e-6:  # of equal models it is rounded to just below zero
        raise BadInput(f"KL divergence {np.min(kl_rows)} must be a number of at least 0")
    known = np.cumsum(np.sort(np.maximum(kl_rows.astype(np.float64), 0.0))[::-1])
    place = int(np.searchsorted(known, _needed(alpha)))
    return None if place == len(known) else place + 1


def _needed(alpha: float) -> float:
    """What an attacker with both error rates at alpha must have learned, in nats."""
    return (1 - 2 * alpha) * math.log((1 - alpha) / alpha)


ALPHAS: tuple[float, ...] = (1e-3, 1e-2)


def stein_block(scores: Mapping[str, float | None], n_forget: int) -> dict[str, object]:
    """N_t and N_f for the usual error rates, and whether |D_f| points are too few; None where KL is not finite.

    Args:
        scores: with ``kl_t`` and ``kl_f``.
    """
    block: dict[str, object] = {"seen_by_attacker": "labels"}
    for alpha in ALPHAS:
        for where in ("t", "f"):
            kl = scores[f"kl_{where}"]
            # a KL of two almost equal models may be rounded to just below zero
            queries = None if kl is None else min_queries(max(kl, 0.0), alpha)
            block[f"n_{where}_at_{alpha:g}"] = queries
            if where == "f":
                block[f"indistinguishable_at_{alpha:g}"] = None if queries is None else queries > n_forget
    return block


def stein_in_words(block: Mapping[str, Any], n_forget: int, alpha: float = ALPHAS[0]) -> str:
    """What the block says of an attacker who draws forgotten records at random and sees labels."""
    needed = block[f"n_f_at_{alpha:g}"]
    if needed is None:
        return (
            "N_f: no bound, for the retrain gives weight to what the unlearned model rules out; one query may be enough"
        )
    known = "no number of" if needed == UNBOUNDED else f"at least {needed}"
    start = f"N_f: it takes {known} label queries to tell the unlearned model from the retrain at error {alpha:g}"
    if block[f"indistinguishable_at_{alpha:g}"]:
        return f"{start}; the {n_forget} records, each asked once at random, are too few"
    return f"{start}; the {n_forget} records may be enough, so that it is not shown to pass for the retrain on them"


def indistinguishable_on_forget(kl_f: float, n_forget: int, alpha: float = 1e-3) -> bool:
    """Whether as many random draws as there are forgotten points are too few: N_f > |D_f|. A picked point may tell more."""
    return min_queries(kl_f, alpha) > n_forget
