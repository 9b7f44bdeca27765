"""ResNets on images, trained end to end: a stack of one, seen by the loop as (1, B, C) logits like any other.

Images stay uint8 (N, H, W, 3) and become float, normalised batch by batch: nothing holds them twice. Permuting that layout
gives channels-last tensors without a copy, the format that GPUs like best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Self, cast

import torch
from numpy.typing import NDArray
from torch import nn

from unlearn_core.arithmetic import present_precision
from unlearn_core.errors import BadInput
from unlearn_core.grid import RESNET, SMALL_CHANNELS, SMALL_RESNET
from unlearn_core.nets.autograd import AutogradStack
from unlearn_core.nets.stack import State
from unlearn_core.precision import Precision

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CLASSIFIER = ("fc.weight", "fc.bias")


class ResNetStack(AutogradStack):
    """One ResNet-18 (see ``NetworkStack``); weights are named as torchvision names them.

    Another ResNet is a subclass that is called and built otherwise.

    Args:
        autocast: the type that matrix products and convolutions run in; None is float32 throughout. By default what
            ``precision.arithmetic`` says when the stack is made.
        net: what ``build`` made; by default it makes one, with weights drawn at random.
    """

    title: ClassVar[str] = "ResNet-18"
    fits: ClassVar[str] = "torchvision's resnet18 state dict"

    @staticmethod
    def build(n_classes: int) -> nn.Module:
        # torchvision takes a second to load, which users of heads need not wait for
        from torchvision.models import resnet18

        return resnet18(weights=None, num_classes=n_classes)

    def __init__(
        self,
        n_classes: int,
        device: torch.device | str = "cpu",
        autocast: torch.dtype | str | None = "auto",
        net: nn.Module | None = None,
    ) -> None:
        super().__init__((self.build(n_classes) if net is None else net).to(device), torch.device(device))
        if self._device.type == "cuda":
            self._net = self._net.to(memory_format=torch.channels_last)
        self._autocast: torch.dtype | None = _half_type() if isinstance(autocast, str) else autocast
        self._n_classes: int = n_classes
        self._mean: torch.Tensor = 255.0 * torch.tensor(IMAGENET_MEAN, device=self._device)[:, None, None]
        self._std: torch.Tensor = 255.0 * torch.tensor(IMAGENET_STD, device=self._device)[:, None, None]

    @classmethod
    def initialise(
        cls,
        n_classes: int,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
        pretrained: State | None = None,
    ) -> Self:
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
    ) -> Self:
        """The network whose weights ``state`` gave."""
        if len(states) != 1:
            raise ValueError(f"a ResNet stack has one member, not {len(states)}")
        if CLASSIFIER[0] not in states[0]:
            raise BadInput(f"{cls.title} weights have no {CLASSIFIER[0]!r}; they need torchvision's names")
        stack = cls.unfilled(states[0][CLASSIFIER[0]].shape[0], device, autocast)
        stack._load(states[0])
        return stack

    @classmethod
    def unfilled(
        cls, n_classes: int, device: torch.device | str = "cpu", autocast: torch.dtype | str | None = "auto"
    ) -> Self:
        """A network with whatever memory holds as weights: to draw what is replaced takes longer than to load it."""
        with torch.device("meta"):
            net = cls.build(n_classes)
        return cls(n_classes, device, autocast, net.to_empty(device="cpu"))

    def _load(self, state: State) -> None:
        own = self._net.state_dict()
        wrong = [name for name in own if name not in state or state[name].shape != own[name].shape]
        wrong += [name for name in state if name not in own]
        if wrong:
            raise BadInput(
                f"weights do not fit {self.title}: {wrong[0]} is missing, unknown or of another shape "
                f"({len(wrong)} such); {self.fits} is what fits"
            )
        self._net.load_state_dict(dict(state))

    @property
    def n_classes(self) -> int:
        return self._n_classes

    def penultimate(self, member: int, inputs: torch.Tensor) -> torch.Tensor:
        return self.activations(inputs, "avgpool", lambda activation: activation)

    def activations(
        self, inputs: torch.Tensor, layer: str, then: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """(N, k) ``then`` of the flattened outputs (B, dim) of a layer, batch by batch: all of them would be gigabytes."""
        modules = dict(self._net.named_modules())
        if not layer or layer not in modules:
            known = ", ".join(name for name, _ in self._net.named_children())
            raise BadInput(f"{self.title} has no layer {layer!r}; there are {known} and what they contain")
        return self._seen(modules[layer], inputs, lambda _entering, output: then(output.float().flatten(1)))

    def select(self, members: Sequence[int]) -> Self:
        return type(self).from_states([self.state(member) for member in members], self._device)

    @property
    def last_layer(self) -> str:
        return "fc."

    def with_shifted_last_layer(self, member: int, weight: NDArray, bias: NDArray) -> Self:
        state = self.state(member)
        state["fc.weight"] += torch.from_numpy(weight.T).float()
        state["fc.bias"] += torch.from_numpy(bias).float()
        return type(self).from_states([state], self._device)

    def _prepared(self, batch: torch.Tensor) -> torch.Tensor:
        """(B, 3, H, W) normalised floats of uint8 (B, H, W, 3)."""
        return (batch.permute(0, 3, 1, 2).float() - self._mean) / self._std

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=self._autocast, enabled=self._autocast is not None)


class SmallResNetStack(ResNetStack):
    """One ResNet-8: a stem of stride 2 and three stages of one block each, batch norm, mean over positions, ``fc``.

    Its weights have the names that torchvision would give them. The stem halves the side at once, which makes a
    training four times as fast.
    """

    title: ClassVar[str] = "ResNet-8"
    fits: ClassVar[str] = "the state dict of a network that this package trained"

    @staticmethod
    def build(n_classes: int) -> nn.Module:
        return small_resnet(SMALL_CHANNELS, n_classes)


def small_resnet(channels: Sequence[int], n_classes: int) -> nn.Module:
    """A stage of one block for each number of channels; each but the first halves the side."""
    from collections import OrderedDict

    from torchvision.models.resnet import BasicBlock, conv1x1

    def stage(entering: int, leaving: int) -> nn.Sequential:
        if entering == leaving:
            return nn.Sequential(BasicBlock(entering, leaving))
        shortcut = nn.Sequential(conv1x1(entering, leaving, 2), nn.BatchNorm2d(leaving))
        return nn.Sequential(BasicBlock(entering, leaving, 2, shortcut))

    stem = channels[0]
    net = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, stem, 3, stride=2, padding=1, bias=False),
            bn1=nn.BatchNorm2d(stem),
            relu=nn.ReLU(inplace=True),
            **{
                f"layer{number}": stage(entering, leaving)
                for number, (entering, leaving) in enumerate(zip((stem, *channels), channels, strict=False), 1)
            },
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(channels[-1], n_classes),
        )
    )
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):  # as torchvision draws its ResNets
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return net


RESNET_STACKS: Mapping[str, type[ResNetStack]] = {RESNET: ResNetStack, SMALL_RESNET: SmallResNetStack}


def _half_type() -> torch.dtype | None:
    """bfloat16 needs no scaling of the loss, as float16 does."""
    return torch.bfloat16 if present_precision() is Precision.BF16 else None
