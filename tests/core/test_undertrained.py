"""No method fails on a network that has hardly been trained; ``python -m benchmarks.undertrained`` walks all keys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.undertrained import KEYS, walk
from unlearn_core import methods
from unlearn_core.data import load_dataset
from unlearn_core.grid import Scenario


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "epochs", "key"),
    [
        ("linear", 1, (Scenario.SUBCLASS, 1)),
        ("linear", 2, (Scenario.RANDOM, 50)),
        ("mlp1", 1, (Scenario.CLASS, 3)),
        ("mlp2", 1, (Scenario.RANDOM, 1)),
    ],
)
def test_every_method_runs_on_a_network_that_has_hardly_been_trained(arch, epochs, key):
    """On some of the rows, so that no class has more than forty."""
    digits = load_dataset("digits")
    few = replace(digits, train_x=digits.train_x[:300], train_y=digits.train_y[:300])
    ended = {method: failure for _, method, failure in walk(few, arch, epochs, [key], methods.names())}
    assert ended == dict.fromkeys(methods.names())


@pytest.mark.slow
def test_fresh_finds_an_exponent_for_every_subclass_after_one_epoch():
    """It once failed on subclass 1: the network knew less of the retained rows than nothing, and no exponent was best."""
    keys = [key for key in KEYS if key[0] is Scenario.SUBCLASS]
    assert [failure for *_, failure in walk(load_dataset("digits"), "linear", 1, keys, ["fresh"])] == [None] * 10
