"""h, admissibility and eta_max, and what the paper proves with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from unlearn_core import methods
from unlearn_core.audit.bounds import tight_bound
from unlearn_core.audit.divergence import mean_kl
from unlearn_core.errors import BadInput
from unlearn_core.eta import find_eta_max, h_curve, mean_lse_shift
from unlearn_core.proxies.points import Points
from unlearn_core.target import fit_proxy, shifted

GAUSSIAN = tuple(name for name in methods.proxies() if methods.find_proxy(name).prepares == methods.MOMENTS)


def lse(values) -> np.ndarray:
    return np.asarray(logsumexp(values, axis=1))


def network_near(log_p, rng, noise=0.3):
    """Logits of a network that agrees with a proxy up to some noise, so that the pair is admissible."""
    return log_p + noise * rng.normal(size=log_p.shape)


@pytest.fixture(params=GAUSSIAN)
def case(request, data):
    proxy = fit_proxy(request.param, data.x, data.y, data.forget, 3)
    log_p, log_p_r = proxy.log_posteriors(Points(data.x))
    return network_near(log_p, np.random.default_rng(5)), log_p, log_p_r


def test_h_is_its_definition(case):
    logits, log_p, log_p_r = case
    signal = log_p_r - log_p
    for eta in (0.0, 0.3, 1.0, 2.5):
        direct = (lse(logits + eta * signal) - lse(logits)).mean()
        assert mean_lse_shift(eta, logits, signal) == pytest.approx(direct, abs=1e-12)


def test_h_is_convex_and_starts_at_zero_with_the_stated_slope(case):
    logits, log_p, log_p_r = case
    signal = log_p_r - log_p
    curve = h_curve(logits, signal, end=3.0, points=61)
    values = np.array([h for _, h in curve])
    assert curve[0] == (0.0, 0.0)
    assert (np.diff(values, 2) >= -1e-12).all()
    base = log_softmax(logits, axis=1)
    slope = mean_kl(base, log_p) - mean_kl(base, log_p_r)
    step = 1e-6
    numeric = (mean_lse_shift(step, logits, signal) - mean_lse_shift(-step, logits, signal)) / (2 * step)
    assert numeric == pytest.approx(slope, abs=1e-7)
    assert find_eta_max(logits, signal).slope_at_zero == pytest.approx(slope, abs=1e-10)


@pytest.mark.parametrize("scale", [0.02, 1.0, 30.0])
@pytest.mark.parametrize("cap", [1.0, math.inf])
def test_eta_max_is_the_largest_safe_eta(case, scale, cap):
    """A scaled signal moves the root of h by 1/scale: from far below 1 to far beyond it."""
    logits, log_p, log_p_r = case
    signal = scale * (log_p_r - log_p)
    found = find_eta_max(logits, signal, cap)
    assert found.admissible
    assert 0 < found.eta_max <= cap
    assert mean_lse_shift(found.eta_max, logits, signal) <= 1e-12
    if found.eta_max < cap:
        assert mean_lse_shift(found.eta_max * (1 + 1e-6), logits, signal) > 0
        assert mean_lse_shift(found.eta_max, logits, signal) == pytest.approx(0, abs=1e-12)


def test_many_rows_give_the_root_of_all_rows_not_of_the_subsample():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60_000, 4)) * 3
    signal = rng.normal(size=logits.shape) - 0.7 * log_softmax(logits, axis=1).clip(-3)
    signal -= 1.5 * np.exp(log_softmax(logits, axis=1))
    signal[::7] *= 3.0  # the even subsample sees these rows at another rate
    found = find_eta_max(logits, signal - 0.9, math.inf)
    assert found.eta_max > 0
    assert mean_lse_shift(found.eta_max, logits, signal - 0.9) == pytest.approx(0, abs=1e-11)


def test_a_subsample_that_is_not_admissible_does_not_lead_to_the_zero_at_zero():
    """The rows that the search starts from may be the ones to which P_r fits no worse; all rows together decide."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(20_000, 3))
    signal = 1e-3 * rng.normal(size=(20_000, 3))
    p = np.exp(log_softmax(logits, axis=1))
    signal -= (p * signal).sum(axis=1, keepdims=True)
    signal -= 2e-6
    signal[::4] += 4e-6  # every fourth row, which an even subsample of them is made of
    eta = find_eta_max(logits, signal, math.inf).eta_max
    assert eta > 0.1
    assert mean_lse_shift(0.999 * eta, logits, signal) < 0 < mean_lse_shift(1.001 * eta, logits, signal)


def test_an_inadmissible_pair_unlearns_nothing_and_says_why(case):
    logits, log_p, log_p_r = case
    found = find_eta_max(logits, log_p - log_p_r)  # the pair swapped
    assert found.eta_max == 0.0
    assert not found.admissible
    assert "not admissible" in found.reason
    np.testing.assert_array_equal(shifted(logits, log_p - log_p_r, 0.0), log_softmax(logits, axis=1))


def test_a_slope_that_is_rounding_error_is_no_reason_to_unlearn():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1000, 3))
    p = np.exp(log_softmax(logits, axis=1))
    signal = rng.normal(size=logits.shape)
    signal -= np.sum(p * signal, axis=1, keepdims=True)  # E sum p signal is 0 up to the last bits
    signal[0] -= 1e-13
    found = find_eta_max(logits, signal)
    assert abs(found.slope_at_zero) < 1e-15
    assert (found.eta_max, found.admissible) == (0.0, False)


def test_the_root_is_found_where_h_hardly_leaves_zero():
    """KL(p||P) < KL(p||P_r) by 1e-30 nats: admissible, and at eta_max h is zero as far as numbers go."""
    logits = np.tile([0.0, -70.0], (10, 1))
    signal = np.tile([0.0, -1.0], (10, 1))
    signal[0] = [0.0, 0.0]
    signal[1] = [0.0, 500.0]
    signal[2:] = [0.0, -70.0]
    found = find_eta_max(logits, signal)
    assert found.slope_at_zero < 0
    assert 0 < found.eta_max < 0.1
    assert mean_lse_shift(found.eta_max, logits, signal) <= 1e-15  # ten sums of rounding errors


def test_a_zero_signal_is_not_admissible():
    logits = np.random.default_rng(0).normal(size=(50, 3))
    assert find_eta_max(logits, np.zeros_like(logits)).eta_max == 0.0


@pytest.mark.parametrize("cap", [1.0, math.inf])
@pytest.mark.parametrize("method", GAUSSIAN)
def test_a_lost_class_is_admissible_and_h_is_computed_with_its_minus_infinity(data, method, cap):
    forget = data.y == 1
    signal = fit_proxy(method, data.x, data.y, forget, 3).signal(Points(data.x))
    found = find_eta_max(data.logits, signal, cap)
    assert found.slope_at_zero == -math.inf
    assert 0 < found.eta_max <= cap
    kept = [0, 2]
    for eta in (1e-3, 0.5, 1.0, found.eta_max):
        direct = (lse(data.logits[:, kept] + eta * signal[:, kept]) - lse(data.logits)).mean()
        assert mean_lse_shift(eta, data.logits, signal) == pytest.approx(direct, abs=1e-10)
    assert mean_lse_shift(found.eta_max, data.logits, signal) <= 1e-10
    assert mean_lse_shift(0.0, data.logits, signal) == 0.0


def test_where_h_never_returns_to_zero_the_search_ends_and_says_so():
    logits = np.zeros((4, 2))
    signal = np.tile([0.0, -1.0], (4, 1))
    found = find_eta_max(logits, signal, math.inf)
    assert found.eta_max == 1e6
    assert "search ends" in found.reason


@pytest.mark.parametrize(
    ("logits", "signal", "message"),
    [
        (np.zeros((3, 2)), np.zeros((2, 2)), "must have the same shape"),
        (np.array([[0.0, np.nan], [0, 0]]), np.zeros((2, 2)), "not finite in 1 rows, the first is row 0"),
        (np.zeros((2, 2)), np.array([[0.0, np.inf], [0, 0]]), "NaN or .inf in 1 rows"),
    ],
)
def test_bad_arrays_are_refused(logits, signal, message):
    with pytest.raises(BadInput, match=message):
        find_eta_max(logits, signal)


def test_a_cap_of_zero_is_refused():
    with pytest.raises(BadInput, match="cap 0 must be positive"):
        find_eta_max(np.zeros((2, 2)), np.zeros((2, 2)), cap=0)


@pytest.mark.parametrize("eta", [0.0, 0.25, 1.0, 1.7])
def test_decomposition_identity_and_tight_bound(case, eta):
    """app:Decrease is an identity on any sample set; prop:tight-bound is exact up to h(eta), which is 0 at eta_max."""
    logits, log_p, log_p_r = case
    signal = log_p_r - log_p
    base = log_softmax(logits, axis=1)
    retrain = log_softmax(network_near(log_p_r, np.random.default_rng(9), noise=0.5), axis=1)
    h = mean_lse_shift(eta, logits, signal)
    measured = mean_kl(retrain, shifted(logits, signal, eta))
    bound = tight_bound(eta, h, base, retrain, log_p, log_p_r)
    assert bound.decomposition == pytest.approx(measured, abs=1e-9)
    assert bound.tight_bound + h == pytest.approx(measured, abs=1e-9)
    if eta <= find_eta_max(logits, signal, math.inf).eta_max:
        assert measured <= bound.tight_bound + 1e-12


def test_the_remainder_is_the_papers_forget_term_under_its_assumptions():
    """On a finite space with p = P(y|x) exactly: remainder = eta * pi_f * E_f sum_y (p_f - p_r) log(p/P)."""
    rng = np.random.default_rng(2)
    n_x, n_y, pi_f = 5, 3, 0.3
    joint_r, joint_f = (rng.dirichlet(np.ones(n_x * n_y)).reshape(n_x, n_y) for _ in range(2))
    joint = (1 - pi_f) * joint_r + pi_f * joint_f
    p, p_r, p_f = (j / j.sum(axis=1, keepdims=True) for j in (joint, joint_r, joint_f))
    proxy = rng.dirichlet(np.ones(n_y), size=n_x)
    expected = pi_f * np.sum(joint_f.sum(axis=1) * np.sum((p_f - p_r) * np.log(p / proxy), axis=1))
    # weights of x by repetition: sample x in proportion to its probability
    weights = joint.sum(axis=1)
    counts = np.round(weights * 10**6).astype(int)
    repeat = lambda table: np.repeat(np.log(table), counts, axis=0)  # noqa: E731
    bound = tight_bound(1.0, 0.0, repeat(p), repeat(p_r), repeat(proxy), repeat(proxy))
    assert bound.remainder == pytest.approx(expected, abs=1e-5)
