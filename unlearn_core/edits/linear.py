"""What edits of linear heads share: the head as one matrix, and the rows of D that they read."""

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
