"""Forget masks: right rows, reproducible, and never empty, total, out of range or doubled."""

from __future__ import annotations

import numpy as np
import pytest

from unlearn_core.data import ids_mask, load_dataset, rows_mask, scenario_mask
from unlearn_core.data.feature_set import FeatureSet
from unlearn_core.errors import BadInput
from unlearn_core.spec import Scenario

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


def test_rows():
    assert np.flatnonzero(rows_mask([5, 2], 10)).tolist() == [2, 5]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "names no row"),
        ([1, 1, 2], "row 1 is asked for 2 times"),
        ([3, 10, 11], r"rows 10, 11 do not exist; the training set has rows 0\.\.9"),
        ([-1], r"rows -1 do not exist"),
        ([0.5], "row numbers are integers"),
        (list(range(10)), "forgets all 10 rows"),
        (list(range(10, 20)), r"rows 10, 11, 12, 13, 14 \(and 5 more\) do not exist"),
    ],
)
def test_bad_rows_are_refused(rows, message):
    with pytest.raises(BadInput, match=message):
        rows_mask(rows, 10, "request.csv")


@pytest.fixture
def named() -> FeatureSet:
    rng = np.random.default_rng(0)
    return FeatureSet(
        name="patients",
        train_x=rng.normal(size=(4, 2)),
        train_y=np.array([0, 1, 0, 1]),
        test_x=rng.normal(size=(2, 2)),
        test_y=np.array([0, 1]),
        class_names=("a", "b"),
        ids=np.array(["p9", "p2", "p7", "p1"]),
    )


def test_ids(named):
    assert np.flatnonzero(ids_mask(["p7", "p9"], named)).tolist() == [0, 2]
    digits = load_dataset("digits")
    assert np.flatnonzero(ids_mask([7, 3], digits)).tolist() == [3, 7], "without ids, the row number is the id"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["p7", "p8"], "ids p8 are not in patients; it has 4 rows"),
        (["p7", "p7"], "id p7 is asked for 2 times"),
        ([], "names no record"),
        (["p9", "p2", "p7", "p1"], "forgets all 4 rows"),
    ],
)
def test_bad_ids_are_refused(named, ids, message):
    with pytest.raises(BadInput, match=message):
        ids_mask(ids, named)
