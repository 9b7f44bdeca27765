"""``auto`` for a budget: which method a request gets within a share of a retrain's cost. No torch.

The rule sees what kind of request it is (tested with D, D_f, held-out inputs and the base), how many hidden layers the head
has, the budget, and what the methods cost. It sees no retrain and no test label. Its numbers were set on the development
requests, which are in no grid (docs/records, docs/trials.md).

A group gets a retrain cut short and no Newton step, though that was closer on the first development group: on the five
odd subclasses (mlp1, seed 100) its KL_f was 0.4, 2.7, 4.8, 1.0 and 0.9 times that of a retrain cut short at the same cost,
and how many right answers it took away (1.5, 5.8, 0.4, 5.0, 2.6 %) does not tell which. What does tell is whether a model of
the retained rows still knows the records (``kept_answers``): then training starts from a share of the base's weights.

Whatever trains for a short while draws hard rows (``doubt``), but where retrains are so far apart that less training is
closer to all of them: groups of deeper heads from 2.5 % on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from unlearn_core.edits import newton_crossfit
from unlearn_core.edits.flow_path import FLOW
from unlearn_core.grid import HIDDEN_LAYERS, RESNETS
from unlearn_core.request_kind import RequestKind

LINEAR = "linear"
"""The architecture without hidden layers."""
NEWTON, TRUNCATE, NEWTON_CROSSFIT, NEWTON_LAST = "newton", "truncate", "newton-crossfit", "newton-last"
SHORT, SHORT_SMALL, SHORT_WARM, SHORT_YOUNG = "short", "short-small", "short-warm", "short-young"
SHORT_HARD, SHORT_HARD_WARM = "short-hard", "short-hard-warm"
SHORT_HARD_GROUP, SHORT_HARD_LINEAR = "short-hard-group", "short-hard-linear"
SHORT_HARD_SLOW, SHORT_HARD_NEAR, SHORT_HARD_BASE = "short-hard-slow", "short-hard-near", "short-hard-base"
NEWTON_HARD = "newton-hard"
TRUNCATION_ENDS = 0.005
"""The share of a retrain from which on training comes closer to it for a class than shutting its output does, with one
hidden layer: on the classes 1, 3 and 5 0.47 / 0.16 at 0.3 %, 0.31 / 0.10 at 1 %, 0.59 / 0.11 for ``truncate``. Linear heads
and deeper ones train as soon as they can: ``truncate`` is at 1.4 to 4.5 there, and at 0.74 and 0.83."""
LARGE_BATCHES_PAY = 0.006
"""From this share on ``short``, in the retrain's own batches, is as close as ``short-small`` with one hidden layer: on 25
groups that the others do not stand for, 0.9 times its KL_f at 0.3 %. Linear heads are closer with small batches at every
cost; with two layers they are no safer guess than large ones."""
HARD_ENDS = {1: math.inf, 2: 0.025}
"""From this share on a group that the others stand for gets ``short``, by hidden layers, and before it hard rows. With two
layers retrains are far apart, and what trains less is closer to all of them: on five groups 0.56 times the KL_f of
``short`` at 1 %, 0.8 times at 2 %, 1.2 times at 3 %. With one 0.4 times at 1 and 3 %, 0.5 times at 6 %."""
HARD_ALONE = {1: (0.006, 0.08), 2: (0.006, 0.025)}
"""From and up to which share a group that they do not stand for gets hard rows: on six such groups 1.1 times the KL_f of
``short`` at 0.3 %, 0.9 times at 1, 3 and 6 %, 1.3 times at 10 %, with one hidden layer."""
HARD_CLASS_ENDS = {2: 0.05}
"""The same for classes, which then get ``short-warm``: with two layers 0.22 at 1 %, 0.19 at 3 % and 0.19 at 10 % where
``short-warm`` has 0.30, 0.21 and 0.16."""
ANSWERS_KEPT = 0.95
"""The share of right answers on a group that a model without it must keep for the base's weights to be of use. Of 19 groups
below it 0.3 of the base is farther away than ``short`` at 1 % in 16, up to 2.2 times; of 12 above it in two, 1.1 and 1.3
times, and 0.64 times in the mean."""
WARM_GROUP_ENDS = {1: 0.02, 2: 0.006}
"""From this share on a group gets nothing of the base, by hidden layers: hard rows alone are then as close, and never
remember."""
STEP_ENDS = 0.015
"""From this share on training from a part of the model is closer on scattered rows than a Newton step alone, with one hidden
layer, where ``newton-crossfit`` takes more: 0.116 / 0.090 at 1 %, 0.083 / 0.060 at 3 %, and 0.116 / 0.038 for the step.
Deeper heads train as soon as they can, linear ones never."""
LINEAR_STEP_ENDS = 0.02
"""From this share on a linear head that has taken the step goes on from there on hard rows: of 100 and 1000 records 0.0025 /
0.0020 and 0.0026 / 0.0023 at 3 %, 0.0038 / 0.0026 and 0.0039 / 0.0032 by the step alone. Where no step is taken hard rows
start from the base itself up to this share, 0.0096 and 0.0152 of 3000 and 8000 records at 1 %, and then from 0.7 of it:
0.0033 and 0.0043 at 8 %, where the base itself leads to 0.0036 and 0.0067."""
MANY_RECORDS = 2000
"""Scattered records from which on a linear head takes no Newton step: one for 1000 leaves retained rows alone, those for
3000 and 8000 were refused, after 2.5 and 5.8 % of a retrain."""
SLOW_STEPS_PAY = 0.08
"""From this share on a group of a linear head is trained in smaller steps: on five groups 0.5 times the KL_f of
``short-hard-linear`` at 10 %, 1.5 times at 6 %."""
TEACHING_ENDS = {1: 0.08, 2: 0.02}
"""From this share on ``short-warm`` is about as close on scattered rows as ``newton-crossfit``, by hidden layers: 0.067 to
0.076 at 10 %, 0.057 to 0.077; with two 0.11 to 0.13 at 3 %, 0.15."""

EPOCH_IN_BATCHES = {128: 1.6, 256: 1.2}
"""What an epoch in smaller batches takes, in epochs of a head's retrain (``benchmarks.hard_rows``)."""
LINEAR_EPOCH_IN_BATCHES = {128: 2.4, 256: 1.7}
"""The same without hidden layers, where a step is mostly what it takes whatever the batch."""
LEAST_STEPS = 10
"""Steps that a retrain cut short makes, whatever the budget, if a whole one is long: a quarter of a hundredth of it on
45,000 rows."""
LONG_RETRAIN = 2000
"""Steps from which on a retrain is a long one."""
MORE_STEPS = 400
"""The same if it is not, or for networks that were trained end to end; in as many epochs as a whole one has at most."""
MORE_WARM_STEPS = 40
"""The same from a share of the base. On the digits, where a retrain has 150, 15 steps are far worse than none: the classes
1, 3 and 5 are at 0.39 to 0.65 then, with ``truncate`` at 0.02 to 0.29."""
YOUNG_STEPS = 3
"""The same from a young network, which has learned most of it: 0.21 to 0.83 then, where ``short`` has 0.9 to 1.8."""
YOUNG_LAYERS = 2
"""Hidden layers from which on a head has use for a young network; with one layer a class is closer by ``truncate`` or from a
share of the base, and scattered rows by a Newton step."""
YOUNG_CLASS_ENDS, YOUNG_SCATTERED_ENDS = 0.005, 0.01
"""From these shares on training that starts from a share of the base is closer than from a young network, which comes no
closer with more of it: classes 0.33 and 0.64 at 0.2 %, 0.30 and 0.62 at 0.5 %, where the share has 0.45 and 0.74, 0.27 and
0.48 at 1 %; scattered rows 0.13 and 0.18, where it has 0.27 and 0.34 at 0.2 %, 0.15 and 0.21 at 1 %."""
LASTING_WARM = 8.0
"""Times the least of ``short-warm`` that it must last to be better than an edit of the network."""
STEP_PER_RECORD = 4.0
"""What a Newton step takes for every record, in rows of training: gradients in double precision, and two looks back."""
KNOWS_WHAT_COMES_FIRST = (
    "after a few epochs on all rows a network knows what a retrain learns first, and hardly the records"
)
ALIKE = "the records could as well have been held out"
ONE_STEP = f"{ALIKE}, and one step leaves all else alone"
MORE_TRAINING = "more training: about half the distance for twice the cost"
FLOW_ROW = (0.7, 1.2)
"""What ``flow`` takes for every row that it reads, in rows of training, with two classes and with more: 6 % of a retrain
with two, 15 % with ten, on 50,000 rows (``benchmarks.flow``). On the development requests it is as far from the retrain as
a second one is, groups that the others do not stand for among them."""
FEW_TO_TEACH = 10
"""Scattered records below which a deeper head is not taught what models without them say: of a single record that is another
model's answer, and two such heads differ much (``benchmarks.single_records``)."""
TAUGHT_ROW = 2.0
"""What ``newton-crossfit`` takes for every row that it teaches, in rows of training: its batches are small."""


def affordable_epochs(budget: float, retrain_epochs: int, batch_size: int | None, hidden: int) -> float:
    """For how long a retrain is cut short; ``batch_size`` None: the retrain's own."""
    prices = EPOCH_IN_BATCHES if hidden else LINEAR_EPOCH_IN_BATCHES
    return budget * retrain_epochs / prices.get(batch_size or 0, 1.0)


def hidden_layers(arch: str | None) -> int:
    """As the rule counts them: a head that is not ours is taken for one with one."""
    return HIDDEN_LAYERS.get(arch or "", 1)


def least_steps(base_share: float, retrain_steps: int, deep: bool = False) -> int:
    """Of a retrain cut short that starts from so much of the base."""
    if retrain_steps >= LONG_RETRAIN and not deep:
        return LEAST_STEPS
    return MORE_WARM_STEPS if base_share else MORE_STEPS


def young_pays(arch: str | None) -> bool:
    """Whether a young network is worth preparing."""
    return arch in RESNETS or HIDDEN_LAYERS.get(arch or "", 0) >= YOUNG_LAYERS


def least_young_cost(n_retained: int, retrain_epochs: int, batch_size: int) -> float:
    """What the fewest steps from a young network take of a retrain: what it has to learn it knows."""
    return YOUNG_STEPS / (math.ceil(n_retained / batch_size) * retrain_epochs)


def least_warm_cost(n_retained: int, retrain_epochs: int, batch_size: int, deep: bool = False) -> float:
    """What the fewest steps from a share of the base take of a retrain: more than all of it for some hundred rows."""
    steps = math.ceil(n_retained / batch_size) * retrain_epochs
    return least_steps(1.0, steps, deep) / steps


def newton_cost(n_records: int, n_rows: int, retrain_epochs: int) -> float:
    """What a Newton step takes of a retrain, about: a request does not time a retrain."""
    return STEP_PER_RECORD * n_records / (retrain_epochs * (n_rows - n_records))


def newton_crossfit_cost(n_records: int, n_rows: int, retrain_epochs: int) -> float:
    """What the step and the teaching after it take of a retrain, about: 0.9 % for 1000 of 50,000 rows, as was measured."""
    retained = min(max(n_records, newton_crossfit.NewtonCrossFitConstants().retained), n_rows - n_records)
    taught = newton_crossfit.SCHEDULE.epochs * (n_records + retained)
    training = TAUGHT_ROW * taught / (retrain_epochs * (n_rows - n_records))
    return newton_cost(n_records, n_rows, retrain_epochs) + training


def flow_cost(rows_read: int, n_classes: int, n_retained: int, retrain_epochs: int) -> float:
    """What ``flow`` takes of a retrain, about."""
    return FLOW_ROW[n_classes > 2] * rows_read / (retrain_epochs * n_retained)


@dataclass(frozen=True)
class Costs:
    """What methods would take of a retrain for a request; None for what has no price or cannot be had.

    Attributes:
        step: of a Newton step; it is taken for granted that it can be paid for if nobody knows.
        taught: of ``newton-crossfit``.
        least_warm: what ``short-warm`` takes at the least; infinite if fresh weights cannot be had.
        path: of ``flow``.
        young: what ``short-young`` takes at the least.
    """

    step: float | None = None
    taught: float | None = None
    least_warm: float = 0.0
    path: float | None = None
    young: float | None = None

    def more_buys(self, otherwise: str) -> str:
        """What a larger budget buys: ``flow`` if there is a path, something else ``otherwise``."""
        return f"{FLOW}, from {self.path:.1%} on" if self.path is not None and self.path < 1 else otherwise


@dataclass(frozen=True)
class BudgetChoice:
    """What is used, why, what would have been used next, and what a larger budget buys."""

    method: str
    why: str
    runner_up: str
    more: str


def choose_within(
    kind: RequestKind,
    hidden: int,
    budget: float,
    costs: Costs,
    kept: float | None = None,
    deep: bool = False,
    records: int | None = None,
) -> BudgetChoice | None:
    """The method for a kind of request; None if the kind is unknown: then proxies are weighed instead.

    Args:
        hidden: layers of the head, without the last.
        budget: a share of the retrain's cost.
        kept: the share of right answers on the records that a model without them keeps (``kept_answers``), if it is known.
        deep: whether the network was trained end to end, and is no head on features.
        records: how many there are, if it is known.
    """
    if kind is RequestKind.UNKNOWN:
        return None
    if deep:
        return _for_deep(kind, budget, costs)
    if costs.path is not None and budget >= costs.path:
        why = "a linear head's retrain is a path and chance, and the path without the records can be followed"
        return BudgetChoice(FLOW, why, SHORT_WARM, "nothing")
    if kind is RequestKind.WHOLE_CLASS:
        return _for_class(hidden, budget, costs)
    if kind is RequestKind.GROUP:
        return _for_group(hidden, budget, costs, kept)
    if hidden > 1 and records is not None and records < FEW_TO_TEACH:
        costs = replace(costs, taught=None)
    if hidden == 0 and records is not None and records >= MANY_RECORDS:
        costs = replace(costs, step=math.inf)
    return _for_scattered(hidden, budget, costs)


def _for_deep(kind: RequestKind, budget: float, costs: Costs) -> BudgetChoice:
    """Set on the development requests of ResNet-8 (docs/records/deep_development.csv, deep_young.csv).

    What remembers is the features, so that no step above them and no model of them helps much; and two trainings are so far
    apart that a short one, which is less sure, is closer to the retrain than the network is, on scattered rows too. Most of
    what a short one lacks a young network has learned before anybody asked.
    """
    # a group has no edit to fall back on, and all else that trains takes more than the fewest steps from a young network
    if costs.young is not None and (budget >= costs.young or kind is RequestKind.GROUP):
        return BudgetChoice(
            SHORT_YOUNG, KNOWS_WHAT_COMES_FIRST, SHORT, "little: with ten times as much it comes a tenth closer"
        )
    if budget >= costs.least_warm:
        why = "the features themselves remember, and a retrain cut short that starts from a part of them does so less"
        return BudgetChoice(SHORT_WARM, why, SHORT, MORE_TRAINING)
    later = f"{SHORT_WARM}, from {costs.least_warm:.1%} on" if costs.least_warm < 1 else "nothing"
    if costs.young is not None and costs.young < 1:
        later = f"{SHORT_YOUNG}, from {costs.young:.1%} on"
    if kind is RequestKind.WHOLE_CLASS:
        return BudgetChoice(TRUNCATE, "the class leaves the answer, the others keep their ratios", SHORT, later)
    if kind is RequestKind.GROUP:
        return BudgetChoice(SHORT, "the records would be missing together in a retrain", NEWTON_LAST, later)
    return BudgetChoice(NEWTON_LAST, "a step on the last layer leaves all else alone", SHORT, later)


def _from_young(hidden: int, budget: float, ends: float, costs: Costs) -> bool:
    """Whether a head's request goes on from a young network, if one is prepared."""
    return hidden >= YOUNG_LAYERS and costs.young is not None and costs.young <= budget < ends


def _for_class(hidden: int, budget: float, costs: Costs) -> BudgetChoice:
    if _from_young(hidden, budget, YOUNG_CLASS_ENDS, costs):
        more = f"{SHORT_HARD_WARM}, from {YOUNG_CLASS_ENDS:.1%} on"
        return BudgetChoice(SHORT_YOUNG, KNOWS_WHAT_COMES_FIRST, SHORT_HARD_WARM, more)
    training_pays = max(costs.least_warm, TRUNCATION_ENDS) if hidden == 1 else costs.least_warm
    warm = SHORT_HARD_WARM if hidden else SHORT_HARD_NEAR
    if budget >= HARD_CLASS_ENDS.get(hidden, math.inf):
        warm = SHORT_WARM
    if budget >= training_pays:
        why = f"from {training_pays:.1%} of a retrain on, training from a part of the model is closer than {TRUNCATE}"
        return BudgetChoice(warm, why, TRUNCATE, costs.more_buys(MORE_TRAINING))
    more = f"{warm}, from {training_pays:.1%} on" if training_pays < 1 else costs.more_buys("nothing")
    return BudgetChoice(TRUNCATE, "the class leaves the answer, the others keep their ratios", warm, more)


def _for_group(hidden: int, budget: float, costs: Costs, kept: float | None) -> BudgetChoice:
    why = "the records belong together, and would be missing together in a retrain"
    more, known = costs.more_buys(MORE_TRAINING), kept is not None and kept >= ANSWERS_KEPT
    if kept is not None:
        said = f"a model of the others still knows {kept:.0%} of those that it knew"
        why += f", but {said}" if known else f"; {said}"
    if budget < costs.least_warm:
        return _cut_short(hidden, budget, why, more)
    if hidden == 0:  # it remembers less, and what it remembers large steps undo
        linear = SHORT_HARD_LINEAR if budget < SLOW_STEPS_PAY else SHORT_HARD_SLOW
        return BudgetChoice(linear, why, SHORT_SMALL, more)
    if known and budget < WARM_GROUP_ENDS[min(hidden, 2)]:
        return BudgetChoice(SHORT_HARD_GROUP, why, SHORT_HARD, more)
    begins, ends = (0.0, HARD_ENDS[min(hidden, 2)]) if known else HARD_ALONE[min(hidden, 2)]
    if begins <= budget < ends:
        return BudgetChoice(SHORT_HARD, why, SHORT, more)
    return _cut_short(hidden, budget, why, more)


def _for_scattered(hidden: int, budget: float, costs: Costs) -> BudgetChoice:
    if hidden == 0:
        return _for_scattered_of_linear(budget, costs)
    warm = f"{ALIKE}, so that training from a part of the model forgets them"
    teaching_ends = max(LASTING_WARM * costs.least_warm, TEACHING_ENDS[min(hidden, 2)])
    if budget >= teaching_ends:
        return BudgetChoice(SHORT_WARM, warm, NEWTON if costs.taught is None else NEWTON_CROSSFIT, MORE_TRAINING)
    later = f"{SHORT_WARM}, from {teaching_ends:.1%} on" if teaching_ends < 1 else "nothing"
    if costs.taught is not None and costs.taught <= budget:
        why = f"{ALIKE}: one step, then what models that never saw them say of them"
        return BudgetChoice(NEWTON_CROSSFIT, why, NEWTON if hidden == 1 else SHORT_HARD_WARM, later)
    if costs.taught is not None:
        later = f"{NEWTON_CROSSFIT}, from {costs.taught:.1%} on"
    if _from_young(hidden, budget, YOUNG_SCATTERED_ENDS, costs):
        return BudgetChoice(SHORT_YOUNG, KNOWS_WHAT_COMES_FIRST, SHORT_HARD_WARM, later)
    later = costs.more_buys(later)
    step_ends = max(costs.least_warm, STEP_ENDS if hidden == 1 else 0.0)
    if _affordable(costs.step, budget) and budget < step_ends:
        return BudgetChoice(NEWTON, ONE_STEP, SHORT_SMALL, later)
    dear = _why_no_step(costs.step) if hidden == 1 else ""
    if budget < costs.least_warm:
        return _cut_short(hidden, budget, ALIKE + dear, costs.more_buys(MORE_TRAINING), NEWTON)
    return BudgetChoice(SHORT_HARD_WARM, warm + dear, NEWTON, later)


def _for_scattered_of_linear(budget: float, costs: Costs) -> BudgetChoice:
    later = costs.more_buys("nothing")
    if _affordable(costs.step, budget):
        step_ends = max(LASTING_WARM * costs.least_warm, LINEAR_STEP_ENDS)
        if budget < step_ends:
            more = f"{NEWTON_HARD}, from {step_ends:.1%} on" if step_ends < 1 else later
            return BudgetChoice(NEWTON, ONE_STEP, NEWTON_HARD if budget >= costs.least_warm else SHORT_SMALL, more)
        return BudgetChoice(NEWTON_HARD, f"{ALIKE}: one step, and from there training on what is left", NEWTON, later)
    why = ALIKE + _why_no_step(costs.step)
    if math.isinf(costs.least_warm):  # no network can be trained anew
        return _cut_short(0, budget, why, costs.more_buys(MORE_TRAINING), NEWTON)
    # below what is affordable, too: as few steps from fresh weights take as much, and lead nowhere near
    if budget < LINEAR_STEP_ENDS:
        more = f"{SHORT_HARD_NEAR}, from {LINEAR_STEP_ENDS:.1%} on"
        return BudgetChoice(
            SHORT_HARD_BASE, f"{why}; training goes on from the network as it is", SHORT_HARD_NEAR, more
        )
    return BudgetChoice(
        SHORT_HARD_NEAR, f"{why}; training from a part of the model forgets them", SHORT_HARD_BASE, later
    )


def _why_no_step(cost: float | None) -> str:
    if not cost:
        return ""
    if math.isinf(cost):
        return "; a Newton step on so many records would change the others, too"
    return f"; a Newton step on so many records takes {cost:.1%} of a retrain"


def _affordable(cost: float | None, budget: float) -> bool:
    """What is not known does not stand in the way."""
    return cost is None or cost <= budget


def _cut_short(hidden: int, budget: float, why: str, more: str, runner_up: str | None = None) -> BudgetChoice:
    """Without a ``runner_up`` it is the same in the other batches."""
    small = hidden == 0 or (hidden == 1 and budget < LARGE_BATCHES_PAY)
    method, other = (SHORT_SMALL, SHORT) if small else (SHORT, SHORT_SMALL)
    return BudgetChoice(method, why, runner_up or other, more)
