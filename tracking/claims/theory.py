"""What is true by algebra, checked on the recorded numbers: a violation is a bug, in the results or in the proof."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tracking.claims.judging import EVERY, Case, Cases, ClaimRule, Kind, said
from tracking.entries import gaussian_proxies
from tracking.tree import Tree

ROUNDING = 1e-9
"""Of float64 sums over tens of thousands of rows, relative to 1 nat or more."""


def _per_target(test: Callable[[dict[str, Any]], bool | None], *terms: str) -> Cases:
    """A case for every variant and proxy: true if it is so in every seed whose bound is finite and says something."""

    def cases(tree: Tree) -> Iterator[Case]:
        for variant in tree.variants:
            for proxy in gaussian_proxies():
                bounds = [entry[proxy]["target"].get("bound") for entry in variant.entries_with(proxy)]
                finite = [bound for bound in bounds if bound and None not in bound.values()]
                judged = [(bound, verdict) for bound in finite if (verdict := test(bound)) is not None]
                if judged:
                    means = {term: math.fsum(bound[term] for bound, _ in judged) / len(judged) for term in terms}
                    yield Case(variant, all(verdict for _, verdict in judged), said("KL", means), proxy)

    return cases


def _at_most(value: float, limit: float) -> bool:
    return value <= limit + ROUNDING * (1 + abs(limit))


def _bounded(bound: dict[str, Any]) -> bool:
    return _at_most(bound["measured"], bound["tight_bound"])


def _decreased(bound: dict[str, Any]) -> bool | None:
    if bound["kl_retrain_retain_proxy"] > bound["kl_retrain_proxy"]:
        return None
    return _at_most(bound["measured"], bound["kl_retrain_base"])


def _convex(tree: Tree) -> Iterator[Case]:
    for variant in tree.variants:
        for proxy in gaussian_proxies():
            curves = [entry[proxy]["target"]["h_curve"] for entry in variant.entries_with(proxy)]
            if bulges := [_bulge(curve) for curve in curves if len(curve) > 2]:
                yield Case(variant, max(bulges) <= ROUNDING, f"greatest bulge {max(bulges):.1g}", proxy)


def _bulge(curve: Sequence[Sequence[float | None]]) -> float:
    """How far a point lies above the chord of its neighbours, at most, relative to 1 nat or more; 0 if convex."""
    points = [(eta, h) for eta, h in curve if eta is not None and h is not None]
    above = [
        h1 - (h0 + (h2 - h0) * (e1 - e0) / (e2 - e0))
        for (e0, h0), (e1, h1), (e2, h2) in zip(points, points[1:], points[2:], strict=False)
    ]
    return max([0.0, *above]) / (1 + max((abs(h) for _, h in points), default=0.0))


IDENTITIES: tuple[ClaimRule, ...] = (
    ClaimRule(
        "tight-bound",
        "prop:tight-bound",
        "The divergence from the retrained model to the target is bounded.",
        "For a proxy on a variant, KL(retrain || target) over the training rows is at most the bound with its remainder, in "
        "every seed where that is finite",
        EVERY,
        _per_target(_bounded, "measured", "tight_bound"),
        needs="proxy with a finite bound",
        in_paper=None,
        kind=Kind.IDENTITY,
    ),
    ClaimRule(
        "provable-decrease",
        "prop:decrease",
        "If P_r is a better model of the retrain than P, which only the retrain can tell, the target is closer to the "
        "retrain than the base is.",
        "For a proxy on a variant, KL(retrain || target) <= KL(retrain || base) over the training rows, in every seed where "
        "KL(retrain || P_r) <= KL(retrain || P)",
        EVERY,
        _per_target(_decreased, "measured", "kl_retrain_base"),
        needs="proxy whose P_r is the better model of the retrain",
        in_paper=None,
        kind=Kind.IDENTITY,
    ),
    ClaimRule(
        "h-convex",
        "fig:h_eta",
        "h(eta) is convex.",
        "For a proxy on a variant, no point of the recorded curve lies above the chord of its neighbours, in any seed",
        EVERY,
        _convex,
        needs="recorded curve",
        in_paper=None,
        kind=Kind.IDENTITY,
    ),
)
