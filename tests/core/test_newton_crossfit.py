"""``newton-crossfit``: a Newton step, and from there the out-of-fold posteriors on the records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from unlearn_core.audit.divergence import kl_rows, log_probabilities
from unlearn_core.crossfit import CrossFit
from unlearn_core.edits import newton
from unlearn_core.edits.newton_crossfit import RATE, SCHEDULE, NewtonCrossFitConstants, edit
from unlearn_core.edits.request import EditRequest
from unlearn_core.finalize import Lesson, distil
from unlearn_core.nets.heads import HeadStack
from unlearn_core.preparations import CROSSFIT, CURVATURE, PREPARATIONS, Given
from unlearn_core.problem import Problem, Rows
from unlearn_core.recipes import HEAD_TRAINING, HEAD_UNLEARNING, Visit, training_recipe
from unlearn_core.training import Member, train

N, DIM, CLASSES = 3000, 24, 4
CONSTANTS = NewtonCrossFitConstants()
NO_STEP = replace(CONSTANTS, newton=replace(CONSTANTS.newton, most_spilled=-1.0))


def _rows() -> tuple[np.ndarray, np.ndarray]:
    """Four classes that overlap, so that a network learns some rows by heart."""
    rng = np.random.default_rng(1)
    y = np.arange(N) % CLASSES
    means = 0.5 * rng.normal(size=(CLASSES, DIM))
    return (rng.normal(size=(N, DIM)) + means[y]).astype(np.float32), y


X, Y = _rows()
HOW = replace(HEAD_UNLEARNING, lr=RATE * HEAD_UNLEARNING.lr)
INPUTS = torch.from_numpy(X)
SCATTERED = np.random.default_rng(3).permutation(N)[:100]


def trained(seed: int, forget: np.ndarray | None = None) -> HeadStack:
    net = HeadStack.initialise((DIM, 64, CLASSES), [torch.Generator().manual_seed(seed)])
    member = Member(seed, "base", torch.from_numpy(Y), None if forget is None else torch.from_numpy(forget))
    visit = Visit.ALL if forget is None else Visit.RETAIN
    train(net, INPUTS, [member], training_recipe(visit, 60), replace(HEAD_TRAINING, lr=1e-2))
    return net


@pytest.fixture(scope="module")
def asked() -> EditRequest:
    return request(SCATTERED)


def request(rows) -> EditRequest:
    problem = Problem(Rows(Y, X, lambda: INPUTS), None, CLASSES)
    mask = np.zeros(N, dtype=bool)
    mask[rows] = True
    net = trained(0)
    given = Given(problem, "mlp1", net)
    prepared = {name: PREPARATIONS[name].compute(given, PREPARATIONS[name].constants) for name in (CURVATURE, CROSSFIT)}
    return EditRequest(problem, mask, net, 0, prepared, 5, SCHEDULE, HOW)


def says(net) -> np.ndarray:
    return log_probabilities(net.logits(0, INPUTS).double().numpy())


def out_of_fold(asked: EditRequest) -> np.ndarray:
    crossfit: CrossFit = asked.prepared[CROSSFIT]
    return crossfit.log_q[asked.mask].astype(np.float64)


def test_on_the_records_it_comes_closer_to_a_retrain_than_the_step_or_the_teaching_alone(asked):
    retrain = says(trained(1, asked.mask))[asked.mask]
    step = newton.step(asked, CONSTANTS.newton)
    distances = [
        kl_rows(retrain, says(net)[asked.mask]).mean()
        for net in (edit(asked, CONSTANTS), step, edit(asked, NO_STEP), asked.net)
    ]
    assert distances[0] < min(distances[1:3]) < distances[3]


def test_the_teaching_goes_towards_the_out_of_fold_posteriors_and_moves_retained_rows_less(asked):
    q, base = out_of_fold(asked), says(asked.net)
    step, both = (says(net) for net in (newton.step(asked, CONSTANTS.newton), edit(asked, CONSTANTS)))
    assert kl_rows(q, both[asked.mask]).mean() < kl_rows(q, step[asked.mask]).mean()
    moved = kl_rows(base, both)
    assert moved[~asked.mask].mean() < 0.2 * moved[asked.mask].mean()


def test_where_no_step_is_taken_it_is_distillation_of_the_target_written_down(asked):
    """The target by hand: out-of-fold posteriors on the records, the base's own on the retained rows looked at."""
    looked_at = np.union1d(np.flatnonzero(asked.mask), np.linspace(0, N - 1, CONSTANTS.retained).astype(np.int64))
    target = says(asked.net)
    target[asked.mask] = log_probabilities(out_of_fold(asked))
    student = asked.net.select([0])
    lesson = Lesson(asked.seed, asked.mask[looked_at], target[looked_at])
    distil(student, asked.problem.train.take(looked_at), [lesson], SCHEDULE, HOW)
    edited = edit(asked, NO_STEP)
    np.testing.assert_allclose(says(edited), says(student), atol=1e-5)
    assert not np.allclose(says(edited), says(asked.net), atol=1e-3)


def test_a_class_that_leaves_gets_nothing_and_the_base_is_left_alone():
    asked = request(np.flatnonzero(Y == 2))
    before = {name: tensor.clone() for name, tensor in asked.net.state(0).items()}
    longer = replace(asked, optimization=replace(HOW, lr=100 * HOW.lr))
    log_p = says(edit(longer, NO_STEP))
    assert np.exp(log_p[asked.mask, 2]).mean() < 0.05 < np.exp(says(asked.net)[asked.mask, 2]).mean()
    assert all(torch.equal(tensor, before[name]) for name, tensor in asked.net.state(0).items())


def test_without_a_way_to_train_it_says_so(asked):
    with pytest.raises(ValueError, match="how is not said"):
        edit(replace(asked, optimization=None), CONSTANTS)
