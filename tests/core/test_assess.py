"""What is found out of a request before a method is chosen: as its parts say, and without test rows."""

from __future__ import annotations

import numpy as np
import pytest

from unlearn_core.assess import assess, view_retained
from unlearn_core.crossfit import CrossFit
from unlearn_core.problem import problem_of
from unlearn_core.request_kind import RequestKind

RNG = np.random.default_rng(3)
N, DIM = 10_000, 5
CENTRES = np.array([[0, 0], [0, 4], [4, 0], [4, 4]])
CLUSTER = RNG.integers(0, 4, N)
FEATURES = RNG.normal(size=(N, DIM)) + np.pad(CENTRES, ((0, 0), (0, DIM - 2)))[CLUSTER]
LABELS = (CLUSTER >= 2).astype(np.int64)
PROBLEM = problem_of(FEATURES, LABELS, 2)


def posteriors() -> np.ndarray:
    """Of a model that knows how the rows were made, and so has seen none of them."""
    logit = 4 * (FEATURES[:, 0] - 2)
    return -np.logaddexp(0, np.stack([logit, -logit], axis=1))


FOLDS = CrossFit(
    np.zeros(N, np.int8), posteriors().astype(np.float32), np.zeros((5, 1), np.float32), np.array([DIM, 2])
)


def assessed(forget, hidden=1):
    return assess(PROBLEM, forget, FOLDS, view_retained(PROBLEM, forget, FOLDS), hidden, 0)


def among(rows, count, seed):
    mask = np.zeros(N, dtype=bool)
    mask[np.random.default_rng(seed).permutation(np.flatnonzero(rows))[:count]] = True
    return mask


def test_rows_drawn_at_random_are_like_retained_ones_at_the_stated_level():
    """Of 60 requests about 3 are taken for groups at a level of 5 %; 9 or more have a chance of 0.3 %."""
    kinds = [assessed(among(np.ones(N), n, seed)).verdict.kind for n in (1, 30, 300) for seed in range(20)]
    assert set(kinds) <= {RequestKind.EXCHANGEABLE, RequestKind.GROUP}
    assert kinds.count(RequestKind.GROUP) < 9


def test_of_many_records_a_thousand_are_compared_at_the_same_level():
    """Of 40 requests about 2 are taken for groups at a level of 5 %; 7 or more have a chance of 0.3 %."""
    found = [assessed(among(np.ones(N), 1500, seed)).verdict for seed in range(40)]
    assert [verdict.kind for verdict in found].count(RequestKind.GROUP) < 7
    assert all("1000 of the 1500 were compared" in verdict.why for verdict in found)


def test_class_shares_that_differ_beyond_doubt_are_compared_within_classes():
    """One permutation in a thousand is less than a fifth of the level: whatever other tests say, shares are rejected."""
    found = assessed(among(LABELS == 1, 200, 0)).verdict
    assert found.kind is RequestKind.EXCHANGEABLE
    assert found.within_classes
    assert "class shares" not in {test.name for test in found.tests}


@pytest.mark.parametrize("count", [50, 300])
def test_a_part_of_a_class_is_a_group_and_its_answers_are_asked_for(count):
    """The others stand for a part of a cluster: they keep what was known of it."""
    part = among(CLUSTER == 3, count, 0)
    found = assessed(part)
    assert found.verdict.kind is RequestKind.GROUP
    assert found.kept == PROBLEM.kept_answers(part)
    assert found.kept is not None
    assert found.kept > 0.95
    assert assessed(part, hidden=0).kept is None, "a linear head is trained alike"


def test_a_class_is_known_by_counting():
    found = assessed(LABELS == 1)
    assert (found.verdict.kind, found.kept) == (RequestKind.WHOLE_CLASS, None)


def test_the_records_are_not_among_what_they_are_compared_with():
    forget = among(np.ones(N), 300, 1)
    view = view_retained(PROBLEM, forget, FOLDS)
    assert len(view.labels) == (N - 300) // 2
    retained = {round(float(loss), 9) for loss in -posteriors()[~forget, LABELS[~forget]].astype(np.float32)}
    assert {round(float(loss), 9) for loss in view.losses} <= retained
