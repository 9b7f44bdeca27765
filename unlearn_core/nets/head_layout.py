"""Which tensor of a file is which layer of a head, by their shapes: names differ with how the head was written."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from unlearn_core.errors import BadInput
from unlearn_core.grid import HIDDEN_LAYERS
from unlearn_core.nets.stack import State

ARCHITECTURE_OF = {hidden + 1: name for name, hidden in HIDDEN_LAYERS.items()}
"""The head with so many layers."""
REMEDY = "or name the function that builds the network, as --model PACKAGE.MODULE:FUNCTION"


@dataclass(frozen=True)
class HeadLayout:
    """The layers of a head, first to last, under the names of their file.

    Attributes:
        weights, biases: the names of tensors (out, in) and (out,), one of each for every layer.
        widths: d, ..., C; a file with one output has a C of 1 here, and its network one of 2.
        by_number: whether shapes left the order open, and the numbers in the names decided it.
    """

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    widths: tuple[int, ...]
    by_number: bool = False

    @property
    def arch(self) -> str:
        return ARCHITECTURE_OF[len(self.weights)]

    @property
    def one_output(self) -> bool:
        """A binary classifier with one logit z, which are two for its network: 0 and z."""
        return self.widths[-1] == 1

    def to_network(self, tensors: State) -> dict[str, torch.Tensor]:
        """The file's tensors by the names that ``HeadStack`` has for them."""
        state = {}
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            state |= {f"layers.{i}.weight": tensors[weight], f"layers.{i}.bias": tensors[bias]}
        if self.one_output:
            for name in self._last():
                state[name] = torch.cat([torch.zeros_like(state[name]), state[name]])
        return state

    def to_file(self, state: State) -> dict[str, torch.Tensor]:
        """The other way; of two logits one file with one output keeps the difference, which is all that posteriors see."""
        state = dict(state)
        if self.one_output:
            for name in self._last():
                state[name] = state[name][1:] - state[name][:1]
        tensors = {}
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            tensors |= {weight: state[f"layers.{i}.weight"], bias: state[f"layers.{i}.bias"]}
        return tensors

    def _last(self) -> tuple[str, str]:
        last = len(self.weights) - 1
        return f"layers.{last}.weight", f"layers.{last}.bias"

    def __str__(self) -> str:
        widths = " -> ".join(map(str, self.widths))
        notes = [
            "ReLU between them" if len(self.weights) > 1 else "",
            "in the order of their numbers, for their shapes fit in another one too" if self.by_number else "",
            "one output z, taken for the two logits 0 and z" if self.one_output else "",
        ]
        said = "; ".join(note for note in notes if note)
        return f"read as {self.arch}: {widths} from {', '.join(self.weights)}{f' ({said})' if said else ''}"


def find_layout(tensors: State, n_features: int | None = None) -> HeadLayout:
    """The one order of layers in which these tensors are a head; refused if there is none, or more than one.

    Args:
        n_features: what the head reads, if that is known: it decides between orders.
    """
    for name, tensor in tensors.items():
        if tensor.dim() not in (1, 2) or not tensor.is_floating_point():
            raise BadInput(
                f"weight {name!r} of shape {tuple(tensor.shape)}, {tensor.dtype}, fits no head, which has linear layers "
                f"only; give the weights of a head, {REMEDY}"
            )
    pairs = _pairs(tensors)
    _check_number(len(pairs))
    shapes = {weight: (tensors[weight].shape[0], tensors[weight].shape[1]) for weight in pairs}
    order, by_number = _order(shapes, n_features)
    return replace(layout_in_order([(name, pairs[name]) for name in order], tensors), by_number=by_number)


def layout_in_order(pairs: Sequence[tuple[str, str]], tensors: State) -> HeadLayout:
    """Layers whose order is known, first to last, as the names of weight (out, in) and bias (out,)."""
    _check_number(len(pairs))
    entering = tensors[pairs[0][0]].shape[1]
    widths = [entering]
    for weight, bias in pairs:
        shape = tuple(tensors[weight].shape)
        if shape[1] != widths[-1] or tuple(tensors[bias].shape) != shape[:1] or 0 in shape:
            raise BadInput(
                f"{weight} maps {shape[1]} numbers to {shape[0]}, {bias} has {tensors[bias].numel()} and {widths[-1]} "
                "enter; the layers fit no head: give those of one classifier"
            )
        widths.append(shape[0])
    return HeadLayout(tuple(weight for weight, _ in pairs), tuple(bias for _, bias in pairs), tuple(widths))


def _check_number(n_layers: int) -> None:
    if n_layers not in ARCHITECTURE_OF:
        raise BadInput(
            f"the weights hold {n_layers} layers and heads have 1 to {max(ARCHITECTURE_OF)}; give the weights of a "
            f"head, {REMEDY}"
        )


def _pairs(tensors: State) -> dict[str, str]:
    """The bias of each weight: of the same module and as long as the weight has rows."""
    weights = [name for name, tensor in tensors.items() if tensor.dim() == 2]
    biases = [name for name, tensor in tensors.items() if tensor.dim() == 1]
    pairs: dict[str, str] = {}
    for weight in weights:
        rows = tensors[weight].shape[0]
        found = [
            bias for bias in biases if _module(bias) == _module(weight) and tensors[bias].shape == torch.Size([rows])
        ]
        if not found:
            raise BadInput(
                f"weight {weight!r} of shape {tuple(tensors[weight].shape)} fits no head: it has no bias of {rows} beside "
                f"it; layers are (out, in) with a bias (out,), {REMEDY}"
            )
        if len(found) > 1:
            raise BadInput(
                f"it is ambiguous whether the bias of {weight!r} is {' or '.join(map(repr, found))}, all of {rows}; save "
                "each layer under a name of its own, as torch.nn.Linear does"
            )
        pairs[weight] = found[0]
    if left := [bias for bias in biases if bias not in pairs.values()]:
        raise BadInput(
            f"weight {left[0]!r} of shape {tuple(tensors[left[0]].shape)} fits no head: it is no linear layer's bias; give "
            f"the weights of a head, {REMEDY}"
        )
    if len(set(pairs.values())) < len(pairs):
        raise BadInput(
            f"{len(pairs)} weights share {len(set(pairs.values()))} biases, so that it is ambiguous whose they are; save "
            "each layer under a name of its own, as torch.nn.Linear does"
        )
    return pairs


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _order(shapes: Mapping[str, tuple[int, int]], n_features: int | None) -> tuple[Sequence[str], bool]:
    """Weights (out, in) such that each reads what the one before it gives, and whether only their numbers say so."""
    chains = [
        order
        for order in itertools.permutations(shapes)
        if all(shapes[before][0] == shapes[after][1] for before, after in itertools.pairwise(order))
    ]
    if not chains:
        sizes = ", ".join(f"{name} {shape[1]} -> {shape[0]}" for name, shape in shapes.items())
        raise BadInput(f"the weights fit no head: no order of the layers {sizes} fits them onto each other")
    fitting = [order for order in chains if shapes[order[0]][1] == n_features] or chains
    if len(fitting) == 1:
        return fitting[0], False
    numbers = {name: [number.lstrip("0") for number in re.findall("[0-9]+", name)] for name in shapes}
    alike = len({re.sub("[0-9]+", "#", name) for name in shapes}) == 1
    numbered = tuple(sorted(shapes, key=lambda name: [(len(number), number) for number in numbers[name]]))
    if alike and numbered in fitting:
        return numbered, True
    both = " or ".join(", ".join(order) for order in fitting[:2])
    raise BadInput(
        f"the order of the layers is ambiguous: their shapes fit as {both}; number them, as torch.nn.Sequential does, "
        f"{REMEDY}"
    )
