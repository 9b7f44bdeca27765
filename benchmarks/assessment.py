"""What does it take to assess a request, of a retrain?

``auto`` finds out what kind of request it has, and of a group whether a model without it still knows it, before it chooses;
that is part of its cost. Here is what it takes of a core, the median of some turns with other draws, beside a retrain of one
head in a stack of five, as a grid trains it (an epoch, times 50).

    python -m benchmarks.assessment --features features.npz [--save docs/data]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.saving import save, show
from unlearn_core.assess import assess, view_retained
from unlearn_core.data.datasets import load_dataset
from unlearn_core.data.splits import scenario_mask
from unlearn_core.grid import HEADS, LabelSpace, Scenario, head_widths
from unlearn_core.nets.heads import HeadStack
from unlearn_core.preparations import CROSSFIT, DISCRIMINANT
from unlearn_core.problem import Inputs, make_problem
from unlearn_core.recipes import HEAD_EPOCHS, HEAD_TRAINING, Visit, training_recipe
from unlearn_core.training import Member, train
from unlearn_core.within_budget import hidden_layers

TURNS, STACK = 9, 5
REQUESTS = (
    (Scenario.CLASS, 1),
    (Scenario.SUBCLASS, 1),
    (Scenario.SUBCLASS, 3),
    *((Scenario.RANDOM, n) for n in (1, 50, 500, 5000)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", required=True, help="a feature set (.npz) with superclasses")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write assessment.csv here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = Inputs(load_dataset(arguments.features))
    problems = {space: make_problem(data, space) for space in LabelSpace}
    rows = []
    for arch in HEADS:
        row: dict[str, object] = {"head": arch}
        retrains = {space: _retrain(problem, arch) for space, problem in problems.items()}
        row["retrain, s"] = " and ".join(f"{seconds:.2g}" for seconds in retrains.values())
        for scenario, key in REQUESTS:
            space = LabelSpace.SUPERCLASS if scenario is Scenario.SUBCLASS else LabelSpace.FINE
            taken = _assessment(problems[space], data.data.train_y, arch, scenario, key)
            row[f"{scenario} {key}"] = f"{1e3 * taken:.1f} ms, {taken / retrains[space]:.2%}"
        rows.append(row)
        show([row])
    if arguments.save is not None:
        save(
            arguments.save / "assessment.csv",
            rows,
            "python -m benchmarks.assessment --features FEATURES --save docs/data",
        )


def _retrain(problem, arch: str) -> float:
    widths = head_widths(arch, problem.train.seen.shape[1], problem.n_classes)
    net = HeadStack.initialise(widths, [torch.Generator().manual_seed(seed) for seed in range(STACK)])
    nothing = torch.zeros(problem.n_rows, dtype=torch.bool)
    members = [Member(seed, "r", problem.train.label_tensor, nothing) for seed in range(STACK)]
    before = time.process_time()
    train(net, problem.train.inputs, members, training_recipe(Visit.RETAIN, 1), HEAD_TRAINING)
    return (time.process_time() - before) / STACK * HEAD_EPOCHS


def _assessment(problem, fine: np.ndarray, arch: str, scenario: Scenario, key: int) -> float:
    crossfit, _ = problem.prepare(CROSSFIT, arch), problem.prepare(DISCRIMINANT)
    taken = []
    for seed in range(TURNS):
        forget = scenario_mask(scenario, key, fine, seed, None)
        compared_with = view_retained(problem, forget, crossfit)
        before = time.process_time()
        assess(problem, forget, crossfit, compared_with, hidden_layers(arch), seed)
        taken.append(time.process_time() - before)
    return median(taken)


if __name__ == "__main__":
    main()
