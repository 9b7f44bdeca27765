"""One request after another: the order in which records go does not matter, and none is counted twice."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from unlearn_core import forget, methods
from unlearn_core.data import load_dataset
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.ledger import Ledger
from unlearn_core.proxies.points import Points
from unlearn_core.recipes import Stopping

DIGITS = load_dataset("digits")
ROWS = np.random.default_rng(4).permutation(len(DIGITS.train_y))[:500]


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    x, y = torch.from_numpy(DIGITS.train_x), torch.from_numpy(DIGITS.train_y)
    for _ in range(40):
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module


def logits_of(module) -> np.ndarray:
    with torch.no_grad():
        return module(torch.from_numpy(DIGITS.train_x)).numpy()


def test_ten_requests_of_fifty_end_with_the_proxies_of_one_of_five_hundred(net, tmp_path):
    logits = logits_of(net)
    results = [
        forget(logits, DIGITS.train_x, DIGITS.train_y, part, "auto", "none", ledger=tmp_path / "ledger")
        for part in ROWS.reshape(10, 50)
    ]
    last = results[-1]
    once = forget(logits, DIGITS.train_x, DIGITS.train_y, ROWS, "auto", "none")
    many, single = last.outcome.plan, once.outcome.plan
    gaussian = set(methods.auto_candidates()) & set(methods.paper_methods())
    assert {w.target.method for w in many.weighed} >= gaussian
    for a, b in zip(many.weighed, single.weighed, strict=True):
        points = Points(DIGITS.test_x)
        proxies = (w.target.fitted.proxy for w in (a, b))
        for ours, theirs in zip(*(proxy.log_posteriors(points) for proxy in proxies), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-9, rtol=1e-9)
        assert a.search.eta_max == pytest.approx(b.search.eta_max, abs=1e-9)
    np.testing.assert_array_equal(many.forget, single.forget)
    history = last.certificate.content["history"]
    assert [entry["n_forget"] for entry in history] == list(range(50, 500, 50))
    assert len(Ledger.open(tmp_path / "ledger").entries) == 10


def test_a_network_goes_on_from_the_last_request_and_a_record_counts_once(net, tmp_path):
    threes = np.flatnonzero(DIGITS.train_y == 3)
    quick = Stopping(epochs=12)
    asked = {"features": DIGITS.train_x, "labels": DIGITS.train_y, "proxy": "lda", "stopping": quick}
    ask = {**asked, "ledger": tmp_path / "ledger"}
    first = forget(net, forget_ids=threes[:60], **ask)
    assert first.withheld is None
    assert first.certificate.content["model"]["start"] == "base"
    # the model of the last request and the base are the same to the ledger
    second = forget(first.model, forget_ids=[*threes[50:], threes[70]], **ask)
    request = second.certificate.content["request"]
    assert (request["n_asked"], request["n_repeated"], request["n_already_forgotten"]) == (len(threes) - 50, 1, 10)
    assert request["n_forget"] == len(threes)
    assert second.certificate.content["model"]["start"] == "the model of the last request"
    assert second.certificate.content["model"]["base_sha256"] == first.certificate.content["model"]["base_sha256"]
    assert second.certificate.content["history"][0]["certificate"] == first.certificate.digest
    scores = second.certificate.content["finalizer"]["scores"]
    whole = forget(net, forget_ids=threes, **asked)
    ours, theirs = second.outcome.plan.target, whole.outcome.plan.target
    assert ours is not None
    assert theirs is not None
    np.testing.assert_allclose(ours.log_target, theirs.log_target, atol=1e-6)
    assert scores[0] < whole.certificate.content["finalizer"]["scores"][0], "most of the way is behind it"
    third = forget(net, forget_ids=threes[:5], **ask)
    assert third.certificate.content["outcome"] == "nothing to unlearn"
    assert "all 5 records were forgotten by earlier requests" in third.certificate.content["reason"]
    for name, tensor in second.model.state_dict().items():
        assert torch.equal(tensor, third.model.state_dict()[name]), "the last model is returned"


def test_a_ledger_is_for_one_model_one_data_set_and_one_view_of_it(net, tmp_path):
    ledger = tmp_path / "ledger"
    ask = {"labels": DIGITS.train_y, "finalizer": "mse", "ledger": ledger}
    forget(net, DIGITS.train_x, forget_ids=ROWS[:50], proxy="lda", **ask)
    before = {path.name: path.read_bytes() for path in ledger.iterdir()}
    torch.manual_seed(1)
    other = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    with pytest.raises(BadInput, match="is for another model"):
        forget(other, DIGITS.train_x, forget_ids=ROWS[50:60], **ask)
    with pytest.raises(BadInput, match="is for other data"):
        forget(net, DIGITS.train_x + np.float32(1e-6), forget_ids=ROWS[50:60], **ask)
    with pytest.raises(BadInput, match="is for other"):
        forget(net, DIGITS.train_x, forget_ids=ROWS[50:60], features_from="0", **ask)
    with pytest.raises(BadInput, match="earlier requests forget all 1437 rows"):
        forget(net, DIGITS.train_x, forget_ids=np.delete(np.arange(1437), ROWS[0]), **ask)
    assert {path.name: path.read_bytes() for path in ledger.iterdir()} == before, "a refusal changes nothing"
    with pytest.raises(BadInput, match="is for another model"):
        forget(logits_of(net), DIGITS.train_x, DIGITS.train_y, ROWS[50:60], finalizer="none", ledger=ledger)


def test_a_folder_that_is_no_ledger_is_refused(net, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="is no ledger and is not empty"):
        Ledger.open(tmp_path)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "ledger.json").write_text(json.dumps({"format": "unlearn-ledger"}))
    with pytest.raises(BadInput, match="is damaged"):
        Ledger.open(tmp_path / "bad")
