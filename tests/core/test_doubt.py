"""Rows drawn by how unsure models that never saw them are: the gradient of all rows in the mean, nothing of the records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from unlearn_core.data import load_dataset
from unlearn_core.doubt import DoubtConstants, chances
from unlearn_core.errors import BadInput
from unlearn_core.grid import Scenario, Variant
from unlearn_core.nets.heads import HeadStack
from unlearn_core.problem import Inputs, make_cells, make_problem
from unlearn_core.recipes import CROSS_ENTROPY, Algorithm, Optimization, Pass, Phase, Recipe, Visit
from unlearn_core.references import make_scorers, train_reference
from unlearn_core.run_settings import RunSettings
from unlearn_core.training import Member, train
from unlearn_core.unlearning import Reference, run_method

N, DIM, CLASSES = 60, 5, 3
INPUTS = torch.randn(N, DIM, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, CLASSES, (N,), generator=torch.Generator().manual_seed(1))
FORGET = torch.arange(N) < 10
UNEVEN = torch.linspace(0.05, 3.0, N, dtype=torch.float64)
RETAINED = N - int(FORGET.sum())


def drawn(batch_size: int, epochs: int = 1) -> Recipe:
    return Recipe(phases=(Phase((Pass(Visit.RETAIN_DRAWN, CROSS_ENTROPY, batch_size=batch_size),), epochs),))


def trained(recipe: Recipe, seeds: list[int], inputs: torch.Tensor = INPUTS, chances: torch.Tensor = UNEVEN):
    """(K, n_weights) after plain gradient descent from the same weights, one member per seed."""
    net = HeadStack.initialise((DIM, CLASSES), [torch.Generator().manual_seed(2) for _ in seeds])
    members = [Member(seed, "drawn", LABELS, FORGET, chances=chances) for seed in seeds]
    train(net, inputs, members, recipe, Optimization(lr=0.1, batch_size=N, algorithm=Algorithm.SGD))
    return torch.stack([weights.clone() for (weights,) in net.parameters()])


def test_even_chances_visit_every_retained_row_once():
    """Then a step on all of them is the step that plain training makes."""
    plain = replace(drawn(RETAINED), phases=(Phase((Pass(Visit.RETAIN, CROSS_ENTROPY, batch_size=RETAINED),), 1),))
    even = torch.full((N,), 0.3, dtype=torch.float64)
    torch.testing.assert_close(trained(drawn(RETAINED), [0], chances=even), trained(plain, [0]))


def test_in_the_mean_a_drawn_step_is_a_step_on_all_retained_rows():
    """The weights undo the draw, whatever the chances are: four standard errors of 400 steps, weight by weight."""
    plain = replace(drawn(RETAINED), phases=(Phase((Pass(Visit.RETAIN, CROSS_ENTROPY, batch_size=RETAINED),), 1),))
    steps = trained(drawn(RETAINED), list(range(400)))
    error = steps.std(0) / len(steps) ** 0.5
    assert (error > 0).all()
    assert ((steps.mean(0) - trained(plain, [0])[0]).abs() < 4 * error).all()


def test_records_are_never_looked_at():
    poisoned = INPUTS.clone()
    poisoned[FORGET] = torch.nan
    torch.testing.assert_close(trained(drawn(8, epochs=3), [4], poisoned), trained(drawn(8, epochs=3), [4]))


def test_a_member_is_the_same_alone_and_in_a_stack():
    together = trained(drawn(16, epochs=2), [5, 6, 7])
    for k, seed in enumerate((5, 6, 7)):
        assert torch.equal(trained(drawn(16, epochs=2), [seed])[0], together[k])


def test_a_member_without_chances_is_refused():
    net = HeadStack.initialise((DIM, CLASSES), [torch.Generator()])
    with pytest.raises(ValueError, match="drawn by chances"):
        train(net, INPUTS, [Member(0, "drawn", LABELS, FORGET)], drawn(8), Optimization(lr=0.1, batch_size=8))


@pytest.mark.parametrize("kind", [np.int64, np.uint8])
@pytest.mark.parametrize(("power", "even"), [(0.5, 0.1), (0.0, 0.5), (2.0, 0.01), (1.0, 1.0)])
def test_no_row_is_drawn_less_than_the_even_share_and_more_doubt_never_means_less_chance(power, even, kind):
    logits = np.random.default_rng(3).normal(scale=20.0, size=(50, CLASSES))
    log_q = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    labels = (np.arange(50) % CLASSES).astype(kind)
    found = chances(log_q, labels, DoubtConstants(power, even))
    assert np.isfinite(found).all()
    assert (found >= even).all()
    assert found.mean() == pytest.approx(1.0)
    doubt = 1 - np.exp(log_q[np.arange(50), labels])
    assert (np.diff(found[np.argsort(doubt)]) >= -1e-5).all()


@pytest.mark.parametrize("wrong", [{"even": 0.0}, {"even": 1.5}, {"power": -1.0}])
def test_constants_that_make_no_chances_are_refused(wrong):
    with pytest.raises(BadInput, match="must be"):
        DoubtConstants(**wrong)


def test_what_the_folds_took_is_preparation_and_hard_rows_come_closer_on_the_digits():
    """After one epoch, on rows that no network has seen; mean over three seeds."""
    digits, variant = load_dataset("digits"), Variant("digits", "mlp1", Scenario.SUBCLASS, 0)
    problem, cells = make_problem(Inputs(digits), variant.label_space), make_cells(digits, variant, [0, 1, 2])
    base, retrain = (train_reference(role, problem, "mlp1", cells, epochs=50) for role in ("base", "retrain"))
    reference = Reference(problem, "mlp1", cells, base, retrain, make_scorers(problem, cells, retrain))
    plain, hard = (run_method(name, reference, RunSettings()) for name in ("short", "short-hard"))
    assert all(record.preparation == 0.0 for record in plain)
    assert all(record.preparation > 0.0 for record in hard)
    after = {
        name: np.mean([next(e.scores.kl_t for e in record.epochs if e.epoch == 1.0) for record in records])
        for name, records in (("plain", plain), ("hard", hard))
    }
    assert after["hard"] < after["plain"]
