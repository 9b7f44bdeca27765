"""``fresh``: P_r is of D_r, eta_max is 1 by theory, and what a network memorised is seen and taken back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from unlearn_core.audit.bounds import tight_bound
from unlearn_core.audit.divergence import log_probabilities, mean_kl
from unlearn_core.data import load_dataset
from unlearn_core.eta import find_eta_max, mean_lse_shift
from unlearn_core.grid import Scenario, Variant
from unlearn_core.problem import Inputs, make_cells, make_problem, problem_of
from unlearn_core.proxies.fresh import SCHEDULE, FreshConstants, FreshProxy, _tempered, _tempering, fit_fresh
from unlearn_core.proxies.points import Points
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.recipes import HEAD_UNLEARNING, PAPER_SCHEDULE, UNLEARNING_EPOCHS
from unlearn_core.references import make_scorers, train_reference
from unlearn_core.run_settings import RunSettings
from unlearn_core.target import shifted
from unlearn_core.unlearning import Reference, run_method


def request_of(data, forget, seed=0, logits=None) -> ForgetRequest:
    problem = problem_of(data.x, data.y, data.n_classes)
    points = problem.training_points(data.logits if logits is None else logits)
    return ForgetRequest(problem, forget, points, seed=seed)


def fitted(data, forget, seed=0, logits=None) -> FreshProxy:
    return fit_fresh(request_of(data, forget, seed, logits), FreshConstants())


@pytest.fixture(scope="module")
def proxy(data) -> FreshProxy:
    return fitted(data, data.forget)


@pytest.fixture(scope="module")
def points(data) -> Points:
    return request_of(data, data.forget).points


def test_eta_max_is_one_and_the_target_is_what_the_fresh_models_say(data, proxy, points):
    signal = proxy.signal(points)
    found = find_eta_max(data.logits, signal, cap=np.inf)
    assert found.admissible
    assert found.eta_max == pytest.approx(1.0, abs=1e-9)
    assert mean_lse_shift(0.5, data.logits, signal) < 0
    target = shifted(data.logits, signal, found.eta_max)
    log_p_r = proxy.log_posteriors(points)[1]
    np.testing.assert_allclose(target[data.forget], log_p_r[data.forget], atol=1e-6)
    np.testing.assert_allclose(target[~data.forget], points.log_base[~data.forget], atol=1e-12)


def test_a_proxy_asked_about_some_rows_says_what_it_says_of_them_among_all(data, proxy, points):
    rows = np.random.default_rng(1).permutation(len(data.x))[:100]
    some = Points(data.x[rows], data.logits[rows], rows)
    np.testing.assert_array_equal(proxy.signal(some), proxy.signal(points)[rows])
    for ours, all_of_them in zip(proxy.log_posteriors(some), proxy.log_posteriors(points), strict=True):
        np.testing.assert_allclose(ours, all_of_them[rows], atol=1e-6)  # float32 products in batches of other sizes


@pytest.mark.parametrize("whole_class", [False, True])
def test_the_pair_is_one_of_distributions_and_the_papers_identity_holds_for_it(data, points, whole_class):
    forget = (data.y == 1) if whole_class else data.forget
    proxy, log_base = fitted(data, forget), points.log_base
    signal = proxy.signal(points)
    log_p, log_p_r = proxy.log_posteriors(points)
    for log_q in (log_p, log_p_r):
        np.testing.assert_allclose(np.exp(log_q).sum(axis=1), 1.0, atol=1e-9)
    with np.errstate(invalid="ignore"):
        difference = log_p_r - log_p - signal  # up to a number of each row's own, which no posterior sees
    spread = np.ptp(difference[:, ~proxy.lost_classes], axis=1)
    assert spread.max() < 1e-6
    assert np.isneginf(signal[:, proxy.lost_classes]).all()
    assert mean_kl(log_base, log_p) < np.inf
    if not whole_class:
        retrain = log_probabilities(np.random.default_rng(0).normal(size=data.logits.shape))
        eta = 0.7
        h = mean_lse_shift(eta, data.logits, signal)
        bound = tight_bound(eta, h, log_base, retrain, log_p, log_p_r)
        assert bound.decomposition == pytest.approx(mean_kl(retrain, shifted(data.logits, signal, eta)), abs=1e-7)


def test_p_r_is_tempered_to_the_network_and_never_sharpened(data):
    sharp = 100.0 * np.eye(3)[data.y]  # nothing is surer, so that P_r is left as it is
    log_fresh = fitted(data, data.forget, logits=sharp).log_posteriors(Points(data.x, sharp))[1]
    for sureness, expected in ((-0.5, 0.0), (0.0, 0.0), (0.3, 0.3), (1.0, 1.0), (3.0, 1.0)):
        network = log_probabilities(sureness * log_fresh)
        assert fitted(data, data.forget, logits=network).tempering == pytest.approx(expected, abs=1e-5)


def test_a_record_like_any_other_is_nothing_to_unlearn(data, proxy, points):
    """A network that is P_r itself but for noise, the same on the records as elsewhere; and one that knows them by heart."""
    rng = np.random.default_rng(3)
    log_p_r = proxy.log_posteriors(points)[1]
    alike = 0.5 * log_p_r + 0.5 * rng.normal(size=data.logits.shape)
    alike[data.forget] = 0.5 * log_p_r[data.forget]
    by_heart = alike + 8.0 * np.where(data.forget[:, None], np.eye(3)[data.y], 0.0)
    for logits, admissible in ((alike, False), (by_heart, True)):
        request = request_of(data, data.forget, logits=logits)
        signal = fit_fresh(request, FreshConstants()).signal(request.points)
        assert find_eta_max(logits, signal).admissible is admissible


def test_the_small_network_never_sees_the_records(data, proxy):
    """Other values in the forgotten rows: the same weights, to the bit, and with another seed others."""
    changed = dataclasses.replace(data, x=np.where(data.forget[:, None], 1e3, data.x))
    request = request_of(changed, data.forget)
    request.problem.prepared.values["probe"] = proxy.probe.fit
    other = fit_fresh(request, FreshConstants())
    for name, weights in proxy.small.state(0).items():
        assert torch.equal(weights, other.small.state(0)[name])
    reseeded = fitted(data, data.forget, seed=1)
    assert any(not torch.equal(w, reseeded.small.state(0)[name]) for name, w in proxy.small.state(0).items())


def test_a_record_that_the_retained_data_hold_as_well_stays(data):
    x, y = np.vstack([data.x, data.x[:2]]), np.append(data.y, [data.y[0], (data.y[1] + 1) % 3])
    forget = np.zeros(len(y), dtype=bool)
    forget[[0, 1, 5]] = True  # row 0 is there twice; row 1 too, but under another label
    doubled = dataclasses.replace(data, x=x, y=y, forget=forget)
    by_heart = np.where(forget[:, None], 30.0 * np.eye(3)[(y + 1) % 3], 2.0 * np.eye(3)[y])
    assert np.flatnonzero(fitted(doubled, forget, logits=by_heart).special).tolist() == [1, 5]


@pytest.mark.parametrize("within_classes", [True, False])
def test_records_are_compared_with_rows_of_their_own_class(data, within_classes):
    """A class that the network gets wrong throughout makes any record look usual, unless like is compared with like."""
    forget = np.zeros(len(data.y), dtype=bool)
    forget[np.flatnonzero(data.y == 0)[:20]] = True
    logits = 1.5 * np.eye(3)[data.y]
    logits[data.y == 2] = 8.0 * np.eye(3)[0]  # retained rows of another class
    logits[forget] = 6.0 * np.eye(3)[1]  # the records
    log_base = log_probabilities(logits)
    constants = dataclasses.replace(FreshConstants(), within_classes=within_classes)
    proxy = fit_fresh(request_of(data, forget, logits=logits), constants)
    log_p_r = proxy.log_posteriors(request_of(data, forget, logits=logits).points)[1]
    kept = ~forget
    on_records = mean_kl(log_base[forget], log_p_r[forget])
    of_class, of_all = (mean_kl(log_base[rows], log_p_r[rows]) for rows in (kept & (data.y == 0), kept))
    assert of_class < on_records
    assert np.array_equal(
        proxy.special, forget if on_records > (of_class if within_classes else of_all) else ~kept & kept
    )


def test_what_was_memorised_is_taken_back():
    """Wrong labels that a network learnt by heart: a retrain does not know them, and the unlearned one comes near it."""
    digits = load_dataset("digits")
    rng = np.random.default_rng(0)
    wrong = rng.permutation(len(digits.train_y))[:40]
    noisy = digits.train_y.copy()
    noisy[wrong] = (noisy[wrong] + rng.integers(1, 10, 40)) % 10
    data = dataclasses.replace(digits, train_y=noisy)
    variant = Variant("digits", "mlp1", Scenario.RANDOM, 40)
    problem = make_problem(Inputs(data), variant.label_space)
    forget = np.zeros(len(noisy), dtype=bool)
    forget[wrong] = True
    cells = [dataclasses.replace(make_cells(data, variant, [0])[0], forget=forget)]
    base = train_reference("base", problem, "mlp1", cells, epochs=600)
    retrain = train_reference("retrain", problem, "mlp1", cells, epochs=600)
    reference = Reference(problem, "mlp1", cells, base, retrain, make_scorers(problem, cells, retrain))
    by_heart = base.net.logits(0, problem.train.inputs).numpy()[wrong].argmax(axis=1)
    assert (by_heart == noisy[wrong]).mean() > 0.5, "the base learnt them"
    before, after = (
        reference.scorers[0].score(base.net, 0),
        run_method("fresh", reference, RunSettings())[0].last.scores,
    )
    assert after.kl_f < 0.25 * before.kl_f
    assert after.acc_t > 0.9


@pytest.mark.parametrize(
    ("n_forget", "epochs"), [(5000, SCHEDULE.epochs), (1500, 20), (3000, 10), (1, UNLEARNING_EPOCHS)]
)
def test_large_requests_are_distilled_in_few_epochs_and_small_ones_in_the_papers(n_forget, epochs):
    recipe, how = SCHEDULE.build(HEAD_UNLEARNING, n_forget)
    assert recipe.epochs == epochs
    assert how.lr == HEAD_UNLEARNING.lr
    assert PAPER_SCHEDULE.build(HEAD_UNLEARNING, n_forget)[1] == HEAD_UNLEARNING


@pytest.mark.parametrize("sure", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("fresh_is", [1e-3, 1.0, 1e4])
def test_a_network_that_disagrees_with_the_data_gets_a_softening_all_the_same(sure, fresh_is):
    """However far apart the two are, also where a class left: an exponent of 0 would make its -inf undefined."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        log_p, log_q = (log_probabilities(scale * rng.normal(size=(5, 3))) for scale in (sure, fresh_is))
        exponent = _tempering(log_p, log_q)
        assert 0 < exponent <= 1
        lost = np.column_stack([log_q, np.full(5, -np.inf)])
        assert not np.isnan(_tempered(lost, exponent)).any()
