"""A young network: one that was trained on D for a few epochs and no further, before anybody asks.

What a network learns first is what rows have in common; it remembers single ones later. So a young network says of a record
nearly what it would say had it never seen it, and knows what a retrain has to learn first: one that is cut short starts from
there and needs a moment (``short-young``). What more training brings from there is little: networks that are trained end to
end, two trainings of which are far apart, do not need it, heads with two hidden layers go on from a share of the base for
more than a hundredth of a retrain. It needs no base, so that all networks of an architecture share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unlearn_core.short_networks import ShortTraining, train_network

if TYPE_CHECKING:
    from unlearn_core.nets.stack import State
    from unlearn_core.preparations import Given

STREAM = "young"


@dataclass(frozen=True)
class YoungConstants(ShortTraining):
    """Of 1, 2, 4 and 8 epochs 4 are closest on the development requests of ResNet-8: after 8 a group is remembered."""

    epochs: int = 4


@dataclass(frozen=True, eq=False)
class YoungNetwork:
    """Its weights, by name."""

    weights: Mapping[str, NDArray]

    def arrays(self) -> Mapping[str, NDArray]:
        return self.weights

    def state(self) -> State:
        import torch

        return {name: torch.from_numpy(np.array(values)) for name, values in self.weights.items()}


def train_young(given: Given, constants: YoungConstants) -> YoungNetwork:
    state = train_network(given, constants, STREAM).state(0)
    return YoungNetwork({name: tensor.cpu().numpy() for name, tensor in state.items()})
