"""Networks of a model's own kind, trained anew on its data: retrains to measure against, and the shadows of an audit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from unlearn_core.errors import BadInput
from unlearn_core.forgetting.subject import Subject
from unlearn_core.nets.make import Blueprint
from unlearn_core.problem import Mask
from unlearn_core.recipes import Optimization
from unlearn_core.references import Trained, train_fresh
from unlearn_core.seeding import derive_seed


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How long and at what learning rate. None: the architecture's own."""

    epochs: int | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 1:
            raise BadInput(f"{self.epochs} epochs train nothing; ask for at least 1")
        if self.lr is not None and not (math.isfinite(self.lr) and self.lr > 0):
            raise BadInput(f"learning rate {self.lr} of the retrain must be positive")

    def of(self, how: Blueprint) -> tuple[Optimization, int]:
        optimization, epochs = how.training
        if self.lr is not None:
            optimization = dataclasses.replace(optimization, lr=self.lr)
        return optimization, self.epochs or epochs


def train_anew(
    subject: Subject,
    how: Blueprint,
    role: str,
    draws: Sequence[int],
    seeds: Sequence[int],
    forget: Mask,
    training: tuple[Optimization, int],
) -> Trained:
    """A network for each seed, as one stack; if they cannot be stacked, there is one.

    Args:
        role: ``base``, which sees all rows, or ``retrain`` or ``floor``, which see those that are not forgotten.
        draws: what the weights of each are drawn from.
        forget: (N,) among all rows of D.
    """
    rows, base = subject.all_rows.train, subject.net
    if base is None:
        raise BadInput("a black box cannot be trained anew; give the network")
    net = how.fresh(base, rows.inputs[:2], *draws)
    if net.n_classes != base.n_classes:
        raise BadInput(
            f"{how.name} builds {net.n_classes} classes and the model has {base.n_classes}; mend the function"
        )
    optimization, epochs = training
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seeds[0], role, "noise"))  # dropout draws from torch's own stream
        trained = train_fresh(net, role, rows, [(seed, forget) for seed in seeds], epochs, optimization)
    net.use_batch_statistics(False)
    return trained
