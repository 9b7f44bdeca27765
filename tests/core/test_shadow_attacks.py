"""U-LiRA and KLOM beside closed forms on Gaussians; perfect unlearning is at chance; Stein's attacker who picks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import entropy, norm

from unlearn_core.audit.attack import (
    ShadowAnswers,
    attack_floor,
    attack_networks,
    check_shadows,
    compare_rankings,
    halves_of,
)
from unlearn_core.audit.klom import BINS, CLIP, LEAST_SHARE, klom_points
from unlearn_core.audit.stein import min_queries, picked_queries
from unlearn_core.audit.ulira import CURVE, FALSE_POSITIVE_RATES, folds_of, gaussian, kernel, ulira
from unlearn_core.errors import BadInput

N, RECORDS = 200, 300


def samples(shift: float = 0.0, scale: float = 1.0, n: int = N, records: int = RECORDS, seed: int = 0):
    """Margins of unlearned and retrained networks, Gaussian, each record with a mean and a spread of its own."""
    rng = np.random.default_rng(seed)
    mean, spread = 5 * rng.normal(size=records), rng.uniform(0.5, 2.0, records)
    unlearned = mean + spread * (shift + scale * rng.normal(size=(n, records)))
    return unlearned, mean + spread * rng.normal(size=(n, records))


@pytest.mark.parametrize("shift", [0.5, -1.0, 2.0])
def test_shifted_gaussians_have_the_likelihood_ratio_tests_numbers(shift):
    """AUC Phi(d / sqrt 2), accuracy Phi(d / 2), TPR Phi(d - z) on either side: the best that any attack can do.

    The tolerance is for fits from 175 networks, which tilt every test a little, and for 5,000 attacked margins a fold.
    """
    found = ulira(*samples(shift), folds_of(N, False))
    d = abs(shift)
    assert found.auc.value == pytest.approx(norm.cdf(d / math.sqrt(2)), abs=0.01)
    assert found.accuracy.value == pytest.approx(norm.cdf(d / 2), abs=0.01)
    for rate, tpr in zip(FALSE_POSITIVE_RATES, found.tpr, strict=True):
        assert tpr.value == pytest.approx(norm.cdf(d + norm.ppf(rate)), abs=0.03)
        assert tpr.low <= tpr.value <= tpr.high
    for rate, tpr in zip(CURVE, found.curve, strict=True):
        assert tpr == pytest.approx(norm.cdf(d + norm.ppf(rate)), abs=0.04)


@pytest.mark.parametrize("scale", [0.4, 2.5])
def test_it_is_two_sided(scale):
    """Of one mean, and with another spread: the ratio is in (x - mean)^2, and AUC 1 - 2/pi arctan(small / large)."""
    found = ulira(*samples(scale=scale), folds_of(N, False))
    expected = 1 - 2 / math.pi * math.atan(min(scale, 1 / scale))
    assert found.auc.value == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("fit", ["gaussian", "kernel"])
def test_two_samples_of_one_distribution_are_at_chance(fit):
    """In expectation exactly, however few networks: over many small audits the mean is within four standard errors.

    An attacked network within the fits of its own side would be found by it. Networks have a level of their own, so that
    records are not independent, as in real audits.
    """
    rng = np.random.default_rng(1)
    found, inside = [], 0
    for _ in range(40):
        unlearned, retrained = (rng.normal(size=(16, 20)) + 0.5 * rng.normal(size=(16, 1)) for _ in range(2))
        attack = ulira(unlearned, retrained, folds_of(16, False), fit)
        found.append([attack.auc.value, attack.accuracy.value])
        inside += attack.auc.low <= 0.5 <= attack.auc.high
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / math.sqrt(len(found))
    assert (np.abs(mean - 0.5) < 4 * error).all()
    # a 95 % interval misses more than 6 of 40 less than once in a hundred times
    assert inside >= 34


def test_kernel_and_gaussian_agree_on_a_gaussian():
    shifted = samples(1.0, records=40)
    by_kernel, by_gaussian = (ulira(*shifted, folds_of(N, False), fit) for fit in ("kernel", "gaussian"))
    assert by_kernel.auc.value == pytest.approx(by_gaussian.auc.value, abs=0.03)


def test_a_kernel_sees_what_a_gaussian_cannot():
    """Two modes beside one, of the same mean and variance."""
    rng = np.random.default_rng(2)
    modes = rng.choice([-1.0, 1.0], size=(N, 50)) + 0.1 * rng.normal(size=(N, 50))
    one = math.sqrt(1.01) * rng.normal(size=(N, 50))
    assert ulira(modes, one, folds_of(N, False), "gaussian").auc.value < 0.75
    assert ulira(modes, one, folds_of(N, False), "kernel").auc.value > 0.85


@pytest.mark.parametrize("density", [gaussian, kernel])
def test_what_is_not_there_is_in_no_fit(density):
    rng = np.random.default_rng(3)
    fitted, at = rng.normal(size=(40, 5)), rng.normal(size=(3, 5))
    gaps = np.full((80, 5), np.nan)
    gaps[::2] = fitted
    np.testing.assert_allclose(density(gaps, at), density(fitted, at), rtol=1e-12)


def test_pairs_stay_in_one_fold():
    folds = folds_of(64, True)
    np.testing.assert_array_equal(folds[::2], folds[1::2])
    assert set(folds) == set(range(8))
    np.testing.assert_array_equal(np.bincount(folds), 8)


def test_too_few_shadows_are_refused_with_a_number():
    with pytest.raises(BadInput, match="4 folds"):
        ulira(*samples(n=2), folds_of(2, False))
    with pytest.raises(BadInput, match="ask for 16"):
        check_shadows(8, in_pairs=True)
    with pytest.raises(BadInput, match="10 shadows"):
        check_shadows(10, in_pairs=False)
    check_shadows(8, in_pairs=False)


@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0])
def test_klom_is_the_kl_of_binned_gaussians(shift):
    """Of 20,000 networks a point's KLOM is the KL of the two Gaussians' shares of its bins; that is below d^2 / 2."""
    rng = np.random.default_rng(4)
    p, q = shift + rng.normal(size=(20_000, 3)), rng.normal(size=(20_000, 3))
    found = klom_points(p, q)
    for point in range(3):
        both = np.concatenate([p[:, point], q[:, point]])
        edges = np.linspace(both.min(), both.max(), BINS + 1)
        shares = [np.diff(norm.cdf(edges, loc=mean)) for mean in (shift, 0.0)]
        expected = float(entropy(shares[0], shares[1]))
        # bins without a retrained network count as 1e-5, and others with few are noisy
        assert found[point] == pytest.approx(expected, abs=0.003 + 0.06 * expected)
        assert expected <= shift**2 / 2 + 1e-12


def test_klom_beside_its_definition_written_out():
    rng = np.random.default_rng(5)
    p, q = 3 * rng.normal(size=(30, 40)), 150 * rng.normal(size=(30, 40))

    def one(p, q):
        p, q = np.clip(p, -CLIP, CLIP), np.clip(q, -CLIP, CLIP)
        reach = min(p.min(), q.min()), max(p.max(), q.max())
        ours, theirs = (np.histogram(x, BINS, reach)[0] / len(x) for x in (p, q))
        return entropy(ours, np.where(ours > 0, np.maximum(theirs, LEAST_SHARE), theirs))

    expected = [one(p[:, i], q[:, i]) for i in range(40)]
    np.testing.assert_allclose(klom_points(p, q), expected, rtol=1e-9, atol=1e-12)


def test_klom_of_what_is_the_same_and_of_what_has_nothing_in_common():
    rng = np.random.default_rng(6)
    margins = rng.normal(size=(50, 4))
    np.testing.assert_allclose(klom_points(margins, rng.permutation(margins)), 0.0, atol=1e-12)
    np.testing.assert_allclose(klom_points(np.ones((50, 2)), np.ones((50, 2))), 0.0, atol=1e-12)
    apart = klom_points(np.zeros((50, 1)), np.full((50, 1), 9.0))
    assert apart == pytest.approx(-math.log(LEAST_SHARE), abs=1e-4), "all mass where the other has none"


def answers(margins: np.ndarray) -> ShadowAnswers:
    return ShadowAnswers(margins, margins[:, :20], margins[:, :20], np.abs(margins))


def test_a_perfect_unlearner_is_at_the_floor():
    """Networks that were retrained: chance within the interval, and KLOM as that of retrains beside retrains."""
    perfect, retrained = (answers(margins) for margins in samples(n=64, records=400))
    found, floor = attack_networks(perfect, retrained, False, "gaussian"), attack_floor(retrained, False, "gaussian")
    for attack in (found, floor):
        for name, chance in (("auc", 0.5), ("accuracy", 0.5), ("tpr_at_0.01", 0.01), ("tpr_at_0.001", 0.001)):
            _, low, high = attack["ulira"][name]
            assert low <= chance <= high, name
    for part in ("forget", "retain", "test"):
        assert found["klom"][part]["mean"] == pytest.approx(floor["klom"][part]["mean"], rel=0.1)
    assert (found["networks"], floor["networks"]) == (64, 32)


def test_halves_forget_every_record_of_random_requests_equally_often():
    """Shadows 2j and 2j + 1 forget complementary parts, so that whole pairs must go into either half."""
    half = halves_of(64)
    assert half.sum() == 32
    np.testing.assert_array_equal(half[::2], half[1::2])


def test_an_attacker_who_picks_needs_no_more_than_one_who_draws():
    """The bound by its definition: the least n whose greatest KL add up to what must be learned."""
    rng = np.random.default_rng(7)
    kl_rows = rng.exponential(0.1, size=500) ** 2
    needed = (1 - 2e-3) * math.log(0.999 / 0.001)
    for scale in (0.1, 1.0, 10.0):
        rows = scale * kl_rows
        found, greatest = picked_queries(rows), sorted(rows, reverse=True)
        by_hand = next((n for n in range(1, 501) if sum(greatest[:n]) >= needed), None)
        assert found == by_hand
        if found is not None:
            assert found <= min_queries(float(rows.mean()))
    assert picked_queries(np.full(100, 0.5)) == min_queries(0.5), "rows alike: there is nothing to pick"
    assert picked_queries(np.zeros(10)) is None
    with pytest.raises(BadInput):
        picked_queries(np.array([0.1, np.nan]))


def test_rankings_that_agree_and_that_swap():
    names = ["a", "b", "c", "d"]
    same = compare_rankings(names, [1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0])
    assert (same["spearman"], same["swapped"], same["pairs"]) == (pytest.approx(1), [], 6)
    one = compare_rankings(names, [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0])
    assert one["swapped"] == [["b", "c"]]
    assert one["spearman"] == pytest.approx(1 - 6 * 2 / (4 * 15)), "1 - 6 sum d^2 / (n (n^2 - 1))"
    assert compare_rankings(names, [1.0, 2.0, 3.0, 4.0], [1.0] * 4)["spearman"] is None
