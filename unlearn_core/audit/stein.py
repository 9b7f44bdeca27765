"""How many queries an attacker needs to tell the unlearned model from a retrained one.  [app:stein]

The bound is for an attacker who sees *predicted labels drawn from the model's posterior, at points drawn at random*. One who
picks the points of greatest divergence, or reads the probabilities themselves, may need fewer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from unlearn_core.errors import BadInput

UNBOUNDED = 2**63 - 1


def min_queries(kl: float, alpha: float = 1e-3) -> int:
    """N(alpha) = ceil((1 - 2 alpha) ln((1 - alpha) / alpha) / KL): fewer random queries do not reach error rates alpha.

    ``UNBOUNDED`` for KL = 0, where no number of queries is enough; 0 for an infinite KL, where the bound says nothing.
    """
    if not 0 < alpha < 0.5:
        raise BadInput(f"alpha {alpha} must lie between 0 and 0.5; it is the attacker's error rate")
    if math.isnan(kl) or kl < 0:
        raise BadInput(f"KL divergence {kl} must be a number of at least 0")
    needed = (1 - 2 * alpha) * math.log((1 - alpha) / alpha)
    if kl * UNBOUNDED <= needed:
        return UNBOUNDED
    return math.ceil(needed / kl)


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
