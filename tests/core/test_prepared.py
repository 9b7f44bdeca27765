"""Requests on a prepared state: they read their own rows, are refused on anything else than what was prepared, and get what
fits their kind."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tracking.certificate_page import certificate_page
from unlearn_core import forget, methods, preparations
from unlearn_core.audit.divergence import log_probabilities
from unlearn_core.crossfit import CrossFitConstants, Folds, cross_fit
from unlearn_core.data.images import CIFAR10_CLASSES, ImageSet
from unlearn_core.data.mapped import map_npz
from unlearn_core.edits import newton
from unlearn_core.edits.newton import NewtonConstants
from unlearn_core.errors import BadInput
from unlearn_core.forgetting import opening
from unlearn_core.forgetting.forget import Forgotten
from unlearn_core.forgetting.judgement import OF_TRAINING, OF_TRAINING_ON, REQUIRED
from unlearn_core.forgetting.measure import RetrainSettings
from unlearn_core.forgetting.open_request import OpenRequest
from unlearn_core.forgetting.opening import RETAINED_LOOKED_AT, Heldout, prepare
from unlearn_core.forgetting.request import RecordList, find_rows
from unlearn_core.forgetting.state import MOST_REMOVED, PreparedState, open_state
from unlearn_core.grid import HIDDEN_WIDTH
from unlearn_core.nets.heads import HeadStack
from unlearn_core.preparations import CROSSFIT, CURVATURE, PREPARATIONS, PROBE, Given
from unlearn_core.problem import Problem, Rows
from unlearn_core.recipes import HEAD_TRAINING, Stopping, Visit, training_recipe
from unlearn_core.request_kind import LEVEL
from unlearn_core.training import Member, train

N, HELD, DIM, CLASSES = 4000, 1000, 24, 4
GROUP = np.arange(0, 320, 4)
"""Rows of class 0, fewer than a fold, that lie somewhere else."""


def _draw(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Four classes that overlap, so that a network learns some rows by heart."""
    y = np.arange(n) % CLASSES
    means = 0.5 * np.random.default_rng(0).normal(size=(CLASSES, DIM))
    return (rng.normal(size=(n, DIM)) + means[y]).astype(np.float32), y


X, Y = _draw(N, np.random.default_rng(1))
X[GROUP, :3] += 3
HELDOUT = Heldout(*_draw(HELD, np.random.default_rng(2)))
SCATTERED = np.setdiff1d(np.random.default_rng(3).permutation(N), GROUP, assume_unique=True)
TRAINING, EPOCHS = replace(HEAD_TRAINING, lr=1e-2), 60


def trained(epochs: int, seed: int = 0) -> HeadStack:
    net = HeadStack.initialise((DIM, 64, CLASSES), [torch.Generator().manual_seed(seed)])
    train(
        net,
        torch.from_numpy(X),
        [Member(0, "base", torch.from_numpy(Y))],
        training_recipe(Visit.ALL, epochs),
        TRAINING,
    )
    return net


@pytest.fixture(scope="module")
def net() -> HeadStack:
    return trained(EPOCHS)


@pytest.fixture(scope="module")
def state(net, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "state"
    prepare(net, X, Y, out, heldout=HELDOUT)
    return out


@pytest.fixture
def own_state(state, tmp_path) -> Path:
    return Path(shutil.copytree(state, tmp_path / "state"))


def ask(net, rows, state, **more) -> Forgotten:
    return forget(net, X, Y, rows, heldout=HELDOUT, prepared=state, **more)


def same_weights(one: Forgotten, other: Forgotten) -> bool:
    ours, theirs = one.model.state(0), other.model.state(0)
    return all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def says(net, x=X) -> np.ndarray:
    return log_probabilities(net.logits(0, torch.from_numpy(x)).double().numpy())


def kind(result: Forgotten) -> str:
    return result.certificate.content["kind"]["kind"]


# what a request reads


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        ("auto", SCATTERED[:50]),
        ("crossfit", SCATTERED[:50]),
        ("newton-crossfit", SCATTERED[:50]),
        ("auto", np.flatnonzero(Y == 2)),
    ],
    ids=["newton", "crossfit", "newton-crossfit", "truncate"],
)
def test_rows_that_are_neither_asked_for_nor_looked_at_are_not_read(net, state, tmp_path, method, rows):
    """In the second request they are NaN, their labels nonsense, and all of it lies in files."""
    quick = {"proxy": method, "stopping": Stopping(epochs=20)}
    looked_at = np.linspace(0, N - 1, max(RETAINED_LOOKED_AT, len(rows))).astype(np.int64)
    unread = np.setdiff1d(np.arange(N), np.union1d(rows, looked_at))
    assert len(unread) > N / 4
    x, y = X.copy(), Y.copy()
    x[unread], y[unread] = np.nan, -7
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    mapped_x, mapped_y = (np.load(tmp_path / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
    first = ask(net, rows, state, **quick)
    second = forget(net, mapped_x, mapped_y, rows, heldout=HELDOUT, prepared=state, **quick)
    assert first.certificate.content["outcome"] == "unlearned"
    assert same_weights(first, second)
    same = ("kind", "proxy", "divergence", "accuracy", "closeness", "classes", "data")
    for part in same:
        assert first.certificate.content[part] == second.certificate.content[part]


@pytest.mark.parametrize("method", ["newton", "newton-crossfit"])
def test_an_edit_is_the_same_with_and_without_a_state_and_in_any_order(net, state, method):
    rows = SCATTERED[:40]
    prepared = ask(net, rows, state, proxy=method)
    alone = forget(net, X, Y, rows, method, heldout=HELDOUT)
    assert prepared.certificate.content["outcome"] == "unlearned"
    assert same_weights(prepared, alone)
    assert same_weights(prepared, ask(net, rows[::-1], state, proxy=method))
    assert alone.certificate.content["closeness"] is None
    assert alone.certificate.content["kind"] is None


def test_the_certificate_names_the_state_and_has_the_hashes_that_it_would_have_without(net, state):
    content = ask(net, SCATTERED[:5], state).certificate.content
    plain = forget(net, X, Y, SCATTERED[:5], "newton", heldout=HELDOUT).certificate.content
    assert content["prepared"]["sha256"] == open_state(state).digest
    assert content["data"]["sha256"] == plain["data"]["sha256"]
    assert content["model"]["base_sha256"] == plain["model"]["base_sha256"]
    assert content["request"] == plain["request"]
    assert (content["data"]["n_train"], plain["prepared"]) == (N, None)
    assert content["data"]["n_looked_at"] < plain["data"]["n_looked_at"] == N


# what a state is checked for


def test_another_model_other_rows_and_other_features_are_refused(net, state):
    with pytest.raises(BadInput, match="prepared of another model"):
        ask(trained(1, seed=1), SCATTERED[:5], state)
    with pytest.raises(BadInput, match="prepared of 4000 rows and there are 3999"):
        forget(net, X[:-1], Y[:-1], SCATTERED[:5], heldout=HELDOUT, prepared=state)
    with pytest.raises(BadInput, match="prepared of 24 features"):
        forget(net, X[:, :5], Y, SCATTERED[:5], inputs=X, prepared=state)
    with pytest.raises(BadInput, match=r"prepared of 24 features .given. and these are others .layer penultimate"):
        forget(net, X, Y, SCATTERED[:5], features_from="penultimate", prepared=state)
    with pytest.raises(BadInput, match="a prepared state is of a network"):
        forget(says(net), X, Y, SCATTERED[:5], finalizer="none", prepared=state)


def test_fewer_rows_are_refused_before_their_ids_are_looked_for(net, tmp_path):
    ids = np.array([f"r{i:05d}" for i in range(N)])
    prepare(net, X, Y, tmp_path / "state", ids=ids)
    with pytest.raises(BadInput, match="prepared of 4000 rows and there are 10"):
        forget(net, X[:10], Y[:10], ["r00003"], ids=ids[:10], prepared=tmp_path / "state")
    with pytest.raises(BadInput, match="4000 rows and 3999 different ids"):
        prepare(net, X, Y, tmp_path / "other", ids=np.array([*ids[:-1], ids[0]]))
    assert not (tmp_path / "other").exists()


def test_a_changed_file_is_refused_and_a_copied_one_is_not(own_state):
    path = own_state / CURVATURE / "moments.layers.0.npy"
    os.utime(path, ns=(1, 1))
    open_state(own_state).check()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"moments.layers.0.npy is not as it was prepared"):
        open_state(own_state)


def test_a_byte_changed_with_the_time_put_back_is_seen_by_the_whole_check(own_state):
    path = own_state / CROSSFIT / "log_q.npy"
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    opened = open_state(own_state)
    with pytest.raises(BadInput, match=r"log_q.npy is not as it was prepared"):
        opened.check()


def _cut(path: Path) -> None:
    path.write_text(path.read_text()[:-40])


def _recount(path: Path) -> None:
    document = json.loads(path.read_text())
    document["data"]["class_counts"][0] += 1
    path.write_text(json.dumps(document))


def _forget_a_part(path: Path) -> None:
    document = json.loads(path.read_text())
    del document["files"]["heldout/rows.npy"]
    path.write_text(json.dumps(document))


def _lose_a_file(path: Path) -> None:
    (path.parent / CROSSFIT / "folds.npy").unlink()


@pytest.mark.parametrize(
    "damage",
    [_cut, _recount, _forget_a_part, _lose_a_file, lambda path: path.write_text("[]"), Path.unlink],
    ids=["cut", "another count", "a file not named", "a file lost", "a list", "nothing"],
)
def test_a_damaged_state_is_refused_in_one_line(net, own_state, damage):
    damage(own_state / "state.json")
    with pytest.raises(BadInput, match="prepare") as refusal:
        ask(net, SCATTERED[:5], own_state)
    assert "\n" not in str(refusal.value)


def test_a_state_of_other_constants_is_refused(own_state, monkeypatch):
    other = replace(PREPARATIONS[CROSSFIT], constants=CrossFitConstants(folds=4))
    monkeypatch.setattr(preparations, "PREPARATIONS", {**PREPARATIONS, CROSSFIT: other})
    with pytest.raises(BadInput, match="prepared by another version of this package"):
        open_state(own_state)


# what each kind of request gets


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


# one request after another


@pytest.mark.parametrize("method", ["newton", "newton-crossfit"])
def test_ten_requests_end_with_the_network_of_one(net, state, tmp_path, method):
    results = [
        ask(net, part, state, ledger=tmp_path / "ledger", proxy=method) for part in SCATTERED[:200].reshape(10, 20)
    ]
    once = ask(net, SCATTERED[:200], state, proxy=method)
    assert same_weights(results[-1], once)
    last = results[-1].certificate.content
    assert [entry["n_forget"] for entry in last["history"]] == list(range(20, 200, 20))
    assert last["model"]["unlearned_sha256"] == once.certificate.content["model"]["unlearned_sha256"]
    assert last["closeness"]["after"] == once.certificate.content["closeness"]["after"]
    again = ask(results[-1].model, SCATTERED[:3], state, ledger=tmp_path / "ledger")
    assert again.certificate.content["outcome"] == "nothing to unlearn"
    assert same_weights(again, once)


def test_past_the_stated_share_the_state_asks_to_be_prepared_again(net, state, tmp_path):
    book, most = {"ledger": tmp_path / "ledger", "proxy": "short"}, int(MOST_REMOVED * N)
    first = ask(net, SCATTERED[:most], state, **book)
    second = ask(first.model, SCATTERED[most : most + 1], state, **book)
    with pytest.raises(BadInput, match=r"401 of 4000 rows are forgotten by now.*more than 10%; prepare it again"):
        ask(net, SCATTERED[most + 1 : most + 2], state, **book)
    again = prepare(second.model, X, Y, tmp_path / "again", heldout=HELDOUT, ledger=tmp_path / "ledger")
    np.testing.assert_array_equal(again.removed, np.sort(SCATTERED[: most + 1]))
    assert not set(again.removed) & set(again.of_network.values[CURVATURE].rows)
    done = ask(net, SCATTERED[most + 1 : most + 2], tmp_path / "again", **book)
    assert done.certificate.content["request"]["n_forget"] == most + 2


def test_a_state_prepared_with_a_ledger_knows_nothing_of_what_was_forgotten(net, tmp_path):
    """Nonsense in the place of those rows changes neither fold models nor curvature."""
    rows, book = np.sort(SCATTERED[:300]), tmp_path / "ledger"
    forget(net, X, Y, rows, "newton", heldout=HELDOUT, ledger=book)
    with_ledger = prepare(net, X, Y, tmp_path / "one", heldout=HELDOUT, ledger=book)
    nonsense, labels = X.copy(), Y.copy()
    nonsense[rows], labels[rows] = 9.0, (Y[rows] + 1) % CLASSES
    removed = np.isin(np.arange(N), rows)
    crossfit = with_ledger.of_data.values["crossfit/mlp1"]
    oracle = cross_fit(Folds(nonsense, Y, CLASSES, (HIDDEN_WIDTH,), CrossFitConstants(), removed))
    np.testing.assert_array_equal(crossfit.weights, oracle.weights)
    np.testing.assert_array_equal(crossfit.log_q[~removed], oracle.log_q[~removed])
    problem = Problem(Rows(labels, nonsense, lambda: torch.from_numpy(nonsense)), None, CLASSES)
    how = PREPARATIONS[CURVATURE]
    curvature = how.compute(Given(problem, "mlp1", net, removed=removed), how.constants)
    for name, layer in with_ledger.of_network.values[CURVATURE].layers.items():
        np.testing.assert_array_equal(layer.moments, curvature.layers[name].moments)
    with pytest.raises(BadInput, match=r"no ledger at .*nothing was forgotten yet"):
        prepare(net, X, Y, tmp_path / "two", ledger=tmp_path / "nowhere")
    with pytest.raises(BadInput, match="is for another model"):
        prepare(trained(1), X, Y, tmp_path / "two", ledger=book)


# a module of somebody else's


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.out = nn.Linear(6 * 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1:] == (3, 4, 4)
        return self.out(functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1))


@pytest.fixture(scope="module")
def pictures() -> tuple[np.ndarray, np.ndarray, Heldout]:
    rng = np.random.default_rng(5)
    y = np.arange(900) % 3
    centres = rng.integers(60, 196, size=(3, 4, 4, 3))
    x = np.clip(centres[y] + rng.normal(scale=70, size=(900, 4, 4, 3)), 0, 255).astype(np.uint8)
    return x[:600], y[:600], Heldout(x[600:], y[600:])


@pytest.fixture(scope="module")
def conv(pictures) -> nn.Module:
    torch.manual_seed(0)
    module = Conv()
    x, y = torch.from_numpy(pictures[0]).permute(0, 3, 1, 2) / 255, torch.from_numpy(pictures[1])
    optimizer = torch.optim.Adam(module.parameters(), 2e-2)
    for _ in range(150):
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module.eval()


def test_a_convolutional_module_is_prepared_and_asked_for_twenty_records(conv, pictures, tmp_path):
    x, y, heldout = pictures
    layer = {"features_from": "penultimate", "heldout": heldout}
    prepared = prepare(conv, x, y, tmp_path / "state", **layer)
    assert prepared.frozen == ("norm.weight", "norm.bias")
    before = {name: tensor.clone() for name, tensor in conv.state_dict().items()}
    rows = np.random.default_rng(0).permutation(len(y))[:20]
    result = forget(conv, x, y, rows, prepared=tmp_path / "state", ledger=tmp_path / "ledger", **layer)
    content = result.certificate.content
    assert (content["kind"]["kind"], content["proxy"]["method"]) == ("exchangeable", "newton")
    assert content["outcome"] == "unlearned"
    assert content["closeness"]["after"] is not None
    for name, tensor in result.model.state_dict().items():
        moved = name.removesuffix(".weight").removesuffix(".bias") in ("conv", "out")
        assert torch.equal(tensor, before[name]) != moved, name
        assert torch.equal(conv.state_dict()[name], before[name])
    with pytest.raises(BadInput, match="and these are others"):
        forget(conv, x, y, rows, prepared=tmp_path / "state", features_from="conv", heldout=heldout)
    more = forget(result.model, x, y, [rows[0], 3], prepared=prepared, ledger=tmp_path / "ledger", **layer)
    assert more.certificate.content["request"]["n_forget"] == len({*rows.tolist(), 3})


def test_a_group_on_a_module_that_cannot_be_built_anew_gets_a_proxy(conv, pictures, tmp_path):
    x, y, heldout = pictures
    layer = {"features_from": "penultimate", "heldout": heldout}
    prepare(conv, x, y, tmp_path / "state", **layer)
    some = np.flatnonzero(y == 1)[:100]
    quick = Stopping(epochs=2)
    content = forget(conv, x, y, some, prepared=tmp_path / "state", stopping=quick, **layer).certificate.content
    assert content["kind"]["kind"] == "group"
    assert len(content["proxy"]["candidates"]) + len(content["proxy"]["unusable"]) == 5
    with pytest.raises(BadInput, match="short starts from fresh weights"):
        forget(conv, x, y, some, "short", prepared=tmp_path / "state", **layer)


# ids and files


@pytest.mark.parametrize(
    "ids",
    [
        np.array([f"rec-{i}" for i in range(300)]),
        np.arange(300) - 150,
        np.arange(300, dtype=np.uint64) + np.uint64(2**63),
        np.arange(300, dtype=np.int32) * 7,
    ],
    ids=["strings", "negative", "large", "gaps"],
)
def test_ids_are_found_by_bisection_as_by_the_dictionary(ids):
    rng = np.random.default_rng(0)
    ids = rng.permutation(ids)
    order = np.argsort(ids, kind="stable")
    for count in (1, 7, 300 - 1):
        names = tuple(str(one) for one in rng.permutation(ids)[:count])
        request = RecordList("request", (*names, names[0]))
        first, second = find_rows(request, 300, ids), find_rows(request, 300, ids, order)
        np.testing.assert_array_equal(first.rows, second.rows)
        assert first.repeated == second.repeated == (names[0],)
    wrong = (
        "rec-300",
        "rec-",
        "",
        "-",
        "--3",
        "007",
        "1e3",
        "99999999999999999999999",
        "-99999999999999999999999",
        "²",
    )
    for name in wrong:
        request = RecordList("request", (str(ids[0]), name))
        refusals = []
        for known in (None, order):
            with pytest.raises(BadInput, match="are not in the data") as refusal:
                find_rows(request, 300, ids, known)
            refusals.append(str(refusal.value))
        assert refusals[0] == refusals[1]


def test_ids_that_cannot_be_ordered_are_found_all_the_same(net, tmp_path):
    ids = np.array([f"r{i}" for i in range(N)], dtype=object)
    prepared = prepare(net, X, Y, tmp_path / "state", ids=ids)
    assert prepared.ids_order is None
    result = forget(net, X, Y, ["r17", "r4"], "newton", ids=ids, prepared=prepared)
    assert result.certificate.content["request"]["n_forget"] == 2


def test_mapped_arrays_are_those_of_numpy(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "train_x": rng.normal(size=(50, 7)).astype(np.float16),
        "train_y": rng.integers(0, 3, 50).astype(np.uint8),
        "test_x": np.asfortranarray(rng.normal(size=(5, 7))),
        "ids": np.array([f"é{i}" for i in range(50)]),
        "images": rng.integers(0, 255, (4, 3, 2, 3), dtype=np.uint8),
        "one": np.array(3.5),
        "none": np.zeros((0, 4)),
    }
    for save in (np.savez, np.savez_compressed):
        path = tmp_path / f"{save.__name__}.npz"
        save(path, **arrays)
        found = map_npz(path, (*arrays, "missing"))
        assert set(found) == set(arrays)
        with np.load(path) as expected:
            for name, value in found.items():
                np.testing.assert_array_equal(value, expected[name])
                assert (value.dtype, value.shape) == (expected[name].dtype, expected[name].shape)
    stored = map_npz(tmp_path / "savez.npz", ("train_x", "test_x"))
    assert all(isinstance(value, np.memmap) for value in stored.values())
    before = (tmp_path / "savez.npz").read_bytes()
    stored["train_x"][:] = 0
    assert (tmp_path / "savez.npz").read_bytes() == before, (
        "whoever writes into a mapped array does not write into the file"
    )
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "pickled.npz", ids=np.array(["a", 1], dtype=object))
        with pytest.raises(BadInput, match=r"pickled.npz: array 'ids' is pickled"):
            map_npz(tmp_path / "pickled.npz", ("ids",))


def test_mapped_images_have_the_names_that_loaded_ones_have(tmp_path):
    images = np.zeros((20, 2, 2, 3), dtype=np.uint8)
    path, labels = tmp_path / "cifar10_part.npz", np.arange(20) % 10
    np.savez(path, train_images=images, train_y=labels, test_images=images, test_y=labels)
    mapped = ImageSet.mapped(path.stem, path)
    assert (mapped.name, mapped.class_names) == ("cifar10", CIFAR10_CLASSES)
    loaded = ImageSet.from_arrays("cifar10", ImageSet.read_arrays(path), source="")
    for field in dataclasses.fields(ImageSet):
        np.testing.assert_array_equal(getattr(mapped, field.name), getattr(loaded, field.name))
