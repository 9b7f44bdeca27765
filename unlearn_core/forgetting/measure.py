"""What a request did, in numbers that need no retrain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.audit.divergence import log_probabilities
from unlearn_core.forgetting.plan import Change, Plan, Target, base_posteriors
from unlearn_core.nets.stack import NetworkStack

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Accuracy:
    """Shares of right answers, in [0, 1]."""

    retained: float
    forgotten: float
    heldout: float | None


@dataclass(frozen=True, eq=False)
class Measured:
    """A model beside the base and beside the target that it was made for."""

    before: Accuracy
    after: Accuracy
    from_base: Change
    """KL(base||unlearned)."""
    from_target: Change
    """KL(target||unlearned): what the finaliser left undone."""

    @property
    def drop(self) -> float:
        """Retained accuracy that was lost, in points of a hundred; negative where it rose."""
        return 100 * (self.before.retained - self.after.retained)


def network_posteriors(plan: Plan, net: NetworkStack) -> Target:
    """What a network says on the rows of a plan."""
    heldout = plan.subject.heldout
    on_heldout = None if heldout is None else _log_posteriors(net, heldout.inputs)
    return Target(_log_posteriors(net, plan.subject.train.inputs), on_heldout)


def measure(plan: Plan, unlearned: Target) -> Measured:
    base = base_posteriors(plan.subject)
    return Measured(
        before=accuracy(plan, base),
        after=accuracy(plan, unlearned),
        from_base=plan.divergence(base, unlearned),
        from_target=plan.divergence(plan.target or base, unlearned),
    )


def accuracy(plan: Plan, model: Target) -> Accuracy:
    right = model.train.argmax(axis=1) == plan.subject.train.labels
    heldout = plan.subject.heldout
    return Accuracy(
        retained=float(right[~plan.forget].mean()),
        forgotten=float(right[plan.forget].mean()),
        heldout=None
        if heldout is None or model.heldout is None
        else float((model.heldout.argmax(axis=1) == heldout.labels).mean()),
    )


def _log_posteriors(net: NetworkStack, inputs: torch.Tensor | None) -> Array:
    if inputs is None:
        raise ValueError("a network needs inputs")
    return log_probabilities(net.logits(0, inputs).cpu().numpy())
