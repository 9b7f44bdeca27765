"""What whole networks that never saw a record say about it, computed before anybody asks.

``crossfit`` trains small models on what proxies see. Of a network on frozen features these are the features. Of one that was
trained end to end they are a layer of it, which was fitted to the very records: the models of the folds have not seen a
record, but what they look at has. Here the model of a fold is a network of the same architecture that is trained on the
inputs, for a short while. It needs no base, so that all networks of an architecture share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unlearn_core.crossfit import CrossFitConstants, draw_folds
from unlearn_core.errors import BadInput
from unlearn_core.recipes import CROSS_ENTROPY, Pass, Phase, Recipe, Start, Visit, optimization_of
from unlearn_core.seeding import derive_seed

if TYPE_CHECKING:
    from unlearn_core.preparations import Given

STREAM = "fold-networks"


@dataclass(frozen=True)
class FoldNetworkConstants:
    """The folds, and the training of their networks: a retrain in which the rate falls within a few epochs."""

    folds: int = 5
    epochs: int = 5
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


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Plain arrays: (N,) the fold of each row, and (N, C) log posteriors of the network that never saw it."""

    folds: NDArray[np.int8]
    log_q: NDArray[np.float32]


def train_fold_networks(given: Given, constants: FoldNetworkConstants) -> OutOfFold:
    """Train a network for every fold, on all other rows, and ask it about its own."""
    import torch

    from unlearn_core.nets.make import fresh_network
    from unlearn_core.training import Member, train

    if given.arch is None:
        raise BadInput(
            "networks of the folds cannot be built: the architecture has no name here; choose another method"
        )
    rows, n_classes = given.problem.train, given.problem.n_classes
    folds = draw_folds(rows.labels, CrossFitConstants(folds=constants.folds, seed=constants.seed))
    log_q = np.empty((len(rows), n_classes), dtype=np.float32)
    for fold in range(constants.folds):
        unseen = folds == fold if given.removed is None else (folds == fold) | given.removed
        stream = f"{STREAM}/{fold}"
        generator = torch.Generator().manual_seed(derive_seed(constants.seed, stream, "weights"))
        net = fresh_network(given.arch, rows.inputs, n_classes, [generator], given.pretrained)
        lesson = Member(constants.seed, stream, rows.label_tensor, torch.from_numpy(unseen))
        train(net, rows.inputs, [lesson], constants.recipe, optimization_of(constants.recipe, given.arch))
        own = torch.from_numpy(np.flatnonzero(folds == fold)).to(rows.inputs.device)
        log_q[folds == fold] = torch.log_softmax(net.logits(0, rows.inputs, own).double(), 1).float().cpu().numpy()
    return OutOfFold(folds, log_q)
