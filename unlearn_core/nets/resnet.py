"""ResNet-18 on images, trained end to end: a stack of one, seen by the loop as (1, B, C) logits like any other.

Images stay uint8 (N, H, W, 3) and become float, normalised batch by batch: nothing holds them twice. Permuting that layout
gives channels-last tensors without a copy, the format that GPUs like best.

Batch normalisation: ``use_batch_statistics`` says whose statistics ``forward`` normalises by. With the batch's, the running
ones move along; without, the running ones serve and stay as they are, while scale and offset still train. Evaluation
(``logits``, ``penultimate``, ``activations``) always takes the running statistics, so a teacher is always in eval mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from numpy.typing import NDArray
from torch import nn

from unlearn_core.errors import BadInput
from unlearn_core.nets.stack import State

EVALUATION_IMAGES = 256
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CLASSIFIER = ("fc.weight", "fc.bias")


class ResNetStack:
    """One ResNet-18 (see ``NetworkStack``); weights are named as torchvision names them.

    Args:
        autocast: the type that matrix products and convolutions run in; None is float32 throughout. By default bfloat16 on
            GPUs that have it, unless torch is told to use deterministic algorithms only.
    """

    def __init__(
        self, n_classes: int, device: torch.device | str = "cpu", autocast: torch.dtype | str | None = "auto"
    ) -> None:
        # torchvision takes a second to load, which users of heads need not wait for
        from torchvision.models import resnet18

        self._device: torch.device = torch.device(device)
        self._net: nn.Module = resnet18(weights=None, num_classes=n_classes).to(self._device)
        if self._device.type == "cuda":
            self._net = self._net.to(memory_format=torch.channels_last)
        self._autocast: torch.dtype | None = _half_type(self._device) if isinstance(autocast, str) else autocast
        self._n_classes: int = n_classes
        self._mean: torch.Tensor = 255.0 * torch.tensor(IMAGENET_MEAN, device=self._device)[:, None, None]
        self._std: torch.Tensor = 255.0 * torch.tensor(IMAGENET_STD, device=self._device)[:, None, None]
        self._logits: torch.Tensor | None = None
        self._net.eval()

    @classmethod
    def initialise(
        cls,
        n_classes: int,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
        pretrained: State | None = None,
    ) -> ResNetStack:
        """A fresh network; with ``pretrained`` only its classifier is fresh, for those weights know other classes."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator.initial_seed())
            stack = cls(n_classes, device)
            if pretrained is None:
                return stack
            bound = 1.0 / math.sqrt(cast(nn.Linear, stack._net.fc).in_features)
            fresh = {
                name: torch.empty_like(stack._net.state_dict()[name]).uniform_(-bound, bound) for name in CLASSIFIER
            }
        kept = {name: tensor for name, tensor in pretrained.items() if name not in CLASSIFIER}
        stack._load({**kept, **fresh})
        return stack

    @classmethod
    def from_states(
        cls, states: Sequence[State], device: torch.device | str = "cpu", autocast: torch.dtype | str | None = "auto"
    ) -> ResNetStack:
        """The network whose weights ``state`` gave."""
        if len(states) != 1:
            raise ValueError(f"a ResNet stack has one member, not {len(states)}")
        if CLASSIFIER[0] not in states[0]:
            raise BadInput(f"ResNet-18 weights have no {CLASSIFIER[0]!r}; they need torchvision's names")
        stack = cls(states[0][CLASSIFIER[0]].shape[0], device, autocast)
        stack._load(states[0])
        return stack

    def _load(self, state: State) -> None:
        own = self._net.state_dict()
        wrong = [name for name in own if name not in state or state[name].shape != own[name].shape]
        wrong += [name for name in state if name not in own]
        if wrong:
            raise BadInput(
                f"weights do not fit ResNet-18: {wrong[0]} is missing, unknown or of another shape "
                f"({len(wrong)} such); torchvision's resnet18 state dict is what fits"
            )
        self._net.load_state_dict(dict(state))

    @property
    def n_members(self) -> int:
        return 1

    @property
    def n_classes(self) -> int:
        return self._n_classes

    @property
    def device(self) -> torch.device:
        return self._device

    def parameters(self) -> list[list[torch.Tensor]]:
        return [list(self._net.parameters())]

    def use_batch_statistics(self, yes: bool) -> None:
        # ResNet-18 has no other module that behaves differently in training
        self._net.train(yes)

    def forward(self, inputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        with self._precision():
            logits = self._net(self._images(inputs[rows[0]])).float()
        self._logits = logits
        return logits.detach()[None]

    def backward(self, logit_gradient: torch.Tensor) -> None:
        if self._logits is None:
            raise ValueError("backward needs a forward before it")
        self._net.zero_grad(set_to_none=True)
        self._logits.backward(logit_gradient[0])
        self._logits = None

    def logits(self, member: int, inputs: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        return self._evaluate(self._net, inputs, rows)

    def penultimate(self, member: int, inputs: torch.Tensor) -> torch.Tensor:
        return self.activations(inputs, "avgpool", lambda activation: activation)

    def activations(
        self, inputs: torch.Tensor, layer: str, then: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """(N, k) ``then`` of the flattened outputs (B, dim) of a layer, batch by batch: all of them would be gigabytes."""
        modules = dict(self._net.named_modules())
        if not layer or layer not in modules:
            known = ", ".join(name for name, _ in self._net.named_children())
            raise BadInput(f"ResNet-18 has no layer {layer!r}; there are {known} and what they contain")
        seen: list[torch.Tensor] = []

        def remember(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            seen.append(output)

        hook = modules[layer].register_forward_hook(remember)

        def compute(images: torch.Tensor) -> torch.Tensor:
            self._net(images)
            return then(seen.pop().float().flatten(1))

        try:
            return self._evaluate(compute, inputs, None)
        finally:
            hook.remove()

    def state(self, member: int) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().cpu().clone() for name, tensor in self._net.state_dict().items()}

    def select(self, members: Sequence[int]) -> ResNetStack:
        return ResNetStack.from_states([self.state(member) for member in members], self._device)

    def with_shifted_last_layer(self, member: int, weight: NDArray, bias: NDArray) -> ResNetStack:
        state = self.state(member)
        state["fc.weight"] += torch.from_numpy(weight.T).float()
        state["fc.bias"] += torch.from_numpy(bias).float()
        return ResNetStack.from_states([state], self._device)

    def _evaluate(
        self, compute: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, rows: torch.Tensor | None
    ) -> torch.Tensor:
        training = self._net.training
        self._net.eval()
        count = len(inputs) if rows is None else len(rows)
        parts = []
        with torch.no_grad(), self._precision():
            for start in range(0, count, EVALUATION_IMAGES):
                here = slice(start, start + EVALUATION_IMAGES)
                parts.append(compute(self._images(inputs[here] if rows is None else inputs[rows[here]])).float())
        self._net.train(training)
        return torch.cat(parts)

    def _images(self, batch: torch.Tensor) -> torch.Tensor:
        """(B, 3, H, W) normalised floats of uint8 (B, H, W, 3)."""
        return (batch.permute(0, 3, 1, 2).float() - self._mean) / self._std

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=self._autocast, enabled=self._autocast is not None)


def _half_type(device: torch.device) -> torch.dtype | None:
    if device.type != "cuda" or torch.are_deterministic_algorithms_enabled():
        return None
    # bfloat16 needs no scaling of the loss; on GPUs without it float32 is the safe choice
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else None
