"""What edits of linear heads share: the head as one matrix, its logits and gradients, and the rows of D that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unlearn_core.edits.request import EditRequest
from unlearn_core.errors import BadInput

if TYPE_CHECKING:
    import torch

    from unlearn_core.nets.stack import NetworkStack


def linear_weights(request: EditRequest) -> torch.Tensor | None:
    """(C, d + 1) a copy of weights and, in the last column, biases of a head without hidden layers; None for others."""
    import torch

    from unlearn_core.nets.heads import HeadStack

    if not isinstance(request.net, HeadStack) or len(request.net.widths) != 2:
        return None
    state = request.net.state(request.member)
    return torch.cat([state["layers.0.weight"], state["layers.0.bias"][:, None]], 1).to(request.net.device)


def with_weights(request: EditRequest, weights: torch.Tensor) -> NetworkStack:
    """A stack of one with these (C, d + 1) weights."""
    from unlearn_core.nets.make import with_state

    state = {"layers.0.weight": weights[:, :-1].contiguous().cpu(), "layers.0.bias": weights[:, -1].contiguous().cpu()}
    return with_state(request.net, state)


def all_of_d(request: EditRequest, method: str) -> torch.Tensor:
    """(N, d) the inputs of D; with a part of it alone the retained rows would be forgotten too."""
    rows, have = request.problem.n_rows, len(request.problem.train)
    if have < rows:
        raise BadInput(f"{method} reads D, and {have} of {rows} rows are at hand; leave the prepared state out")
    return request.problem.train.inputs


def logits_of(weights: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """(N, C) of (C, d + 1) weights."""
    import torch

    return torch.addmm(weights[:, -1], inputs, weights[:, :-1].T)


def residuals(weights: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(N, C) the gradient of each row's loss at its logits."""
    import torch
    from torch.nn import functional

    return torch.softmax(logits_of(weights, inputs), 1) - functional.one_hot(labels, len(weights)).to(inputs)


def per_weight(at_logits: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """(C, d + 1) sums over rows of the products of (N, C) and (N, d), biases last."""
    import torch

    sums = inputs.new_empty(at_logits.shape[1], inputs.shape[1] + 1)
    torch.mm(at_logits.T, inputs, out=sums[:, :-1])
    torch.sum(at_logits, 0, out=sums[:, -1])
    return sums


def mean_change(weights: torch.Tensor, others: torch.Tensor, inputs: torch.Tensor) -> float:
    """Mean KL(one || other) of what two heads say, in nats."""
    import torch

    one, other = (torch.log_softmax(logits_of(some, inputs), 1) for some in (weights, others))
    return float((one.exp() * (one - other)).sum(1).mean())
