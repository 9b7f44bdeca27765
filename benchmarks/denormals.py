"""What do numbers below 1e-38 cost a training, and do they change what it leads to?

A head of two hidden layers learns two classes by heart, and then trains on for some epochs, with such numbers and without,
in turns. The seconds of these epochs, their ratio, and whether the weights are the same to the bit.

    python -m benchmarks.denormals
    python -m benchmarks.denormals --features cifar10_r50.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from benchmarks.saving import show
from benchmarks.timing import best_of_turns
from unlearn_core import training
from unlearn_core.arithmetic import denormals_flushed
from unlearn_core.data.feature_set import load_feature_set
from unlearn_core.grid import head_widths
from unlearn_core.nets.heads import HeadStack
from unlearn_core.recipes import HEAD_TRAINING, Visit, training_recipe
from unlearn_core.training import Member

LEARNT = 50
"""Epochs, as a retrain has."""
EPOCHS = 3
TURNS = 3


def synthetic() -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes that lie far apart."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 20_000)
    inputs = rng.normal(size=(len(labels), 384)) + 0.2 * (2 * labels[:, None] - 1)
    return torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(labels)


def real(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    data = load_feature_set(file)
    if data.superclass is None:
        raise SystemExit(f"{file} has no superclass array")
    return torch.from_numpy(data.train_x).float(), torch.from_numpy(data.superclass[data.train_y].astype(np.int64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, help="a feature set with superclasses (default: synthetic rows)")
    features = parser.parse_args().features
    torch.set_num_threads(1)
    inputs, labels = synthetic() if features is None else real(features)
    base = HeadStack.initialise(head_widths("mlp2", inputs.shape[1], 2), [torch.Generator().manual_seed(0)])
    member = Member(0, "base", labels)
    training.train(base, inputs, [member], training_recipe(Visit.ALL, LEARNT), HEAD_TRAINING)
    ended: dict[bool, HeadStack] = {}

    def go_on(flush: bool) -> None:
        ended[flush] = base.select([0])
        inner = training.train.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
        with denormals_flushed(flush):
            inner(ended[flush], inputs, [member], training_recipe(Visit.ALL, EPOCHS), HEAD_TRAINING)

    best = best_of_turns({"with": lambda: go_on(False), "without": lambda: go_on(True)}, TURNS)
    same = all(torch.equal(ended[True].state(0)[name], tensor) for name, tensor in ended[False].state(0).items())
    told = {name: f"{seconds / EPOCHS:.2f}" for name, seconds in best.items()}
    show([{"epochs of": f"{len(inputs)} rows", "with, s": told["with"], "without, s": told["without"],
           "ratio": f"{best['with'] / best['without']:.1f}", "same weights": "yes" if same else "no"}])  # fmt: skip


if __name__ == "__main__":
    main()
