"""What does an epoch of drawn rows, or of small batches, take in epochs of a retrain?

The same heads for one epoch of a retrain, of ``short-small`` and of ``short-hard``: processor time of one thread, the best
of some turns, alone and in a stack of five. ``within_budget.EPOCH_IN_BATCHES`` has what ``forget`` reckons with. The rows
are noise: how long a step takes does not depend on what they say.

    python -m benchmarks.hard_rows
"""

from __future__ import annotations

import time

import torch

from benchmarks.saving import show
from unlearn_core.baselines.short import HARD, SMALL
from unlearn_core.grid import HEADS, head_widths
from unlearn_core.nets.heads import HeadStack
from unlearn_core.recipes import HEAD_TRAINING, Recipe, Visit, training_recipe
from unlearn_core.training import Member, train

TURNS = 3
N, DIM, CLASSES = 50_000, 384, 10


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(N, DIM, generator=generator)
    labels = torch.randint(0, CLASSES, (N,), generator=generator)
    chances = torch.rand(N, generator=generator, dtype=torch.float64) + 0.1
    forget = torch.arange(N) < N // 10
    recipes = {
        "retrain": training_recipe(Visit.RETAIN, 1),
        "small batches": SMALL.lasting(1),
        "hard rows": HARD.lasting(1),
    }

    def seconds(arch: str, recipe: Recipe, stack: int) -> float:
        net = HeadStack.initialise(head_widths(arch, DIM, CLASSES), [torch.Generator() for _ in range(stack)])
        members = [Member(seed, "r", labels, forget, chances=chances) for seed in range(stack)]
        before = time.process_time()
        train(net, inputs, members, recipe, HEAD_TRAINING)
        return (time.process_time() - before) / stack

    rows = []
    for arch in HEADS:
        for stack in (1, 5):
            turns = [{name: seconds(arch, recipe, stack) for name, recipe in recipes.items()} for _ in range(TURNS)]
            best = {name: min(turn[name] for turn in turns) for name in recipes}
            prices = {name: f"{best[name] / best['retrain']:.2f}" for name in recipes if name != "retrain"}
            rows.append({"head": arch, "stack": stack, "retrain's epoch, s": f"{best['retrain']:.3f}", **prices})
    show(rows)


if __name__ == "__main__":
    main()
