"""``flow``: a linear head's retrain without its noise, beside a path that was prepared (``flow_path``).

A request flows beside the path of D: at an anchor, what the retained rows have is what D has, less the records'. In between
and off the path a few rows tell how far the gradient is from the anchors' there. Of a class that is lost, the anchors are
those of the path with its output shut.

That holds as long as the two flows are alike. On the last and longest part of the way they no longer are, and rows of which
only the retrain is unsure are rare and heavy among those that D's doubt draws. There a request reads all rows itself, at the
start of each of the last ``own`` stretches: its own gradient is the anchor, and its own doubt draws the rows.

The answer is the base and the difference of the two flows: what sets the base apart from its own flow, its first weights
and chance, stays as it is. If that is next to nothing, half of it goes: a retrain shares the first weights, not the chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unlearn_core.edits.flow_path import (
    FLOW,
    FlowConstants,
    FlowPath,
    LateMean,
    MeanAdam,
    by_class,
    chances_by_doubt,
    draw,
)
from unlearn_core.edits.linear import all_of_d, linear_weights, mean_change, per_weight, with_weights
from unlearn_core.edits.request import EditRequest
from unlearn_core.seeding import derive_seed

if TYPE_CHECKING:
    import torch

    from unlearn_core.nets.stack import NetworkStack

DONE = "beside the path that was prepared, without noise"


def edit(request: EditRequest, constants: FlowConstants) -> NetworkStack | None:
    """The base and what the flow of D_r has beyond that of D; None for other networks, and if several classes are lost."""
    import torch

    base, path = linear_weights(request), request.prepared[FLOW]
    lost = np.flatnonzero(request.lost_classes)
    if base is None or not path.answers(len(lost)):
        return None
    inputs, labels = all_of_d(request, FLOW), request.problem.train.label_tensor
    n_rows, n_gone = len(request.mask), int(request.mask.sum())
    shut = int(lost[0]) if len(lost) else None
    anchors = torch.from_numpy(path.weights).to(inputs.device)
    stays = torch.from_numpy(~request.mask).to(inputs) * (n_rows / (n_rows - n_gone))
    # a retrain makes fewer steps, for it has fewer rows
    shorter = constants.way(n_rows - n_gone) / constants.way(n_rows)
    flow = MeanAdam(torch.zeros_like(base), n_rows - n_gone, constants)
    late, moments = LateMean(base), torch.zeros_like(base)
    behind = path.behind
    own = _beside_itself(flow, path, inputs, labels, stays, constants)
    for step, look in enumerate(chain(_beside_path(request, path, anchors, stays, shut), own)):
        now = torch.softmax(by_class(flow.weights, look.inputs), 0)
        gradient = look.gradient + per_weight(((now - look.said) * look.shares).T, look.inputs)
        if step % constants.moments_every == 0:
            now.scatter_add_(0, look.labels[None], -torch.ones_like(look.shares)[None])
            moments = per_weight((now.square() * look.shares).T, look.inputs.square())
        flow.move(gradient, moments, float(path.lengths[step]) * shorter)
        late.add(flow.weights, constants.is_late(float(behind[step])))
    apart = base - anchors[-1]
    seen = inputs.index_select(0, torch.from_numpy(path.rows[-1]).to(inputs.device, torch.int64))
    if mean_change(base, anchors[-1], seen) <= constants.chance:
        apart = apart / 2
    return with_weights(request, anchors[-1] + apart + late.value - torch.from_numpy(path.late).to(base))


class _Look(NamedTuple):
    """The rows that a step looks at, and what it compares them with.

    Attributes:
        inputs, labels, shares: (B, d), (B,), (B,) of these rows; a share is what a row stands for.
        said: (C, B) their posteriors at the anchor.
        gradient: (C, d + 1) the mean of all retained rows there.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    shares: torch.Tensor
    said: torch.Tensor
    gradient: torch.Tensor


def _beside_path(
    request: EditRequest, path: FlowPath, anchors: torch.Tensor, stays: torch.Tensor, shut: int | None
) -> Iterator[_Look]:
    """As long as rows were prepared: the anchors of D's path before and after a step, each as far as it is near."""
    import torch

    inputs, labels = request.problem.train.inputs, request.problem.train.label_tensor
    gradients = _of_retained(request, path, anchors, shut)
    rows = torch.from_numpy(path.rows).to(stays.device, torch.int64)
    shares = torch.from_numpy(path.shares).to(stays.device) * stays[rows]
    said = torch.from_numpy(path.said).to(stays.device)
    for step, (i, at) in zip(range(len(rows)), path.places(), strict=False):
        at_anchors = said[step].float()
        if shut is not None:
            at_anchors[:, shut] = 0
            at_anchors /= at_anchors.sum(1, keepdim=True).clamp_min(1e-6)
        few = inputs.index_select(0, rows[step])  # indexing by rows takes four times as long
        at_anchors = torch.lerp(at_anchors[0], at_anchors[1], at)
        gradient = torch.lerp(gradients[i], gradients[i + 1], at)
        yield _Look(few, labels[rows[step]], shares[step], at_anchors, gradient)


def _beside_itself(
    flow: MeanAdam,
    path: FlowPath,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    stays: torch.Tensor,
    constants: FlowConstants,
) -> Iterator[_Look]:
    """After that, the request's own anchors: all rows are read where each stretch begins, when the flow has come there."""
    import torch

    draws = np.random.default_rng(derive_seed(constants.seed, FLOW, "own rows"))
    for start, end in pairwise([len(path.rows), *path.ends[path.ends > len(path.rows)].tolist()]):
        gradient, said = _read_all(flow.weights, inputs, labels, stays)
        chances = chances_by_doubt(1 - said.square().sum(0), constants.own_doubt, constants.own_even, stays)
        batches = min(end - start, constants.own_batches[len(gradient) > 2])
        drawn = draw(chances, batches * constants.own_rows, draws)
        rows, shares = (torch.from_numpy(some).to(stays.device) for some in drawn)
        columns = (
            inputs.index_select(0, rows),
            labels[rows],
            (shares * batches).to(stays) * stays[rows],
            said.index_select(1, rows).T,
        )
        each = [some.unflatten(0, (batches, -1)) for some in columns]
        for step in range(end - start):
            few, true, share, before = (some[step % batches] for some in each)
            yield _Look(few, true, share, before.T, gradient)


def _read_all(
    weights: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor, stays: torch.Tensor, block: int = 2048
) -> tuple[torch.Tensor, torch.Tensor]:
    """(C, d + 1) the mean gradient of the retained rows, and (C, N) all posteriors; in blocks that a cache holds."""
    import torch

    said = inputs.new_empty(len(weights), len(inputs))
    gradient = torch.zeros_like(weights)
    for start in range(0, len(inputs), block):
        here = slice(start, start + block)
        errors = torch.softmax(by_class(weights, inputs[here]), 0)
        said[:, here] = errors
        errors.scatter_add_(0, labels[None, here], -torch.ones_like(errors[:1]))
        gradient += per_weight((errors * stays[here]).T, inputs[here])
    return gradient / len(inputs), said


def _of_retained(request: EditRequest, path: FlowPath, anchors: torch.Tensor, shut: int | None) -> torch.Tensor:
    """(M + 1, C, d + 1) the mean gradients of the retained rows at the anchors: D's, less the records'."""
    import torch

    records, labels = request.inputs, request.records.label_tensor
    total, gone = request.problem.n_rows, len(records)
    if shut is not None:
        others = labels != shut
        records, labels = records[others], labels[others]
    of_d = torch.from_numpy(path.gradients if shut is None else path.without[:, shut]).to(anchors)
    p = by_class(anchors.flatten(0, 1), records).unflatten(0, anchors.shape[:2])
    if shut is not None:
        p[:, shut] = -torch.inf
    p = torch.softmax(p, 1)
    p.scatter_add_(1, labels.expand(len(p), 1, -1), -torch.ones_like(p[:, :1]))
    of_records = per_weight(p.flatten(0, 1).T, records).unflatten(0, anchors.shape[:2])
    return (total * of_d - of_records) / (total - gone)
