"""A model's weights as a file: read without unpickling, written again in the format and with the keys that came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from unlearn_core.data.weights import is_safetensors, load_weights
from unlearn_core.nets.stack import State

PARALLEL = "module."
WRAPPERS = ("state_dict", "model")


@dataclass(frozen=True, eq=False)
class WeightsFile:
    """``state`` by the network's own names. What surrounded it in the file is kept in the other attributes.

    Attributes:
        wrapper: the entry of a checkpoint that held the weights, or None.
        prefix: what ``DataParallel`` put before each name, or nothing.
        metadata: of a safetensors file; None for a PyTorch state dict.
        dropped: entries of a checkpoint beside the weights. They are not written: an optimiser's state has seen the data.
    """

    name: str
    state: State
    safetensors: bool
    wrapper: str | None = None
    prefix: str = ""
    metadata: Mapping[str, str] | None = None
    dropped: tuple[str, ...] = ()

    def as_stored(self, state: State) -> dict[str, torch.Tensor]:
        """``state`` in the types of the file, in which its numbers may be rounded."""
        return {name: tensor.to(self.state[name].dtype) for name, tensor in state.items()}

    def write(self, folder: Path, state: State) -> Path:
        """Write other weights as this file is written; returns the path."""
        path = folder / self.name
        ordered = {self.prefix + name: state[name].contiguous().clone() for name in self.state}
        if self.safetensors:
            from safetensors.torch import save_file

            save_file(ordered, path, metadata=dict(self.metadata) if self.metadata else None)
        else:
            torch.save({self.wrapper: ordered} if self.wrapper else ordered, path)
        return path


def read_weights_file(path: Path) -> WeightsFile:
    """Read tensors from a safetensors file or a PyTorch state dict; a pickle of anything else is refused."""
    state = load_weights(path)
    if is_safetensors(path):
        from safetensors import safe_open

        with safe_open(path, framework="pt") as archive:
            metadata, names = archive.metadata(), list(archive.keys())
        return WeightsFile(path.name, state, True, prefix=_prefix(names, state), metadata=metadata)
    stored = torch.load(path, map_location="cpu", weights_only=True)
    wrapper = next((name for name in WRAPPERS if isinstance(stored.get(name), Mapping)), None)
    names = list(stored[wrapper] if wrapper else stored)
    dropped = tuple(str(name) for name in stored if name != wrapper) if wrapper else ()
    return WeightsFile(path.name, state, False, wrapper, _prefix(names, state), dropped=dropped)


def _prefix(names: list[str], state: State) -> str:
    return PARALLEL if set(names) != set(state) else ""
