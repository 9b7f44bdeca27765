"""What stacks of one network share that torch differentiates: ``resnet`` and ``module`` differ in what they are made of.

Batch normalisation: ``use_batch_statistics`` says whose statistics ``forward`` normalises by. With the batch's, the running
ones move along; without, the running ones serve and stay as they are, while scale and offset still train. Evaluation always
takes the running statistics, so a teacher is always in eval mode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from unlearn_core.errors import BadInput

EVALUATION_ROWS = 256


def logits_of(output: Any) -> Any:
    """What a network answers, or its ``logits`` if it answers more, as those of transformers do."""
    return output if isinstance(output, torch.Tensor) else getattr(output, "logits", output)


class AutogradStack(ABC):
    """One network whose output is its logits (see ``NetworkStack``)."""

    def __init__(self, net: nn.Module, device: torch.device) -> None:
        self._net: nn.Module = net.eval()
        self._device: torch.device = device
        self._logits: torch.Tensor | None = None

    @abstractmethod
    def _prepared(self, batch: torch.Tensor) -> torch.Tensor:
        """Rows of the inputs as the network reads them."""

    def _precision(self) -> AbstractContextManager[object]:
        """What the network is run under."""
        return nullcontext()

    @property
    def n_members(self) -> int:
        return 1

    @property
    def device(self) -> torch.device:
        return self._device

    def parameters(self) -> list[list[torch.Tensor]]:
        return [[parameter for parameter in self._net.parameters() if parameter.requires_grad]]

    def running_statistics(self) -> list[torch.Tensor]:
        return [buffer for buffer in self._net.buffers() if buffer.is_floating_point()]

    def use_batch_statistics(self, yes: bool) -> None:
        self._net.train(yes)

    def forward(self, inputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad(), self._precision():
            logits = logits_of(self._net(self._prepared(inputs[rows[0]])))
            if logits.dtype in (torch.float16, torch.bfloat16):  # the loss and its gradient have digits to lose
                logits = logits.float()
        self._logits = logits
        return logits.detach().float()[None]

    def backward(self, logit_gradient: torch.Tensor) -> None:
        if self._logits is None:
            raise ValueError("backward needs a forward before it")
        self._net.zero_grad(set_to_none=True)
        self._logits.backward(logit_gradient[0].to(self._logits.dtype))
        self._logits = None

    def logits(self, member: int, inputs: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        return self._evaluate(lambda batch: logits_of(self._net(batch)), inputs, rows)

    def state(self, member: int) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().cpu().clone() for name, tensor in self._net.state_dict().items()}

    def as_module(self) -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
        """The network itself, and what turns rows of the inputs into what it reads."""
        return self._net, self._prepared

    def _seen(
        self, module: nn.Module, inputs: torch.Tensor, take: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """(N, width) what ``take`` takes from a module's input and output, flattened, batch by batch."""
        seen: list[torch.Tensor] = []

        def remember(_module: nn.Module, entering: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            seen.append(take(entering[0], output))

        def compute(batch: torch.Tensor) -> torch.Tensor:
            seen.clear()
            self._net(batch)
            if not seen or not isinstance(seen[-1], torch.Tensor) or len(seen[-1]) != len(batch):
                raise BadInput(
                    f"a {type(module).__name__} of {type(self._net).__name__} gives no tensor with one row for each of "
                    f"{len(batch)}; name another layer"
                )
            return seen[-1].flatten(1)

        hook = module.register_forward_hook(remember)
        try:
            return self._evaluate(compute, inputs, None)
        finally:
            hook.remove()

    def _evaluate(
        self, compute: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, rows: torch.Tensor | None
    ) -> torch.Tensor:
        training = self._net.training
        self._net.eval()
        count = len(inputs) if rows is None else len(rows)
        parts = []
        with torch.no_grad(), self._precision():
            for start in range(0, count, EVALUATION_ROWS):
                here = slice(start, start + EVALUATION_ROWS)
                batch = inputs[here] if rows is None else inputs[rows[here]]
                parts.append(compute(self._prepared(batch)).float())
        self._net.train(training)
        return torch.cat(parts)
