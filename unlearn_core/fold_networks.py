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
from unlearn_core.short_networks import ShortTraining, train_network

if TYPE_CHECKING:
    from unlearn_core.preparations import Given

STREAM = "fold-networks"


@dataclass(frozen=True)
class FoldNetworkConstants(ShortTraining):
    """The folds, and the training of their networks."""

    epochs: int = 5
    folds: int = 5


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Plain arrays: (N,) the fold of each row, and (N, C) log posteriors of the network that never saw it."""

    folds: NDArray[np.int8]
    log_q: NDArray[np.float32]


def train_fold_networks(given: Given, constants: FoldNetworkConstants) -> OutOfFold:
    """Train a network for every fold, on all other rows, and ask it about its own."""
    import torch

    rows = given.problem.train
    folds = draw_folds(rows.labels, CrossFitConstants(folds=constants.folds, seed=constants.seed))
    log_q = np.empty((len(rows), given.problem.n_classes), dtype=np.float32)
    for fold in range(constants.folds):
        net = train_network(given, constants, f"{STREAM}/{fold}", folds == fold)
        own = torch.from_numpy(np.flatnonzero(folds == fold)).to(rows.inputs.device)
        log_q[folds == fold] = torch.log_softmax(net.logits(0, rows.inputs, own).double(), 1).float().cpu().numpy()
    return OutOfFold(folds, log_q)
