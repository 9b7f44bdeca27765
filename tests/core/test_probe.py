"""The probe pair: each is the logistic regression that another library fits, and nothing forgotten changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from unlearn_core.errors import BadInput
from unlearn_core.problem import problem_of
from unlearn_core.proxies.points import Points
from unlearn_core.proxies.probe import ProbeConstants, ProbeFit, ProbeProxy, fit_probe, fit_probe_of_all
from unlearn_core.proxies.request import ForgetRequest

CONSTANTS = ProbeConstants()


def probe_of(x, y, forget, fit: ProbeFit | None = None) -> ProbeProxy:
    problem = problem_of(x, y, 3)
    problem.prepared.values["probe"] = fit or fit_probe_of_all(x, y, 3, CONSTANTS)
    return fit_probe(ForgetRequest(problem, forget, problem.training_points(None)), CONSTANTS)


def scikit_learns(x, y, fit: ProbeFit) -> tuple[LogisticRegression, np.ndarray]:
    """(N, C) log posterior on x of the same objective: its C is 1 / (penalty * rows), its bias is free."""
    assert CONSTANTS.bias_penalty < 1e-8
    z = ((x - fit.centre) / fit.scale).astype(np.float64)
    # with two classes it has one weight vector, which is the difference of our two, each half of it
    strength = CONSTANTS.penalty * len(y) * (0.5 if len(np.unique(y)) == 2 else 1.0)
    model = LogisticRegression(C=1.0 / strength, tol=1e-10, max_iter=5000).fit(z, y)
    return model, model.predict_log_proba(z)


def posterior(model, x, fit):
    return model.predict_log_proba((x - fit.centre) / fit.scale)


@pytest.fixture(scope="module")
def fit(data) -> ProbeFit:
    return fit_probe_of_all(data.x, data.y, 3, CONSTANTS)


def test_the_probe_of_all_rows_is_scikit_learns(data, fit):
    _, expected = scikit_learns(data.x, data.y, fit)
    log_p = probe_of(data.x, data.y, data.forget, fit).log_posteriors(Points(data.x))[0]
    # the fit may be 1e-8 nats from its minimum, so the posteriors (Pinsker) about sqrt(2e-8) = 1.4e-4 in the mean
    assert np.abs(np.exp(log_p) - np.exp(expected)).sum(axis=1).mean() < 1.5e-4


def test_the_probe_of_retained_rows_is_scikit_learns_on_them(data, fit):
    model, _ = scikit_learns(data.x[~data.forget], data.y[~data.forget], fit)
    log_p_r = probe_of(data.x, data.y, data.forget, fit).log_posteriors(Points(data.x))[1]
    expected = posterior(model, data.x, fit)
    change = np.abs(expected - scikit_learns(data.x, data.y, fit)[1]).mean()
    # a thousandth of the gap that the request opens may be left: about its root of the change in posteriors
    assert np.abs(log_p_r - expected).mean() < 0.05 * change


def test_whole_classes_and_rows_of_others_leave_together(data, fit):
    forget = (data.y == 1) | data.forget
    kept = ~forget
    model, _ = scikit_learns(data.x[kept], data.y[kept], fit)
    log_p_r = probe_of(data.x, data.y, forget, fit).log_posteriors(Points(data.x))[1]
    assert np.isneginf(log_p_r[:, 1]).all()
    expected = posterior(model, data.x, fit)  # of classes 0 and 2
    assert np.abs(np.exp(log_p_r[:, [0, 2]]) - np.exp(expected)).mean() < 5e-3


def test_an_unconverged_first_fit_does_not_look_worse_than_the_second(data):
    """The pair's signal belongs to the request: with almost nothing forgotten it is almost nothing, converged or not."""
    forget = np.zeros(len(data.y), dtype=bool)
    forget[7] = True
    fine, rough = (fit_probe_of_all(data.x, data.y, 3, replace(CONSTANTS, gap_of_d=gap)) for gap in (1e-8, 1e-4))
    assert not np.allclose(fine.weights, rough.weights, atol=1e-2)
    signals = [probe_of(data.x, data.y, forget, fit).signal(Points(data.x)) for fit in (fine, rough)]
    np.testing.assert_allclose(signals[1], signals[0], atol=0.1 * np.abs(signals[0]).max())


def test_units_of_the_features_do_not_matter(data):
    signals = [probe_of(x, data.y, data.forget).signal(Points(x)) for x in (data.x, 1000.0 * data.x + 5.0)]
    np.testing.assert_allclose(signals[1], signals[0], atol=2e-2)


def test_other_features_are_refused(data, fit):
    with pytest.raises(BadInput, match=r"features have shape \(600, 5\); this probe was fitted on d = 6"):
        probe_of(data.x, data.y, data.forget, fit).signal(Points(data.x[:, :5]))


def test_degenerate_features_are_finite(data):
    constant = np.full_like(data.x, 0.1)
    wide = np.random.default_rng(3).normal(size=(30, 80))
    for x, y, forget in ((constant, data.y, data.forget), (wide, data.y[:30], np.arange(30) < 5)):
        log_p, log_p_r = probe_of(x, y, forget).log_posteriors(Points(x))
        assert np.isfinite(log_p).all()
        assert np.isfinite(log_p_r).all()
