"""A head with rows to ask for, some of them a group, and a state that was prepared of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from unlearn_core import forget
from unlearn_core.audit.divergence import log_probabilities
from unlearn_core.forgetting.forget import Forgotten
from unlearn_core.forgetting.opening import Heldout, prepare
from unlearn_core.nets.heads import HeadStack
from unlearn_core.recipes import HEAD_TRAINING, Visit, training_recipe
from unlearn_core.training import Member, train

N, HELD, DIM, CLASSES = 4000, 1000, 24, 4
GROUP = np.arange(0, 320, 4)
"""Rows of class 0, fewer than a fold, that lie somewhere else."""


def _draw(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Four classes that overlap, so that a network learns some rows by heart."""
    y = np.arange(n) % CLASSES
    means = 0.5 * np.random.default_rng(0).normal(size=(CLASSES, DIM))
    return (rng.normal(size=(n, DIM)) + means[y]).astype(np.float32), y


X, Y = _draw(N, np.random.default_rng(1))
X[GROUP, :3] += 3
HELDOUT = Heldout(*_draw(HELD, np.random.default_rng(2)))
SCATTERED = np.setdiff1d(np.random.default_rng(3).permutation(N), GROUP, assume_unique=True)
TRAINING, EPOCHS = replace(HEAD_TRAINING, lr=1e-2), 60


def trained(epochs: int, seed: int = 0) -> HeadStack:
    net = HeadStack.initialise((DIM, 64, CLASSES), [torch.Generator().manual_seed(seed)])
    train(
        net,
        torch.from_numpy(X),
        [Member(0, "base", torch.from_numpy(Y))],
        training_recipe(Visit.ALL, epochs),
        TRAINING,
    )
    return net


def ask(net, rows, state, **more) -> Forgotten:
    return forget(net, X, Y, rows, heldout=HELDOUT, prepared=state, **more)


def same_weights(one: Forgotten, other: Forgotten) -> bool:
    ours, theirs = one.model.state(0), other.model.state(0)
    return all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def says(net, x=X) -> np.ndarray:
    return log_probabilities(net.logits(0, torch.from_numpy(x)).double().numpy())


def kind(result: Forgotten) -> str:
    return result.certificate.content["kind"]["kind"]


def prepared_state(net: HeadStack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "state"
    prepare(net, X, Y, out, heldout=HELDOUT)
    return out
