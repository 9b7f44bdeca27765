"""``newton``: one step of second order towards the weights that a retrain would have, all layers at once.

w + H^-1 (sum of the records' gradients) / N, with H the Gauss-Newton matrix of the base on D. H does not depend on the
request: it is prepared, as eigenvalue-corrected Kronecker factors, and a request costs its own gradient and a few small
products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unlearn_core.audit.divergence import log_probabilities, mean_kl
from unlearn_core.edits.request import EditRequest

if TYPE_CHECKING:
    import torch

    from unlearn_core.curvature import Curvature
    from unlearn_core.nets.stack import NetworkStack
    from unlearn_core.preparations import Given


@dataclass(frozen=True)
class CurvatureConstants:
    """The numbers of measuring it.

    Attributes:
        rows: the most rows that it is measured on.
        seed: of the draw of those rows, and of the signs of classes beyond ``targets``.
        targets: the most vectors that a row is back-propagated for. With as many classes or fewer it is exact; with more,
            the likeliest are, and the others are in expectation.
    """

    rows: int = 16384
    seed: int = 0
    targets: int = 16


@dataclass(frozen=True)
class NewtonConstants:
    """The numbers of a step.

    Attributes:
        damping: what is added to every second moment. It is a number of its own and not a share of them: heads with mean
            moments from 7e-7 to 4e-5 all did best between 3e-7 and 3e-6, and a linear one, with 5e-2, does not mind.
        scale: how much of the step is taken.
        retained: rows, evenly spread, that the step must leave alone.
        most_spilled: KL(base||new) there, as a share of that on the records. A step that spills more is taken again
            with ten times the damping: the network is no optimum, or the curvature does not know where it may not go.
        most_damping: beyond it there is no answer.
    """

    damping: float = 1e-6
    scale: float = 1.0
    retained: int = 256
    most_spilled: float = 0.2
    most_damping: float = 10.0


def prepare(given: Given, constants: CurvatureConstants) -> Curvature:
    from unlearn_core.curvature import measure_curvature

    left = None if given.removed is None else np.flatnonzero(~given.removed)
    return measure_curvature(given.network, given.member, given.problem.train.inputs, left, constants)


def load(arrays: Mapping[str, NDArray]) -> Curvature:
    from unlearn_core.curvature import Curvature

    return Curvature.from_arrays(arrays)


def step(request: EditRequest, constants: NewtonConstants) -> NetworkStack | None:
    """The step, with as much damping as leaves retained rows alone."""
    from unlearn_core.curvature import newton_steps
    from unlearn_core.preparations import CURVATURE

    damping = constants.damping
    spread = np.linspace(0, len(request.mask) - 1, min(len(request.mask), 2 * constants.retained)).astype(np.int64)
    retained = request.problem.train.take(spread[~request.mask[spread]][: constants.retained]).inputs
    before = [_log_posteriors(request.net, request.member, inputs) for inputs in (request.inputs, retained)]
    labels, n_rows = request.records.label_tensor, request.problem.n_rows
    take = newton_steps(request.net, request.member, request.prepared[CURVATURE], request.inputs, labels, n_rows)
    while damping <= constants.most_damping:
        moved = take(replace(constants, damping=damping))
        on_records, on_retained = (
            mean_kl(was, _log_posteriors(moved, 0, inputs))
            for was, inputs in zip(before, (request.inputs, retained), strict=True)
        )
        if on_retained <= constants.most_spilled * on_records:
            return moved
        damping *= 10
    return None


def _log_posteriors(net: NetworkStack, member: int, inputs: torch.Tensor) -> NDArray[np.float64]:
    return log_probabilities(net.logits(member, inputs).double().cpu().numpy())
