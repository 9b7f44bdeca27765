"""Networks of an architecture that are trained for a short while before anybody asks, on all of D or on a part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput
from unlearn_core.recipes import CROSS_ENTROPY, Pass, Phase, Recipe, Start, Visit, optimization_of
from unlearn_core.seeding import derive_seed

if TYPE_CHECKING:
    from unlearn_core.nets.stack import NetworkStack
    from unlearn_core.preparations import Given


@dataclass(frozen=True)
class ShortTraining:
    """A retrain in which the rate falls within a few epochs."""

    epochs: int
    rate: float = 1.0
    """In units of the architecture's own training rate."""
    last_rate: float = 0.1
    """The share of it to which it falls by the end."""
    seed: int = 0

    @property
    def recipe(self) -> Recipe:
        return Recipe(
            phases=(Phase((Pass(Visit.RETAIN, CROSS_ENTROPY),), self.epochs),),
            start=Start.FRESH,
            rate=self.rate,
            last_rate=self.last_rate,
            batch_statistics=True,
        )


def train_network(
    given: Given, how: ShortTraining, stream: str, unseen: NDArray[np.bool_] | None = None
) -> NetworkStack:
    """Train a network of the given architecture, a stack of one, on the inputs of D's rows.

    Args:
        stream: what its weights and its row orders are drawn for.
        unseen: (N,) rows that it must not see, beside those that are removed.
    """
    import torch

    from unlearn_core.nets.make import fresh_network
    from unlearn_core.training import Member, train

    if given.arch is None:
        raise BadInput(f"{stream} cannot be built: the architecture has no name here; choose another method")
    rows = given.problem.train
    out = np.zeros(len(rows), dtype=bool) if unseen is None else unseen
    out = out if given.removed is None else out | given.removed
    generator = torch.Generator().manual_seed(derive_seed(how.seed, stream, "weights"))
    net = fresh_network(given.arch, rows.inputs, given.problem.n_classes, [generator], given.pretrained)
    lesson = Member(how.seed, stream, rows.label_tensor, torch.from_numpy(out))
    train(net, rows.inputs, [lesson], how.recipe, optimization_of(how.recipe, given.arch))
    return net
