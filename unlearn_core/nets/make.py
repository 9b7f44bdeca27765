"""Networks by the name of their architecture."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from unlearn_core.nets.heads import HeadStack, head_widths
from unlearn_core.nets.resnet import ResNetStack
from unlearn_core.nets.stack import NetworkStack, State
from unlearn_core.spec import RESNET


def fresh_network(
    arch: str,
    inputs: torch.Tensor,
    n_classes: int,
    generators: Sequence[torch.Generator],
    pretrained: State | None = None,
) -> NetworkStack:
    """A stack to be trained on ``inputs``, on their device: one member per generator, each drawn from its own.

    Args:
        pretrained: what the body of a ResNet starts from; heads know no such thing.
    """
    if arch == RESNET:
        if len(generators) != 1:
            raise ValueError(f"ResNets train one at a time, not {len(generators)}")
        return ResNetStack.initialise(n_classes, generators[0], inputs.device, pretrained)
    return HeadStack.initialise(head_widths(arch, inputs.shape[1], n_classes), generators, inputs.device)


def stored_network(arch: str, states: Sequence[State], device: torch.device | str) -> NetworkStack:
    """A stack of networks from their weights."""
    stack = ResNetStack if arch == RESNET else HeadStack
    return stack.from_states(states, device)
