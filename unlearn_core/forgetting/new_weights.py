"""What carries a request out without a target: an edit of the base's weights, or training anew on what is left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from unlearn_core import methods
from unlearn_core.auto import AUTO
from unlearn_core.clock import Stopwatch
from unlearn_core.doubt import chances
from unlearn_core.edits import newton
from unlearn_core.edits.request import EditRequest
from unlearn_core.errors import BadInput
from unlearn_core.finalize import Finalized
from unlearn_core.grid import RESNETS
from unlearn_core.methods import BaselineMethod, Family
from unlearn_core.nets.make import mixed, with_state
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.preparations import CROSSFIT, PREPARATIONS, YOUNG, Given, Per
from unlearn_core.seeding import derive_seed
from unlearn_core.training import Member, train
from unlearn_core.within_budget import YOUNG_STEPS, affordable_epochs, hidden_layers, least_steps, newton_cost

if TYPE_CHECKING:
    from unlearn_core.forgetting.open_request import OpenRequest
    from unlearn_core.forgetting.plan import Plan

NO_ANSWER = "it has no answer to this request; another --method may have one"


def edit(request: OpenRequest, plan: Plan) -> Finalized:
    """Change the base's weights in one step, for all rows that are forgotten by now."""
    line, net, problem = methods.find(plan.choice.method or ""), request.subject.net, request.subject.problem
    if net is None or line.family is not Family.EDIT:
        raise BadInput(f"{line.name} needs the network's weights; a black box takes a proxy and the finalizer none")
    watch, whole = Stopwatch(net.device), request.subject.all_rows
    prepared = _prepared_for(request, line.prepares, net)
    own = None if request.opened is None else request.opened.optimization
    how = None if own is None else replace(own, lr=line.rate * own.lr)
    rows = plan.forget
    if line.reads_d:
        problem, rows = whole, plan.forget_of_all
    asked = EditRequest(problem, rows, net, 0, prepared, plan.settings.seed, line.schedule, how)
    with watch.running():
        edited = line.edit(asked, line.constants)
    return Finalized(edited, NO_ANSWER if edited is None else line.done, seconds=watch.seconds)


def _prepared_for(request: OpenRequest, names: Sequence[str], net: NetworkStack) -> dict[str, Any]:
    """By name, what was prepared of D or of the network, before the request or for it."""
    whole = request.subject.all_rows
    return {
        name: request.of_network.get(name, Given(whole, request.arch, net))
        if PREPARATIONS[name].per is Per.NETWORK
        else whole.prepare(name, request.arch)
        for name in names
    }


def train_anew(request: OpenRequest, plan: Plan) -> Finalized:
    """Train on what is left, from fresh weights and not for long: it reads all of D."""
    line, net, rows = methods.find(plan.choice.method or ""), request.subject.net, request.subject.all_rows.train
    if net is None or line.family is not Family.BASELINE:
        raise BadInput(f"{line.name} needs the network's weights; a black box takes a proxy and the finalizer none")
    if request.blueprint is None:
        raise BadInput(
            f"{line.name} starts from fresh weights, and this network cannot be built anew; name its architecture or "
            "the function that builds it, or choose a proxy"
        )
    recipe, (how, longest) = line.presets["paper"], request.blueprint.training
    own_batch = recipe.phases[0].passes[0].batch_size
    steps = math.ceil((len(rows) - plan.n_forget) / (own_batch or how.batch_size))
    lasts: float = recipe.epochs
    if plan.settings.proxy == AUTO:
        before = 0.0 if line.step is None else newton_cost(plan.n_forget, len(rows), longest)
        budget = max(plan.settings.budget - before, 0.0)
        lasts = affordable_epochs(budget, longest, own_batch, hidden_layers(request.arch))
    deep = request.arch in RESNETS
    least = YOUNG_STEPS if line.from_young else least_steps(recipe.base_share, steps * longest, deep)
    beyond = ""
    if plan.settings.proxy == AUTO and lasts < least / steps:
        beyond = f", beyond the budget: fewer than {least} steps teach too little"
    lasts = min(max(lasts, least / steps), longest)
    recipe, prepared = recipe.lasting(lasts), _prepared_for(request, line.prepares, net)
    watch = Stopwatch(net.device)
    with watch.running():
        start, whence = _start(line, net, request, plan, prepared)
    drawn, forget = None, torch.from_numpy(plan.forget_of_all)
    if line.draws is not None:
        drawn = torch.from_numpy(chances(prepared[CROSSFIT].log_q, rows.labels, line.draws))
    member = Member(plan.settings.seed, "unlearn", rows.label_tensor, forget, chances=drawn)
    how = replace(how, lr=recipe.rate * how.lr)
    seconds = train(start, rows.inputs, [member], recipe, how, lambda *_: True)  # it ends where the recipe records
    start.use_batch_statistics(False)
    ended = f"{lasts:.3g} epochs on what is left, from {whence}{beyond}"
    return Finalized(start, ended, seconds=watch.seconds + seconds)


def _start(
    line: BaselineMethod, base: NetworkStack, request: OpenRequest, plan: Plan, prepared: Mapping[str, Any]
) -> tuple[NetworkStack, str]:
    """The network that a retrain cut short starts from, and what it is: fresh weights, a share of the model's in them,
    all of the model's, where a Newton step leads from these, or a young network's."""
    if request.blueprint is None:
        raise ValueError(f"{line.name} starts from fresh weights, and there are none")
    rows, seed = request.subject.all_rows.train, derive_seed(plan.settings.seed, line.name, "weights")
    fresh = request.blueprint.fresh(base, rows.inputs[:2], seed)
    share, moved = line.presets["paper"].base_share, None
    if share == 0:
        return fresh, "fresh weights"
    if line.from_young:
        moved = with_state(base, prepared[YOUNG].state())
    elif line.step is not None:
        asked = EditRequest(request.subject.problem, plan.forget, base, 0, prepared, plan.settings.seed)
        moved = newton.step(asked, line.step)
    lost = request.subject.problem.lost_classes(plan.forget)
    start = with_state(base, mixed(fresh, moved or base, 0, share, lost))
    if share < 1:
        return start, f"fresh weights with {share:.0%} of the model's mixed in"
    if moved is None:
        return start, "the model's weights"
    return start, "a young network" if line.from_young else "where a Newton step leads"
