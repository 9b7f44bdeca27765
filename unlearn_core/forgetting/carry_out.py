"""From a plan to an unlearned model and its numbers."""

from __future__ import annotations

from collections.abc import Callable

from unlearn_core.forgetting.content import Outcome
from unlearn_core.forgetting.finalise import Finalised, finalise
from unlearn_core.forgetting.measure import measure, network_posteriors
from unlearn_core.forgetting.plan import Plan, Target, base_posteriors
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.spec import Optimization

Rounding = Callable[[NetworkStack], NetworkStack]


def carry_out(
    plan: Plan,
    optimization: Optimization,
    last: NetworkStack | None = None,
    as_stored: Rounding | None = None,
) -> Outcome:
    """Write the target into the network and measure what came of it.

    Args:
        optimization: of a distillation, where the plan's settings do not say another.
        last: what earlier requests made of the base; the base itself where None.
        as_stored: the network as its file will hold it, so that what is measured is what is written.
    """
    start = plan.subject.net if last is None else last
    finalised = None if plan.target is None else finalise(plan, start, optimization)
    net = None if finalised is None else finalised.net
    if net is not None and as_stored is not None:
        net = as_stored(net)
    posteriors = _posteriors(plan, finalised, start if net is None else net)
    from_base = last is None or plan.settings.finalizer != "kl"
    named = "base" if from_base else "the model of the last request"
    return Outcome(plan, named, finalised, posteriors, measure(plan, posteriors), net)


def _posteriors(plan: Plan, finalised: Finalised | None, net: NetworkStack | None) -> Target:
    if finalised is not None and plan.settings.finalizer == "none" and plan.target is not None:
        return plan.target
    return base_posteriors(plan.subject) if net is None else network_posteriors(plan, net)
