"""``auto`` for a budget: which method a request gets within a share of a retrain's cost. No torch.

The rule sees what kind of request it is (tested with D, D_f, held-out inputs and the base), whether the network is a
linear head, the budget, and what the methods cost. It sees no retrain and no test label. Its numbers were set on the
development requests, which are in no grid.

A group gets a retrain cut short and no Newton step, though that was closer on the first development group: on the five
odd subclasses (mlp1, seed 100) its KL_f was 0.4, 2.7, 4.8, 1.0 and 0.9 times that of a retrain cut short at the same cost,
and how many right answers it took away (1.5, 5.8, 0.4, 5.0, 2.6 %) does not tell which. What does tell is whether a model of
the retained rows still knows the records (``kept_answers``): then training starts from a share of the base's weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from unlearn_core.edits import newton_crossfit
from unlearn_core.request_kind import RequestKind

LINEAR = "linear"
"""The architecture without hidden layers."""
NEWTON, NEWTON_CG, NEWTON_WALK = "newton", "newton-cg", "newton-walk"
TRUNCATE, REGROW, SHORT_SMALL = "truncate", "regrow", "short-small"
SHORT, SHORT_WARM, NEWTON_CROSSFIT = "short", "short-warm", "newton-crossfit"
SHORT_WARM_GROUP, NEWTON_LAST = "short-warm-group", "newton-last"
TRUNCATION_ENDS = 0.01
"""The share of a retrain from which on ``short-warm`` comes closer to it for a class than shutting its output does: on the
classes 1, 3 and 5 0.35 / 0.12 at 0.9 %, 0.59 / 0.11 for ``truncate``, 0.40 / 0.17 for ``short-small`` at 1.3 %; of linear
heads 0.26 / 0.088 at 1 %, 1.6 / 0.15 for ``truncate``."""
LARGE_BATCHES_PAY = 0.06
"""From this share on ``short``, in the retrain's own batches, is at least as close as ``short-small``: on the five odd
subclasses 0.045 / 0.015 and 0.032 / 0.015 at 3 %, 0.024 / 0.009 and 0.027 / 0.011 at 6 %."""
ANSWERS_KEPT = 0.9
"""The share of right answers on a group that a model without it must keep for the base's weights to be of use: 0.96 and more
on the odd subclasses, 0.01 on automobiles put among the animals, which any share of the base remembers."""
SECOND_ORDER_COSTS = 0.028
"""What ``newton-cg`` and ``regrow`` take of a linear head's retrain, at most: 2.2 to 2.8 % on the development requests."""
WALK_COSTS = 0.075
"""What ``newton-walk`` takes, at most: 7.1 % on the development requests."""

EPOCH_OF_SMALL_BATCHES = 1.4
"""What an epoch of ``short-small`` takes, in epochs of the retrain."""
LEAST_STEPS = 400
"""Steps that a retrain cut short should make, in as many epochs as a whole one has at most."""
LEAST_WARM_STEPS = 40
"""The same from weights that are not all fresh: about what a hundredth of a retrain has on 45,000 rows."""
STEP_PER_RECORD = 4.0
"""What a Newton step takes for every record, in rows of training: gradients in double precision, and two looks back."""
MORE_TRAINING = "more training: about half the distance for twice the cost"
TAUGHT_ROW = 2.0
"""What ``newton-crossfit`` takes for every row that it teaches, in rows of training: its batches are small."""


def affordable_epochs(budget: float, retrain_epochs: int, method: str) -> float:
    """For how long a retrain is cut short."""
    return budget * retrain_epochs / (EPOCH_OF_SMALL_BATCHES if method == SHORT_SMALL else 1.0)


def least_warm_cost(n_retained: int, retrain_epochs: int, batch_size: int) -> float:
    """What ``LEAST_WARM_STEPS`` of ``short-warm`` take of a retrain: more than all of it for some hundred rows."""
    return LEAST_WARM_STEPS / (math.ceil(n_retained / batch_size) * retrain_epochs)


def least_steps(method: str) -> int:
    """Of a retrain cut short."""
    return LEAST_WARM_STEPS if method in (SHORT_WARM, SHORT_WARM_GROUP) else LEAST_STEPS


def newton_cost(n_records: int, n_rows: int, retrain_epochs: int) -> float:
    """What a Newton step takes of a retrain, about: a request does not time a retrain."""
    return STEP_PER_RECORD * n_records / (retrain_epochs * (n_rows - n_records))


def newton_crossfit_cost(n_records: int, n_rows: int, retrain_epochs: int) -> float:
    """What the step and the teaching after it take of a retrain, about: 0.9 % for 1000 of 50,000 rows, as was measured."""
    retained = min(max(n_records, newton_crossfit.NewtonCrossFitConstants().retained), n_rows - n_records)
    taught = newton_crossfit.SCHEDULE.epochs * (n_records + retained)
    training = TAUGHT_ROW * taught / (retrain_epochs * (n_rows - n_records))
    return newton_cost(n_records, n_rows, retrain_epochs) + training


@dataclass(frozen=True)
class BudgetChoice:
    """What is used, why, what would have been used next, and what a larger budget buys."""

    method: str
    why: str
    runner_up: str
    more: str


def choose_within(
    kind: RequestKind,
    linear: bool,
    budget: float,
    step_cost: float | None = None,
    taught_cost: float | None = None,
    least_warm: float = 0.0,
    kept: float | None = None,
    deep: bool = False,
) -> BudgetChoice | None:
    """The method for a kind of request; None if the kind is unknown: then proxies are weighed instead.

    Args:
        linear: whether the network is a head without hidden layers.
        budget: a share of the retrain's cost.
        step_cost: of a Newton step, as a share of the retrain's; None if it is not known.
        taught_cost: of ``newton-crossfit``, as a share of the retrain's; None if it cannot be had.
        least_warm: what ``short-warm`` takes at the least; infinite if fresh weights cannot be had.
        kept: the share of right answers on the records that a model without them keeps (``kept_answers``), if it is known.
        deep: whether the network was trained end to end, and is no head on features.
    """
    if kind is RequestKind.UNKNOWN:
        return None
    if deep:
        return _for_deep(kind, budget, least_warm)
    if kind is RequestKind.WHOLE_CLASS:
        return _for_class(linear, budget, max(least_warm, TRUNCATION_ENDS))
    if linear and budget >= SECOND_ORDER_COSTS:
        why = "a linear head has no memory of single records, and a step of second order is nearly a retrain"
        if budget >= WALK_COSTS:
            return BudgetChoice(NEWTON_WALK, f"{why}; more steps follow if it is long", NEWTON_CG, "nothing")
        return BudgetChoice(NEWTON_CG, why, NEWTON, f"{NEWTON_WALK}, from {WALK_COSTS:.1%} on")
    if kind is RequestKind.GROUP and not linear:
        return _for_group(budget, least_warm, kept)
    if step_cost is not None and step_cost > budget:
        return _cut_short(budget, f"a Newton step on so many records takes {step_cost:.1%} of a retrain", NEWTON)
    if linear:
        return BudgetChoice(
            NEWTON, "a linear head is nearly convex", SHORT_SMALL, f"{NEWTON_CG}, from {SECOND_ORDER_COSTS:.1%} on"
        )
    return _for_scattered(budget, taught_cost)


def _for_deep(kind: RequestKind, budget: float, least_warm: float) -> BudgetChoice:
    """Set on the development requests of ResNet-8 (docs/records/deep_development.csv).

    What remembers is the features, so that no step above them and no model of them helps much; and two trainings are so far
    apart that a short one, which is less sure, is closer to the retrain than the network is, on scattered rows too.
    """
    if budget >= least_warm:
        why = "the features themselves remember, and a retrain cut short that starts from a part of them does so less"
        return BudgetChoice(SHORT_WARM, why, SHORT, MORE_TRAINING)
    later = f"{SHORT_WARM}, from {least_warm:.1%} on" if least_warm < 1 else "nothing"
    if kind is RequestKind.WHOLE_CLASS:
        return BudgetChoice(TRUNCATE, "the class leaves the answer, the others keep their ratios", SHORT, later)
    if kind is RequestKind.GROUP:
        return BudgetChoice(SHORT, "the records would be missing together in a retrain", NEWTON_LAST, later)
    return BudgetChoice(NEWTON_LAST, "a step on the last layer leaves all else alone", SHORT, later)


def _for_scattered(budget: float, taught_cost: float | None) -> BudgetChoice:
    if taught_cost is None or taught_cost > budget:
        why = "the records could as well have been held out, and one step leaves all else alone"
        more = "nothing" if taught_cost is None else f"{NEWTON_CROSSFIT}, from {taught_cost:.2g} of a retrain on"
        return BudgetChoice(NEWTON, why, SHORT_SMALL if taught_cost is None else NEWTON_CROSSFIT, more)
    why = "the records could as well have been held out: one step, then what models that never saw them say of them"
    return BudgetChoice(NEWTON_CROSSFIT, why, NEWTON, "nothing: a second retrain is no closer")


def _for_class(linear: bool, budget: float, training_pays: float) -> BudgetChoice:
    if linear and budget >= SECOND_ORDER_COSTS:
        return BudgetChoice(REGROW, "a linear head still gives a class that it never met a share", TRUNCATE, "nothing")
    if budget >= training_pays:
        why = f"from {training_pays:.1%} of a retrain on, training from a part of the model is closer than {TRUNCATE}"
        return BudgetChoice(SHORT_WARM, why, TRUNCATE, MORE_TRAINING)
    later, share = (REGROW, SECOND_ORDER_COSTS) if linear and training_pays >= 1 else (SHORT_WARM, training_pays)
    more = f"{later}, from {share:.1%} on" if share < 1 else "nothing"
    return BudgetChoice(TRUNCATE, "the class leaves the answer, the others keep their ratios", later, more)


def _for_group(budget: float, least_warm: float, kept: float | None) -> BudgetChoice:
    why = "the records belong together, and would be missing together in a retrain"
    if kept is None:
        return _cut_short(budget, why)
    known = f"a model of the others still knows {kept:.0%} of those that it knew"
    if kept >= ANSWERS_KEPT and least_warm <= budget < LARGE_BATCHES_PAY:
        return BudgetChoice(SHORT_WARM_GROUP, f"{why}, but {known}", SHORT_SMALL, MORE_TRAINING)
    return _cut_short(budget, f"{why}; {known}")


def _cut_short(budget: float, why: str, runner_up: str | None = None) -> BudgetChoice:
    """Without a ``runner_up`` it is the same in the other batches."""
    method, other = (SHORT, SHORT_SMALL) if budget >= LARGE_BATCHES_PAY else (SHORT_SMALL, SHORT)
    return BudgetChoice(method, why, runner_up or other, MORE_TRAINING)
