"""``newton-cg`` and ``newton-walk``: Newton steps for a linear head, with the curvature of D_r and as much as a retrain has
time for.

``newton`` has the curvature of D, as factors that are exact for no head. A linear one allows for the real thing: products
with the Gauss-Newton matrix of the retained rows, and conjugate gradients, which a matrix of those rows of which the network
is not sure brings to their end in three iterations. The optimum of D_r is not what is looked for: the retrain does not
get there. Where the data hardly curve it is still on its way when it ends, as the base was. With Adam a weight's way is the
learning rate times the steps, over the noise of its gradient: that noise, the root of the second moment of a batch's
gradient, is the damping.

A request that changes much is no small step away: curvature and gradient change on the way. ``newton-walk`` then takes
three steps, each from where the last one ended: steps of a retrain's own path on D_r, less the gradient that the base had
left there. If the first step changes the records' answers by less than ``material``, it is the only one: a second would
carry the flat directions on, farther than a retrain gets.

On the odd subclasses, which are in no grid (seed 100, KL_f; base -> one step at about 2 % -> three at 7 %, floor):
1: 0.0083 -> 0.0004, 0.0002; 9: 0.021 -> 0.0009, 0.0004; 3: 0.18 -> 0.035 -> 0.0024, 0.0008; 5: 0.41 -> 0.08 -> 0.006, 0.001;
7: 0.29 -> 0.037 -> 0.005, 0.0009.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unlearn_core.edits.linear import all_of_d, linear_weights, with_weights
from unlearn_core.edits.request import EditRequest
from unlearn_core.recipes import HEAD_TRAINING

if TYPE_CHECKING:
    import torch

    from unlearn_core.nets.stack import NetworkStack

Solver = Callable[["torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True)
class NewtonCgConstants:
    """The numbers of the steps.

    Attributes:
        steps: the most that are made.
        material: mean KL, in nats, by which the first step must change the records' answers for others to follow.
        iterations: of conjugate gradients, in each step.
        damping: in units of a weight's gradient noise.
        batch_size: of the training, by which that noise is divided.
        metric_rows: retained rows, evenly spread, on which the noise is measured and from which the solver starts.
    """

    steps: int = 1
    material: float = 0.03
    iterations: int = 3
    damping: float = 0.4
    batch_size: int = HEAD_TRAINING.batch_size
    metric_rows: int = 4096


def step(request: EditRequest, constants: NewtonCgConstants) -> NetworkStack | None:
    """A linear head after the steps; None for other networks, and for whole classes, which are no small change."""
    import torch

    base = linear_weights(request)
    if base is None or request.lost_classes.any():
        return None
    inputs, kept = all_of_d(request, "newton-cg"), np.flatnonzero(~request.mask)
    labels, shares = request.problem.train.label_tensor, torch.from_numpy(~request.mask).to(inputs) / len(kept)
    some = min(len(kept), constants.metric_rows)
    few = torch.from_numpy(kept[np.linspace(0, len(kept) - 1, some).astype(np.int64)]).to(inputs.device)
    sample = inputs[few]
    records, of_records = request.inputs, request.records.label_tensor
    force = _per_weight(_residuals(base, records, of_records), records) / len(kept)
    weights, left = base, None
    for number in range(constants.steps):
        errors = _residuals(weights, inputs, labels)
        gradient = _per_weight(errors * shares[:, None], inputs)
        left = gradient if left is None else left  # what training on D had left of it
        moments = _per_weight(errors[few].square(), sample.square()) / (some * constants.batch_size)
        damping = constants.damping * moments.sqrt()
        curved = _curvature(weights, inputs, shares, damping)
        start = _approximate_solver(weights, sample, damping)
        moved = weights + conjugate_gradients(curved, force - (gradient - left), start, constants.iterations)
        if number == 0 and constants.steps > 1 and _change(weights, moved, records) < constants.material:
            return with_weights(request, moved)
        weights = moved
    return with_weights(request, weights)


def conjugate_gradients(matrix: Solver, right: torch.Tensor, approximate: Solver, iterations: int) -> torch.Tensor:
    """A solution x of ``matrix(x) = right``, preconditioned by an ``approximate`` inverse; both symmetric and positive.

    Once it is solved, to the last digit, nothing moves any more; asking whether it is would wait for a GPU every time.
    """
    import torch

    found, residual = torch.zeros_like(right), right
    ahead = approximate(residual)
    direction, size = ahead, (residual * ahead).sum()
    for _ in range(iterations):
        image = matrix(direction)
        bent = (direction * image).sum()
        length = torch.where((size > 0) & (bent > 0), size / bent, 0.0)
        found = found + length * direction
        residual = residual - length * image
        ahead = approximate(residual)
        size, last = (residual * ahead).sum(), size
        direction = ahead + torch.where(last > 0, size / last, 0.0) * direction
    return found


def _curvature(weights: torch.Tensor, inputs: torch.Tensor, shares: torch.Tensor, damping: torch.Tensor) -> Solver:
    """Products with the Gauss-Newton matrix of the rows, each weighing its (N,) share, and the damping."""
    import torch

    p = torch.softmax(_logits(weights, inputs), 1)

    def curved(direction: torch.Tensor) -> torch.Tensor:
        moved = _logits(direction, inputs)
        moved = p * (moved - (p * moved).sum(1, keepdim=True)) * shares[:, None]
        return _per_weight(moved, inputs) + damping * direction

    return curved


def _approximate_solver(weights: torch.Tensor, sample: torch.Tensor, damping: torch.Tensor) -> Solver:
    """The inverse of one matrix for each class: the second moments of the inputs, rows weighing by how unsure the network
    is of them, in the class's own size, and its damping. For two classes that is the Gauss-Newton matrix itself."""
    import torch

    p = torch.softmax(_logits(weights, sample), 1)
    unsure = 1 - p.square().sum(1)
    with_ones = torch.cat([sample, torch.ones_like(sample[:, :1])], 1)
    shared = (with_ones * unsure[:, None]).T @ with_ones / unsure.sum().clamp_min(1e-30)
    sizes = (p * (1 - p)).mean(0)
    # an input that is always zero has no curvature and no noise: it must not be divided by nothing
    least = 1e-6 * (sizes[:, None] * shared.diagonal() + damping).amax(1, keepdim=True).clamp_min(1e-30)
    factors = torch.linalg.cholesky(sizes[:, None, None] * shared + torch.diag_embed(damping + least))
    return lambda right: torch.cholesky_solve(right[..., None], factors)[..., 0]


def _change(before: torch.Tensor, after: torch.Tensor, inputs: torch.Tensor) -> float:
    """Mean KL(after || before) of what two heads say, in nats."""
    import torch

    new, old = (torch.log_softmax(_logits(weights, inputs), 1) for weights in (after, before))
    return float((new.exp() * (new - old)).sum(1).mean())


def _logits(weights: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """(N, C) of (C, d + 1) weights."""
    import torch

    return torch.addmm(weights[:, -1], inputs, weights[:, :-1].T)


def _residuals(weights: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(N, C) the gradient of each row's loss at its logits."""
    import torch
    from torch.nn import functional

    return torch.softmax(_logits(weights, inputs), 1) - functional.one_hot(labels, len(weights)).to(inputs)


def _per_weight(at_logits: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """(C, d + 1) sums over rows of the products of (N, C) and (N, d), biases last."""
    import torch

    return torch.cat([at_logits.T @ inputs, at_logits.sum(0)[:, None]], 1)
