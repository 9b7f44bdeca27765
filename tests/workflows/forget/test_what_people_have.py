"""Models as people have them go through the whole of a request, and come out as they came in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from unlearn_core.data import load_dataset

LDA = ("--proxy", "lda-2c", "--epochs", 5)


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    """Two classes of digits, with test rows and without; the zeros are to be forgotten."""
    folder = tmp_path_factory.mktemp("mine")
    data = load_dataset("digits")
    train, test = (
        {"x": x, "y": (y >= 5).astype(int)} for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y))
    )
    parts = {f"train_{name}": values for name, values in train.items()}
    np.savez(folder / "train.npz", **parts)
    np.savez(folder / "both.npz", **parts, **{f"test_{name}": values for name, values in test.items()})
    (folder / "zeros.txt").write_text("\n".join(map(str, np.flatnonzero(data.train_y == 0))))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(torch.from_numpy(train["x"])), torch.from_numpy(train["y"]))
        loss.backward()
        optimizer.step()
    state = {f"model.net.{name}": tensor for name, tensor in net.state_dict().items()}
    torch.save({"state_dict": state, "pytorch-lightning_version": "2.5.0", "epoch": 60}, folder / "last.ckpt")
    classifier = LogisticRegression().fit(train["x"], train["y"])
    np.savez(folder / "logistic.npz", coef_=classifier.coef_, intercept_=classifier.intercept_)
    skops.io.dump(classifier, folder / "logistic.skops")
    return folder


def request(folder: Path, model: str, data: str = "both.npz") -> list[Any]:
    return ["forget", "--model", folder / model, "--data", folder / data, "--ids", folder / "zeros.txt", *LDA]


def content_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "certificate.json").read_text())["certificate"]


def right(model: Path, data: Path, forgotten: np.ndarray) -> tuple[float, float]:
    """Accuracy on retained and forgotten rows, of a file that is read by what it belongs to."""
    with np.load(data) as arrays:
        x, y = arrays["train_x"], arrays["train_y"]
    if model.suffix == ".ckpt":
        net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))
        state = torch.load(model, weights_only=True)["state_dict"]
        net.load_state_dict({name.removeprefix("model.net."): tensor for name, tensor in state.items()})
        says = net(torch.from_numpy(x)).argmax(1).numpy()
    elif model.suffix == ".skops":
        says = skops.io.load(model).predict(x)
    else:
        with np.load(model) as arrays:
            says = (x @ arrays["coef_"][0] + arrays["intercept_"][0] > 0).astype(int)
    correct = says == y
    return correct[~forgotten].mean(), correct[forgotten].mean()


@pytest.mark.parametrize(
    ("model", "understood"),
    [
        ("last.ckpt", "read as mlp1: 64 -> 16 -> 2 from model.net.0.weight, model.net.2.weight (ReLU between them)"),
        ("logistic.npz", "read as linear: 64 -> 1 from coef_ (one output z, taken for the two logits 0 and z)"),
        ("logistic.skops", "a LogisticRegression"),
    ],
)
def test_a_model_as_it_is_found_forgets_and_leaves_as_it_came(unlearn_here, mine, tmp_path, model, understood):
    answer = unlearn_here(*request(mine, model), "--ledger", tmp_path / "ledger", "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    assert understood in answer.out
    assert "--arch was left out, and follows from the shapes" in answer.out
    content, forgotten = content_of(tmp_path / "out"), np.zeros(len(np.load(mine / "both.npz")["train_y"]), bool)
    forgotten[np.loadtxt(mine / "zeros.txt", dtype=int)] = True
    assert content["outcome"] == "unlearned"
    said = content["accuracy"]["after"]
    assert right(tmp_path / "out" / model, mine / "both.npz", forgotten) == pytest.approx(
        (said["retained"], said["forgotten"]), abs=2e-3
    )
    verified = unlearn_here("verify", tmp_path / "out" / "certificate.json", "--remeasure")
    assert verified.code == 0, verified.out
    assert "ok       measured again" in verified.out
    again = unlearn_here(*request(mine, model), "--ledger", tmp_path / "ledger", "--out", tmp_path / "again")
    assert "were forgotten by earlier requests" in again.out, "the ledger knows the model again"


def test_without_test_rows_it_says_what_is_not_said(unlearn_here, mine, tmp_path):
    """Refused before; now in terminal and certificate, and the request is the same but for what is measured."""
    outs = {}
    for data in ("train.npz", "both.npz"):
        answer = unlearn_here(*request(mine, "last.ckpt", data), "--out", tmp_path / data)
        assert answer.code == 0, answer.err
        outs[data] = content_of(tmp_path / data)
        assert ("no test rows" in answer.out) == (data == "train.npz")
    without, whole = outs["train.npz"], outs["both.npz"]
    assert without["data"]["n_heldout"] is without["accuracy"]["after"]["heldout"] is None
    assert without["divergence"]["base_to_unlearned"]["heldout"] is None
    assert without["model"]["unlearned_sha256"] == whole["model"]["unlearned_sha256"]
    told = [text for text in without["not_guaranteed"] if "not trained on: none were given" in text]
    assert len(told) == 1
    assert "no attack" in told[0]
    assert "no estimate" in told[0]
    assert told[0] not in whole["not_guaranteed"]
    page = (tmp_path / "train.npz" / "certificate.html").read_text()
    assert told[0] in page
    assert unlearn_here("verify", tmp_path / "train.npz" / "certificate.json", "--remeasure").code == 0


def test_a_black_box_and_a_prepared_state_need_no_test_rows(unlearn_here, mine, tmp_path):
    with np.load(mine / "train.npz") as arrays:
        x = arrays["train_x"]
    logits = np.stack([np.zeros(len(x)), 4 * (x.mean(1) - x.mean())], axis=1)
    np.savez(tmp_path / "logits.npz", train_logits=logits)
    given = ("--data", mine / "train.npz", "--ids", mine / "zeros.txt")
    boxed = unlearn_here(
        "forget", "--logits", tmp_path / "logits.npz", *given, "--proxy", "lda", "--out", tmp_path / "b"
    )
    assert boxed.code == 0, boxed.err
    model = ("--model", mine / "last.ckpt", "--arch", "mlp1")
    made = unlearn_here("prepare", *model, "--data", mine / "train.npz", "--out", tmp_path / "state")
    assert made.code == 0, made.err
    assert "no test rows" in made.out
    (tmp_path / "few.txt").write_text("3\n14\n15\n")
    few = ("--data", mine / "train.npz", "--ids", tmp_path / "few.txt", "--prepared", tmp_path / "state")
    answer = unlearn_here("forget", *model, *few, "--out", tmp_path / "p", "--force")
    assert answer.code in (0, 1), answer.err
    assert content_of(tmp_path / "p")["data"]["n_heldout"] is None


def test_half_of_the_test_rows_is_no_test_set(unlearn_here, mine, tmp_path):
    with np.load(mine / "both.npz") as arrays:
        np.savez(tmp_path / "half.npz", **{name: arrays[name] for name in arrays if name != "test_y"})
    answer = unlearn_here(*request(mine, "last.ckpt", tmp_path / "half.npz"), "--out", tmp_path / "out")
    assert answer.code == 2
    assert "array 'test_y' is missing" in answer.err
    grid = unlearn_here(
        "run", "--dataset", mine / "train.npz", "--scenario", "class", "--out", tmp_path / "grid", "--local"
    )
    assert grid.code == 2
    assert "array 'test_x' is missing" in grid.err or "array 'test_y' is missing" in grid.err
