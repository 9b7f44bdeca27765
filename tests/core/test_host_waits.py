"""A GPU is never waited for within an epoch: the host's waits do not grow with the number of steps.

Counted on a pretended device: numbers read from it, copies either way, rows that a mask chooses.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.pretended_cuda import Pretence, pretended_cuda
from unlearn_core import methods
from unlearn_core.edits.flow import edit
from unlearn_core.edits.flow_path import FLOW, FlowConstants, prepare
from unlearn_core.edits.request import EditRequest
from unlearn_core.edits.ssd import importances
from unlearn_core.methods import Family
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.resnet import ResNetStack
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.preparations import Given
from unlearn_core.problem import Problem, Rows
from unlearn_core.recipes import (
    PAPER_SCHEDULE,
    Optimization,
    Phase,
    Recipe,
    Toward,
    Visit,
    training_recipe,
)
from unlearn_core.training import Member, train

C = 3
HOW = Optimization(lr=1e-3, batch_size=64)


def recipes() -> list[tuple[str, Recipe]]:
    """Everything that the loop runs, one epoch of each phase, looked at when it ends."""
    found = [("training", training_recipe(Visit.ALL, 1)), ("distillation", PAPER_SCHEDULE.build(HOW, 8)[0])]
    for name in methods.baselines():
        line = methods.find(name)
        assert line.family is Family.BASELINE
        found += [(f"{name} {preset}", recipe) for preset, recipe in line.presets.items()]
    return [
        (name, replace(recipe, record_at=(), phases=tuple(Phase(phase.passes, 1) for phase in recipe.phases)))
        for name, recipe in found
    ]


def waits_of_training(net: NetworkStack, inputs: torch.Tensor, recipe: Recipe, pretence: Pretence) -> tuple[int, int]:
    """The waits of one training and its steps."""
    n = len(inputs)
    generator = torch.Generator().manual_seed(0)
    soft = {toward: torch.rand(n, C, generator=generator) for toward in Toward if toward is not Toward.LABELS}
    labels, forget = torch.arange(n) % C, torch.arange(n) % 4 == 0
    chances = torch.rand(n, generator=generator) + 0.1
    members = [Member(seed, "unlearn", labels, forget, soft, chances) for seed in range(net.n_members)]
    pretence.waits.clear()
    pretence.operations.clear()
    train(net, inputs.to("cuda"), members, recipe, HOW)
    steps = sum(count for name, count in pretence.operations.items() if "_fused_" in name)
    return pretence.n_waits, steps


@pytest.mark.parametrize(("name", "recipe"), recipes(), ids=[name for name, _ in recipes()])
def test_the_waits_of_training_heads_do_not_grow_with_its_steps(name, recipe):
    with pretended_cuda() as pretence:
        found = []
        for n in (1100, 2200):
            generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
            stack = HeadStack.initialise((5, 4, C), generators, "cuda")
            inputs = torch.rand(n, 5, generator=torch.Generator().manual_seed(0))
            found.append(waits_of_training(stack, inputs, recipe, pretence))
    (few, few_steps), (many, many_steps) = found
    assert many_steps > few_steps
    assert many == few, pretence.waits


def test_the_waits_of_training_resnet18_do_not_grow_with_its_steps():
    with pretended_cuda() as pretence:
        found = []
        for n in (64, 192):
            stack = ResNetStack.initialise(C, torch.Generator().manual_seed(1), "cuda")
            inputs = torch.zeros(n, 8, 8, 3, dtype=torch.uint8)
            found.append(waits_of_training(stack, inputs, training_recipe(Visit.ALL, 1), pretence))
    (few, few_steps), (many, many_steps) = found
    assert (few_steps, many_steps) == (1, 3)
    assert many == few, pretence.waits


def test_the_waits_of_a_flow_do_not_grow_with_its_steps():
    rng = np.random.default_rng(0)
    inputs, labels = torch.from_numpy(rng.normal(size=(200, 5))).float(), np.arange(200) % C
    mask, found, steps = labels == 1, [], []
    for least in (6, 12):
        constants = FlowConstants(epochs=20, batch_size=64, rows=(32, 32), path_rows=64, least_steps=least)
        path = prepare(Given(Problem(Rows(labels, inputs.numpy(), lambda: inputs), None, C), "linear"), constants)
        steps.append(len(path.lengths))
        with pretended_cuda() as pretence:
            there = inputs.to("cuda")
            net = HeadStack.initialise((5, C), [torch.Generator().manual_seed(1)], "cuda")
            problem = Problem(Rows(labels, inputs.numpy(), lambda there=there: there), None, C)
            pretence.waits.clear()
            assert edit(EditRequest(problem, mask, net, 0, {FLOW: path}), constants) is not None
            found.append(pretence.n_waits)
    assert steps[1] > 1.5 * steps[0]
    assert found[0] == found[1]


def test_the_waits_for_importances_do_not_grow_with_their_batches():
    with pretended_cuda() as pretence:
        stack = HeadStack.initialise((5, C), [torch.Generator().manual_seed(1)], "cuda")
        inputs, labels = torch.rand(64, 5).to("cuda"), (torch.arange(64) % C).to("cuda")
        found = []
        for batch_size in (32, 4):
            pretence.waits.clear()
            importances(stack, 0, inputs, labels, torch.arange(64), batch_size)
            found.append(pretence.n_waits)
    assert found[0] == found[1] == 1, "the order of the rows is copied there once"
