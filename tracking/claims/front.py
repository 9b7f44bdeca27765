"""What this project would like to claim: that some method is closer to the retrain than plain training for as long."""

from __future__ import annotations

from functools import partial

from tracking.claims.judging import MOST, Case, ClaimRule, Kind, each, said
from tracking.entries import clock_is_steady, mean_over_seeds
from tracking.front import SHORT, over_short, percent, trajectories
from tracking.tree import Tree, TreeVariant
from unlearn_core.grid import Scenario

COSTS: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1)


def _some_method_is_closer(budget: float, variant: TreeVariant) -> Case | None:
    """Of the methods that are closer than the base on KL_f, the one that does best where it does worst."""
    if not clock_is_steady(variant.entries):
        return None
    base = mean_over_seeds(variant.entries, "base", "last", "kl_f")
    kl_f = {t.method: point.mean("kl_f") for t in trajectories(variant) if (point := t.within(budget))}
    ratios = over_short(variant, budget)
    if not ratios or base is None:
        return None
    unlearning = {name: both for name, both in ratios.items() if (kl_f[name] or 0.0) < base}
    if not unlearning:
        return Case(variant, False, "no method is closer than the base on KL_f", f"at {percent(budget)}")
    name = min(unlearning, key=lambda name: max(unlearning[name]))
    on_kl_f, on_kl_t = unlearning[name]
    numbers = said(f"x {SHORT}, {name}", {"KL_f": on_kl_f, "KL_t": on_kl_t})
    return Case(variant, max(on_kl_f, on_kl_t) < 1, numbers, f"at {percent(budget)}")


def front_claims(tree: Tree) -> tuple[ClaimRule, ...]:
    """For every scenario that has ``short``; nothing in trees without it."""
    present = [s for s in Scenario if any(v.variant.scenario is s and v.has(SHORT) for v in tree.variants)]
    return tuple(
        ClaimRule(
            f"closer-than-short-{scenario}-{100 * budget:g}",
            "ours",
            f"{str(scenario).capitalize()}: at {percent(budget)} of a retrain's cost some method is closer to the retrain "
            "than a retrain cut short there.",
            f"In a {scenario} variant where the floor took the retrain's time to within a quarter, one and the same method "
            f"has, at its last record within {percent(budget)} of the retrain's cost, a smaller mean KL_f and a smaller "
            f"mean KL_t than {SHORT} at that cost, and a smaller mean KL_f than the base",
            MOST,
            each((scenario,), (SHORT, "base", "retrain"), partial(_some_method_is_closer, budget)),
            needs=f"{scenario} variant with {SHORT} and another method at {percent(budget)}, and a steady clock,",
            in_paper=None,
            kind=Kind.OWN,
        )
        for scenario in present
        for budget in COSTS
    )
