"""Requests on a prepared state get what fits their kind, and say how close that comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from tests.prepared_head import (
    CLASSES,
    EPOCHS,
    GROUP,
    HELD,
    HELDOUT,
    SCATTERED,
    TRAINING,
    X,
    Y,
    ask,
    kind,
    prepared_state,
    same_weights,
    says,
    trained,
)
from tracking.certificate_page import certificate_page
from unlearn_core import forget, methods, preparations
from unlearn_core.audit.divergence import log_probabilities
from unlearn_core.edits import newton
from unlearn_core.edits.newton import NewtonConstants
from unlearn_core.errors import BadInput
from unlearn_core.forgetting import opening
from unlearn_core.forgetting.judgement import OF_TRAINING, OF_TRAINING_ON, REQUIRED
from unlearn_core.forgetting.measure import RetrainSettings
from unlearn_core.forgetting.open_request import OpenRequest
from unlearn_core.forgetting.opening import Heldout, prepare
from unlearn_core.forgetting.state import PreparedState, open_state
from unlearn_core.nets.heads import HeadStack
from unlearn_core.preparations import PREPARATIONS, PROBE
from unlearn_core.recipes import Stopping
from unlearn_core.request_kind import LEVEL


@pytest.fixture(scope="module")
def net() -> HeadStack:
    return trained(EPOCHS)


@pytest.fixture(scope="module")
def state(net, tmp_path_factory) -> Path:
    return prepared_state(net, tmp_path_factory)


def test_a_whole_class_is_truncated_and_the_others_keep_their_shares(net, state):
    result = ask(net, np.flatnonzero(Y == 2), state)
    content = result.certificate.content
    assert (kind(result), content["proxy"]["method"]) == ("whole class", "truncate")
    base, now = says(net), says(result.model)
    others = [0, 1, 3]
    expected = log_probabilities(base[:, others])
    np.testing.assert_allclose(log_probabilities(now[:, others]), expected, atol=1e-5)
    assert np.exp(now[Y == 2, 2]).max() <= 1e-12 * (1 + 1e-5)  # logits are float32
    assert content["closeness"]["after"] is None
    assert "no estimate: the request is whole class" in content["closeness"]["why"]


def test_scattered_rows_get_a_newton_step_and_an_estimate(net, state):
    result = ask(net, SCATTERED[:60], state)
    content = result.certificate.content
    assert (kind(result), content["proxy"]["method"]) == ("exchangeable", "newton")
    assert {test["name"] for test in content["kind"]["tests"]} == {
        "class shares", "losses", "entropies", "places", "companions",
    }  # fmt: skip
    assert LEVEL < content["kind"]["p_value"] == min(test["adjusted"] for test in content["kind"]["tests"])
    before, after = content["closeness"]["before"], content["closeness"]["after"]
    for one in (before, after):
        assert 0 <= one["low"] <= one["estimate"] <= one["high"]
        assert one["queries"] > 0
    accuracy = content["accuracy"]
    assert accuracy["after"]["forgotten"] < accuracy["before"]["forgotten"], "what was learnt by heart goes"
    change = content["divergence"]["base_to_unlearned"]
    assert change["retain"] <= 0.2 * change["forget"]


def test_where_the_chosen_edit_has_no_answer_auto_takes_what_comes_next(net, state, monkeypatch):
    """No step is allowed to touch retained rows at all; by name, that is all there is to say."""
    never = replace(methods.find("newton"), constants=NewtonConstants(most_spilled=-1.0))
    monkeypatch.setattr(methods, "TABLE", MappingProxyType({**methods.TABLE, "newton": never}))
    result = ask(net, SCATTERED[:60], state)
    content = result.certificate.content
    assert (content["proxy"]["method"], content["outcome"]) == ("short-small", "unlearned")
    assert content["proxy"]["why"].startswith("newton has no answer; it was chosen because exchangeable: ")
    named = ask(net, SCATTERED[:60], state, proxy="newton").certificate.content
    assert (named["proxy"]["method"], named["outcome"]) == ("newton", "not unlearned")


def test_where_the_chosen_edit_is_not_enough_auto_takes_what_comes_next(net, state, monkeypatch):
    """A step so small that the network goes on knowing the records by heart; by name, that is what is certified."""
    timid = replace(methods.find("newton"), constants=NewtonConstants(scale=0.02, most_spilled=np.inf))
    monkeypatch.setattr(methods, "TABLE", MappingProxyType({**methods.TABLE, "newton": timid}))
    named = ask(net, SCATTERED[:300], state, proxy="newton").certificate.content
    assert (named["proxy"]["method"], named["outcome"]) == ("newton", "not unlearned")
    content = ask(net, SCATTERED[:300], state).certificate.content
    assert (content["proxy"]["method"], content["outcome"]) == ("short-small", "unlearned")
    assert content["proxy"]["why"].startswith("newton is not enough, for the records' mean loss goes from ")
    assert content["finalizer"]["ended"].endswith(", for newton is not enough")


def test_a_certificate_says_whether_the_weights_ever_saw_the_records(net, state):
    """From a share of the model's they did: the model must be no surer of them than of others."""
    warm = ask(net, SCATTERED[:300], state, proxy="short-warm").certificate
    said = warm.content["verdict"]
    assert said["rule"] == OF_TRAINING_ON
    losses = said["losses"]
    was, left = losses["heldout"] - losses["before"], losses["heldout_after"] - losses["after"]
    assert (left <= (1 - REQUIRED) * was + losses["margin"]) == (warm.content["outcome"] == "unlearned")
    assert "of those after" in certificate_page(warm.document())
    fresh = ask(net, SCATTERED[:300], state, proxy="short").certificate.content["verdict"]
    assert (fresh["rule"], fresh["losses"]) == (OF_TRAINING, None)


def test_part_of_a_class_and_rows_that_lie_together_are_groups_without_a_number(net, state):
    half = np.flatnonzero(Y == 1)[::2]
    for rows, by_test in ((half, False), (GROUP, True)):
        result = ask(net, rows, state)
        content = result.certificate.content
        assert (kind(result), content["proxy"]["method"]) == ("group", "short")
        assert "a model of the others still knows" in result.outcome.plan.choice.reason
        assert content["closeness"]["before"] is content["closeness"]["after"] is None
        assert "it would take a retrain" in content["closeness"]["why"]
        if by_test:
            assert content["kind"]["p_value"] <= LEVEL
        else:
            assert "50% of a class" in content["kind"]["why"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_labels_of_any_integer_type_train_the_same_network(net, dtype):
    rows = np.flatnonzero(Y == 1)[::2]
    ours, theirs = (forget(net, X, labels, rows, proxy="short-small") for labels in (Y, Y.astype(dtype)))
    assert same_weights(ours, theirs)


def test_no_number_is_given_where_exchangeability_was_rejected(net, state):
    """Whatever method is asked for by name; the truth stands beside it if it is asked for."""
    result = ask(net, GROUP, state, proxy="newton", retrain=RetrainSettings(epochs=3))
    content = result.certificate.content
    assert kind(result) == "group"
    assert content["closeness"]["before"] is content["closeness"]["after"] is None
    [check] = content["retrain"]["checks"]
    assert check["kl_retrain_to"]["base"]["forget"] > 0


def test_the_truth_stands_beside_the_estimate(net, state):
    content = ask(
        net, SCATTERED[:60], state, retrain=RetrainSettings(epochs=EPOCHS, lr=TRAINING.lr)
    ).certificate.content
    [check] = content["retrain"]["checks"]
    for one, name in (("before", "base"), ("after", "unlearned")):
        interval, truth = content["closeness"][one], check["kl_retrain_to"][name]["forget"]
        assert interval["low"] <= truth <= interval["high"]
    assert check["kl_retrain_to"]["unlearned"]["forget"] < check["kl_retrain_to"]["base"]["forget"]


def test_auto_does_not_keep_a_step_that_goes_away_from_a_retrain(net, state, monkeypatch):
    """One six times too long; by name one gets it, with an estimate that says what it is."""
    line = methods.find("newton")
    too_long = replace(line, constants=NewtonConstants(scale=6.0, most_spilled=np.inf))  # pyright: ignore[reportCallIssue]
    monkeypatch.setattr(methods, "TABLE", {**methods.TABLE, "newton": too_long})
    after_it = ask(net, SCATTERED[:60], state).certificate.content["proxy"]
    assert after_it["method"] == "short-small"
    assert after_it["why"].startswith("newton is not enough, for ")
    assert "not kept, for it goes away from a retrain" in after_it["why"]
    monkeypatch.setattr(OpenRequest, "carry_out", OpenRequest._attempt)  # and if nothing comes next
    retrain = RetrainSettings(epochs=EPOCHS, lr=TRAINING.lr)
    results = [ask(net, SCATTERED[:60], state, proxy=proxy, retrain=retrain) for proxy in ("auto", "newton")]
    left, moved = (result.certificate.content for result in results)
    assert (left["outcome"], moved["outcome"]) == ("not unlearned", "unlearned")
    assert "not kept, for it goes away from a retrain" in left["reason"]
    assert results[0].model is net
    assert left["closeness"]["after"] == left["closeness"]["before"] == moved["closeness"]["before"]
    assert left["closeness"]["after"]["high"] < moved["closeness"]["after"]["low"]
    assert results[0].withheld is not None
    kl = moved["retrain"]["checks"][0]["kl_retrain_to"]
    assert kl["base"]["forget"] < kl["unlearned"]["forget"], "the retrain agrees"


def test_a_network_that_stays_is_estimated_as_before_though_its_successor_was_taught(net, state, monkeypatch):
    """A pupil is not judged by its teacher, and so by another rule; the base is no pupil."""
    line = methods.find("newton-crossfit")
    too_long = replace(
        line, edit=lambda request, _: newton.step(request, NewtonConstants(scale=6.0, most_spilled=np.inf))
    )
    monkeypatch.setattr(methods, "TABLE", {**methods.TABLE, "newton-crossfit": too_long})
    monkeypatch.setattr(OpenRequest, "carry_out", OpenRequest._attempt)  # what comes next is another test's
    content = ask(net, SCATTERED[:60], state, budget=0.5).certificate.content
    assert (content["proxy"]["method"], content["outcome"]) == ("newton-crossfit", "not unlearned")
    assert content["closeness"]["after"] == content["closeness"]["before"]


def test_without_heldout_rows_nothing_is_compared_and_a_proxy_is_chosen(net, tmp_path):
    prepared = prepare(net, X, Y, tmp_path / "state")
    content = forget(net, X, Y, SCATTERED[:50], prepared=prepared, stopping=Stopping(epochs=2)).certificate.content
    assert content["kind"]["kind"] == "unknown"
    assert "it would take held-out rows" in content["closeness"]["why"]
    assert {one["method"] for one in content["proxy"]["candidates"]} == {"lda", "qda", "lda-mix", "qda-mix", "lda-2c"}
    with pytest.raises(BadInput, match=r"fresh starts from the probe of all rows, which .* does not hold"):
        forget(net, X, Y, SCATTERED[:50], "fresh", prepared=prepared)


def test_what_starts_from_the_probe_is_the_same_with_and_without_a_state(net, tmp_path, monkeypatch):
    """The probe of D is fitted once, for the state; D is read all the same, and the request's kind is told as well."""
    prepare(net, X, Y, tmp_path / "state", heldout=HELDOUT, also=("probe",))
    assert open_state(tmp_path / "state").parts == ["moments", "discriminant", "crossfit", "curvature", "flow", "probe"]
    rows, quick = SCATTERED[:40], {"heldout": HELDOUT, "stopping": Stopping(epochs=2)}
    alone = {method: forget(net, X, Y, rows, method, **quick) for method in ("probe", "fresh")}
    never = replace(PREPARATIONS[PROBE], compute=None)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(preparations, "PREPARATIONS", {**PREPARATIONS, PROBE: never})
    for method, plain in alone.items():
        again = forget(net, X, Y, rows, method, prepared=tmp_path / "state", **quick)
        assert same_weights(again, plain)
        assert again.certificate.content["data"] == plain.certificate.content["data"]
        assert kind(again) == "exchangeable"
    with pytest.raises(BadInput, match="lda cannot be prepared as well; there is probe"):
        prepare(net, X, Y, tmp_path / "other", also=("lda",))


def test_a_black_box_cannot_be_prepared(net, tmp_path):
    with pytest.raises(BadInput, match="a black box cannot be prepared"):
        opening.keep_state(opening.black_box(says(net), X, Y, None), None, tmp_path / "state")


def test_the_crossfit_target_is_the_out_of_fold_posterior_on_the_records_and_the_base_elsewhere(net, state):
    rows = np.sort(SCATTERED[:30])
    result = ask(net, rows, state, proxy="crossfit", stopping=Stopping(epochs=1))
    plan = result.outcome.plan
    assert plan.target is not None
    of_d: PreparedState = open_state(state)
    log_q = np.asarray(of_d.of_data.values["crossfit/mlp1"].log_q[rows], dtype=np.float64)
    np.testing.assert_allclose(plan.target.log_target[plan.forget], log_q, atol=1e-6)
    elsewhere = plan.subject.problem.train.number[~plan.forget]
    np.testing.assert_allclose(plan.target.log_target[~plan.forget], says(net)[elsewhere], atol=1e-6)
    assert result.certificate.content["proxy"]["eta_max"] == pytest.approx(1)


@pytest.mark.parametrize("order", ["in turn", "class by class", "shuffled"])
def test_every_class_is_compared_with_whatever_the_order_of_heldout_rows(net, tmp_path, order):
    """And what networks say of them is kept beside their own labels."""
    x, y = HELDOUT.features, np.asarray(HELDOUT.labels)
    rows = {"in turn": np.arange(HELD), "class by class": np.argsort(y), "shuffled": SCATTERED[SCATTERED < HELD]}[order]
    prepared = prepare(net, X, Y, tmp_path / "state", heldout=Heldout(x[rows], y[rows]))
    assert prepared.heldout is not None
    counts = np.bincount(prepared.heldout.labels, minlength=CLASSES)
    assert abs(counts - np.bincount(y[rows]) / 2).max() <= 1
    chosen = rows[prepared.heldout_rows]
    np.testing.assert_array_equal(prepared.heldout_labels, y[chosen])
    np.testing.assert_allclose(prepared.log_heldout["base"], says(net, x[chosen]), atol=1e-5)
