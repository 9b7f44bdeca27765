"""Requests on a prepared state: they read their own rows, and are refused on anything else than what was prepared."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.prepared_head import (
    CLASSES,
    EPOCHS,
    HELDOUT,
    SCATTERED,
    N,
    X,
    Y,
    ask,
    prepared_state,
    same_weights,
    says,
    trained,
)
from unlearn_core import forget, preparations
from unlearn_core.crossfit import CrossFitConstants, Folds, cross_fit
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.opening import RETAINED_LOOKED_AT, Heldout, prepare
from unlearn_core.forgetting.request import RecordList, find_rows
from unlearn_core.forgetting.state import MOST_REMOVED, open_state
from unlearn_core.grid import HIDDEN_WIDTH
from unlearn_core.nets.heads import HeadStack
from unlearn_core.preparations import CROSSFIT, CURVATURE, PREPARATIONS, Given
from unlearn_core.problem import Problem, Rows
from unlearn_core.recipes import Stopping


@pytest.fixture(scope="module")
def net() -> HeadStack:
    return trained(EPOCHS)


@pytest.fixture(scope="module")
def state(net, tmp_path_factory) -> Path:
    return prepared_state(net, tmp_path_factory)


@pytest.fixture
def own_state(state, tmp_path) -> Path:
    return Path(shutil.copytree(state, tmp_path / "state"))


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
