"""Whether a request was unlearned: the rule, what it says of failures, and what the certificate says of an attack."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional

from tracking.certificate_page import certificate_page
from unlearn_core import forget, methods
from unlearn_core.audit.divergence import log_probabilities, mean_kl
from unlearn_core.audit.stein import stein_block, stein_in_words
from unlearn_core.data import load_dataset
from unlearn_core.forgetting.forget import Forgotten
from unlearn_core.forgetting.judgement import (
    LEAST_KL,
    OF_EDIT,
    OF_TARGET,
    OF_TRAINING,
    OF_TRAINING_ON,
    REQUIRED,
    Losses,
    Progress,
    judge,
    rule_for,
)
from unlearn_core.forgetting.opening import Heldout
from unlearn_core.recipes import Stopping

DIGITS = load_dataset("digits")
HELDOUT = Heldout(DIGITS.test_x, DIGITS.test_y)
SCATTERED = np.random.default_rng(0).permutation(len(DIGITS.train_y))[:60]


@pytest.fixture(scope="module")
def net() -> nn.Module:
    """A network that has learned its rows by heart, by a loop that shares nothing with ours."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    x, y = torch.from_numpy(DIGITS.train_x), torch.from_numpy(DIGITS.train_y)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module.eval()


def ask(net: nn.Module, rows=SCATTERED, **how) -> Forgotten:
    return forget(net, DIGITS.train_x, DIGITS.train_y, rows, **{"proxy": "fresh", "heldout": HELDOUT, **how})


def says(net: nn.Module, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return log_probabilities(net(torch.from_numpy(x)).numpy())


# the rule


def test_the_way_is_measured_in_kl_from_what_was_asked_for():
    rng = np.random.default_rng(0)
    asked, base, model = (log_probabilities(rng.normal(size=(7, 3))) for _ in range(3))
    progress = Progress.of(asked, base, model)
    assert progress.share == pytest.approx(1 - mean_kl(asked, model) / mean_kl(asked, base))
    assert Progress.of(asked, base, base).share == 0
    assert Progress.of(asked, base, asked).share == 1


@pytest.mark.parametrize(
    ("asked", "left", "outcome"),
    [
        (1.0, 0.2, "unlearned"),
        (1.0, 0.2001, "not unlearned"),
        (1.0, 1.0, "not unlearned"),
        (1.0, 7.0, "not unlearned"),
        (1.0, math.inf, "not unlearned"),
        (1.0, math.nan, "not unlearned"),
        (2e-6, 2e-6, "not unlearned"),
        (2e-6, 0.9e-6, "unlearned"),  # what is left cannot be measured
        (0.9e-6, 0.9e-6, "nothing to unlearn"),
        (0.0, 0.0, "nothing to unlearn"),
    ],
)
def test_what_is_said_of_how_far_it_came(asked, left, outcome):
    assert judge(OF_TARGET, Progress(5, asked, left)).outcome == outcome


def test_records_of_a_later_request_are_not_lost_among_earlier_ones():
    """One of a hundred was not touched: on all of them nearly the whole way is behind the model."""
    everything, this_request = Progress(100, 1.0, 0.01), Progress(1, 1.0, 1.0)
    assert judge(OF_TARGET, everything).outcome == "unlearned"
    assert judge(OF_TARGET, this_request, everything).outcome == "not unlearned"
    assert judge(OF_TARGET, Progress(1, 1.0, 0.0), Progress(100, 1.0, 0.9)).outcome == "not unlearned"


def test_an_edit_is_judged_by_losses_too():
    rng = np.random.default_rng(0)
    heldout, weights = rng.exponential(1.0, 1000), np.ones(1000)
    memorised = np.full(400, 0.01)

    def said(after: float) -> str:
        losses = Losses.of(memorised, memorised + after, heldout, weights)
        return judge(OF_EDIT, Progress(400, 1.0, 0.0), losses=losses).outcome

    assert said(0.8) == said(1.0) == said(5.0) == "unlearned"
    assert said(0.1) == said(-0.005) == "not unlearned"
    few = Losses.of(memorised[:1], memorised[:1] + 0.1, heldout, weights)
    assert few.what_is_wrong is None, "one record may be that easy"
    assert few.margin == pytest.approx(2 * heldout.std() * math.sqrt(1 + 1 / 1000))
    assert Losses.of(memorised, memorised - 0.005).what_is_wrong == "the records' mean loss falls, from 0.01 to 0.005"


def test_training_that_goes_on_from_weights_that_saw_the_records_is_judged_by_the_gap_to_heldout_rows():
    """It may make the model less sure of everything: what counts is that it is no surer of the records."""
    rng = np.random.default_rng(0)
    heldout, weights = rng.exponential(1.0, 1000), np.ones(1000)
    memorised = np.full(400, 0.01)

    def said(after: float, scale: float) -> str:
        losses = Losses.of(memorised, np.full(400, after), heldout, weights, scale * heldout)
        return judge(OF_TRAINING_ON, Progress(400, 1.0, 0.0), losses=losses).outcome

    assert said(0.3, 0.3) == said(0.25, 0.3) == said(5.0, 0.3) == "unlearned", "as sure of the records as of others"
    assert said(0.3, 1.0) == said(0.01, 1.0) == "not unlearned", "surer of the records, by most of what it was"
    assert said(0.005, 0.005) == "unlearned", "all losses may fall"
    named = Losses.of(memorised, memorised, heldout, weights, heldout).what_is_wrong
    assert named is not None
    assert "below that of held-out rows" in named
    assert Losses.of(memorised, memorised - 0.005).what_is_wrong, "a group's may not"


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        ("probe", OF_TARGET),
        ("newton", OF_EDIT),
        ("short", OF_TRAINING),
        ("short-hard", OF_TRAINING),
        ("short-warm", OF_TRAINING_ON),
        ("short-young", OF_TRAINING_ON),
        ("short-hard-base", OF_TRAINING_ON),
        ("newton-hard", OF_TRAINING_ON),
        ("ft", OF_TRAINING_ON),
    ],
)
def test_who_says_that_no_record_ever_reached_the_weights(method, rule):
    assert rule_for(methods.find(method)) == rule


# what used to be certified


@pytest.mark.parametrize("how", [{"lr": 1e-12}, {"lr": 1e-6, "stopping": Stopping(epochs=2)}])
def test_a_distillation_that_fails_is_not_called_nothing_to_unlearn(net, tmp_path, how):
    delivered = []
    result = ask(net, **how, ledger=tmp_path / "ledger", deliver=delivered.append)
    content = result.certificate.content
    assert content["outcome"] == "not unlearned"
    assert content["verdict"]["records"]["share"] < 0.1
    assert content["verdict"]["rule"] == OF_TARGET
    assert f"{REQUIRED:.0%} are required" in content["reason"]
    assert result.withheld is not None
    assert "--force" not in result.withheld, "a ledger would count them as forgotten"
    assert not delivered
    assert not (tmp_path / "ledger").exists() or not list((tmp_path / "ledger").iterdir())
    assert "Not unlearned, though 60 of 1437 training records were to be" in certificate_page(
        result.certificate.document()
    )


def test_force_delivers_what_was_not_unlearned_and_says_so(net):
    delivered = []

    def deliver(result: Forgotten):
        delivered.append(result.certificate.content["outcome"])
        return result.certificate

    result = ask(net, lr=1e-6, stopping=Stopping(epochs=2), force=True, deliver=deliver)
    assert delivered == ["not unlearned"]
    assert result.withheld is None
    assert "by the rule under 'verdict' they were not" in result.certificate.content["not_guaranteed"][0]


def test_least_squares_that_cannot_hold_the_target_is_not_certified(net):
    """One layer cannot take out what a network has learned by heart."""
    result = ask(net, finalizer="mse")
    target = result.outcome.plan.target
    assert target is not None
    records = np.sort(SCATTERED)
    asked, base = target.log_target[records], says(net, DIGITS.train_x)[records]
    share = 1 - mean_kl(asked, says(result.model, DIGITS.train_x)[records]) / mean_kl(asked, base)
    verdict = result.certificate.content["verdict"]
    assert verdict["records"]["share"] == pytest.approx(share, abs=1e-4)
    assert (result.certificate.content["outcome"] == "unlearned") == (share >= REQUIRED)
    assert result.certificate.content["outcome"] == "not unlearned"
    assert verdict["records"]["n_records"] == len(SCATTERED)


def test_a_request_that_asks_for_nothing_is_told_from_one_that_failed(net, monkeypatch):
    """The target is the network itself, to what can be measured."""
    monkeypatch.setattr("unlearn_core.target.shifted", lambda logits, signal, eta: log_probabilities(logits))
    result = ask(net)
    content = result.certificate.content
    assert content["outcome"] == "nothing to unlearn"
    assert f"and {LEAST_KL:g} can be measured" in content["reason"]
    assert result.model is net


def test_an_edit_that_has_no_answer_has_not_unlearned(net):
    result = ask(net, proxy="truncate")
    assert result.certificate.content["outcome"] == "not unlearned", "sixty scattered records are no class"
    assert "has no answer" in result.certificate.content["reason"]


def test_weights_that_swallow_the_step_are_noticed(net):
    """A file of few digits: what is stored is the base again."""
    from unlearn_core.forgetting import open_request as opened

    request = opened.open_request(net, DIGITS.train_x, DIGITS.train_y, SCATTERED[:2], heldout=HELDOUT)
    base = request.subject.net
    assert base is not None
    request = opened.replace(request, round_to_file=lambda _: base.select([0]))
    outcome = request.carry_out(request.plan(opened.ForgetSettings(proxy="newton")))
    assert outcome.judgement.outcome == "not unlearned"
    assert outcome.judgement.records is not None
    assert outcome.judgement.records.share == pytest.approx(0, abs=1e-6)


# the attack


@pytest.fixture(scope="module")
def distilled(net) -> Forgotten:
    return ask(net)


def test_the_certificate_carries_a_two_sided_attack_before_and_after(net, distilled):
    attack = distilled.certificate.content["attack"]
    labels = DIGITS.train_y[SCATTERED]
    weights = (np.bincount(labels, minlength=10) / np.bincount(DIGITS.test_y, minlength=10))[DIGITS.test_y]
    for module, found in ((net, attack["before"]), (distilled.model, attack["after"])):
        records = says(module, DIGITS.train_x)[SCATTERED, labels]
        heldout = says(module, DIGITS.test_x)[np.arange(len(DIGITS.test_y)), DIGITS.test_y]
        auc = roc_auc_score(
            np.repeat([1, 0], [len(records), len(heldout)]),
            np.concatenate([records, heldout]),
            sample_weight=np.concatenate([np.ones(len(records)), weights]),
        )
        assert found["auc"] == pytest.approx(auc, abs=2e-3)  # a tie in float32 may be none in float64
        assert found["from_chance"] == abs(found["auc"] - 0.5)
    assert "Can the records be told by their loss?" in certificate_page(distilled.certificate.document())


def test_without_heldout_rows_the_certificate_says_that_there_was_no_attack(net):
    content = ask(net, heldout=None, stopping=Stopping(epochs=1)).certificate.content
    assert content["attack"]["why"].startswith("no attack was run")
    assert content["finalizer"]["watched"]["n_heldout"] == 0


def test_of_epochs_that_came_far_enough_one_at_chance_is_kept(distilled):
    """The rule, written out again, on what the certificate says of every epoch."""
    done = distilled.certificate.content["finalizer"]
    assert done["watched"]["n_heldout"] > 0
    assert len(done["attacks"]) == len(done["scores"])
    assert distilled.certificate.content["verdict"]["records"]["share"] >= REQUIRED
    chance = distilled.certificate.content["attack"]["by_chance"] / 2
    kept = max(0.0, abs(done["attacks"][done["best_epoch"]] - 0.5) - chance)
    last = max(0.0, abs(done["attacks"][-1] - 0.5) - chance)
    assert kept <= last + 1e-9


# in words


@pytest.mark.parametrize(
    ("kl", "n", "words"),
    [
        (0.35, 610, "at least 20 label queries"),
        (0.35, 610, "the 610 records may be enough, so that it is not shown to pass for the retrain"),
        (0.01, 60, "the 60 records, each asked once at random, are too few"),
        (0.0, 5, "no number of label queries"),
        (None, 5, "no bound"),
    ],
)
def test_queries_get_their_verdict_in_words(kl, n, words):
    assert words in stein_in_words(stein_block({"kl_f": kl, "kl_t": 0.1}, n), n)


def test_the_whole_signal_is_not_called_safe_where_that_is_vacuous(distilled):
    """Of ``fresh`` it would be said of noise as well."""
    proxy = distilled.certificate.content["proxy"]
    assert proxy["eta_max"] == pytest.approx(1)
    assert "1 by construction" in proxy["eta_reason"]
    assert "whole signal is admissible whatever P_r says" in proxy["eta_reason"]
    assert {name for name in methods.proxies() if methods.find_proxy(name).vacuous} >= {"fresh", "crossfit"}


def test_a_base_at_chance_and_probabilities_as_logits_get_a_warning(net):
    with torch.no_grad():
        logits = net(torch.from_numpy(DIGITS.train_x)).numpy()

    def box(logits: np.ndarray) -> Forgotten:
        return forget(logits, DIGITS.train_x, DIGITS.train_y, SCATTERED, "lda", "none")

    assert box(logits).certificate.content["warnings"] == []
    [chance] = box(logits[:, np.roll(np.arange(10), 1)]).certificate.content["warnings"]
    assert chance.startswith("the base is right on 0.")
    probabilities = box(np.exp(log_probabilities(logits)).astype(np.float32)).certificate
    [warning] = probabilities.content["warnings"]
    assert warning.startswith("the logits look like probabilities")
    assert "Warning: the logits look like probabilities" in certificate_page(probabilities.document())
