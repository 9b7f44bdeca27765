"""Forget masks: right rows, reproducible, and never empty, total or of an unknown label."""

from __future__ import annotations

import numpy as np
import pytest

from unlearn_core.data import scenario_mask
from unlearn_core.errors import BadInput
from unlearn_core.grid import Scenario

LABELS = np.arange(40) % 4


@pytest.mark.parametrize("scenario", [Scenario.CLASS, Scenario.SUBCLASS])
def test_class_and_subclass_forget_one_fine_label_whatever_the_seed(scenario):
    for seed in (0, 42):
        np.testing.assert_array_equal(scenario_mask(scenario, 2, LABELS, seed), LABELS == 2)


def test_random_forgets_the_number_asked_for_and_depends_on_the_seed_alone():
    masks = {seed: scenario_mask(Scenario.RANDOM, 10, LABELS, seed) for seed in (0, 1, 42)}
    assert all(mask.sum() == 10 for mask in masks.values())
    np.testing.assert_array_equal(masks[0], scenario_mask(Scenario.RANDOM, 10, LABELS, 0))
    assert (masks[0] != masks[1]).any()
    assert (masks[0] != masks[42]).any(), "seed 0 is a seed of its own, not a default"


@pytest.mark.parametrize("key", [0, 40, -1, 41])
def test_random_refuses_empty_and_total_requests(key):
    with pytest.raises(BadInput, match=rf"cannot forget {key} random rows of 40; ask for 1\.\.39"):
        scenario_mask(Scenario.RANDOM, key, LABELS, 0)


@pytest.mark.parametrize("key", [-1, 4])
def test_unknown_labels_are_refused(key):
    with pytest.raises(BadInput, match=rf"class key {key} is not a label; labels are 0\.\.3"):
        scenario_mask(Scenario.CLASS, key, LABELS, 0)
