"""What ``auto`` reaches at each cost, from the records of a grid: a rule chooses, and only then is its KL looked up.

A cell's kind is known by how it was drawn: all rows of a class, rows at random, or a part of a class. Whether the tests of
``request_kind`` find the same is recorded beside it (``kinds_found``), and what they take is taken from the budget: a
retrain cut short asks nothing, and may train for as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracking.entries import mean_over_seeds, ratio
from tracking.front import MEASURES, SHORT, Trajectory, reached, short_at, trajectories
from tracking.tree import TreeVariant
from unlearn_core.edits.flow_path import FLOW
from unlearn_core.grid import RESNETS, Scenario
from unlearn_core.recipes import training_epochs, training_optimization
from unlearn_core.request_kind import RequestKind
from unlearn_core.within_budget import (
    NEWTON,
    NEWTON_CROSSFIT,
    SHORT_YOUNG,
    BudgetChoice,
    Costs,
    choose_within,
    hidden_layers,
    least_warm_cost,
    least_young_cost,
)

AUTO_BUDGETS: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1)
FLOOR_BUDGETS: tuple[float, ...] = (0.003, 0.01, 0.03, 0.06, 0.1)
KINDS = {
    Scenario.CLASS: RequestKind.WHOLE_CLASS,
    Scenario.RANDOM: RequestKind.EXCHANGEABLE,
    Scenario.SUBCLASS: RequestKind.GROUP,
}


@dataclass(frozen=True)
class AutoPlace:
    """What ``auto`` chose for a variant, and how close it came.

    Attributes:
        choice: for what of the budget is left when the request has been assessed.
        kl: of the chosen method, within that; None if nobody ran it so.
        short: a retrain cut short at the same cost.
        closer: the closer of ``short`` and ``short-small``, which takes a retrain to know.
        oracle: the closest of all methods within the budget, which takes one too.
        floor: a second retrain.
    """

    budget: float
    measure: str
    choice: BudgetChoice
    kl: float | None
    short: float | None
    closer: float | None
    oracle: float | None
    floor: float | None

    @property
    def over_short(self) -> float | None:
        return ratio(self.kl, self.short)

    @property
    def over_closer(self) -> float | None:
        return ratio(self.kl, self.closer)

    @property
    def over_floor(self) -> float | None:
        return ratio(self.kl, self.floor)

    @property
    def over_oracle(self) -> float | None:
        return ratio(self.kl, self.oracle)


def auto_choice(variant: TreeVariant, budget: float) -> BudgetChoice:
    """By what can be known without a retrain: the kind of request, the head, what a Newton step, its teaching and a flow
    cost, how many records there are, and whether a model without them still knows them."""
    entries = variant.entries
    step, taught, path = (
        mean_over_seeds(entries, method, "last", "cost") if variant.has(method) else None
        for method in (NEWTON, NEWTON_CROSSFIT, FLOW)
    )
    arch, n_retained = variant.variant.arch, min(entry["n_retain"] for entry in entries)
    deep = arch in RESNETS
    training = n_retained, training_epochs(arch), training_optimization(arch).batch_size
    least = least_warm_cost(*training, deep)
    young = least_young_cost(*training) if variant.has(SHORT_YOUNG) else None
    kept = [share for entry in entries if (share := entry.get("kept_answers")) is not None]
    known = sum(kept) / len(kept) if kept else None
    kind = KINDS[variant.variant.scenario]
    hidden = hidden_layers(arch)
    answered = path if hidden == 0 else None  # it has no other answer
    records = entries[0]["n_forget"]
    choice = choose_within(kind, hidden, budget, Costs(step, taught, least, answered, young), known, deep, records)
    if choice is None:
        raise ValueError(f"{variant.name} is of no kind")
    return choice


def auto_places(
    variant: TreeVariant, budgets: Sequence[float] = AUTO_BUDGETS, assessed: bool = True
) -> list[AutoPlace]:
    """One for every budget and measure; without ``assessed``, as if it took nothing to assess the request."""
    found, taken = trajectories(variant), assessment_cost(variant) if assessed else 0.0
    return [_place(variant, found, budget, measure, taken) for budget in budgets for measure in MEASURES]


def assessment_cost(variant: TreeVariant) -> float:
    """What it takes of a retrain to find out what the rule asks of a request; 0 in trees that do not say."""
    shares = [
        ratio(entry["assessment_seconds"], entry["retrain"]["seconds"]) if "assessment_seconds" in entry else 0.0
        for entry in variant.entries
    ]
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else 0.0


def kinds_found(variants: Sequence[TreeVariant]) -> tuple[int, int]:
    """In how many cells the tests find the kind that was drawn, and how many were tested."""
    tested = [
        (KINDS[variant.variant.scenario], entry["assessed_as"])
        for variant in variants
        for entry in variant.entries
        if "assessed_as" in entry
    ]
    return sum(drawn == found for drawn, found in tested), len(tested)


def _place(variant: TreeVariant, found: Sequence[Trajectory], budget: float, measure: str, taken: float) -> AutoPlace:
    left = max(budget - taken, 0.0)
    choice = auto_choice(variant, left)
    kls = {t.method: kl for t in found if (kl := reached(t, measure, budget)) is not None}
    chosen = next((reached(t, measure, left) for t in found if t.method == choice.method), None)
    floor = mean_over_seeds(variant.entries, "floor", "last", measure) if variant.has("floor") else None
    return AutoPlace(
        budget,
        measure,
        choice,
        chosen,
        kls.get(SHORT),
        short_at(found, measure, budget),
        min(kls.values(), default=None),
        floor,
    )
