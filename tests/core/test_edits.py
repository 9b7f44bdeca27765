"""Edits of weights: a Newton step with as much damping as leaves retained rows alone, and exact truncation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from unlearn_core import methods
from unlearn_core.audit.divergence import kl_rows, log_probabilities
from unlearn_core.curvature import Curvature, measure_curvature, newton_step
from unlearn_core.data import load_dataset
from unlearn_core.edits.newton import NewtonConstants, step
from unlearn_core.edits.request import EditRequest
from unlearn_core.edits.truncate import TruncateConstants, truncate
from unlearn_core.errors import BadInput
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.preparations import CURVATURE
from unlearn_core.problem import Problem, Rows
from unlearn_core.recipes import HEAD_TRAINING, Visit, training_recipe
from unlearn_core.training import Member, train

DIGITS = load_dataset("digits")
X, Y = torch.from_numpy(DIGITS.train_x).float(), DIGITS.train_y
N = len(Y)
PROBLEM = Problem(Rows(Y, DIGITS.train_x, lambda: X), None, 10)
ORDER = np.random.default_rng(0).permutation(N)


def trained(epochs: int) -> tuple[HeadStack, Curvature]:
    net = HeadStack.initialise((64, 32, 10), [torch.Generator().manual_seed(1)])
    member = Member(0, "base", torch.from_numpy(Y))
    train(net, X, [member], training_recipe(Visit.ALL, epochs), replace(HEAD_TRAINING, lr=1e-2))
    return net, measure_curvature(net, 0, X)


@pytest.fixture(scope="module")
def well_trained() -> tuple[HeadStack, Curvature]:
    return trained(120)


@pytest.fixture(scope="module")
def hardly_trained() -> tuple[HeadStack, Curvature]:
    return trained(2)


def request(base: tuple[HeadStack, Curvature], rows) -> EditRequest:
    mask = np.zeros(N, dtype=bool)
    mask[rows] = True
    return EditRequest(PROBLEM, mask, base[0], 0, {CURVATURE: base[1]})


def says(net) -> np.ndarray:
    return log_probabilities(net.logits(0, X).double().numpy())


def spilled(base: NetworkStack, moved: NetworkStack, rows) -> tuple[float, float]:
    """KL(base||moved) on all rows that are not asked for, as a share of that on the records; and its standard error there if
    it is taken on as many as the step looks at."""
    change = kl_rows(says(base), says(moved))
    retained = np.delete(change, rows)
    of_sample = retained.std() / np.sqrt(NewtonConstants().retained)
    return retained.mean() / change[rows].mean(), of_sample / change[rows].mean()


def plain(base: tuple[HeadStack, Curvature], rows, damping: float) -> NetworkStack:
    rows = np.sort(rows)
    constants = replace(NewtonConstants(), damping=damping)
    return newton_step(base[0], 0, base[1], X[rows], torch.from_numpy(Y[rows]), N, constants)


def same(one, other) -> bool:
    return all(torch.equal(tensor, other.state(0)[name]) for name, tensor in one.state(0).items())


@pytest.mark.parametrize("count", [1, 20, 200])
@pytest.mark.parametrize("epochs", ["well_trained", "hardly_trained"])
def test_a_newton_step_leaves_retained_rows_alone_or_is_not_taken(request_fixture, epochs, count):
    base, rows = request_fixture(epochs), ORDER[:count]
    constants = NewtonConstants()
    moved = step(request(base, rows), constants)
    if moved is None:
        share, error = spilled(base[0], plain(base, rows, constants.most_damping), rows)
        assert share > constants.most_spilled - 4 * error, "there was an answer"
        return
    share, error = spilled(base[0], moved, rows)
    assert share <= constants.most_spilled + 4 * error


@pytest.fixture
def request_fixture(request):
    return request.getfixturevalue


def test_on_a_network_that_is_no_optimum_the_rule_is_what_holds_it(hardly_trained):
    """A step with the usual damping would break it."""
    rows = ORDER[:20]
    share, _ = spilled(hardly_trained[0], plain(hardly_trained, rows, NewtonConstants().damping), rows)
    assert share > NewtonConstants().most_spilled


def test_the_damping_is_the_smallest_power_of_ten_that_does(well_trained, hardly_trained):
    for base, rows in ((well_trained, ORDER[:20]), (hardly_trained, ORDER[:1])):
        moved = step(request(base, rows), NewtonConstants())
        assert moved is not None
        tried = [same(moved, plain(base, rows, NewtonConstants().damping * 10**k)) for k in range(8)]
        assert tried.count(True) == 1
        k = tried.index(True)
        if k:
            share, error = spilled(base[0], plain(base, rows, NewtonConstants().damping * 10 ** (k - 1)), rows)
            assert share > NewtonConstants().most_spilled - 4 * error
    anything_goes = step(request(hardly_trained, ORDER[:20]), NewtonConstants(most_spilled=np.inf))
    assert anything_goes is not None
    assert same(anything_goes, plain(hardly_trained, ORDER[:20], NewtonConstants().damping))
    assert step(request(well_trained, ORDER[:20]), NewtonConstants(most_spilled=-1.0)) is None


def test_truncation_takes_whole_classes_and_nothing_else(well_trained):
    net = well_trained[0]
    base, lost = says(net), [3, 7]
    others = np.setdiff1d(np.arange(10), lost)
    rows = np.flatnonzero(np.isin(Y, lost))
    moved = truncate(request(well_trained, rows), TruncateConstants())
    assert moved is not None
    now = says(moved)
    np.testing.assert_allclose(log_probabilities(now[:, others]), log_probabilities(base[:, others]), atol=1e-5)
    assert np.exp(now[rows][:, lost]).sum(1).max() <= 1e-12 * (1 + 1e-5)  # logits are float32
    assert all(torch.equal(a, b) for a, b in zip(net.state(0).values(), well_trained[0].state(0).values(), strict=True))
    for asked in (rows[1:], np.append(rows, np.flatnonzero(Y == 0)[0]), ORDER[:50]):
        assert truncate(request(well_trained, asked), TruncateConstants()) is None


def test_edits_are_a_family_of_their_own():
    of_newton = ("newton", "newton-crossfit", "newton-crossfit-net", "newton-last")
    assert methods.edits() == (*of_newton, "flow", "truncate", "ssd")
    assert not set(methods.edits()) & {*methods.proxies(), *methods.baselines()}
    with pytest.raises(BadInput, match="unknown proxy 'newton'"):
        methods.find_proxy("newton")
