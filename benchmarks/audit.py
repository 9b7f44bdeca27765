"""What does a shadow of an audit cost, stacked, beside the loop that authors use?

A shadow is a base on D and a retrain on D_r. Seconds per shadow and epoch (10,000 x 384, mlp1, batch 512, one row in twenty
forgotten) of a stack as large as the executor fuses, and of one network after the other through TensorDataset and
DataLoader; single-threaded, in turns. And what both attacks take on top, for 64 shadows and 1,000 records.

    python -m benchmarks.audit
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

from benchmarks.heads import BATCH, CLASSES, DIM, one_model
from benchmarks.timing import best_of_turns
from tasks.schedule import MAX_FUSED
from unlearn_core.audit.attack import ShadowAnswers, attack_networks
from unlearn_core.grid import head_widths
from unlearn_core.nets.heads import HeadStack
from unlearn_core.recipes import HEAD_TRAINING, Visit, training_recipe
from unlearn_core.training import Member, train

N, TURNS, EPOCHS = 10_000, 2, 50
SHADOWS, RECORDS = 64, 1000


def main() -> None:
    torch.set_num_threads(1)
    widths = head_widths("mlp1", DIM, CLASSES)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(N, DIM, generator=generator)
    labels = torch.randint(0, CLASSES, (N,), generator=generator)
    forget = torch.arange(N) < N // 20

    def stacked() -> None:
        for role, visit, gone in (("base", Visit.ALL, None), ("retrain", Visit.RETAIN, forget)):
            net = HeadStack.initialise(widths, [torch.Generator() for _ in range(MAX_FUSED)])
            members = [Member(seed, role, labels, gone) for seed in range(MAX_FUSED)]
            train(net, inputs, members, training_recipe(visit, epochs=1), HEAD_TRAINING)

    everything = TensorDataset(inputs, labels)
    retained = Subset(everything, torch.nonzero(~forget)[:, 0].tolist())

    def data_loader() -> None:
        for rows in (everything, retained):
            model, optimizer = one_model(widths)
            for x, y in DataLoader(rows, batch_size=BATCH, shuffle=True):
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()

    seconds = best_of_turns({"stacked": stacked, "DataLoader loop": data_loader}, TURNS)
    per_shadow = {"stacked": seconds["stacked"] / MAX_FUSED, "DataLoader loop": seconds["DataLoader loop"]}
    print(f"{N} x {DIM}, mlp1, batch {BATCH}, one thread; a shadow is a base and a retrain; best of {TURNS} turns")
    for name, duration in per_shadow.items():
        print(f"{name:16s} {duration:6.3f} s per shadow and epoch")
    print(f"ratio DataLoader / stack of {MAX_FUSED}: {per_shadow['DataLoader loop'] / per_shadow['stacked']:.2f}")
    rng = np.random.default_rng(0)
    answers = [ShadowAnswers(*(rng.normal(size=(SHADOWS, RECORDS)) ** 2 for _ in range(4))) for _ in range(2)]
    started = time.perf_counter()
    attack_networks(answers[0], answers[1], False, "gaussian")
    attacking, training = time.perf_counter() - started, SHADOWS * EPOCHS * per_shadow["stacked"]
    print(f"both attacks on {SHADOWS} networks and {RECORDS} records of each part: {attacking:.1f} s")
    print(f"ratio attacks / stacked training of {SHADOWS} shadows for {EPOCHS} epochs: {attacking / training:.4f}")


if __name__ == "__main__":
    main()
