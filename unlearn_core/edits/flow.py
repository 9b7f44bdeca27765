"""``flow``: a linear head's retrain without its noise, beside a path that was prepared.

Two retrains of a linear head differ by the order of their rows and by where they start: chance around one path. Adam's
steps are short, so that the path is a flow: weights move by the gradient of *all* rows, over the root of the second moment
of a batch's gradient, which is what Adam measures. A flow has no noise, and needs no small steps. But its gradient takes all
rows.

So the flow of D is computed once, and its gradient is kept at ``anchors``. A request flows beside it: at an anchor, what the
retained rows have is what D has, less the records'. In between and off the path a few rows tell how far the gradient is
from the anchors' there (a control variate, as in SVRG; Johnson and Zhang, 2013). They are drawn by how unsure the flow of D
is of them, for only unsure rows change. Of a class that is lost, the anchors are those of the path with its output shut.

The answer is the base and the difference of the two flows: what sets the base apart from its own flow, its first weights
and chance, stays as it is. If that is next to nothing, half of it goes: a retrain shares the first weights, not the chance.
Adam's recipe is taken for granted (``recipes.HEAD_TRAINING``), as the retrain has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unlearn_core.edits.linear import (
    all_of_d,
    linear_weights,
    logits_of,
    mean_change,
    per_weight,
    residuals,
    with_weights,
)
from unlearn_core.edits.request import EditRequest
from unlearn_core.recipes import HEAD_EPOCHS, HEAD_TRAINING
from unlearn_core.seeding import derive_seed

if TYPE_CHECKING:
    import torch

    from unlearn_core.nets.stack import NetworkStack
    from unlearn_core.preparations import Given

FLOW = "flow"
DONE = "beside the path that was prepared, without noise"
ADAM_MEMORY, EPSILON = 0.999, 1e-8


@dataclass(frozen=True)
class FlowConstants:
    """The training that is followed, and how closely.

    Attributes:
        epochs, lr, batch_size: of the retrain.
        anchors: times, evenly spread on a log scale, at which the gradient of all rows is kept.
        first: the first of them, in units of a weight's way (learning rate times steps).
        least_steps: from an anchor to the next.
        reach: the length of a step times the largest curvature; at 2 it would no longer be stable.
        curvature_rows: by which that curvature is measured.
        rows: drawn for each step of a request.
        path_rows: the same for the path of D.
        even: the share of rows that is drawn evenly, and not by how unsure the path is of them.
        doubt: to which power that counts; not to the first, for of a row that D makes sure of a retrain may be unsure.
        moments_every: steps after which the second moments are measured again.
        averaged: the last part of the way over which the difference of the flows is averaged.
        chance: mean KL, in nats, up to which the base is its own flow and chance.
        most_classes: beyond them there are no anchors without a class, of which there are the square of that number.
    """

    epochs: int = HEAD_EPOCHS
    lr: float = HEAD_TRAINING.lr
    batch_size: int = HEAD_TRAINING.batch_size
    anchors: int = 10
    first: float = 0.03
    least_steps: int = 6
    reach: float = 1.5
    curvature_rows: int = 4096
    rows: int = 512
    path_rows: int = 1024
    even: float = 0.05
    doubt: float = 0.3
    moments_every: int = 6
    averaged: float = 0.3
    chance: float = 0.01
    most_classes: int = 20
    seed: int = 0

    def way(self, n_rows: int) -> float:
        """How far a weight could go in a training on so many rows."""
        return self.lr * self.epochs * math.ceil(n_rows / self.batch_size)

    def noise(self, n_rows: int) -> float:
        """What a batch's gradient has of a row's variance, in the mean: an epoch goes through all rows, and the last of its
        batches is a small one."""
        whole, last = divmod(n_rows, self.batch_size)
        sizes = [self.batch_size] * whole + [last] * (last > 0)
        return sum(1 / size - 1 / n_rows for size in sizes) / len(sizes)


@dataclass(frozen=True, eq=False)
class FlowPath:
    """Plain arrays: the path of D, and the steps of a request beside it; all are empty if the head is not a linear one.

    Attributes:
        times: (M + 1,) of the anchors, in units of a weight's way; the first is 0.
        weights, gradients: (M + 1, C, d + 1) there; a gradient is the mean over the rows of D.
        without: (M + 1, C, C, d + 1) the gradients of D without the c-th class, its output shut, as sums over D's rows over
            their number; of no classes if there are too many.
        lengths: (S,) of the steps, and ends (M,) how many steps are made until each anchor but the first.
        rows: (S, B) of D that each step looks at, and shares (S, B) what each of them stands for.
        said: (S, 2, C, B) the posteriors of these rows at the anchors before and after the step.
    """

    times: NDArray[np.float64]
    weights: NDArray[np.float32]
    gradients: NDArray[np.float32]
    without: NDArray[np.float32]
    lengths: NDArray[np.float64]
    ends: NDArray[np.int64]
    rows: NDArray[np.int32]
    shares: NDArray[np.float32]
    said: NDArray[np.float16]

    def answers(self, lost_classes: int) -> bool:
        """Whether there are anchors for a request after which so many classes are gone."""
        return len(self.lengths) > 0 and lost_classes <= (1 if self.without.size else 0)


class _MeanAdam:
    """The weights of a flow: Adam's steps by mean gradients, any number of them at once."""

    def __init__(self, weights: torch.Tensor, n_rows: int, constants: FlowConstants) -> None:
        import torch

        self.weights: torch.Tensor = weights
        self._squares: torch.Tensor = torch.zeros_like(weights)
        self._lr: float = constants.lr
        self._noise: float = constants.noise(n_rows)
        self._elapsed: float = 0.0

    def move(self, gradient: torch.Tensor, moments: torch.Tensor, length: float) -> None:
        """Go so far by a mean gradient; ``moments`` are the means over rows of their own gradients' squares."""
        steps = length / self._lr
        kept = ADAM_MEMORY**steps
        self._elapsed += steps
        self._squares.mul_(kept).addcmul_(gradient, gradient, value=(1 - kept) * (1 - self._noise))
        self._squares.add_(moments, alpha=(1 - kept) * self._noise)
        self.weights.addcdiv_(gradient, self.scales(), value=-length)

    def scales(self) -> torch.Tensor:
        """What Adam divides a gradient by."""
        seen = 1 - ADAM_MEMORY**self._elapsed
        return self._squares.sqrt().mul_(1 / math.sqrt(seen)).add_(EPSILON)


def prepare(given: Given, constants: FlowConstants) -> FlowPath:
    """The flow of D, from no weights at all; of linear heads alone.

    Rows that earlier requests removed are in it: the base has seen them, and who forgets subtracts them.
    """
    import torch

    if given.hidden:
        return FlowPath(*(np.zeros(0, kind) for kind in ("f8", "f4", "f4", "f4", "f8", "i8", "i4", "f4", "f2")))
    rows, n_classes = given.problem.train, given.problem.n_classes
    inputs, labels, n_rows = rows.inputs, rows.label_tensor, len(rows)
    way = constants.way(n_rows)
    times = np.concatenate([[0.0], np.geomspace(min(constants.first, way / 4), way, constants.anchors)])
    draws = np.random.default_rng(derive_seed(constants.seed, FLOW, "rows"))
    flow = _MeanAdam(torch.zeros(n_classes, inputs.shape[1] + 1, device=inputs.device), n_rows, constants)
    kept: dict[str, list[torch.Tensor]] = {"weights": [], "gradients": [], "without": []}
    lengths: list[NDArray[np.float64]] = []
    looks: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
    moments = torch.zeros_like(flow.weights)
    made = 0
    for i, time in enumerate(times):
        errors = residuals(flow.weights, inputs, labels)
        kept["weights"].append(flow.weights.clone())
        kept["gradients"].append(per_weight(errors, inputs) / n_rows)
        kept["without"].append(_without_each_class(errors, inputs, labels, constants) / n_rows)
        if i == constants.anchors:
            break
        chances = _chances(errors, labels, constants)
        steps = constants.least_steps
        if i > 0:
            curvature = _largest_curvature(flow, inputs, *_draw(chances, constants.curvature_rows, draws), constants)
            steps = max(steps, math.ceil((times[i + 1] - time) * curvature / constants.reach))
        length = float(times[i + 1] - time) / steps
        lengths.append(np.full(steps, length))
        looks.append(_draw(chances, steps * constants.rows, draws))
        chosen, shares = _draw(chances, steps * constants.path_rows, draws)
        for here in np.arange(steps * constants.path_rows).reshape(steps, -1):
            batch, share = (torch.from_numpy(some[here]).to(inputs.device) for some in (chosen, shares))
            few, share = inputs.index_select(0, batch), (share * steps).to(inputs)[:, None]
            now = residuals(flow.weights, few, labels[batch])
            if made % constants.moments_every == 0:
                moments = per_weight(now.square() * share, few.square())
            flow.move(kept["gradients"][-1] + per_weight((now - errors[batch]) * share, few), moments, length)
            made += 1
    each = [len(some) for some in lengths]
    weights, gradients, without = (torch.stack(some).cpu().numpy() for some in kept.values())
    drawn = np.concatenate([some.reshape(n, -1) for n, (some, _) in zip(each, looks, strict=True)])
    stand_for = np.concatenate([n * some.reshape(n, -1) for n, (_, some) in zip(each, looks, strict=True)])
    order = np.argsort(drawn, axis=1)  # as they lie in memory: so they are fetched faster
    drawn, stand_for = (np.take_along_axis(some, order, axis=1) for some in (drawn, stand_for))
    beside = np.repeat(np.arange(constants.anchors), each)
    said = [_said(kept["weights"][i : i + 2], inputs, some) for i, some in zip(beside, drawn, strict=True)]
    return FlowPath(
        times,
        weights,
        gradients,
        without,
        np.concatenate(lengths),
        np.cumsum(each, dtype=np.int64),
        drawn.astype(np.int32),
        stand_for.astype(np.float32),
        np.stack(said),
    )


def edit(request: EditRequest, constants: FlowConstants) -> NetworkStack | None:
    """The base and what the flow of D_r has beyond that of D; None for other networks, and if several classes are lost."""
    import torch

    base, path = linear_weights(request), request.prepared[FLOW]
    lost = np.flatnonzero(request.lost_classes)
    if base is None or not path.answers(len(lost)):
        return None
    inputs, labels = all_of_d(request, FLOW), request.problem.train.label_tensor
    device, n_rows, n_gone = inputs.device, len(request.mask), int(request.mask.sum())
    shut = int(lost[0]) if len(lost) else None
    anchors = torch.from_numpy(path.weights).to(device)
    gradients = _of_retained(request, path, anchors, shut)
    stays = torch.from_numpy(~request.mask).to(inputs) * (n_rows / (n_rows - n_gone))
    rows = torch.from_numpy(path.rows).to(device, torch.int64)
    shares = torch.from_numpy(path.shares).to(device) * stays[rows]
    # a retrain makes fewer steps, for it has fewer rows
    shorter = constants.way(n_rows - n_gone) / constants.way(n_rows)
    said = torch.from_numpy(path.said).to(device)
    flow = _MeanAdam(torch.zeros_like(base), n_rows - n_gone, constants)
    moments = torch.zeros_like(base)
    difference, averaged = torch.zeros_like(base), 0
    for step, (i, at, after) in enumerate(_places(path)):
        few, share = inputs.index_select(0, rows[step]), shares[step]  # indexing by rows takes four times as long
        now, at_anchors = torch.softmax(_by_class(flow.weights, few), 0), said[step].float()
        if shut is not None:
            at_anchors[:, shut] = 0
            at_anchors /= at_anchors.sum(1, keepdim=True).clamp_min(1e-6)
        gradient = torch.lerp(gradients[i], gradients[i + 1], at)
        gradient += per_weight(((now - torch.lerp(at_anchors[0], at_anchors[1], at)) * share).T, few)
        if step % constants.moments_every == 0:
            now.scatter_add_(0, labels[rows[step]][None], -torch.ones_like(share)[None])
            moments = per_weight((now.square() * share).T, few.square())
        flow.move(gradient, moments, float(path.lengths[step]) * shorter)
        if path.times[i] + after * (path.times[i + 1] - path.times[i]) > (1 - constants.averaged) * path.times[-1]:
            difference += flow.weights - torch.lerp(anchors[i], anchors[i + 1], after)
            averaged += 1
    apart = base - anchors[-1]
    if mean_change(base, anchors[-1], inputs[rows[-1]]) <= constants.chance:
        apart = apart / 2
    return with_weights(request, anchors[-1] + apart + difference / averaged)


def _said(anchors: Sequence[torch.Tensor], inputs: torch.Tensor, rows: NDArray[np.int64]) -> NDArray[np.float16]:
    """(len(anchors), C, B) posteriors of some rows."""
    import torch

    few = inputs.index_select(0, torch.from_numpy(rows).to(inputs.device))
    return torch.stack([torch.softmax(_by_class(weights, few), 0) for weights in anchors]).half().cpu().numpy()


def _by_class(weights: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """(C, N) logits: a softmax over classes is fast along memory."""
    import torch

    return torch.addmm(weights[:, -1:], weights[:, :-1], inputs.T)


def _places(path: FlowPath) -> Iterator[tuple[int, float, float]]:
    """For each step the anchor before it, and which share of the way to the next is behind it before and after the step."""
    start = 0
    for i, end in enumerate(path.ends):
        for j in range(start, int(end)):
            yield i, (j - start) / (end - start), (j + 1 - start) / (end - start)
        start = int(end)


def _of_retained(request: EditRequest, path: FlowPath, anchors: torch.Tensor, shut: int | None) -> torch.Tensor:
    """(M + 1, C, d + 1) the mean gradients of the retained rows at the anchors: D's, less the records'."""
    import torch

    records, labels = request.inputs, request.records.label_tensor
    total, gone = request.problem.n_rows, len(records)
    if shut is not None:
        others = labels != shut
        records, labels = records[others], labels[others]
    of_d = torch.from_numpy(path.gradients if shut is None else path.without[:, shut]).to(anchors)
    p = _by_class(anchors.flatten(0, 1), records).unflatten(0, anchors.shape[:2])
    if shut is not None:
        p[:, shut] = -torch.inf
    p = torch.softmax(p, 1)
    p.scatter_add_(1, labels.expand(len(p), 1, -1), -torch.ones_like(p[:, :1]))
    of_records = per_weight(p.flatten(0, 1).T, records).unflatten(0, anchors.shape[:2])
    return (total * of_d - of_records) / (total - gone)


def _without_each_class(
    errors: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor, constants: FlowConstants
) -> torch.Tensor:
    """(C, C, d + 1) the summed gradients of the rows of all classes but the c-th, if its output is shut."""
    import torch

    n_classes = errors.shape[1]
    if n_classes > constants.most_classes or n_classes < 3:  # of one class alone there is nothing to learn
        return errors.new_zeros(0, n_classes, inputs.shape[1] + 1)
    numbers = torch.arange(n_classes, device=labels.device)
    true = (labels[:, None] == numbers).to(errors)
    p = errors + true
    found = []
    for c in range(n_classes):
        others = p / (1 - p[:, c : c + 1]).clamp_min(1e-6) * (numbers != c) - true
        found.append(per_weight(others * (labels != c)[:, None], inputs))
    return torch.stack(found)


def _chances(errors: torch.Tensor, labels: torch.Tensor, constants: FlowConstants) -> NDArray[np.float64]:
    """(N,) by which rows are drawn: some evenly, the others by how unsure the flow is of them."""
    wrong = -errors.gather(1, labels[:, None])[:, 0]  # 1 - p of the label
    unsure = (1 - (errors.square().sum(1) - wrong.square() + (1 - wrong).square())).clamp_min(0).double().cpu().numpy()
    weights, even = np.maximum(unsure, 1e-12) ** constants.doubt, constants.even  # the flow may be sure of all
    return even / len(weights) + (1 - even) * weights / weights.sum()


def _draw(
    chances: NDArray[np.float64], count: int, draws: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(count,) rows by their chances, evenly spread over them and shuffled, and the share of a mean that each stands for."""
    ends = np.cumsum(chances)
    points = (np.arange(count) + draws.random(count)) / count * ends[-1]
    rows = draws.permutation(np.minimum(np.searchsorted(ends, points), len(ends) - 1))
    return rows, 1 / (len(chances) * chances[rows] * count)


def _largest_curvature(
    flow: _MeanAdam,
    inputs: torch.Tensor,
    rows: NDArray[np.int64],
    shares: NDArray[np.float64],
    constants: FlowConstants,
    iterations: int = 12,
) -> float:
    """Of the loss as the flow sees it, its scales divided out, by power iteration."""
    import torch

    few, share = inputs[torch.from_numpy(rows).to(inputs.device)], torch.from_numpy(shares).to(inputs)[:, None]
    p, scales = torch.softmax(logits_of(flow.weights, few), 1), flow.scales()
    generator = torch.Generator().manual_seed(derive_seed(constants.seed, FLOW, "curvature"))
    direction = torch.randn(flow.weights.shape, generator=generator).to(inputs)
    for _ in range(iterations):
        direction = direction / direction.norm()
        moved = logits_of(direction, few)
        moved = p * (moved - (p * moved).sum(1, keepdim=True)) * share
        direction = per_weight(moved, few) / scales
    return float(direction.norm())
