"""Numbers below 1e-38 are no part of training: they change no weight, and processors are slow with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unlearn_core import training
from unlearn_core.arithmetic import denormals_flushed
from unlearn_core.nets.heads import HeadStack
from unlearn_core.recipes import Optimization, Visit, training_recipe
from unlearn_core.training import Member, loss_gradient, train

RNG = np.random.default_rng(5)
X = torch.from_numpy(RNG.normal(size=(96, 6)).astype(np.float32))
Y = torch.from_numpy((X.numpy()[:, 0] > 0).astype(np.int64))
TINY = 1e-40


def flushed() -> bool:
    return bool(torch.full((1,), TINY).mul(1.0).eq(0.0))


def sure_network() -> HeadStack:
    """Its two logits lie up to some hundreds apart: next to nothing is left to the other class."""
    state = HeadStack((6, 2), 1).state(0)
    state["layers.0.weight"][:, 0] = torch.tensor([-45.0, 45.0])
    return HeadStack.from_states([state])


def test_it_is_as_before_afterwards_whatever_happens_within():
    assert not flushed()
    with denormals_flushed():
        assert flushed()
        with denormals_flushed(False):
            assert not flushed()
        assert flushed()
    assert not flushed()
    with pytest.raises(ZeroDivisionError), denormals_flushed():
        _ = 1 / 0
    assert not flushed()


def test_training_flushes_them_and_its_records_do_not(monkeypatch):
    seen = []
    monkeypatch.setattr(training, "loss_gradient", lambda *a: seen.append(flushed()) or loss_gradient(*a))
    recorded = []
    train(
        sure_network(), X, [Member(0, "base", Y)], training_recipe(Visit.ALL, 2), Optimization(1e-3, 32),
        lambda *_: recorded.append(flushed()),
    )  # fmt: skip
    assert seen
    assert all(seen)
    assert recorded == [False, False]
    assert not flushed()


def test_the_weights_are_the_same_to_the_bit(monkeypatch):
    """Of a network whose gradients are that small."""
    logits = sure_network().forward(X, torch.arange(96)[None])
    gradient = loss_gradient(logits, training_recipe(Visit.ALL, 1).phases[0].passes[0].loss, [Y[None]])
    assert ((gradient != 0) & (gradient.abs() < 1.2e-38)).any()
    states = []
    for flush in (True, False):
        if not flush:
            monkeypatch.setattr(torch, "set_flush_denormal", lambda _: False)
        net = sure_network()
        train(net, X, [Member(0, "base", Y)], training_recipe(Visit.ALL, 3), Optimization(1e-3, 32))
        states.append(net.state(0))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
