"""What models that never saw a record say about it, computed before anybody asks.

D is split into K folds, and K small models are trained, the k-th on all folds but its own, as ``short`` trains. Every row
keeps what the model of its own fold says: an opinion that does not know the row. To forget records is then a look-up.

A fold model has seen the *other* rows of a request. For scattered records that does not matter; for a class, or any group of
rows that vouch for each other, it is too sure (``closeness`` tests which it is).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput
from unlearn_core.recipes import CROSS_ENTROPY, Optimization, Pass, Phase, Recipe, Start, Visit
from unlearn_core.seeding import derive_seed

if TYPE_CHECKING:
    import torch

    from unlearn_core.nets.heads import HeadStack

STREAM = "crossfit"


@dataclass(frozen=True)
class CrossFitConstants:
    """The folds and the training of their models: ``short`` after two epochs."""

    folds: int = 5
    epochs: int = 2
    least_steps: int = 120
    """Steps that a small data set should make, in ``most_epochs`` at most."""
    most_epochs: int = 50
    rate: float = 3e-3
    averaging: float = 2.0
    batch_size: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.folds <= np.iinfo(np.int8).max:
            raise BadInput(f"{self.folds} folds; there must be 2 to {np.iinfo(np.int8).max}")

    def recipe(self, n_rows: int) -> Recipe:
        """The training of a model on ``n_rows`` rows."""
        epochs = max(self.epochs, math.ceil(self.least_steps / math.ceil(n_rows / self.batch_size)))
        sweep = Pass(Visit.RETAIN, CROSS_ENTROPY)
        return Recipe(
            phases=(Phase((sweep,), min(epochs, max(self.epochs, self.most_epochs))),),
            optimization=Optimization(self.rate, self.batch_size),
            start=Start.FRESH,
            averaging=self.averaging,
            batch_statistics=True,
        )


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Plain arrays: what the fold models say about the rows of D, and the models.

    Attributes:
        folds: (N,) the fold of each row; its model never saw the row.
        log_q: (N, C) log posteriors of every row under the model of its own fold.
        weights: (K, n_weights) of the fold models, layer by layer: (in, out) weights, then biases.
        widths: of their layers, from the features to the classes.
    """

    folds: NDArray[np.int8]
    log_q: NDArray[np.float32]
    weights: NDArray[np.float32]
    widths: NDArray[np.int64]

    def ask(self, inputs: NDArray[np.floating]) -> NDArray[np.float32]:
        """(K, M, C) log posteriors of every fold model at (M, d) new points."""
        import torch

        from unlearn_core.nets.heads import HeadStack

        models = HeadStack([int(width) for width in self.widths], len(self.weights))
        for (flat,), weights in zip(models.parameters(), self.weights, strict=True):
            flat.copy_(torch.from_numpy(weights))
        points = _as_read(inputs)
        return np.stack([_log_posteriors(models, k, points) for k in range(len(self.weights))])


@dataclass(frozen=True, eq=False)
class FoldModel:
    """One fold's model, and what it says of its own fold.

    Attributes:
        fold: its number.
        weights: (n_weights,) and log_q (n, C) of the fold's rows, ascending: as in ``CrossFit``.
    """

    fold: int
    weights: NDArray[np.float32]
    log_q: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Folds:
    """What fold models are trained on: heads with ``hidden`` layers.

    Attributes:
        features: (N, d) as the network reads them.
        removed: (N,) True for rows that no model may see.
    """

    features: NDArray[np.floating]
    labels: NDArray[np.integer]
    n_classes: int
    hidden: Sequence[int]
    constants: CrossFitConstants
    removed: NDArray[np.bool_] | None = None

    @cached_property
    def of_rows(self) -> NDArray[np.int8]:
        """(N,) the fold of each row."""
        return draw_folds(self.labels, self.constants)

    @property
    def widths(self) -> tuple[int, ...]:
        return self.features.shape[1], *self.hidden, self.n_classes

    def train(self, chosen: Sequence[int]) -> list[FoldModel]:
        """The models of some folds, each asked about its own; the same whichever are trained together."""
        import torch

        from unlearn_core.nets.heads import HeadStack
        from unlearn_core.training import Member, train

        constants, inputs = self.constants, _as_read(self.features)
        targets = torch.from_numpy(self.labels.astype(np.int64))
        unseen = {k: self.of_rows == k if self.removed is None else (self.of_rows == k) | self.removed for k in chosen}
        models: dict[int, FoldModel] = {}
        for size in {int(rows.sum()) for rows in unseen.values()}:  # members of a stack leave out equally many rows
            members = [k for k in chosen if unseen[k].sum() == size]
            streams = [f"{STREAM}/{k}" for k in members]
            generators = [torch.Generator().manual_seed(derive_seed(constants.seed, s, "weights")) for s in streams]
            stack = HeadStack.initialise(self.widths, generators)
            lessons = [
                Member(constants.seed, stream, targets, torch.from_numpy(unseen[k]))
                for k, stream in zip(members, streams, strict=True)
            ]
            recipe = constants.recipe(len(self.labels) - size)
            train(stack, inputs, lessons, recipe, Optimization(constants.rate, constants.batch_size))
            for place, k in enumerate(members):
                rows = torch.from_numpy(np.flatnonzero(self.of_rows == k))
                weights = stack.parameters()[place][0].numpy().copy()
                models[k] = FoldModel(k, weights, _log_posteriors(stack, place, inputs, rows))
        return [models[k] for k in chosen]

    def joined(self, models: Sequence[FoldModel]) -> CrossFit:
        """The models of all folds, in their order, as one."""
        log_q = np.empty((len(self.labels), self.n_classes), dtype=np.float32)
        for model in models:
            log_q[self.of_rows == model.fold] = model.log_q
        return CrossFit(
            self.of_rows, log_q, np.stack([model.weights for model in models]), np.array(self.widths, np.int64)
        )


def cross_fit(folds: Folds) -> CrossFit:
    """Train the model of every fold and ask each about its own."""
    return folds.joined(folds.train(range(folds.constants.folds)))


def draw_folds(labels: NDArray[np.integer], constants: CrossFitConstants) -> NDArray[np.int8]:
    """(N,) folds, dealt out at random within each class: equal to within one row, overall and in every class."""
    if len(labels) < constants.folds:
        raise BadInput(f"{len(labels)} rows are too few for {constants.folds} folds; each needs one")
    order = np.random.default_rng(derive_seed(constants.seed, STREAM, "folds")).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    folds = np.empty(len(labels), dtype=np.int8)
    folds[order] = np.arange(len(labels)) % constants.folds
    return folds


def _as_read(features: NDArray[np.floating]) -> torch.Tensor:
    """Features as heads read them."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))


def _log_posteriors(
    models: HeadStack, member: int, inputs: torch.Tensor, rows: torch.Tensor | None = None
) -> NDArray[np.float32]:
    """(n, C), normalised in float64."""
    import torch

    return torch.log_softmax(models.logits(member, inputs, rows).double(), 1).float().numpy()
