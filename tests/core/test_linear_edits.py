"""Edits of linear heads: a Newton step beside a dense solve, a regrown column beside autograd."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from unlearn_core.data import load_dataset
from unlearn_core.edits.newton_cg import NewtonCgConstants, step
from unlearn_core.edits.regrow import RegrowConstants, regrow
from unlearn_core.edits.request import EditRequest
from unlearn_core.errors import BadInput
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.problem import Problem, Rows
from unlearn_core.recipes import HEAD_TRAINING, Visit, training_recipe
from unlearn_core.seeding import derive_seed
from unlearn_core.training import Member, train

DIGITS = load_dataset("digits")
X, Y = torch.from_numpy(DIGITS.train_x).float()[:, 20:28].contiguous(), DIGITS.train_y
N, D, C = len(Y), X.shape[1], 10
PROBLEM = Problem(Rows(Y, X.numpy(), lambda: X), None, C)
SCATTERED = np.isin(np.arange(N), np.random.default_rng(0).permutation(N)[:60])


def head(*hidden: int) -> HeadStack:
    net = HeadStack.initialise((D, *hidden, C), [torch.Generator().manual_seed(1)])
    train(net, X, [Member(0, "base", torch.from_numpy(Y))], training_recipe(Visit.ALL, 10), HEAD_TRAINING)
    return net


@pytest.fixture(scope="module")
def base() -> HeadStack:
    return head()


def matrix(net: NetworkStack) -> torch.Tensor:
    state = net.state(0)
    return torch.cat([state["layers.0.weight"], state["layers.0.bias"][:, None]], 1)


def request(net: HeadStack, mask, problem: Problem = PROBLEM) -> EditRequest:
    return EditRequest(problem, mask, net, 0, {}, seed=5)


EXACT = NewtonCgConstants(iterations=200, metric_rows=N, damping=0.7)
NEARLY_ALL_OF_A_CLASS = (Y == 3) & (np.arange(N) % 8 > 0)


def dense_steps(base: HeadStack, mask, steps: int) -> torch.Tensor:
    """(H_r(w) + diag(w)) x = the records' gradient at the base - (D_r's gradient at w - at the base), in double precision
    over all retained rows, the matrix written out."""
    ones = torch.cat([X, torch.ones(N, 1)], 1).double()
    gone = torch.from_numpy(mask)
    r, f = ones[~gone], ones[gone]
    start = w = matrix(base).double()

    def errors(weights: torch.Tensor) -> torch.Tensor:
        return torch.softmax(ones @ weights.T, 1) - functional.one_hot(torch.from_numpy(Y), C)

    force = errors(start)[gone].T @ f + errors(start)[~gone].T @ r
    for _ in range(steps):
        p, wrong = torch.softmax(r @ w.T, 1), errors(w)[~gone]
        inner = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        curvature = torch.einsum("nab,ni,nj->aibj", inner, r, r).reshape(C * (D + 1), -1) / len(r)
        second = torch.einsum("na,ni->ai", wrong**2, r**2) / len(r)
        damping = 0.7 * (second / HEAD_TRAINING.batch_size).sqrt().flatten()
        # a pixel that is always black has no curvature, no noise and no force
        right = (force - wrong.T @ r).flatten() / len(r)
        w = w + (torch.linalg.pinv(curvature + torch.diag(damping), hermitian=True) @ right).reshape(C, D + 1)
    return w


@pytest.mark.parametrize(("mask", "steps"), [(SCATTERED, 1), (NEARLY_ALL_OF_A_CLASS, 1), (NEARLY_ALL_OF_A_CLASS, 3)])
def test_newton_steps_are_dense_solves_with_the_damping_of_gradient_noise(base, mask, steps):
    moved = step(request(base, mask), replace(EXACT, steps=steps, material=0.0))
    assert moved is not None
    before, expected = matrix(base).double(), dense_steps(base, mask, steps)
    shift = (expected - before).norm()
    assert float((matrix(moved).double() - expected).norm() / shift) < 2e-3  # float32
    assert torch.equal(matrix(base).double(), before), "the base stays"


def test_more_steps_follow_a_first_one_that_changes_much(base):
    """The change of the records' answers by the first step lies between the two thresholds."""
    asked = request(base, NEARLY_ALL_OF_A_CLASS)
    records = X[torch.from_numpy(NEARLY_ALL_OF_A_CLASS)]
    after = [step(asked, replace(EXACT, steps=steps, material=0.0)) for steps in (1, 3)]
    [one, three] = [net for net in after if net is not None]
    new, old = (torch.log_softmax(net.logits(0, records).double(), 1) for net in (one, base))
    change = float((new.exp() * (new - old)).sum(1).mean())
    for material, same_as in ((0.9 * change, three), (1.1 * change, one)):
        net = step(asked, replace(EXACT, steps=3, material=material))
        assert net is not None
        assert torch.equal(matrix(net), matrix(same_as))


def test_three_iterations_are_nearly_a_solution(base):
    """The matrix that they start from is close to the curvature."""
    exact, few = (
        step(request(base, SCATTERED), replace(EXACT, iterations=iterations, damping=0.4)) for iterations in (200, 3)
    )
    assert exact is not None
    assert few is not None
    before = matrix(base)
    assert float((matrix(few) - matrix(exact)).norm() / (matrix(exact) - before).norm()) < 0.3


def test_regrow_is_adam_on_the_lost_columns_alone(base):
    """Beside autograd on the cross-entropy of retained rows: the same first weights, the same batches."""
    lost = [2, 7]
    mask = np.isin(Y, lost)
    constants = RegrowConstants(epochs=40, speed=10.0)
    moved = regrow(request(base, mask), constants)
    assert moved is not None
    before, after = matrix(base), matrix(moved)
    others = [c for c in range(C) if c not in lost]
    assert torch.equal(after[others], before[others])
    generator = torch.Generator().manual_seed(derive_seed(5, "regrow", "weights"))
    bound = 1 / math.sqrt(D)
    columns = torch.empty(len(lost), D + 1).uniform_(-bound, bound, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([columns], 1e-2)
    labels, stride = torch.from_numpy(Y), math.ceil(N / 512)
    for number in range(round(40 * math.ceil((~mask).sum() / 512) / 10)):
        rows = np.arange(number % stride, N, stride)
        rows = torch.from_numpy(rows[~mask[rows]])
        full = before.clone().index_put((torch.tensor(lost),), columns)
        optimizer.zero_grad()
        functional.cross_entropy(X[rows] @ full[:, :-1].T + full[:, -1], labels[rows]).backward()
        optimizer.step()
    # Adam turns the rounding of small gradients into steps
    assert float((after[lost] - columns.detach()).norm() / columns.detach().norm()) < 1e-3


def test_they_answer_for_linear_heads_and_their_own_kind_of_request_alone(base):
    whole, deep = Y == 3, head(4)
    assert regrow(request(base, SCATTERED), RegrowConstants()) is None
    assert step(request(base, whole), NewtonCgConstants()) is None
    assert regrow(request(deep, whole), RegrowConstants()) is None
    assert step(request(deep, SCATTERED), NewtonCgConstants()) is None


@pytest.mark.parametrize(("edit", "constants"), [(regrow, RegrowConstants()), (step, NewtonCgConstants())])
def test_a_part_of_d_is_not_taken_for_all_of_it(base, edit, constants):
    mask = Y == 3 if edit is regrow else SCATTERED
    part, forget = PROBLEM.part(mask, 200)
    with pytest.raises(BadInput, match="leave the prepared state out"):
        edit(request(base, forget, part), constants)
