"""How a file names a network's weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from unlearn_core.data.weights import stripped_prefixes
from unlearn_core.nets.stack import State


class Naming(Protocol):
    """Between the tensors of a file and those of a network; as a text, what was understood, or nothing."""

    def to_network(self, tensors: State) -> dict[str, torch.Tensor]: ...

    def to_file(self, state: State) -> dict[str, torch.Tensor]: ...


@dataclass(frozen=True)
class Prefixed:
    """The network's own names behind one prefix, or behind none."""

    prefix: str = ""

    def to_network(self, tensors: State) -> dict[str, torch.Tensor]:
        return {name.removeprefix(self.prefix): tensor for name, tensor in tensors.items()}

    def to_file(self, state: State) -> dict[str, torch.Tensor]:
        return {self.prefix + name: tensor for name, tensor in state.items()}

    def __str__(self) -> str:
        return f"names are read without the prefix {self.prefix!r}" if self.prefix else ""


def find_prefix(names: Iterable[str], own: Iterable[str] | None = None) -> Prefixed:
    """The prefix behind which the names are the network's ``own``; all that wrappers may have put there if none fits."""
    names, wanted = list(names), None if own is None else set(own)
    prefixes = stripped_prefixes(names)
    fitting = (one for one in prefixes if {name.removeprefix(one) for name in names} == wanted)
    return Prefixed(next(fitting, prefixes[-1]))
