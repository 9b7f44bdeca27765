"""Adam and SGD as torch computes them, without its compiler and its bookkeeping.

Optimisers of torch guard themselves against ``torch.compile``, and to do so load all of it when the first one is made: two
seconds in every process that trains, about as long as torch itself takes. And what they do around an update, hooks, profiler
marks, groups by device, takes half a millisecond a step: on batches of 64 rows of a head a third of the training. ``Adam``
calls the fused update itself; the bits are torch's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["SGD", "Adam"]

BETAS, EPSILON = (0.9, 0.999), 1e-8


class Adam:
    """``torch.optim.Adam(..., fused=True)`` with its other defaults, for tensors of one device."""

    def __init__(self, tensors: Sequence[torch.Tensor], lr: float, weight_decay: float = 0.0) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": lr}]
        self._weight_decay: float = weight_decay
        self._tensors: list[torch.Tensor] = list(tensors)
        self._means: list[torch.Tensor] = [torch.zeros_like(tensor) for tensor in self._tensors]
        self._squares: list[torch.Tensor] = [torch.zeros_like(tensor) for tensor in self._tensors]
        self._steps: list[torch.Tensor] = [torch.zeros((), device=tensor.device) for tensor in self._tensors]

    @torch.no_grad()
    def step(self) -> None:
        """Tensors without a gradient stay as they are, and their steps are not counted."""
        gradients = [(i, tensor.grad) for i, tensor in enumerate(self._tensors) if tensor.grad is not None]
        if not gradients:
            return
        tensors, means, squares, steps = (
            [some[i] for i, _ in gradients] for some in (self._tensors, self._means, self._squares, self._steps)
        )
        torch._foreach_add_(steps, 1)  # pyright: ignore[reportPrivateImportUsage]
        torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
            tensors,
            [gradient for _, gradient in gradients],
            means,
            squares,
            [],
            steps,
            lr=self.param_groups[0]["lr"],
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self._weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )


class SGD(torch.optim.SGD):
    add_param_group = inspect.unwrap(torch.optim.SGD.add_param_group)
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))
