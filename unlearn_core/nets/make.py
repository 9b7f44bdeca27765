"""The one place that makes networks: fresh, from stored weights, or from a description that the user gives.

A blueprint is a network without its weights: an architecture of this package (``mlp1``), one that timm or transformers
know (``timm:NAME``, ``hf:FOLDER``), or a function of the user's that builds a module (``package.module:function``).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unlearn_core.errors import BadInput, first_line
from unlearn_core.grid import ARCHITECTURES, HIDDEN_LAYERS, RESNETS, head_widths
from unlearn_core.nets.head_layout import HeadLayout, find_layout
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.module import ModuleStack
from unlearn_core.nets.naming import Naming, find_prefix
from unlearn_core.nets.published import HF, TIMM, find_published
from unlearn_core.nets.resnet import RESNET_STACKS, ResNetStack
from unlearn_core.nets.stack import NetworkStack, State
from unlearn_core.recipes import Optimization, training_epochs, training_optimization, unlearning_optimization

MODULE_UNLEARNING = Optimization(lr=1e-3, batch_size=128, decay=0.95)
"""For networks of which nothing is known."""


def fresh_network(
    arch: str,
    inputs: torch.Tensor,
    n_classes: int,
    generators: Sequence[torch.Generator],
    pretrained: State | None = None,
) -> NetworkStack:
    """A stack to be trained on ``inputs``, on their device: one member per generator, each drawn from its own.

    Args:
        pretrained: weights that the body of a ResNet starts from; heads always start afresh.
    """
    if arch in RESNETS:
        if len(generators) != 1:
            raise ValueError(f"ResNets train one at a time, not {len(generators)}")
        return RESNET_STACKS[arch].initialise(n_classes, generators[0], inputs.device, pretrained)
    return HeadStack.initialise(head_widths(arch, inputs.shape[1], n_classes), generators, inputs.device)


def stored_network(arch: str, states: Sequence[State], device: torch.device | str) -> NetworkStack:
    """A stack of networks from their weights."""
    stack = RESNET_STACKS.get(arch, HeadStack)
    return stack.from_states(states, device)


def mixed(fresh: NetworkStack, base: NetworkStack, member: int, share: float, lost: NDArray[np.bool_]) -> State:
    """The weights share * base + (1 - share) * fresh of one member.

    The outputs of ``lost`` (C,) classes, of which nothing is left to learn, stay fresh: the base's know them well, and take
    long to unlearn. What is no number with a point, such as a count of batches, is the base's.
    """
    new, old = fresh.state(member), base.state(member)
    weights = {
        name: torch.lerp(new[name], ours, share) if ours.is_floating_point() else ours for name, ours in old.items()
    }
    if lost.any():
        gone = torch.from_numpy(lost)
        for name in (f"{base.last_layer}weight", f"{base.last_layer}bias"):
            if name in weights:
                weights[name][gone] = new[name][gone]
    return weights


def with_state(like: NetworkStack, state: State) -> NetworkStack:
    """A network of the same kind with other weights."""
    if isinstance(like, ModuleStack):
        return like.with_state(state)
    if isinstance(like, HeadStack | ResNetStack):
        return type(like).from_states([state], like.device)
    raise TypeError(f"a {type(like).__name__} cannot be made from weights")


@dataclass(frozen=True)
class NamedBlueprint:
    """An architecture of this package."""

    name: str
    note: str = ""

    @property
    def training(self) -> tuple[Optimization, int]:
        """How a retrain trains unless told otherwise, and for how many epochs."""
        return training_optimization(self.name), training_epochs(self.name)

    @property
    def unlearning(self) -> Optimization:
        return unlearning_optimization(self.name)

    def restore(self, state: State, sample: torch.Tensor) -> NetworkStack:
        """The network with these weights. ``sample``: a few rows that it must be able to read, on its device."""
        return self.read(state, sample)[0]

    def read(self, tensors: State, sample: torch.Tensor, known: Naming | None = None) -> tuple[NetworkStack, Naming]:
        """The network whose weights a file holds, and how the file names them; ``known`` if its format says that."""
        if self.name in RESNETS:
            if sample.dtype != torch.uint8:
                raise BadInput(f"{self.name} reads images and the data holds features; give images, or another --arch")
            naming = known or find_prefix(tensors)
            return RESNET_STACKS[self.name].from_states([naming.to_network(tensors)], sample.device), naming
        if sample.dim() != 2:
            raise BadInput(f"{self.name} reads features and the data holds images; give features (.npz with train_x)")
        layout = known or find_layout(tensors, sample.shape[1])
        net = HeadStack.from_states([layout.to_network(tensors)], sample.device)
        n_layers, expected = len(net.widths) - 1, HIDDEN_LAYERS[self.name] + 1
        if n_layers != expected:
            raise BadInput(
                f"the weights hold {n_layers} layers and {self.name} has {expected}; give the --arch that they are of"
            )
        if sample.shape[1] != net.widths[0]:
            raise BadInput(
                f"the data has {sample.shape[1]} features and the model reads {net.widths[0]}; give the features that "
                "it was trained on"
            )
        return net, layout

    def fresh(self, like: NetworkStack, sample: torch.Tensor, seed: int, *more: int) -> NetworkStack:
        """New weights, drawn from each seed, in networks shaped ``like`` another; only heads are stacked."""
        generators = [torch.Generator().manual_seed(one) for one in (seed, *more)]
        if isinstance(like, HeadStack):  # whose hidden layers need not be as wide as ours
            return HeadStack.initialise(like.widths, generators, sample.device)
        return fresh_network(self.name, sample, like.n_classes, generators)


def infer_head(tensors: State, sample: torch.Tensor, known: Naming | None, source: str) -> NamedBlueprint:
    """The head that these weights are of, if no architecture is given; ``source`` is where they come from."""
    if isinstance(known, HeadLayout):
        return NamedBlueprint(known.arch)
    try:
        return NamedBlueprint(find_layout(tensors, sample.shape[1] if sample.dim() == 2 else None).arch)
    except BadInput as error:
        raise BadInput(f"{source} is a file of weights; say with --arch what they are of ({error})") from error


@dataclass(frozen=True, eq=False)
class FactoryBlueprint:
    """A module that a function builds; ``name`` is its address, as PACKAGE.MODULE:FUNCTION or timm:NAME."""

    name: str
    build: Callable[[int | None], nn.Module]
    """Called with the number of classes, if the weights say it."""
    training: tuple[Optimization, int] = (replace(MODULE_UNLEARNING, decay=1.0), 50)
    unlearning: Optimization = MODULE_UNLEARNING
    note: str = ""
    """What else there is to say of it."""
    n_classes: Callable[[State], int | None] = lambda _tensors: None
    """Of these weights, if the network is built for a number of classes."""

    def restore(self, state: State, sample: torch.Tensor) -> ModuleStack:
        return self.read(state, sample)[0]

    def read(self, tensors: State, sample: torch.Tensor, known: Naming | None = None) -> tuple[ModuleStack, Naming]:
        if known is not None:
            raise BadInput(f"{self.name} builds a module and the weights are no state dict; give its own as --weights")
        module = self._built(self.n_classes(tensors))
        naming = find_prefix(tensors, module.state_dict())
        return ModuleStack(module, sample, sample.device).with_state(naming.to_network(tensors)), naming

    def fresh(self, like: NetworkStack, sample: torch.Tensor, seed: int, *more: int) -> ModuleStack:
        if more:
            raise ValueError(f"modules train one at a time, not {1 + len(more)}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return ModuleStack(self._built(like.n_classes), sample, sample.device)

    def _built(self, n_classes: int | None) -> nn.Module:
        try:
            module = self.build(n_classes)
        except (Exception, SystemExit) as error:  # the user's code may fail in any way
            raise BadInput(
                f"{self.name}() fails ({type(error).__name__}: {first_line(error)}); it is called without arguments"
            ) from error
        if not isinstance(module, nn.Module):
            raise BadInput(f"{self.name}() gives a {type(module).__name__}; it must give a torch.nn.Module")
        return module


Blueprint = NamedBlueprint | FactoryBlueprint


def blueprint(arch_or_address: str) -> Blueprint:
    """What ``mlp1``, ``timm:NAME``, ``hf:FOLDER`` or ``package.module:function`` means.

    The last one runs code of the user's. Packages are looked for where they are installed and then in the current folder,
    so that a file that happens to lie there is not taken for one.
    """
    if ":" not in arch_or_address:
        if arch_or_address not in ARCHITECTURES:
            raise BadInput(
                f"unknown architecture {arch_or_address!r}; there are {', '.join(ARCHITECTURES)}, or "
                "PACKAGE.MODULE:FUNCTION"
            )
        return NamedBlueprint(arch_or_address)
    module_name, _, function = arch_or_address.partition(":")
    if module_name in (TIMM, HF):
        known = find_published(module_name, function)
        return FactoryBlueprint(arch_or_address, known.build, note=known.note, n_classes=known.n_classes)
    here = str(Path.cwd())
    sys.path[:] = [*(place for place in sys.path if place not in ("", here)), here]
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the user's code may fail in any way
        raise BadInput(
            f"cannot import {module_name} ({type(error).__name__}: {first_line(error)}); run from the folder that holds it"
        ) from error
    build = getattr(module, function, None)
    if not callable(build):
        raise BadInput(
            f"{module_name} has no function {function!r}; name one that builds the network, as PACKAGE.MODULE:FUNCTION"
        )
    return FactoryBlueprint(arch_or_address, lambda _n_classes: cast(Callable[[], nn.Module], build)())
