"""``auto`` for a budget: which method a request gets within a share of a retrain's cost. No torch.

The rule sees what kind of request it is (tested with D, D_f, held-out inputs and the base), whether the network is a
linear head, the budget, and of a Newton step what it cost and how many right answers on the records it took away. It sees
no retrain and no test label. Its numbers were set on the development requests, which are in no grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from unlearn_core.baselines.short import SMALL_BATCH
from unlearn_core.edits import newton_crossfit
from unlearn_core.request_kind import RequestKind

LINEAR = "linear"
"""The architecture without hidden layers."""
NEWTON, NEWTON_CG, TRUNCATE, REGROW, SHORT_SMALL = "newton", "newton-cg", "truncate", "regrow", "short-small"
SHORT, NEWTON_CROSSFIT = "short", "newton-crossfit"
MOST_DROPPED = 0.1
"""The accuracy on the records that a Newton step may take away: it is of first order, and no guide to a large change."""
TRAINING_PAYS = 0.03
"""The share of a retrain from which on training anew comes closer to it for a group than a trusted Newton step does."""
TRUNCATION_ENDS = 0.02
"""The share of a retrain from which on one cut short comes closer to it for a class than shutting its output does:
0.30 / 0.16 after one epoch, 0.54 / 0.11 for ``truncate``."""
LARGE_BATCHES_PAY = 0.06
"""From this share on ``short``, in the retrain's own batches, is at least as close as ``short-small``."""
SECOND_ORDER_COSTS = 0.025
"""What ``newton-cg`` and ``regrow`` take of a linear head's retrain, at most: 1.1 to 2.3 % on the development requests."""


EPOCH_OF_SMALL_BATCHES = 1.4
"""What an epoch of ``short-small`` takes, in epochs of the retrain."""
LEAST_STEPS = 400
"""Steps that a retrain cut short should make, in as many epochs as a whole one has at most."""
STEP_PER_RECORD = 4.0
"""What a Newton step takes for every record, in rows of training: gradients in double precision, and two looks back."""
MORE_TRAINING = "more training: about half the distance for twice the cost"
TAUGHT_ROW = 2.0
"""What ``newton-crossfit`` takes for every row that it teaches, in rows of training: its batches are small."""


def affordable_epochs(budget: float, retrain_epochs: int, method: str) -> float:
    """For how long a retrain is cut short."""
    return budget * retrain_epochs / (EPOCH_OF_SMALL_BATCHES if method == SHORT_SMALL else 1.0)


def least_training_cost(n_retained: int, retrain_epochs: int) -> float:
    """What ``LEAST_STEPS`` of ``short-small`` take of a retrain: more than all of it for some thousand rows."""
    epochs = LEAST_STEPS / math.ceil(n_retained / SMALL_BATCH)
    return EPOCH_OF_SMALL_BATCHES * epochs / retrain_epochs


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


@dataclass(frozen=True)
class NewtonStep:
    """What is known of a Newton step without a retrain: its cost, and the accuracy on the records that it took away."""

    cost: float
    dropped: float


def choose_within(
    kind: RequestKind,
    linear: bool,
    budget: float,
    newton: NewtonStep | None = None,
    taught_cost: float | None = None,
    least_training: float = 0.0,
) -> BudgetChoice | None:
    """The method for a kind of request; None if the kind is unknown: then proxies are weighed instead.

    Args:
        linear: whether the network is a head without hidden layers.
        budget: a share of the retrain's cost.
        newton: a Newton step on this request; None if nobody took one.
        taught_cost: of ``newton-crossfit``, as a share of the retrain's; None if it cannot be had.
        least_training: what a retrain cut short takes at the least; infinite if fresh weights cannot be had.
    """
    if kind is RequestKind.UNKNOWN:
        return None
    if kind is RequestKind.WHOLE_CLASS:
        return _for_class(linear, budget, max(least_training, TRUNCATION_ENDS))
    if linear and budget >= SECOND_ORDER_COSTS:
        why = "a linear head has no memory of single records, and a step of second order is nearly a retrain"
        return BudgetChoice(NEWTON_CG, why, NEWTON, "nothing")
    if newton is not None and newton.cost > budget:
        return _cut_short(budget, f"a Newton step on so many records takes {newton.cost:.1%} of a retrain")
    if linear:
        return BudgetChoice(
            NEWTON, "a linear head is nearly convex", SHORT_SMALL, f"{NEWTON_CG}, from {SECOND_ORDER_COSTS:.1%} on"
        )
    if kind is RequestKind.EXCHANGEABLE:
        return _for_scattered(budget, taught_cost)
    return _for_group(budget, newton)


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
    if not linear and budget >= training_pays:
        return _cut_short(budget, f"from {training_pays:.1%} of a retrain on training anew is closer than {TRUNCATE}")
    later, share = (REGROW, SECOND_ORDER_COSTS) if linear else (SHORT_SMALL, training_pays)
    more = f"{later}, from {share:.1%} on" if share < 1 else "nothing"
    return BudgetChoice(TRUNCATE, "the class leaves the answer, the others keep their ratios", SHORT_SMALL, more)


def _for_group(budget: float, newton: NewtonStep | None) -> BudgetChoice:
    if newton is None:
        return _cut_short(budget, "the records belong together, and would be missing together in a retrain")
    if newton.dropped > MOST_DROPPED:
        why = f"a Newton step takes {newton.dropped:.0%} of the answers on the records away: too much for first order"
        return _cut_short(budget, why)
    if budget < TRAINING_PAYS:
        why = f"a Newton step takes {newton.dropped:.1%} of the answers on the records away, which first order can tell"
        more = f"{SHORT_SMALL}, closer from {TRAINING_PAYS:.0%} of a retrain on"
        return BudgetChoice(NEWTON, why, SHORT_SMALL, more)
    return _cut_short(budget, f"from {TRAINING_PAYS:.0%} of a retrain on training anew is closer than a Newton step")


def _cut_short(budget: float, why: str) -> BudgetChoice:
    method = SHORT if budget >= LARGE_BATCHES_PAY else SHORT_SMALL
    return BudgetChoice(method, why, NEWTON, MORE_TRAINING)
