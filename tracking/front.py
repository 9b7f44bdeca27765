"""Closeness against cost: each method as points (cost, KL), and who is closest at a share of the retrain's cost.

The measure of every method is ``short``, a retrain cut short: it needs no base network and no forgotten rows. Where
``short-small``, the same in smaller batches, was run too, the closer of the two at that cost is the measure. No point
is picked with the retrain at hand: within a budget a method counts with its last record, not with its closest; what trains
for as long as it may, as ``short`` does, counts where the budget ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tracking.entries import Entry, Spread, mean_over_seeds, ratio, spread, unlearned_nothing
from tracking.tree import TreeVariant
from unlearn_core import methods

SHORT = "short"
CUT_SHORT: tuple[str, ...] = (SHORT, "short-small")
"""Plain training on D_r from scratch: none of them is a rival of the others."""
BUDGETS: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1)
"""Shares of a retrain's cost."""
HEADLINE = 0.01
"""The share that a report's first sentence is about."""
HELD = 1.25
"""So many times the cost of its last record a retrain cut short is taken to be as close as it was there."""
KL_F, KL_T = "kl_f", "kl_t"
MEASURES: tuple[str, ...] = (KL_F, KL_T)


@dataclass(frozen=True)
class Point:
    """A record over seeds. A KL is None if it is not finite in some seed."""

    cost: float
    kl_f: Spread | None
    kl_t: Spread | None

    def mean(self, measure: str) -> float | None:
        found = self.kl_f if measure == KL_F else self.kl_t
        return None if found is None else found.mean


@dataclass(frozen=True)
class Trajectory:
    """A method's points in the order of its records."""

    method: str
    points: tuple[Point, ...]
    preparation: float | None
    """Over the retrain's cost; None in trees that do not say."""

    def within(self, budget: float) -> Point | None:
        """The last record that costs no more."""
        affordable = [point for point in self.points if point.cost <= budget]
        return affordable[-1] if affordable else None


def percent(budget: float) -> str:
    return f"{100 * budget:g} %"


def trajectories(variant: TreeVariant) -> tuple[Trajectory, ...]:
    """Of the methods that every seed has and that unlearn in some, in the table's order.

    Computed once: tables, claims, figures and the page ask for them a dozen times, which took most of a report's time.
    """
    if "trajectories" not in variant.kept:
        rows = variant.methods if variant.has("retrain") else ()
        found = (_trajectory(variant.entries, method) for method in rows if variant.has(method))
        variant.kept["trajectories"] = tuple(trajectory for trajectory in found if trajectory.points)
    return variant.kept["trajectories"]


def _trajectory(entries: Sequence[Entry], method: str) -> Trajectory:
    """A point for every epoch at which a seed has a record, once all have begun.

    Seeds may stop at different epochs: one that has stopped counts with its last record. So does one in which a proxy was
    not admissible: its only record is the base.
    """
    if all(unlearned_nothing(entry, method) for entry in entries):
        return Trajectory(method, (), None)
    histories = [entry[method]["epochs"] for entry in entries]
    begun = max(history[0]["epoch"] for history in histories)
    epochs = sorted({record["epoch"] for history in histories for record in history if record["epoch"] >= begun})
    points = []
    for epoch in epochs:
        records = [[record for record in history if record["epoch"] <= epoch][-1] for history in histories]
        costs = spread(
            ratio(record["seconds"], entry["retrain"]["seconds"])
            for record, entry in zip(records, entries, strict=True)
        )
        if costs is not None:
            kl_f, kl_t = (spread(record[measure] for record in records) for measure in MEASURES)
            points.append(Point(costs.mean, kl_f, kl_t))
    return Trajectory(method, tuple(points), mean_over_seeds(entries, method, "last", "preparation"))


def interpolated(trajectory: Trajectory, measure: str, budget: float) -> float | None:
    """KL at exactly this cost, on a straight line between records on two log axes.

    None before the first record: nothing is known of less training, so that ``short`` is no competitor there. The last one
    stands for costs up to ``HELD`` times its own, and for no more: what goes on training comes closer.
    """
    known = [
        (point.cost, kl)
        for point in trajectory.points
        if (kl := point.mean(measure)) is not None and kl > 0 < point.cost
    ]
    if not known or budget < known[0][0]:
        return None
    for (cost, kl), (next_cost, next_kl) in pairwise(known):
        if cost <= budget < next_cost:
            share = math.log(budget / cost) / math.log(next_cost / cost)
            return math.exp((1 - share) * math.log(kl) + share * math.log(next_kl))
    last_cost, last_kl = known[-1]
    return last_kl if budget <= HELD * last_cost else None


def reached(trajectory: Trajectory, measure: str, budget: float) -> float | None:
    """What goes on for as long as it may ends at the budget; all else with the last record within it.

    Beyond its records a rival counts with the last; of the competitor nothing is known there.
    """
    point = trajectory.within(budget)
    last = None if point is None else point.mean(measure)
    if not methods.is_cut_short(trajectory.method):
        return last
    kl = interpolated(trajectory, measure, budget)
    return last if kl is None and trajectory.method not in CUT_SHORT else kl


@dataclass(frozen=True)
class Place:
    """Who is closest within a budget on a measure, and ``short`` at the same cost; None if there is none."""

    budget: float
    measure: str
    method: str | None
    kl: float | None
    cost: float | None
    preparation: float | None
    short: float | None

    @property
    def ratio(self) -> float | None:
        """Below 1 if the method is closer than a retrain cut short at the same cost."""
        return ratio(self.kl, self.short)


def places(variant: TreeVariant) -> list[Place]:
    """One for every budget and measure; none if no method can be placed. Computed once, as what they are found among."""
    if "places" not in variant.kept:
        found = trajectories(variant)
        variant.kept["places"] = tuple(_place(found, b, m) for b in BUDGETS for m in MEASURES) if found else ()
    return list(variant.kept["places"])


def headline_budget(found: Sequence[Place]) -> float | None:
    """1 % of a retrain's cost, or the next budget at which any method is done."""
    return next((b for b in BUDGETS if b >= HEADLINE and any(p.method for p in found if p.budget == b)), None)


def _place(found: Sequence[Trajectory], budget: float, measure: str) -> Place:
    rivals = [
        (kl, cost, trajectory)
        for trajectory, cost in _rivals(found, budget)
        if (kl := reached(trajectory, measure, budget)) is not None
    ]
    short = short_at(found, measure, budget)
    if not rivals:
        return Place(budget, measure, None, None, None, None, short)
    kl, cost, winner = min(rivals, key=lambda rival: rival[:2])
    return Place(budget, measure, winner.method, kl, cost, winner.preparation, short)


def over_short(variant: TreeVariant, budget: float) -> dict[str, tuple[float, float]]:
    """Ratios to ``short`` on KL_f and KL_t, by method, of all that can be compared with it at this cost."""
    found = trajectories(variant)
    ratios: dict[str, tuple[float, float]] = {}
    for trajectory, _ in _rivals(found, budget):
        kl_f, kl_t = (ratio(reached(trajectory, m, budget), short_at(found, m, budget)) for m in MEASURES)
        if kl_f is not None and kl_t is not None:
            ratios[trajectory.method] = (kl_f, kl_t)
    return ratios


def _rivals(found: Sequence[Trajectory], budget: float) -> Iterator[tuple[Trajectory, float]]:
    """Each with what it spends of the budget."""
    for trajectory in found:
        if trajectory.method not in CUT_SHORT and (point := trajectory.within(budget)) is not None:
            lasts = methods.is_cut_short(trajectory.method)
            yield trajectory, min(budget, trajectory.points[-1].cost) if lasts else point.cost


def short_at(found: Sequence[Trajectory], measure: str, budget: float) -> float | None:
    kls = (interpolated(t, measure, budget) for t in found if t.method in CUT_SHORT)
    return min((kl for kl in kls if kl is not None), default=None)
