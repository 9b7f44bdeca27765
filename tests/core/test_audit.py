"""Stein's bound, KL and the fast membership attack."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, rel_entr
from scipy.stats import binom, ks_2samp, norm
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from unlearn_core.audit.divergence import kl_rows, mean_kl
from unlearn_core.audit.membership import threshold_attack
from unlearn_core.audit.stein import UNBOUNDED, indistinguishable_on_forget, min_queries, stein_block
from unlearn_core.errors import BadInput


@pytest.mark.parametrize(("kl", "queries"), [(0.05, 138), (0.1, 69)])  # app:stein
def test_stein_queries_match_the_paper(kl, queries):
    assert min_queries(kl, alpha=1e-3) == queries


def test_no_test_with_fewer_queries_beats_the_bound():
    """The likelihood-ratio test between two coins is the best there is; below N(alpha) it errs more than alpha."""
    p, q, alpha = 0.5, 0.7, 0.05
    kl = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    for n in range(1, min_queries(kl, alpha)):
        heads = np.arange(n + 2)
        false_positive = binom.sf(heads - 1, n, p)  # decide q at `heads` or more
        false_negative = binom.cdf(heads - 1, n, q)
        assert np.maximum(false_positive, false_negative).min() > alpha


def test_stein_at_the_ends():
    assert min_queries(0.0) == UNBOUNDED
    assert min_queries(math.inf) == 0
    assert indistinguishable_on_forget(kl_f=0.01, n_forget=500)
    assert not indistinguishable_on_forget(kl_f=0.1, n_forget=69)


def test_the_stein_block_says_what_the_bound_says():
    block = stein_block({"kl_t": 0.05, "kl_f": 0.1}, n_forget=50)
    assert (block["n_t_at_0.001"], block["n_f_at_0.001"]) == (138, 69)
    assert block["indistinguishable_at_0.001"] is True
    assert block["indistinguishable_at_0.01"] is False, "46 queries at alpha 0.01"
    assert block["seen_by_attacker"] == "labels"
    assert stein_block({"kl_t": -1e-18, "kl_f": None}, n_forget=50)["n_f_at_0.001"] is None


@pytest.mark.parametrize(("kl", "alpha"), [(-1e-3, 1e-3), (math.nan, 1e-3), (0.1, 0.0), (0.1, 0.5)])
def test_stein_refuses_what_has_no_meaning(kl, alpha):
    with pytest.raises(BadInput):
        min_queries(kl, alpha)


def test_kl_is_scipys():
    rng = np.random.default_rng(0)
    log_p, log_q = log_softmax(rng.normal(size=(2, 30, 5)) * 4, axis=2)
    expected = rel_entr(np.exp(log_p), np.exp(log_q)).sum(axis=1)
    np.testing.assert_allclose(kl_rows(log_p, log_q), expected, atol=1e-13)
    assert mean_kl(log_p, log_p) == 0.0


def test_kl_is_infinite_where_mass_is_missing_and_finite_where_there_is_none_to_miss():
    half = np.log([0.5, 0.5])
    with np.errstate(divide="ignore"):
        one = np.log([1.0, 0.0])
    assert kl_rows(half, one) == math.inf
    assert kl_rows(one, half) == pytest.approx(math.log(2))


@pytest.mark.parametrize("n_forget", [1, 40])
def test_membership_attack_is_scikit_learns(n_forget):
    rng = np.random.default_rng(n_forget)
    forget = np.round(rng.normal(0.5, 1, n_forget), 1)  # rounding makes ties
    heldout = np.round(rng.normal(0, 1, 60), 1)
    scores, member = np.concatenate([forget, heldout]), np.repeat([1, 0], [n_forget, 60])
    attack = threshold_attack(forget, heldout)
    assert attack.auc == pytest.approx(roc_auc_score(member, scores), abs=1e-12)
    accuracies = [balanced_accuracy_score(member, scores >= t) for t in [*np.unique(scores), np.inf]]
    assert attack.balanced_accuracy == pytest.approx(max(accuracies), abs=1e-12)
    assert attack.two_sided_accuracy == pytest.approx(max(max(accuracies), 1 - min(accuracies)), abs=1e-12)
    smirnov: Any = ks_2samp(forget, heldout)
    assert attack.two_sided_accuracy == pytest.approx((1 + smirnov.statistic) / 2, abs=1e-12)


def test_the_attack_sees_records_that_were_pushed_too_far_as_well_as_remembered_ones():
    rng = np.random.default_rng(0)
    heldout = rng.normal(size=2000)
    pushed, kept = (threshold_attack(rng.normal(shift, 1, 1000), heldout) for shift in (-0.3, 0.3))
    far = norm.cdf(0.3 / np.sqrt(2)) - 0.5  # of two normals that lie 0.3 apart
    assert pushed.auc < 0.5 < kept.auc
    assert pushed.distance == pytest.approx(far, abs=pushed.chance)
    assert kept.distance == pytest.approx(far, abs=kept.chance)
    assert pushed.stands_out
    assert kept.stands_out
    assert pushed.balanced_accuracy < 0.51, "which is what a one-sided attack says of it"
    assert pushed.two_sided_accuracy > 0.54


def test_what_the_attack_finds_by_chance_is_within_two_standard_errors():
    rng = np.random.default_rng(1)
    found = [threshold_attack(rng.normal(size=40), rng.normal(size=60)) for _ in range(400)]
    assert np.std([attack.auc for attack in found]) == pytest.approx(found[0].chance / 2, rel=0.15)
    assert np.mean([attack.stands_out for attack in found]) < 0.1


def test_weights_of_the_attack_are_repeated_rows():
    rng = np.random.default_rng(2)
    records, heldout, times = rng.normal(size=30), rng.normal(size=20), rng.integers(0, 4, 20)
    weighted = threshold_attack(records, heldout, times.astype(float))
    repeated = threshold_attack(records, np.repeat(heldout, times))
    assert weighted.auc == pytest.approx(repeated.auc, abs=1e-12)
    assert weighted.two_sided_accuracy == pytest.approx(repeated.two_sided_accuracy, abs=1e-12)
    assert weighted.chance > repeated.chance, "a row that counts twice is not two rows"


def test_membership_attack_without_data_is_undefined():
    assert math.isnan(threshold_attack(np.array([]), np.array([1.0])).auc)
    assert math.isnan(threshold_attack(np.array([1.0]), np.array([])).two_sided_accuracy)
    assert not threshold_attack(np.array([1.0]), np.array([])).stands_out
