"""What the training loop needs of a network. It does not know which one it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import torch
from numpy.typing import NDArray

State = Mapping[str, torch.Tensor]


class NetworkStack(Protocol):
    """K >= 1 networks of one shape, trained together. A member's results never depend on its neighbours."""

    @property
    def n_members(self) -> int: ...

    @property
    def n_classes(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def parameters(self) -> Sequence[Sequence[torch.Tensor]]:
        """For each member its tensors, each with a ``grad`` of the same shape that ``backward`` overwrites."""
        ...

    def running_statistics(self) -> Sequence[torch.Tensor]:
        """What training moves beside the parameters: the running statistics of batch normalisation."""
        ...

    def use_batch_statistics(self, yes: bool) -> None:
        """Whether ``forward`` normalises by its batch and moves the running statistics; networks without any ignore it."""
        ...

    def forward(self, inputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Training logits (K, B, C) of the rows (K, B) of ``inputs``; keeps what ``backward`` needs."""
        ...

    def backward(self, logit_gradient: torch.Tensor) -> None:
        """Fill every parameter's ``grad`` from the gradient (K, B, C) at the logits of the last ``forward``."""
        ...

    def logits(self, member: int, inputs: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Evaluation logits (N, C) of one member, on some ``rows`` of the inputs or on all."""
        ...

    def penultimate(self, member: int, inputs: torch.Tensor) -> torch.Tensor:
        """(N, width) the representation that the last layer is linear in."""
        ...

    def state(self, member: int) -> dict[str, torch.Tensor]:
        """A copy of one member's weights, by name."""
        ...

    def select(self, members: Sequence[int]) -> Self:
        """A new stack with copies of some members; training it leaves this one untouched."""
        ...

    @property
    def last_layer(self) -> str:
        """What the names of the last layer's weights in ``state`` begin with: ``fc.`` of ``fc.weight`` and ``fc.bias``."""
        ...

    def with_shifted_last_layer(self, member: int, weight: NDArray, bias: NDArray) -> Self:
        """A stack of one: that member with ``weight`` (width, C) and ``bias`` (C,) added to its last layer."""
        ...
