"""The flow of a linear head beside trainings by the ordinary loop, and its parts beside sums that are written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from unlearn_core.data import load_dataset
from unlearn_core.edits.flow import _beside_itself, _of_retained, _read_all, edit
from unlearn_core.edits.flow_path import (
    FLOW,
    FlowConstants,
    FlowPath,
    MeanAdam,
    _unsure,
    chances_by_doubt,
    draw,
    prepare,
)
from unlearn_core.edits.request import EditRequest
from unlearn_core.errors import BadInput
from unlearn_core.nets.heads import HeadStack
from unlearn_core.preparations import PREPARATIONS, Given, arrays_of
from unlearn_core.problem import Problem, Rows
from unlearn_core.recipes import HEAD_TRAINING, Visit, training_recipe
from unlearn_core.training import Member, train

DIGITS = load_dataset("digits")
X, Y = torch.from_numpy(DIGITS.train_x).float()[:, 18:38].contiguous() / 4, DIGITS.train_y
N, D, C = len(Y), X.shape[1], 10
PROBLEM = Problem(Rows(Y, X.numpy(), lambda: X), None, C)
EPOCHS = 400
"""So many that first weights and row orders are chance: a retrain of the grid makes as many steps."""
CONSTANTS = FlowConstants(epochs=EPOCHS, batch_size=256)
HOW = replace(HEAD_TRAINING, batch_size=256)
WHOLE_CLASS = Y == 3
GROUP = (Y == 8) & (np.arange(N) % 10 > 0)
SCATTERED = np.isin(np.arange(N), np.random.default_rng(0).permutation(N)[:100])


def trained(
    mask: np.ndarray | None,
    *seeds: int,
    hidden: tuple[int, ...] = (),
    epochs: int = EPOCHS,
    labels: np.ndarray = Y,
) -> HeadStack:
    net = HeadStack.initialise((D, *hidden, C), [torch.Generator().manual_seed(seed) for seed in seeds])
    forget = None if mask is None else torch.from_numpy(mask)
    members = [Member(seed, "test", torch.from_numpy(labels), forget) for seed in seeds]
    train(net, X, members, training_recipe(Visit.ALL if mask is None else Visit.RETAIN, epochs), HOW)
    return net


@pytest.fixture(scope="module")
def path() -> FlowPath:
    return prepare(Given(PROBLEM, "linear"), CONSTANTS)


@pytest.fixture(scope="module")
def base() -> HeadStack:
    return trained(None, 1)


def request(net: HeadStack, mask: np.ndarray, path: FlowPath, problem: Problem = PROBLEM) -> EditRequest:
    return EditRequest(problem, mask, net, 0, {FLOW: path})


def log_p(net: HeadStack, member: int, rows: np.ndarray) -> torch.Tensor:
    return torch.log_softmax(net.logits(member, X[torch.from_numpy(rows)]).double(), 1)


def kl(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.exp() * (one - other)).sum(1).mean())


def test_the_flow_of_d_is_what_trainings_on_d_have_in_common(path):
    nets = trained(None, 1, 2, 3)
    everything = np.ones(N, dtype=bool)
    one, two, three = (log_p(nets, k, everything) for k in range(3))
    state = {"layers.0.weight": path.weights[-1, :, :-1], "layers.0.bias": path.weights[-1, :, -1]}
    flow = HeadStack.from_states([{name: torch.from_numpy(value) for name, value in state.items()}])
    of_flow = log_p(flow, 0, everything)
    apart = min(kl(one, two), kl(one, three), kl(two, three))
    assert max(kl(some, of_flow) for some in (one, two, three)) < apart


@pytest.mark.parametrize("mask", [WHOLE_CLASS, GROUP, SCATTERED], ids=["class", "group", "scattered"])
def test_it_comes_as_close_to_a_retrain_as_a_second_retrain(base, path, mask):
    retrains = trained(mask, 1, 2)
    moved = edit(request(base, mask, path), CONSTANTS)
    assert isinstance(moved, HeadStack)
    retrain, floor = log_p(retrains, 0, mask), log_p(retrains, 1, mask)
    before, after = kl(retrain, log_p(base, 0, mask)), kl(retrain, log_p(moved, 0, mask))
    assert after < before / 2
    assert after < 2 * kl(retrain, floor)
    kept = ~mask
    assert kl(log_p(retrains, 0, kept), log_p(moved, 0, kept)) < 2 * kl(
        log_p(retrains, 0, kept), log_p(retrains, 1, kept)
    )


@pytest.mark.parametrize("mask", [WHOLE_CLASS | SCATTERED, GROUP], ids=["class and others", "group"])
def test_gradients_at_anchors_are_those_of_the_retained_rows(base, path, mask):
    asked, kept = request(base, mask, path), torch.from_numpy(~mask)
    shut = 3 if asked.lost_classes.any() else None
    anchors = torch.from_numpy(path.weights)
    found = _of_retained(asked, path, anchors, shut)
    ones = torch.cat([X, torch.ones(N, 1)], 1).double()[kept]
    labels = functional.one_hot(torch.from_numpy(Y)[kept], C)
    for weights, gradient in zip(anchors.double(), found, strict=True):
        logits = ones @ weights.T
        if shut is not None:
            logits[:, shut] = -torch.inf
        expected = (torch.softmax(logits, 1) - labels).T @ ones / len(ones)
        torch.testing.assert_close(gradient.double(), expected, rtol=1e-3, atol=2e-6)  # differences of float32 sums


def test_drawn_rows_stand_for_all():
    rng = np.random.default_rng(1)
    labels = torch.from_numpy(rng.integers(0, 3, 2000))
    p = torch.softmax(torch.from_numpy(rng.normal(0, 3, (2000, 3))), 1)
    errors = p - functional.one_hot(labels, 3)
    chances = chances_by_doubt(_unsure(errors, labels), 0.5, 0.1)
    assert chances.sum() == pytest.approx(1)
    unsure = (1 - p.square().sum(1)).sqrt().numpy()
    np.testing.assert_allclose(chances, 0.1 / 2000 + 0.9 * unsure / unsure.sum(), rtol=1e-9)
    np.testing.assert_allclose(chances_by_doubt(torch.zeros(4), 0.3, 0.05), 0.25)
    np.testing.assert_allclose(
        chances_by_doubt(torch.zeros(4), 0.3, 0.05, torch.tensor([2.0, 0, 2, 0])), [0.5, 0, 0.5, 0]
    )
    values = rng.normal(1, 1, 2000) * unsure
    rows, shares = draw(chances, 200_000, rng)
    assert (values[rows] * shares).sum() == pytest.approx(values.mean(), rel=0.02)  # five standard errors
    assert shares.sum() == pytest.approx(1, rel=0.02)


def test_a_request_reads_all_of_its_rows_where_its_own_stretches_begin():
    torch.manual_seed(0)
    kept = torch.from_numpy(~GROUP)
    stays = kept.float() * (N / int(kept.sum()))
    weights = torch.randn(C, D + 1) / 4
    gradient, said = _read_all(weights, X, torch.from_numpy(Y), stays, block=100)
    ones = torch.cat([X, torch.ones(N, 1)], 1).double()
    p = torch.softmax(ones @ weights.double().T, 1)
    errors = (p - functional.one_hot(torch.from_numpy(Y), C))[kept]
    torch.testing.assert_close(gradient.double(), errors.T @ ones[kept] / len(errors), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(said.double(), p.T, rtol=1e-4, atol=1e-6)


def test_own_rows_stand_for_the_retained_and_say_at_the_anchor_what_they_said(path):
    """So nothing but what changed since counts as noise."""
    kept = torch.from_numpy(~GROUP)
    stays = kept.float() * (N / int(kept.sum()))
    flow = MeanAdam(torch.from_numpy(path.weights[-1]), N, CONSTANTS)
    constants = replace(CONSTANTS, own_rows=4000, own_batches=(3, 3))
    looks = list(_beside_itself(flow, path, X, torch.from_numpy(Y), stays, constants))
    assert len(looks) == len(path.lengths) - len(path.rows) > 3
    means = []
    for look in looks[:3]:
        now = torch.softmax(torch.addmm(flow.weights[:, -1:], flow.weights[:, :-1], look.inputs.T), 0)
        torch.testing.assert_close(now, look.said, rtol=1e-4, atol=1e-6)
        means.append((look.inputs * look.shares[:, None]).sum(0))
    assert looks[3].inputs is not looks[0].inputs
    torch.testing.assert_close(looks[3].inputs, looks[0].inputs)  # again and again
    expected = X[kept].mean(0)
    assert float((torch.stack(means).mean(0) - expected).norm() / expected.norm()) < 0.05
    gone = X[torch.from_numpy(GROUP)]
    rows = torch.cat([look.inputs for look in looks[:3]])
    assert not (rows[:, None, :] == gone[None, :3, :]).all(2).any()


def test_a_group_that_the_others_do_not_stand_for():
    """Threes that are called eights: what D is unsure of says little of what the retrain is unsure of."""
    labels = Y.copy()
    mask = (Y == 3) & (np.arange(N) % 10 > 0)
    labels[mask] = 8
    problem = Problem(Rows(labels, X.numpy(), lambda: X), None, C)
    path = prepare(Given(problem, "linear"), CONSTANTS)
    trained_on_all = trained(None, 1, labels=labels)
    retrains = trained(mask, 1, 2, labels=labels)
    moved = edit(request(trained_on_all, mask, path, problem), CONSTANTS)
    assert isinstance(moved, HeadStack)
    retrain, floor = log_p(retrains, 0, mask), log_p(retrains, 1, mask)
    assert kl(retrain, log_p(moved, 0, mask)) < kl(retrain, floor) < kl(retrain, log_p(trained_on_all, 0, mask)) / 10


def test_a_base_that_is_not_its_own_flow_keeps_what_sets_it_apart(path):
    """Trained for a few epochs it is far from the flow of 400; what one row of D changes is next to nothing."""
    early, one = trained(None, 1, epochs=20), np.arange(N) == 7
    moved = edit(request(early, one, path), CONSTANTS)
    assert isinstance(moved, HeadStack)
    everything = np.ones(N, dtype=bool)
    assert kl(log_p(early, 0, everything), log_p(moved, 0, everything)) < 1e-3


def test_what_it_has_no_answer_to(base, path):
    assert edit(request(base, np.isin(Y, [2, 3]), path), CONSTANTS) is None  # there are anchors without one class
    deep = trained(None, 1, hidden=(8,), epochs=1)
    assert edit(request(deep, SCATTERED, path), CONSTANTS) is None
    nothing = prepare(Given(PROBLEM, "mlp1"), CONSTANTS)
    assert not nothing.answers(0)
    assert edit(request(base, SCATTERED, nothing), CONSTANTS) is None
    many = prepare(Given(PROBLEM, "linear"), replace(CONSTANTS, most_classes=9, epochs=2))
    assert edit(request(base, WHOLE_CLASS, many), CONSTANTS) is None
    part, mask = PROBLEM.part(SCATTERED, 50)
    with pytest.raises(BadInput, match=r"flow reads D, and \d+ of 1437 rows are at hand"):
        edit(request(base, mask, path, part), CONSTANTS)


def test_rows_that_a_request_reads(base, path, monkeypatch):
    """As many as it is priced by: counted where they are fetched."""
    read = 0
    fetch = torch.Tensor.index_select

    def counted(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
        nonlocal read
        read += len(index) * (self is X)
        return fetch(self, dim, index)

    monkeypatch.setattr(torch.Tensor, "index_select", counted)
    constants = replace(CONSTANTS, own_batches=(10_000, 10_000))  # each step has rows of its own
    edit(request(base, GROUP, path), constants)
    all_of_d = 2 * N
    to_tell_chance = path.rows.shape[1]
    assert read + all_of_d - to_tell_chance == path.rows_read(N, constants.own_rows)


def test_a_stored_path_gives_the_same_bits(base, path):
    again = PREPARATIONS[FLOW].load(arrays_of(path))
    one, two = (edit(request(base, GROUP, some), CONSTANTS) for some in (path, again))
    assert one is not None
    assert two is not None
    assert all(torch.equal(a, b) for a, b in zip(one.state(0).values(), two.state(0).values(), strict=True))
