"""``newton-crossfit``: a Newton step, and from there what models that never saw the records said of them.

The step (``newton``) is of first order: for some records it goes too far, for others not far enough, and nothing in it
knows for which. The out-of-fold posteriors (``crossfit``) know, but from the base they are a long way off, and the network
drifts elsewhere meanwhile. From where the step ends it is a short one: some epochs over the records and retained rows, which
are taught what the base says of them.

``newton-crossfit-net`` asks whole networks (``unlearn_core.fold_networks``).

Like every edit it starts from the base, whatever was forgotten before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unlearn_core.audit.divergence import log_probabilities
from unlearn_core.edits import newton
from unlearn_core.edits.request import EditRequest
from unlearn_core.preparations import CROSSFIT
from unlearn_core.proxies.crossfit import log_out_of_fold
from unlearn_core.recipes import Schedule

if TYPE_CHECKING:
    from unlearn_core.nets.stack import NetworkStack
    from unlearn_core.problem import Problem


SCHEDULE = Schedule(epochs=3, batch_divisor=8, last_rate=0.1, least_retained=2048)
"""Of the teaching. Chosen on 1000 random rows that are in no grid: more epochs or larger steps drift elsewhere, smaller ones
stop short."""
DONE = "in one step, and some epochs on the records"
RATE = 0.1


@dataclass(frozen=True)
class NewtonCrossFitConstants:
    """The numbers of the step, and of what is taught.

    Attributes:
        retained: rows, evenly spread, that are taught to stay as they are, or as many as there are records.
    """

    newton: newton.NewtonConstants = field(default_factory=newton.NewtonConstants)
    retained: int = 2048


def edit(request: EditRequest, constants: NewtonCrossFitConstants, folds: str = CROSSFIT) -> NetworkStack:
    """A stack of one; the teaching alone if no step leaves retained rows alone.

    Args:
        folds: what was prepared of the records: whose posteriors are taught.
    """
    from unlearn_core.finalize import Lesson, distil

    if request.schedule is None or request.optimization is None:
        raise ValueError("newton-crossfit trains, and how is not said")
    net = newton.step(request, constants.newton) or request.net.select([request.member])
    problem, mask = _looked_at(request, constants.retained)
    lesson = Lesson(request.seed, mask, _log_target(replace(request, problem=problem, mask=mask), folds))
    distil(net, problem.train, [lesson], request.schedule, request.optimization)
    return net


def _looked_at(request: EditRequest, retained: int) -> tuple[Problem, NDArray[np.bool_]]:
    """The records and some retained rows; on a prepared state that is all that is at hand."""
    if request.problem.train.numbers is not None:
        return request.problem, request.mask
    return request.problem.part(request.mask, retained)


def _log_target(request: EditRequest, folds: str) -> NDArray[np.float64]:
    """(N, C) out-of-fold posteriors on the records, what the base says elsewhere."""
    from unlearn_core.target import floor_lost_classes

    logits = request.net.logits(request.member, request.problem.train.inputs).double().cpu().numpy()
    lost = request.lost_classes
    log_target = log_probabilities(np.where(lost, -np.inf, logits))
    log_target[request.mask] = log_out_of_fold(request.prepared[folds], request.records.number, lost)
    return floor_lost_classes(log_target, logits, lost)
