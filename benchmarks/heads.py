"""Is a stack of heads faster than training one head at a time?

Time per step and model of a stack of K = 5 (50,000 x 384, batch 512), beside a hand-written loop over one model and
beside the usual TensorDataset/DataLoader loop, single-threaded, in turns; and the share of this machine's own GEMM rate.

    python -m benchmarks.heads
    python -m benchmarks.heads --arch linear
"""

from __future__ import annotations

import argparse
import itertools

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import best_of_turns
from unlearn_core.grid import HEADS, head_widths
from unlearn_core.nets.heads import HeadStack
from unlearn_core.recipes import HEAD_TRAINING, Visit, training_recipe
from unlearn_core.training import Member, train

N, DIM, HIDDEN, CLASSES, BATCH, K = 50_000, 384, 256, 10, 512, 5
STEPS = -(-N // BATCH)
TURNS = 5


def flops_per_sample(widths: tuple[int, ...]) -> int:
    """Forwards, and backwards for weights and inputs; no gradient flows into the features."""
    products = [2 * a * b for a, b in itertools.pairwise(widths)]
    return 3 * sum(products) - products[0]


def one_model(widths: tuple[int, ...]) -> tuple[nn.Module, torch.optim.Optimizer]:
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    model = nn.Sequential(*(module for layer in layers for module in (layer, nn.ReLU())))[:-1]
    return model, torch.optim.Adam(model.parameters(), lr=HEAD_TRAINING.lr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=HEADS, default="mlp1")
    arch = parser.parse_args().arch
    widths = head_widths(arch, DIM, CLASSES)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(N, DIM, generator=generator)
    labels = torch.randint(0, CLASSES, (N,), generator=generator)

    def stack(members: int) -> None:
        net = HeadStack.initialise(widths, [torch.Generator() for _ in range(members)])
        cells = [Member(seed, "base", labels) for seed in range(members)]
        train(net, inputs, cells, training_recipe(Visit.ALL, epochs=1), HEAD_TRAINING)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    def hand_written() -> None:
        model, optimizer = one_model(widths)
        order = torch.randperm(N)
        for rows in order.split(BATCH):
            step(model, optimizer, inputs[rows], labels[rows])

    def data_loader() -> None:
        model, optimizer = one_model(widths)
        for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=BATCH, shuffle=True):
            step(model, optimizer, x, y)

    left, right, product = torch.randn(BATCH, DIM), torch.randn(DIM, HIDDEN), torch.empty(BATCH, HIDDEN)

    def gemm() -> None:
        for _ in range(STEPS):
            torch.mm(left, right, out=product)

    contestants = {
        "stack of 5": lambda: stack(K),
        "stack of 1": lambda: stack(1),
        "hand-written loop": hand_written,
        "DataLoader loop": data_loader,
        "gemm": gemm,
    }
    seconds = best_of_turns(contestants, TURNS)
    gemm_rate = STEPS * 2 * BATCH * DIM * HIDDEN / seconds["gemm"]
    per_step = {
        name: seconds[name] / STEPS / (K if name == "stack of 5" else 1) for name in contestants if name != "gemm"
    }
    stacked = per_step["stack of 5"]
    print(f"{N} x {DIM}, {arch}, batch {BATCH}, one thread; best of {TURNS} turns")
    for name, duration in per_step.items():
        share = flops_per_sample(widths) * N / STEPS / duration / gemm_rate
        print(f"{name:18s} {duration * 1e3:6.3f} ms per step and model, {share:4.0%} of the GEMM rate")
    print(f"GEMM rate of this machine: {gemm_rate / 1e9:.0f} GFLOP/s ({BATCH} x {DIM} x {HIDDEN}, float32)")
    print(f"ratio hand-written / stack of 5: {per_step['hand-written loop'] / stacked:.2f} (target: at least 1.3)")
    print(f"ratio DataLoader / stack of 5:   {per_step['DataLoader loop'] / stacked:.2f} (target: at least 3)")


if __name__ == "__main__":
    main()
