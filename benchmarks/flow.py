"""What does ``flow`` take of a linear head's retrain?

A request for a tenth of the rows, beside retrains of five seeds as one stack, as a grid trains them, and of one: processor
time of one thread, in turns. Its steps follow from the data's curvature, so give a feature set to know yours; without one,
ten overlapping clusters of 50,000 x 384 stand in.

    python -m benchmarks.flow
    python -m benchmarks.flow --features features.npz
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from unlearn_core.data.datasets import load_dataset
from unlearn_core.edits.flow import edit
from unlearn_core.edits.flow_path import FLOW, FlowConstants, prepare
from unlearn_core.edits.request import EditRequest
from unlearn_core.nets.heads import HeadStack
from unlearn_core.preparations import Given
from unlearn_core.problem import Problem, Rows
from unlearn_core.recipes import HEAD_EPOCHS, HEAD_TRAINING, Visit, training_recipe
from unlearn_core.training import Member, train

TURNS, EPOCHS = 4, 2


def data(features: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels, and superclasses, or two halves in their place."""
    if features is not None:
        loaded = load_dataset(features)
        groups = loaded.train_y % 2 if loaded.superclass is None else loaded.superclass[loaded.train_y]
        return loaded.train_x.astype(np.float32), loaded.train_y, groups
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 50_000)
    centres = rng.normal(0, 0.2, (10, 384))
    return (centres[labels] + rng.normal(0, 1, (50_000, 384))).astype(np.float32), labels, labels % 2


def seconds(what: Callable[[], object]) -> float:
    before = time.process_time()
    what()
    return time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", help="a feature set (.npz)")
    features, fine, groups = data(parser.parse_args().features)
    torch.set_num_threads(1)
    inputs, constants = torch.from_numpy(features), FlowConstants()
    asked = fine == 0
    for labels in (fine, groups):
        n_classes = int(labels.max()) + 1
        problem = Problem(Rows(labels.astype(np.int64), features, lambda: inputs), None, n_classes)
        path = prepare(Given(problem, "linear"), constants)
        members = [Member(seed, "r", problem.train.label_tensor, torch.from_numpy(asked)) for seed in range(5)]

        def request(problem=problem, path=path, n_classes=n_classes) -> None:
            edit(EditRequest(problem, asked, HeadStack((inputs.shape[1], n_classes), 1), 0, {FLOW: path}), constants)

        def retrain(k: int, members=members, n_classes=n_classes) -> None:
            recipe = training_recipe(Visit.RETAIN, EPOCHS)
            train(HeadStack((inputs.shape[1], n_classes), k), inputs, members[:k], recipe, HEAD_TRAINING)

        turns = [(seconds(request), *(seconds(lambda k=k: retrain(k)) / k for k in (5, 1))) for _ in range(TURNS)]
        flow, of_five, of_one = (min(column) for column in zip(*turns, strict=True))
        whole = HEAD_EPOCHS / EPOCHS
        print(f"{n_classes} classes, {len(path.lengths)} steps: {flow:.2f} s, ", end="")
        print(f"{flow / of_five / whole:.1%} of a retrain in a stack of five, {flow / of_one / whole:.1%} of one alone")


if __name__ == "__main__":
    main()
