"""The path that ``flow`` goes beside: the mean training of D on a linear head, computed once.

Two trainings of a linear head differ by the order of their rows and by where they start: chance around one path. Adam's
steps are short, so that the path is a flow: weights move by the gradient of *all* rows, over the root of the second moment
of a batch's gradient, which is what Adam measures. A flow has no noise, and needs no small steps. But its gradient takes all
rows, so it is kept at ``anchors``; in between a few rows tell how far the gradient is from the last one's (a control
variate, as in SVRG; Johnson and Zhang, 2013). They are drawn by how unsure the flow is of them, for only unsure rows change.

Adam's recipe is taken for granted (``recipes.HEAD_TRAINING``), as the retrain has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unlearn_core.edits.linear import logits_of, per_weight, residuals
from unlearn_core.recipes import HEAD_EPOCHS, HEAD_TRAINING
from unlearn_core.seeding import derive_seed

if TYPE_CHECKING:
    import torch

    from unlearn_core.preparations import Given

FLOW = "flow"
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
        rows: drawn for each step of a request. With two classes, and with more: there are more weights to tell apart.
        path_rows: drawn for each step of the path of D.
        own: stretches between anchors, of the last ones, at whose start a request reads all rows itself.
        own_rows, own_batches: drawn for such a stretch; its steps look at one batch after another, again and again. With two
            classes, and with more.
        even: the share of rows that is drawn evenly, and not by how unsure the path is of them.
        doubt: to which power that counts; not to the first, for of a row that D makes sure of a retrain may be unsure.
        own_even, own_doubt: the same for rows that a request draws by its own doubt.
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
    rows: tuple[int, int] = (384, 512)
    own: int = 2
    own_rows: int = 512
    own_batches: tuple[int, int] = (16, 32)
    path_rows: int = 1024
    even: float = 0.05
    doubt: float = 0.3
    own_even: float = 0.1
    own_doubt: float = 1.0
    moments_every: int = 6
    averaged: float = 0.15
    chance: float = 0.01
    most_classes: int = 20
    seed: int = 0

    def way(self, n_rows: int) -> float:
        """How far a weight could go in a training on so many rows."""
        return self.lr * self.epochs * math.ceil(n_rows / self.batch_size)

    def is_late(self, behind: float) -> bool:
        """Whether weights count for the answer when so large a share of the way is behind them."""
        return behind > 1 - self.averaged

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
        late: (C, d + 1) the mean of the weights over the last part of the way.
        without: (M + 1, C, C, d + 1) the gradients of D without the c-th class, its output shut, as sums over D's rows over
            their number; of no classes if there are too many.
        lengths: (S,) of the steps, and ends (M,) how many steps are made until each anchor but the first.
        rows: (T, B) of D that each of the first T steps looks at, and shares (T, B) what each of them stands for; after them
            a request draws rows by itself.
        said: (T, 2, C, B) the posteriors of these rows at the anchors before and after the step.
    """

    times: NDArray[np.float64]
    weights: NDArray[np.float32]
    late: NDArray[np.float32]
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

    @property
    def behind(self) -> NDArray[np.float64]:
        """(S,) the share of the way that is behind each step when it is made."""
        return np.cumsum(self.lengths) / self.times[-1]

    def rows_read(self, n_rows: int, own_rows: int = FlowConstants.own_rows) -> int:
        """How many rows a request looks at: those of each step, and all of D where each of its own stretches begins."""
        own_steps, own_stretches = len(self.lengths) - len(self.rows), int((self.ends > len(self.rows)).sum())
        return self.rows.size + own_steps * own_rows + own_stretches * n_rows

    def places(self) -> Iterator[tuple[int, float]]:
        """For each step the anchor before it, and which share of the way to the next is behind it before it is made."""
        for i, (start, end) in enumerate(pairwise([0, *self.ends])):
            for step in range(start, end):
                yield i, (step - start) / (end - start)


class LateMean:
    """Of those weights that are added as late ones."""

    def __init__(self, like: torch.Tensor) -> None:
        import torch

        self._sum: torch.Tensor = torch.zeros_like(like)
        self._count: int = 0

    def add(self, weights: torch.Tensor, late: bool) -> None:
        if late:
            self._sum += weights
            self._count += 1

    @property
    def value(self) -> torch.Tensor:
        return self._sum / self._count


class MeanAdam:
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
        return FlowPath(*(np.zeros(0, kind) for kind in ("f8", "f4", "f4", "f4", "f4", "f8", "i8", "i4", "f4", "f2")))
    rows, n_classes = given.problem.train, given.problem.n_classes
    inputs, labels, n_rows = rows.inputs, rows.label_tensor, len(rows)
    way = constants.way(n_rows)
    times = np.concatenate([[0.0], np.geomspace(min(constants.first, way / 4), way, constants.anchors)])
    draws = np.random.default_rng(derive_seed(constants.seed, FLOW, "rows"))
    flow = MeanAdam(torch.zeros(n_classes, inputs.shape[1] + 1, device=inputs.device), n_rows, constants)
    kept: dict[str, list[torch.Tensor]] = {"weights": [], "gradients": [], "without": []}
    late = LateMean(flow.weights)
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
        chances = chances_by_doubt(_unsure(errors, labels), constants.doubt, constants.even)
        steps = constants.least_steps
        if i > 0:
            curvature = _largest_curvature(flow, inputs, *draw(chances, constants.curvature_rows, draws), constants)
            steps = max(steps, math.ceil((times[i + 1] - time) * curvature / constants.reach))
        length = float(times[i + 1] - time) / steps
        lengths.append(np.full(steps, length))
        if i < constants.anchors - constants.own:
            looks.append(draw(chances, steps * constants.rows[n_classes > 2], draws))
        chosen, shares = draw(chances, steps * constants.path_rows, draws)
        for j, here in enumerate(np.arange(steps * constants.path_rows).reshape(steps, -1)):
            batch, share = (torch.from_numpy(some[here]).to(inputs.device) for some in (chosen, shares))
            few, share = inputs.index_select(0, batch), (share * steps).to(inputs)[:, None]
            now = residuals(flow.weights, few, labels[batch])
            if made % constants.moments_every == 0:
                moments = per_weight(now.square() * share, few.square())
            flow.move(kept["gradients"][-1] + per_weight((now - errors[batch]) * share, few), moments, length)
            late.add(flow.weights, constants.is_late((time + (j + 1) * length) / way))
            made += 1
    each = [len(some) for some in lengths]
    weights, gradients, without = (torch.stack(some).cpu().numpy() for some in kept.values())
    drawn = np.concatenate([some.reshape(n, -1) for n, (some, _) in zip(each, looks, strict=False)])
    stand_for = np.concatenate([n * some.reshape(n, -1) for n, (_, some) in zip(each, looks, strict=False)])
    order = np.argsort(drawn, axis=1)  # as they lie in memory: so they are fetched faster
    drawn, stand_for = (np.take_along_axis(some, order, axis=1) for some in (drawn, stand_for))
    beside = np.repeat(np.arange(len(looks)), each[: len(looks)])
    said = [_said(kept["weights"][i : i + 2], inputs, some) for i, some in zip(beside, drawn, strict=True)]
    return FlowPath(
        times,
        weights,
        late.value.cpu().numpy(),
        gradients,
        without,
        np.concatenate(lengths),
        np.cumsum(each, dtype=np.int64),
        drawn.astype(np.int32),
        stand_for.astype(np.float32),
        np.stack(said),
    )


def by_class(weights: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """(C, N) logits: a softmax over classes is fast along memory."""
    import torch

    return torch.addmm(weights[:, -1], inputs, weights[:, :-1].T).T.contiguous()  # twice as fast as the other way round


def _said(anchors: Sequence[torch.Tensor], inputs: torch.Tensor, rows: NDArray[np.int64]) -> NDArray[np.float16]:
    """(len(anchors), C, B) posteriors of some rows."""
    import torch

    few = inputs.index_select(0, torch.from_numpy(rows).to(inputs.device))
    return torch.stack([torch.softmax(by_class(weights, few), 0) for weights in anchors]).half().cpu().numpy()


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


def _unsure(errors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(N,) how unsure a head is, one less the sum of its squared posteriors, by their (N, C) differences from the labels."""
    wrong = -errors.gather(1, labels[:, None])[:, 0]  # 1 - p of the label
    return 1 - (errors.square().sum(1) - wrong.square() + (1 - wrong).square())


def chances_by_doubt(
    unsure: torch.Tensor, power: float, even: float, stays: torch.Tensor | None = None
) -> NDArray[np.float64]:
    """(N,) by which rows are drawn: some evenly, the others by a power of how unsure the flow is; none that do not stay."""
    weights = unsure.double().cpu().numpy().clip(1e-12) ** power  # the flow may be sure of all
    ones = np.ones(len(weights)) if stays is None else (stays > 0).cpu().numpy().astype(np.float64)
    weights *= ones
    return even * ones / ones.sum() + (1 - even) * weights / weights.sum()


def draw(
    chances: NDArray[np.float64], count: int, draws: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(count,) rows by their chances, evenly spread over them and shuffled, and the share of a mean that each stands for."""
    ends = np.cumsum(chances)
    points = (np.arange(count) + draws.random(count)) / count * ends[-1]
    rows = draws.permutation(np.minimum(np.searchsorted(ends, points), len(ends) - 1))
    return rows, 1 / (len(chances) * chances[rows] * count)


def _largest_curvature(
    flow: MeanAdam,
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
