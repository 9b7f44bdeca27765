"""The networks that everything is measured against: base, retrain, and the floor (a second retrain)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from unlearn_core.audit.scoring import EvaluationData, Scorer
from unlearn_core.nets.make import fresh_network
from unlearn_core.nets.stack import NetworkStack, State
from unlearn_core.problem import Cell, Mask, Problem, Rows
from unlearn_core.recipes import Optimization, Visit, training_optimization, training_recipe
from unlearn_core.records import ReferenceRecord
from unlearn_core.seeding import derive_seed
from unlearn_core.training import EpochEnd, Member, train

ROLES: tuple[str, ...] = ("base", "retrain", "floor")


@dataclass(frozen=True, eq=False)
class Trained:
    """A stack trained from scratch, one member per cell, and the seconds that each took."""

    net: NetworkStack
    seconds: tuple[float, ...]


def train_reference(
    role: str,
    problem: Problem,
    arch: str,
    cells: Sequence[Cell],
    epochs: int,
    on_epoch: EpochEnd | None = None,
    pretrained: State | None = None,
) -> Trained:
    """Train ``base`` on D, ``retrain`` or ``floor`` on D_r, each from scratch.

    Base and retrain of a cell start from the same fresh weights, drawn from the cell's seed, so that what tells them
    apart is the data (and row orders), not the draw. The floor starts from other weights: it is what another seed
    is to the retrain. With ``pretrained`` (images only) all start from those weights, and what is drawn is the classifier.
    """
    rows, requests = problem.train, [(cell.seed, cell.forget) for cell in cells]
    generators = [torch.Generator().manual_seed(weights_seed(cell.seed, role)) for cell in cells]
    net = fresh_network(arch, rows.inputs, problem.n_classes, generators, pretrained)
    return train_fresh(net, role, rows, requests, epochs, training_optimization(arch), on_epoch)


def weights_seed(seed: int, role: str) -> int:
    """What the fresh weights of a reference are drawn from."""
    return derive_seed(seed, "floor" if role == "floor" else "network", "weights")


def train_fresh(
    net: NetworkStack,
    role: str,
    rows: Rows,
    requests: Sequence[tuple[int, Mask]],
    epochs: int,
    optimization: Optimization,
    on_epoch: EpochEnd | None = None,
) -> Trained:
    """Train fresh networks in place, as a base on all rows or else on those that are not forgotten.

    Args:
        requests: of each member, the seed of its row orders and the (N,) rows that it forgets.
    """
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}; there are {', '.join(ROLES)}")
    is_base = role == "base"
    members = [
        Member(seed, role, rows.label_tensor, None if is_base else torch.from_numpy(forget))
        for seed, forget in requests
    ]
    recipe = training_recipe(Visit.ALL if is_base else Visit.RETAIN, epochs)
    return Trained(net, (train(net, rows.inputs, members, recipe, optimization, on_epoch),) * len(members))


def make_scorers(problem: Problem, cells: Sequence[Cell], retrain: Trained) -> list[Scorer]:
    return [Scorer(_evaluation_data(problem, cell), retrain.net, k) for k, cell in enumerate(cells)]


def _evaluation_data(problem: Problem, cell: Cell) -> EvaluationData:
    train, test = problem.train, problem.test
    rows = torch.from_numpy(np.flatnonzero(cell.forget)).to(problem.device)
    return EvaluationData(
        test_inputs=test.inputs,
        test_labels=test.label_tensor,
        train_inputs=train.inputs,
        forget_rows=rows,
        forget_labels=train.label_tensor[rows],
        heldout=torch.from_numpy(cell.heldout).to(problem.device),
    )


def reference_records(trained: Trained, scorers: Sequence[Scorer]) -> list[ReferenceRecord]:
    """Score base, retrain or floor like a method."""
    return [ReferenceRecord(scorer.score(trained.net, k), trained.seconds[k]) for k, scorer in enumerate(scorers)]
