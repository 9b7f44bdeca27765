"""The seven proxies against scikit-learn, against densities written out, and against the invariants of the method."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp
from scipy.stats import multivariate_normal, norm
from sklearn.base import BaseEstimator
from sklearn.covariance import empirical_covariance, ledoit_wolf, oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.naive_bayes import GaussianNB

from unlearn_core import methods
from unlearn_core.errors import BadInput
from unlearn_core.problem import problem_of
from unlearn_core.proxies.covariance import Shrinkage
from unlearn_core.proxies.gaussian import GaussianProxy
from unlearn_core.proxies.points import Points
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.proxies.statistics import compute_moments
from unlearn_core.proxies.two_state import full_covariance_components
from unlearn_core.target import fit, fit_proxy, floor_lost_classes, make_target, shifted

GAUSSIAN = tuple(name for name in methods.proxies() if methods.find_proxy(name).prepares == methods.MOMENTS)

RIDGE = 1e-3


class RidgeCovariance(BaseEstimator):
    """scikit-learn's hook for the regularisation that we use; it is linear, so pooling commutes with it."""

    def fit(self, x):
        covariance = empirical_covariance(x)
        self.covariance_ = covariance + RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        return self


def test_lda_is_scikit_learns(data):
    log_p, _ = fit_proxy("lda", data.x, data.y, data.forget, 3, ridge=RIDGE).log_posteriors(Points(data.x))
    theirs = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=RidgeCovariance()).fit(data.x, data.y)
    np.testing.assert_allclose(log_p, log_softmax(theirs.decision_function(data.x), axis=1), atol=1e-8)


def test_lda_without_regularisation_is_scikit_learns_default_solver(data):
    log_p, _ = fit_proxy("lda", data.x, data.y, data.forget, 3, ridge=0.0).log_posteriors(Points(data.x))
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(data.x, data.y)
    np.testing.assert_allclose(log_p, log_softmax(theirs.decision_function(data.x), axis=1), atol=1e-8)


def test_diagonal_qda_is_scikit_learns_gaussian_naive_bayes(data):
    """scikit-learn's smoothing is relative to the largest variance, ours to the mean one."""
    total_variance = data.x.var(axis=0)
    log_p, _ = fit_proxy("qda", data.x, data.y, data.forget, 3, ridge=RIDGE).log_posteriors(Points(data.x))
    theirs = GaussianNB(var_smoothing=RIDGE * total_variance.mean() / total_variance.max()).fit(data.x, data.y)
    np.testing.assert_allclose(log_p, theirs.predict_log_proba(data.x), atol=1e-8)


def test_qda_mix_retain_posterior_is_naive_bayes_on_the_retain_set(data):
    kept = ~data.forget
    smoothing = RIDGE * data.x.var(axis=0).mean() / data.x[kept].var(axis=0).max()
    _, log_p_r = fit_proxy("qda-mix", data.x, data.y, data.forget, 3, ridge=RIDGE).log_posteriors(Points(data.x))
    theirs = GaussianNB(var_smoothing=smoothing).fit(data.x[kept], data.y[kept])
    np.testing.assert_allclose(log_p_r, theirs.predict_log_proba(data.x), atol=1e-8)


def test_lda_mix_retain_posterior_is_lda_on_the_retain_set(data):
    kept = ~data.forget
    _, log_p_r = fit_proxy("lda-mix", data.x, data.y, data.forget, 3, ridge=RIDGE).log_posteriors(Points(data.x))
    theirs = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=RidgeCovariance())
    theirs.fit(data.x[kept], data.y[kept])
    np.testing.assert_allclose(log_p_r, log_softmax(theirs.decision_function(data.x), axis=1), atol=1e-8)


def request_of(data, forget=None, ridge=RIDGE, shrinkage=Shrinkage.RIDGE, n_classes=3) -> ForgetRequest:
    problem = problem_of(data.x, data.y, n_classes)
    forget = data.forget if forget is None else forget
    return ForgetRequest(problem, forget, problem.training_points(data.logits), ridge, shrinkage)


def pooled(groups, ridge=RIDGE):
    """Maximum-likelihood covariance within the groups, plus the ridge."""
    residuals = np.concatenate([g - g.mean(axis=0) for g in groups if len(g)])
    covariance = residuals.T @ residuals / len(residuals)
    return covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(len(covariance))


def oracle(method, x, y, forget, points, ridge=RIDGE):
    """Both log posteriors from the definitions, one density at a time."""
    n, n_r, classes = len(y), int((~forget).sum()), range(int(y.max()) + 1)
    of = lambda c, keep: x[(y == c) & keep]  # noqa: E731
    everything = np.ones(n, dtype=bool)
    joint, joint_r = [], []
    total_variance = x.var(axis=0).mean()
    for c in classes:
        retain, lost, both = of(c, ~forget), of(c, forget), of(c, everything)

        def density(rows, state, c=c):
            if method == "lda":
                covariance = pooled([of(k, everything) for k in classes])
            elif method == "lda-mix":
                keep = ~forget if state == "r" else forget
                covariance = pooled([of(k, keep) for k in classes])
            elif method == "lda-2c":
                covariance = pooled([of(k, keep) for k in classes for keep in (forget, ~forget)])
            else:
                spread = of(c, everything) if method == "qda" else rows
                variance = spread.var(axis=0) + ridge * total_variance
                return norm.logpdf(points, rows.mean(axis=0), np.sqrt(variance)).sum(axis=1)
            return multivariate_normal.logpdf(points, rows.mean(axis=0), covariance)

        if method in ("lda", "qda"):
            joint.append(np.log(len(both) / n) + density(both, "d"))
            joint_r.append(np.log(len(retain) / n_r) + density(retain, "r"))
            continue
        parts = [np.log(len(retain) / n) + density(retain, "r")]
        if len(lost):
            parts.append(np.log(len(lost) / n) + density(lost, "f"))
        joint.append(logsumexp(parts, axis=0))
        joint_r.append(np.log(len(retain) / n_r) + density(retain, "r"))
    return log_softmax(np.stack(joint, axis=1), axis=1), log_softmax(np.stack(joint_r, axis=1), axis=1)


@pytest.mark.parametrize("method", GAUSSIAN)
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_gaussian_proxies_are_their_definitions(data, method, offset):
    x = data.x + offset
    rng = np.random.default_rng(1)
    points = x[rng.permutation(len(x))[:100]] + rng.normal(size=(100, x.shape[1]))
    ours = fit_proxy(method, x, data.y, data.forget, 3, ridge=RIDGE).log_posteriors(Points(points))
    theirs = oracle(method, x, data.y, data.forget, points)
    for mine, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-7)


@pytest.mark.parametrize("method", GAUSSIAN)
def test_posteriors_are_distributions_and_the_signal_is_their_log_ratio(data, method):
    proxy = fit_proxy(method, data.x, data.y, data.forget, 3)
    log_p, log_p_r = proxy.log_posteriors(Points(data.x))
    np.testing.assert_allclose(np.exp(log_p).sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(np.exp(log_p_r).sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(proxy.signal(Points(data.x)), log_p_r - log_p, atol=1e-10)


@pytest.mark.parametrize("method", GAUSSIAN)
def test_moments_that_are_known_already_change_nothing(data, method):
    """As a store holds them of D, and a ledger of the forgotten rows."""
    fresh, known = request_of(data), request_of(data)
    known.problem.prepared.values["moments"] = total = compute_moments(data.x, data.y, 3)
    rows = data.forget
    known = replace(known, forgotten=compute_moments(data.x[rows], data.y[rows], 3, total.reference))
    np.testing.assert_array_equal(fit(method, known).signal, fit(method, fresh).signal)


def test_lda_2c_is_lda_mix_with_tied_covariances(data):
    request = request_of(data)
    tied = request.pooled_covariance(request.retain, request.forget)
    mix = GaussianProxy(request.total.reference, full_covariance_components(request, tied, tied.copy()))
    doubled = fit_proxy("lda-2c", data.x, data.y, data.forget, 3, ridge=RIDGE)
    np.testing.assert_allclose(mix.signal(Points(data.x)), doubled.signal(Points(data.x)), atol=1e-9)


# crossfit-net is crossfit with networks of the folds, which these plain arrays have no architecture for
@pytest.mark.parametrize("method", [name for name in methods.proxies() if name != "crossfit-net"])
def test_forgetting_a_class_gives_every_proxy_the_target_of_dir(data, method):
    forget = data.y == 1
    lost = np.array([False, True, False])
    expected = log_softmax(np.where(lost, -np.inf, data.logits), axis=1)
    request = request_of(data, forget)
    signal = fit(method, request).proxy.signal(
        replace(request.points, rows=None if method in ("fresh", "crossfit") else np.arange(600))
    )
    assert np.isneginf(signal[:, 1]).all()
    for eta in (0.1, 1.0):
        np.testing.assert_allclose(shifted(data.logits, signal, eta), expected, atol=1e-9)
    floored = floor_lost_classes(shifted(data.logits, signal, 1.0), data.logits, lost)
    np.testing.assert_allclose(floored[:, 1], np.minimum(log_softmax(data.logits, axis=1)[:, 1], np.log(1e-12)))
    np.testing.assert_allclose(floored[:, [0, 2]], expected[:, [0, 2]], atol=1e-9)


def one_row(data):
    forget = np.zeros(len(data.y), dtype=bool)
    forget[0] = True
    return data.x, data.y, forget


def one_class_only(data):
    return data.x, data.y, (data.y == 2) & (np.arange(len(data.y)) % 4 == 0)


def whole_class(data):
    return data.x, data.y, data.y == 0


def all_features_constant(data):
    return np.full_like(data.x, 0.1), data.y, data.forget


def one_feature_constant(data):
    x = data.x.copy()
    x[:, 2] = 5.0
    return x, data.y, data.forget


def identical_forget_rows(data):
    x = data.x.copy()
    x[data.forget & (data.y == 0)] = x[0]
    return x, data.y, data.forget


def more_features_than_rows(data):
    rng = np.random.default_rng(3)
    return rng.normal(size=(30, 80)), data.y[:30], np.arange(30) < 5


def one_retained_row_of_a_class(data):
    forget = data.y == 1
    forget[np.flatnonzero(forget)[0]] = False
    return data.x, data.y, forget


CORNERS = [
    one_row,
    one_class_only,
    whole_class,
    all_features_constant,
    one_feature_constant,
    identical_forget_rows,
    more_features_than_rows,
    one_retained_row_of_a_class,
]


@pytest.mark.parametrize("shrinkage", list(Shrinkage))
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("method", GAUSSIAN)
def test_corner_cases_are_finite(data, corner, method, shrinkage):
    x, y, forget = corner(data)
    proxy = fit_proxy(method, x, y, forget, 3, shrinkage=str(shrinkage))
    log_p, log_p_r = proxy.log_posteriors(Points(x))
    supported = np.bincount(y[~forget], minlength=3) > 0
    assert np.isfinite(log_p).all()
    assert np.isfinite(log_p_r[:, supported]).all()
    assert np.isneginf(log_p_r[:, ~supported]).all()


@pytest.mark.parametrize("method", methods.proxies())
@pytest.mark.parametrize("forget", [np.zeros(600, bool), np.ones(600, bool)])
def test_empty_and_total_requests_are_refused(data, method, forget):
    with pytest.raises(BadInput, match=r"the request forgets (0|600) of 600 rows"):
        fit_proxy(method, data.x, data.y, forget, 3, logits=data.logits)


def test_other_bad_requests_are_refused(data):
    with pytest.raises(BadInput, match="class 3 of 4 has no training row"):
        fit_proxy("lda", data.x, data.y, data.forget, 4)
    with pytest.raises(BadInput, match="unknown proxy 'lad'; there are lda, qda"):
        fit_proxy("lad", data.x, data.y, data.forget, 3)
    with pytest.raises(BadInput, match=r"ridge -1.0 must be"):
        fit_proxy("lda", data.x, data.y, data.forget, 3, ridge=-1.0)
    with pytest.raises(BadInput, match="covariance is singular; use a larger ridge"):
        fit_proxy("lda", np.repeat(data.x, 2, axis=1), data.y, data.forget, 3, ridge=0.0)
    with pytest.raises(BadInput, match=r"features have shape \(600, 5\); this proxy was fitted on d = 6"):
        fit_proxy("lda-2c", data.x, data.y, data.forget, 3).signal(Points(data.x[:, :5]))


@pytest.mark.parametrize(("shrinkage", "theirs"), [(Shrinkage.LEDOIT_WOLF, ledoit_wolf), (Shrinkage.OAS, oas)])
def test_shrinkage_is_scikit_learns(data, shrinkage, theirs):
    request = request_of(data, ridge=0.0, shrinkage=shrinkage)
    groups = [data.x[(data.y == c) & keep] for c in range(3) for keep in (data.forget, ~data.forget)]
    residuals = np.concatenate([group - group.mean(axis=0) for group in groups if len(group)])
    expected, _ = theirs(residuals, assume_centered=True)
    np.testing.assert_allclose(request.pooled_covariance(request.retain, request.forget), expected, atol=1e-9)


@pytest.mark.parametrize("method", methods.closed_forms())
def test_empirical_targets_are_the_closed_forms(data, method):
    request = request_of(data)
    p = np.exp(log_softmax(data.logits, axis=1))
    made = make_target(fit(method, request), request.points, request.lost_classes, cap=1.0)
    assert made.search is None
    target = np.exp(made.log_target)
    np.testing.assert_allclose(target[~data.forget], p[~data.forget], atol=1e-12)
    for row in np.flatnonzero(data.forget):
        label = data.y[row]
        truncated = np.where(np.arange(3) == label, 0.0, p[row]) / (1 - p[row, label])
        share = data.forget[data.y == label].mean()
        expected = truncated if method == "dir" else (1 - share) * p[row] + share * truncated
        np.testing.assert_allclose(target[row], expected, atol=1e-12)


@pytest.mark.parametrize("method", methods.closed_forms())
def test_empirical_proxies_know_the_training_rows_and_nothing_else(data, method):
    proxy = fit_proxy(method, data.x, data.y, data.forget, 3)
    rows = np.random.default_rng(0).permutation(len(data.x))
    signal = proxy.signal(Points(data.x[rows], rows=rows))
    label, gone = data.y[rows], data.forget[rows]
    assert np.isneginf(signal[gone, label[gone]]).all()
    signal[gone, label[gone]] = 0.0
    assert not signal.any()
    assert not proxy.signal(Points(data.x)).any(), "off the training set the target is the base itself"
    log_p, log_p_r = proxy.log_posteriors(Points(data.x, rows=np.arange(len(data.x))))
    np.testing.assert_allclose(np.exp(log_p).sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(log_p_r).sum(axis=1), 1.0)
    assert np.isneginf(log_p_r[data.forget, data.y[data.forget]]).all()
