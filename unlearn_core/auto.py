"""``auto``: which proxy a deletion request gets, by a rule that needs no retrain, no test set and no label of either.

Two numbers of a proxy can be had from D, D_f and the base network p alone: how well its P fits the network, KL(p||P), and
how much worse its P_r does, KL(p||P_r) - KL(p||P), which is what the request takes away from the network in the proxy's
eyes (it is -h'(0), so it is positive exactly where the proxy is admissible). The rule: of the admissible proxies that fit
the network about as well as the best proxy does, the one in whose eyes the request matters most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

AUTO = "auto"
DEFAULT_BUDGET = 0.05
"""Of a retrain's cost: what a request on a prepared state may spend, unless told."""
FIT_SLACK = 2.0
"""A proxy may be this many times as far from the network as the best one."""


@dataclass(frozen=True)
class Candidate:
    """One fitted proxy. ``fit`` is KL(p||P) and ``loss`` KL(p||P_r) - KL(p||P), in nats over D; ``loss`` may be infinite."""

    method: str
    admissible: bool
    eta_max: float
    fit: float
    loss: float


@dataclass(frozen=True)
class Choice:
    """``method`` is None where no proxy is admissible and would change anything."""

    method: str | None
    reason: str


def choose_proxy(candidates: Sequence[Candidate]) -> Choice:
    """The rule above; where a whole class leaves, all losses are infinite and the best fit decides."""
    if not candidates:
        raise ValueError("no proxy to choose from")
    best_fit = min(candidate.fit for candidate in candidates)
    close = [c for c in candidates if c.admissible and c.eta_max > 0 and c.fit <= FIT_SLACK * best_fit]
    if not close:
        best = min(candidates, key=lambda c: c.fit)
        admissible = [c for c in candidates if c.admissible]
        if not admissible:
            return Choice(None, "no proxy is admissible: without the data, each fits the network no worse than with it")
        return Choice(
            None,
            f"the admissible proxies ({', '.join(c.method for c in admissible)}) do not fit the network: the closest is "
            f"{min(c.fit for c in admissible):.3g} nats away; {best.method}, at {best.fit:.3g}, is not admissible",
        )
    chosen = max(close, key=lambda c: (c.loss, -c.fit))
    if math.isinf(chosen.loss):
        return Choice(
            chosen.method, f"a class leaves the data; {chosen.method} fits the network best ({chosen.fit:.3g} nats)"
        )
    others = ", ".join(f"{c.method} {c.loss:.3g}" for c in close if c is not chosen)
    if not others:
        return Choice(
            chosen.method,
            f"of the admissible proxies it alone is within {FIT_SLACK:g} times the best fit; to it the request matters by "
            f"{chosen.loss:.3g} nats",
        )
    return Choice(
        chosen.method,
        f"of the admissible proxies within {FIT_SLACK:g} times the best fit, it sees the request matter most: "
        f"{chosen.loss:.3g} nats (others: {others})",
    )
