"""``unlearn forget`` and ``unlearn verify`` as an engineer with a model and a list of records meets them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from playwright.sync_api import sync_playwright
from safetensors.torch import load_file, save_file
from torch.nn import functional

from unlearn_core.data import (
    FeatureSet,
    ImageSet,
    load_dataset,
    load_feature_set,
    save_feature_set,
    save_image_file,
)
from unlearn_core.forgetting.processor_file import load_processor
from unlearn_core.problem import make_cell, make_problem
from unlearn_core.references import train_reference
from unlearn_core.spec import LabelSpace
from workflows.cli import main

CIFAR = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10_r50.npz"
CHROMIUM = shutil.which("chromium")
# urlopen would keep the proxies of its first call for all tests after this one
LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))
SERVER_START = 180  # seconds; ten on an idle machine

NETWORK = """
import torch
from torch import nn
from torch.nn import functional


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.2)
        self.embed = nn.Linear(6 * 16, 24)
        self.out = nn.Linear(24, 10)

    def forward(self, x):
        hidden = functional.max_pool2d(torch.relu(self.norm(self.conv(x.view(-1, 1, 8, 8)))), 2)
        return self.out(torch.relu(self.embed(self.drop(hidden.flatten(1)))))


class OnImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.out = nn.Linear(8 * 16, 10)

    def forward(self, x):
        assert x.shape[1:] == (3, 8, 8) and 0 <= x.min() and x.max() <= 1  # what images are said to arrive as
        return self.out(functional.max_pool2d(torch.relu(self.conv(x)), 2).flatten(1))


def build():
    return Conv()


def on_images():
    return OnImages()


def broken():
    raise RuntimeError("no disk")
"""


class Answer(NamedTuple):
    code: object
    out: str
    err: str


@pytest.fixture
def unlearn(capsys):
    """The command in this process: exit code, output, errors."""

    def run(*arguments) -> Answer:
        capsys.readouterr()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with pytest.raises(SystemExit) as ending:
                main([str(argument) for argument in arguments])
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        said = capsys.readouterr()
        return Answer(ending.value.code, said.out, said.err)

    return run


def write_request(path: Path, ids) -> None:
    path.write_text("id\n" + "\n".join(map(str, ids)) + "\n")


def prepare(folder: Path, data: FeatureSet, epochs: int) -> Path:
    """A user's folder: features with ids, an mlp1 on fine labels and one on superclasses, requests, logits."""
    data = replace(data, ids=np.array([f"rec-{i}" for i in range(len(data.train_y))]))
    ids = data.ids
    assert ids is not None
    save_feature_set(folder / "features.npz", data)
    cell = make_cell(data, data.train_y == 0, 42)
    for space, name in ((LabelSpace.FINE, "fine"), (LabelSpace.SUPERCLASS, "super")):
        problem = make_problem(data, space)
        net = train_reference("base", problem, "mlp1", [cell], epochs).net
        save_file(net.state(0), folder / f"{name}.safetensors", metadata={"format": "pt"})
        train_logits, test_logits = (net.logits(0, x).numpy() for x in (problem.train_inputs, problem.test_inputs))
        np.savez(folder / f"{name}_logits.npz", train_logits=train_logits, test_logits=test_logits)
    order = np.random.default_rng(42).permutation(len(ids))
    write_request(folder / "subclass.csv", ids[data.train_y == 0])
    (folder / "fifty.jsonl").write_text("\n".join(json.dumps({"id": i}) for i in ids[order[:50]].tolist()))
    (folder / "one.txt").write_text(f"# by post\n{ids[order[0]]}\n")
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("digits"), load_dataset("digits"), epochs=25)


@pytest.fixture(scope="module")
def conv(tmp_path_factory) -> Path:
    """A user's own convolutional network, trained by their own loop, saved by torch."""
    folder = tmp_path_factory.mktemp("conv")
    (folder / "their_nets.py").write_text(NETWORK)
    data = load_dataset("digits")
    save_feature_set(folder / "features.npz", data)
    sys.path.insert(0, str(folder))
    try:
        import their_nets  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(folder))
    pictures = {part: as_images(x) for part, x in (("train", data.train_x), ("test", data.test_x))}
    save_image_file(
        folder / "images.npz",
        ImageSet("digits", pictures["train"], data.train_y, pictures["test"], data.test_y, data.class_names),
    )
    torch.manual_seed(0)
    as_seen = torch.from_numpy(pictures["train"]).permute(0, 3, 1, 2) / 255
    fit(their_nets.build(), torch.from_numpy(data.train_x), data.train_y, folder / "weights.pt")
    fit(their_nets.on_images(), as_seen, data.train_y, folder / "on_images.pt")
    (folder / "rows.txt").write_text("\n".join(map(str, np.flatnonzero(data.train_y == 7)[:100])))
    return folder


def as_images(x: np.ndarray) -> np.ndarray:
    """(N, 8, 8, 3) grey pictures of digits."""
    return np.repeat((255 * x).astype(np.uint8).reshape(-1, 8, 8, 1), 3, axis=3)


def fit(net: torch.nn.Module, x: torch.Tensor, labels: np.ndarray, path: Path) -> None:
    """A training loop that shares nothing with ours."""
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        functional.cross_entropy(net(x), torch.from_numpy(labels)).backward()
        optimizer.step()
    torch.save(net.state_dict(), path)


def head(folder: Path, network: str = "fine", request: str = "subclass.csv") -> list[object]:
    return [
        *("--model", folder / f"{network}.safetensors", "--arch", "mlp1"),
        *("--data", folder / "features.npz", "--ids", folder / request),
    ]


def head_logits(state, x: np.ndarray) -> np.ndarray:
    """An mlp1 written out."""
    hidden = np.maximum(x @ state["layers.0.weight"].numpy().T + state["layers.0.bias"].numpy(), 0)
    return hidden @ state["layers.1.weight"].numpy().T + state["layers.1.bias"].numpy()


def content_of(out: Path) -> dict:
    return json.loads((out / "certificate.json").read_text())["certificate"]


def check_complete(content: dict) -> None:
    """What the issue lists, all of it."""
    roles = {file["role"] for file in content["files"]}
    assert {"data", "request"} < roles
    assert ("model" in roles and "unlearned" in roles) or {"logits", "processor"} <= roles
    assert all(len(file["sha256"]) == 64 for file in content["files"])
    assert content["request"]["n_forget"] == sum(c["n_forget"] for c in content["classes"])
    for key in ("ridge", "candidates", "h_curve", "why"):
        assert key in content["proxy"]
    for rows in ("forget", "retain", "heldout"):
        assert content["divergence"]["base_to_unlearned"][rows] >= 0
    assert content["accuracy"]["before"]["retained"] > 0.5
    assert content["stein"]["least_queries"]
    assert content["made"]["software"]["torch"]
    assert content["not_guaranteed"]


def flip(path: Path, at: int) -> None:
    changed = bytearray(path.read_bytes())
    changed[at] ^= 1
    path.write_bytes(bytes(changed))


def check_verify_catches_a_changed_byte(unlearn, case: Path, out: Path, model: str) -> None:
    certificate = out / "certificate.json"
    assert unlearn("verify", certificate).code == 0
    for path, role in (
        (out / model, "unlearned"),
        (case / model, "model"),
        (case / "features.npz", "data"),
        (certificate, "certificate"),
    ):
        # in the certificate a letter of a hash, so that it still is JSON
        at = certificate.read_bytes().index(b'"base_sha256"') + 20 if path == certificate else path.stat().st_size // 2
        flip(path, at)
        answer = unlearn("verify", certificate)
        flip(path, at)
        assert answer.code == 1
        assert f"FAILED {role}" in answer.out
    assert "verified" in unlearn("verify", certificate).out


@pytest.mark.parametrize(
    ("network", "request_file", "n_forget"),
    [("super", "subclass.csv", 142), ("fine", "fifty.jsonl", 50), ("fine", "one.txt", 1)],
)
def test_a_request_on_digits_ends_with_a_certificate_that_verifies(
    unlearn, digits, tmp_path, network, request_file, n_forget
):
    out = tmp_path / "out"
    answer = unlearn("forget", *head(digits, network, request_file), "--out", out)
    assert answer.code == 0, answer.err
    content = content_of(out)
    check_complete(content)
    assert content["request"]["n_forget"] == n_forget
    assert f"retained accuracy {100 * content['accuracy']['before']['retained']:.2f} % -> " in answer.out
    name = f"{network}.safetensors"
    before, after = load_file(digits / name), load_file(out / name)
    assert list(before) == list(after)
    if content["outcome"] == "nothing to unlearn":
        assert (out / name).read_bytes() == (digits / name).read_bytes(), "returned untouched"
        assert "nothing to unlearn" in answer.out
    else:
        data = load_feature_set(digits / "features.npz")
        labels = data.train_y if network == "fine" else data.train_labels(LabelSpace.SUPERCLASS)
        assert data.ids is not None
        gone = np.isin(data.ids, asked_for(digits / request_file))
        right = head_logits(after, data.train_x).argmax(1) == labels
        assert content["accuracy"]["after"]["forgotten"] == pytest.approx(right[gone].mean(), abs=1e-9)
        assert content["accuracy"]["after"]["retained"] == pytest.approx(right[~gone].mean(), abs=1e-3)
    check_verify_catches_a_changed_byte(unlearn, digits, out, name)


def asked_for(path: Path) -> list[str]:
    text = path.read_text()
    return [json.loads(line)["id"] for line in text.splitlines()] if path.suffix == ".jsonl" else text.split()


@pytest.mark.skipif(not CIFAR.exists(), reason=f"{CIFAR} is not on this machine; the test of digits says the same")
def test_requests_on_cifar_features(unlearn, tmp_path):
    """The first 3,000 rows of real features, so that it takes seconds."""
    whole = load_feature_set(CIFAR)
    data = replace(
        whole,
        train_x=whole.train_x[:3000],
        train_y=whole.train_y[:3000],
        test_x=whole.test_x[:500],
        test_y=whole.test_y[:500],
    )
    case = prepare(tmp_path, data, epochs=8)
    for network, request in (("super", "subclass.csv"), ("fine", "fifty.jsonl"), ("fine", "one.txt")):
        out = tmp_path / request
        out = out.with_suffix("")
        assert unlearn("forget", *head(case, network, request), "--out", out, "--epochs", 10).code == 0
        check_complete(content_of(out))
        check_verify_catches_a_changed_byte(unlearn, case, out, f"{network}.safetensors")
    assert content_of(tmp_path / "subclass")["proxy"]["eta_max"] > 0


def test_a_signature_and_a_retrain_are_part_of_the_certificate(unlearn, digits, tmp_path):
    key = Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    out = tmp_path / "out"
    options = ("--sign", tmp_path / "key.pem", "--verify-retrain", "--retrain-epochs", 25)
    answer = unlearn("forget", *head(digits, "super"), "--out", out, *options)
    assert answer.code == 0, answer.err
    verified = unlearn("verify", out / "certificate.json", "--public-key", tmp_path / "public.pem")
    assert verified.code == 0
    assert key.public_key().public_bytes_raw().hex() in verified.out
    check = content_of(out)["retrain"]["checks"][0]
    kl = check["kl_retrain_to"]
    assert check["kl_f"] == kl["unlearned"]["forget"] < kl["base"]["forget"]
    assert check["kl_t"] == kl["unlearned"]["heldout"] < kl["base"]["heldout"]
    assert check["bound"]["measured"] <= check["bound"]["tight_bound"] + 1e-6  # some proxies are float32
    assert check["stein"]["n_f_at_0.001"] > 0
    assert f"|D_f| {check['n_forget']}" in answer.out
    (tmp_path / "key.pem").write_bytes(
        Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    other = unlearn("verify", out / "certificate.json", "--public-key", tmp_path / "key.pem")
    assert other.code == 1
    assert "FAILED signature" in other.out


def test_a_convolutional_network_of_the_users_own(unlearn, conv, tmp_path, monkeypatch):
    monkeypatch.chdir(conv)
    out = tmp_path / "out"
    answer = unlearn(
        *("forget", "--model", "their_nets:build", "--weights", "weights.pt", "--data", "features.npz"),
        *("--features-from", "embed", "--ids", "rows.txt", "--proxy", "lda", "--epochs", 15, "--out", out),
    )
    assert answer.code == 0, answer.err
    content = content_of(out)
    check_complete(content)
    assert content["data"]["n_features"] == 24
    before, after = (torch.load(folder / "weights.pt", weights_only=True) for folder in (conv, out))
    assert list(before) == list(after)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert "conv.weight" in moved
    assert not any("running" in name or "tracked" in name for name in moved)
    check_verify_catches_a_changed_byte(unlearn, conv, out, "weights.pt")
    for network, message in (
        ("their_nets:absent", "has no function 'absent'"),
        ("their_nets:broken", "fails (RuntimeError: no disk)"),
        ("no_such_package:build", "cannot import no_such_package"),
    ):
        refused = unlearn(
            *("forget", "--model", network, "--weights", "weights.pt", "--data", "features.npz"),
            *("--features-from", "embed", "--ids", "rows.txt", "--out", tmp_path / "none"),
        )
        assert (refused.code, message in refused.err) == (2, True), refused.err


def test_a_network_on_images(unlearn, conv, tmp_path, monkeypatch):
    monkeypatch.chdir(conv)
    out = tmp_path / "out"
    common = [
        *("forget", "--model", "their_nets:on_images", "--weights", "on_images.pt"),
        *("--data", "images.npz", "--ids", "rows.txt"),
    ]
    answer = unlearn(*common, "--features-from", "penultimate", "--finalizer", "mse", "--out", out)
    assert answer.code == 0, answer.err
    content = content_of(out)
    check_complete(content)
    assert content["data"]["n_features"] == 8 * 16
    refused = unlearn(*common, "--out", tmp_path / "none")
    assert (refused.code, "layer of the model to take them from" in refused.err) == (2, True), refused.err


def test_a_black_box_gets_a_logit_processor(unlearn, digits, tmp_path):
    out = tmp_path / "out"
    data = load_feature_set(digits / "features.npz")
    arguments = (
        "--logits",
        digits / "super_logits.npz",
        "--data",
        digits / "features.npz",
        "--ids",
        digits / "subclass.csv",
    )
    answer = unlearn("forget", *arguments, "--out", out)
    assert answer.code == 0, answer.err
    assert sorted(path.name for path in out.iterdir()) == ["certificate.html", "certificate.json", "processor.npz"]
    content = content_of(out)
    check_complete(content)
    with np.load(digits / "super_logits.npz") as logits:
        shifted = load_processor(out / "processor.npz")(logits["test_logits"], data.test_x)
    right = shifted.argmax(1) == data.test_labels(LabelSpace.SUPERCLASS)
    assert content["accuracy"]["after"]["heldout"] == pytest.approx(right.mean())
    assert unlearn("verify", out / "certificate.json").code == 0
    flip(out / "processor.npz", 200)
    assert unlearn("verify", out / "certificate.json").code == 1


def test_features_of_a_cached_backbone(unlearn, digits, tmp_path):
    """Proxies see other features of the same rows than the network reads."""
    data = load_feature_set(digits / "features.npz")
    save_feature_set(tmp_path / "seen.npz", replace(data, train_x=data.train_x[:, 8:56], test_x=data.test_x[:, 8:56]))
    out = tmp_path / "out"
    arguments = (*head(digits, "super"), "--features", tmp_path / "seen.npz", "--finalizer", "mse", "--out", out)
    assert unlearn("forget", *arguments).code == 0
    assert content_of(out)["data"]["n_features"] == 48
    assert "features" in {file["role"] for file in content_of(out)["files"]}
    save_feature_set(
        tmp_path / "seen.npz", replace(data, train_x=data.train_x[::-1], train_y=data.train_y[::-1].copy())
    )
    refused = unlearn("forget", *arguments, "--force")
    assert (refused.code, "must be of the same rows" in refused.err) == (2, True)


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(unlearn, digits, tmp_path):
    ledger = tmp_path / "ledger"
    answer = unlearn("forget", *head(digits, "super"), "--out", tmp_path / "out", "--ledger", ledger, "--dry-run")
    assert answer.code == 0, answer.err
    for word in ("lda-2c", "qda-mix", "admissible", "eta_max", "KL(base||target)", "nothing was written"):
        assert word in answer.out
    assert not list(tmp_path.iterdir())


def test_a_model_that_loses_too_much_is_not_written_unless_forced(unlearn, digits, tmp_path):
    arguments = (*head(digits, "super"), "--finalizer", "mse", "--max-drop", -50, "--out", tmp_path / "out")
    refused = unlearn("forget", *arguments)
    assert refused.code == 2
    assert "beyond --max-drop -50" in refused.err
    assert not list(tmp_path.iterdir())
    assert unlearn("forget", *arguments, "--force").code == 0
    assert (tmp_path / "out" / "super.safetensors").exists()


def test_a_ledger_keeps_the_sequence(unlearn, digits, tmp_path):
    data = load_feature_set(digits / "features.npz")
    assert data.ids is not None
    zeros = data.ids[data.train_y == 0]
    write_request(tmp_path / "a.csv", zeros[:80])
    write_request(tmp_path / "b.csv", [*zeros[75:], zeros[100]])
    common = ["--arch", "mlp1", "--data", digits / "features.npz", "--ledger", tmp_path / "ledger", "--proxy", "lda"]
    first = unlearn(
        "forget", "--model", digits / "super.safetensors", *common, "--ids", tmp_path / "a.csv", "--out", tmp_path / "1"
    )
    assert first.code == 0, first.err
    made = tmp_path / "1" / "super.safetensors"
    second = unlearn("forget", "--model", made, *common, "--ids", tmp_path / "b.csv", "--out", tmp_path / "2")
    assert second.code == 0, second.err
    assert f"counted once: {zeros[100]}" in second.out
    assert f"counted once: {', '.join(zeros[75:80])}" in second.out
    content = content_of(tmp_path / "2")
    assert content["request"]["n_forget"] == len(zeros)
    assert (
        content["history"][0]["certificate"]
        == json.loads((tmp_path / "1/certificate.json").read_text())["digest"]["value"]
    )
    assert "lda" in (tmp_path / "2" / "certificate.html").read_text()
    write_request(tmp_path / "c.csv", data.ids[data.train_y == 1][:50])
    third = unlearn(
        *("forget", "--model", tmp_path / "2" / "super.safetensors", *common, "--ids", tmp_path / "c.csv"),
        *("--finalizer", "none", "--out", tmp_path / "p"),
    )
    assert third.code == 0, third.err
    base = load_file(digits / "super.safetensors")
    for name, tensor in load_file(tmp_path / "p" / "super.safetensors").items():
        assert torch.equal(tensor, base[name]), "a processor shifts the base's logits, not those of what was distilled"
    before = sorted((path.name, path.read_bytes()) for path in (tmp_path / "ledger").iterdir())
    other = unlearn(
        "forget", "--model", digits / "fine.safetensors", *common, "--ids", tmp_path / "b.csv", "--out", tmp_path / "3"
    )
    assert (other.code, "is for another model" in other.err) == (2, True), other.err
    assert sorted((path.name, path.read_bytes()) for path in (tmp_path / "ledger").iterdir()) == before
    assert not (tmp_path / "3").exists()


def test_half_precision_weights_leave_as_they_came(unlearn, digits, tmp_path):
    halves = {name: tensor.half() for name, tensor in load_file(digits / "super.safetensors").items()}
    save_file(halves, tmp_path / "half.safetensors")
    out = tmp_path / "out"
    answer = unlearn(
        *("forget", "--model", tmp_path / "half.safetensors", "--arch", "mlp1", "--data", digits / "features.npz"),
        *("--ids", digits / "subclass.csv", "--finalizer", "mse", "--out", out),
    )
    assert answer.code == 0, answer.err
    after = load_file(out / "half.safetensors")
    assert {tensor.dtype for tensor in after.values()} == {torch.float16}
    data = load_feature_set(digits / "features.npz")
    right = head_logits({n: t.float() for n, t in after.items()}, data.test_x).argmax(1) == data.test_labels(
        LabelSpace.SUPERCLASS
    )
    assert content_of(out)["accuracy"]["after"]["heldout"] == pytest.approx(right.mean()), (
        "what is written is what was measured"
    )


def bad_cases(folder: Path, digits: Path) -> dict[str, tuple[list[object], str]]:
    """Every input that must be refused, and a part of the line that says why."""
    data = load_feature_set(digits / "features.npz")
    assert data.ids is not None

    def changed(name: str, **arrays) -> Path:
        with np.load(digits / "features.npz") as archive:
            known = {key: archive[key] for key in archive.files}
        np.savez(folder / name, **{**known, **arrays})
        return folder / name

    def file(name: str, text: str) -> Path:
        (folder / name).write_text(text)
        return folder / name

    nan = data.train_x.copy()
    nan[7, 3] = np.nan
    model = ["--model", digits / "fine.safetensors", "--arch", "mlp1"]
    request, features = ["--ids", digits / "subclass.csv"], ["--data", digits / "features.npz"]
    save_file({"w.weight": torch.zeros(2, 2)}, folder / "keys.safetensors")
    save_file(
        {f"layers.{i}.{p}": torch.zeros(3) for i in (0, 1) for p in ("weight", "bias")}, folder / "shapes.safetensors"
    )
    (folder / "pickle.pt").write_bytes(pickle.dumps({"a": object}))
    file("a_file", "")
    (folder / "done").mkdir()
    file("done/certificate.json", "{}")
    np.savez(folder / "short.npz", train_logits=np.zeros((5, 10)), test_logits=np.zeros((360, 10)))
    np.savez(folder / "wide.npz", train_logits=np.zeros((1437, 7)), test_logits=np.zeros((360, 7)))
    return {
        "unknown ids": (
            [*model, *features, "--ids", file("u.csv", "id\nrec-0\nnobody\n")],
            "ids nobody are not in the data",
        ),
        "empty request": ([*model, *features, "--ids", file("e.csv", "id\n")], "names no record"),
        "no request": ([*model, *features, "--ids", folder / "missing.csv"], "no request at"),
        "all the data": (
            [*model, *features, "--ids", file("all.csv", "\n".join(["id", *data.ids]))],
            "delete the model instead",
        ),
        "feature dimension": (
            [*model, "--data", changed("d.npz", train_x=data.train_x[:, :60], test_x=data.test_x[:, :60]), *request],
            "the data has 60 features and the model reads 64",
        ),
        "number of classes": (
            [
                *model,
                "--data",
                changed(
                    "c.npz",
                    train_y=np.minimum(data.train_y, 8),
                    test_y=np.minimum(data.test_y, 8),
                    class_names=np.array([str(c) for c in range(9)]),
                    superclass=np.arange(9) // 5,
                ),
                *request,
            ],
            "the model has 10 classes and the data 9 and 2 superclasses",
        ),
        "NaN": (
            [*model, "--data", changed("n.npz", train_x=nan), *request],
            "1 NaN or infinite values in 1 rows, the first is row 7",
        ),
        "no data": ([*model, "--data", folder / "missing.npz", *request], "no feature set at"),
        "pickle": (["--model", folder / "pickle.pt", "--arch", "mlp1", *features, *request], "save it again"),
        "keys": (
            ["--model", folder / "keys.safetensors", "--arch", "mlp1", *features, *request],
            "head weights have the keys",
        ),
        "shapes": (["--model", folder / "shapes.safetensors", "--arch", "mlp1", *features, *request], "fits no head"),
        "another arch": (["--model", digits / "fine.safetensors", "--arch", "mlp2", *features, *request], "mlp2 has 3"),
        "no weights": (
            ["--model", folder / "missing.safetensors", "--arch", "mlp1", *features, *request],
            "no weights at",
        ),
        "images wanted": (
            ["--model", digits / "fine.safetensors", "--arch", "resnet18", *features, *request],
            "reads images",
        ),
        "no arch": (["--model", digits / "fine.safetensors", *features, *request], "say with --arch"),
        "no model": ([*features, *request], "one of the two"),
        "unwritable": ([*model, *features, *request, "--out", folder / "a_file" / "out"], "cannot write to"),
        "a file as folder": ([*model, *features, *request, "--out", folder / "a_file"], "cannot write to"),
        "already certified": ([*model, *features, *request, "--out", folder / "done"], "already holds a certificate"),
        "over the model": ([*model, *features, *request, "--out", digits], "would write over"),
        "logits short": (
            ["--logits", folder / "short.npz", *features, *request],
            "the data needs floats (1437, classes)",
        ),
        "logits wide": (["--logits", folder / "wide.npz", *features, *request], "the model has 7 classes"),
        "black box distilled": (
            ["--logits", digits / "fine_logits.npz", *features, *request, "--finalizer", "kl"],
            "a black box takes none",
        ),
        "black box retrained": (
            ["--logits", digits / "fine_logits.npz", *features, *request, "--verify-retrain"],
            "--verify-retrain needs the network",
        ),
        "key": ([*model, *features, *request, "--sign", folder / "missing.pem"], "no key at"),
        "name": ([*model, *features, *request, "--register", "a/b"], "is no name for MLflow"),
        "cap": ([*model, *features, *request, "--cap", 0], "cap 0.0 must be positive"),
        "device": ([*model, *features, *request, "--device", "cuda:99"], "cannot be used here"),
        "ledger unwritable": (
            [*model, *features, *request, "--ledger", folder / "a_file" / "ledger"],
            "cannot write the ledger",
        ),
        "learning rate": ([*model, *features, *request, "--lr", "nan"], "learning rate nan must be positive"),
        "learning rate of the retrain": (
            [*model, *features, *request, "--verify-retrain", "--retrain-lr", 0],
            "learning rate 0.0 of the retrain must be positive",
        ),
        "ledger": ([*model, *features, *request, "--ledger", folder], "is no ledger and is not empty"),
    }


def everything_in(*folders: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for folder in folders
        for path in sorted(folder.rglob("*"))
    }


def test_bad_input_is_one_line_and_exit_code_2_and_nothing_is_written(unlearn, digits, tmp_path):
    cases = bad_cases(tmp_path, digits)
    before = everything_in(tmp_path, digits)
    for name, (arguments, message) in cases.items():
        out = [] if "--out" in arguments else ["--out", tmp_path / "out"]
        answer = unlearn("forget", *arguments, *out)
        assert answer.code == 2, name
        assert message in answer.err, f"{name}: {answer.err}"
        assert len(answer.err.splitlines()) == 1, name
        assert everything_in(tmp_path, digits) == before, name


def test_a_certificate_is_written_over_only_when_forced(unlearn, digits, tmp_path):
    arguments = (*head(digits, "super"), "--finalizer", "mse", "--out", tmp_path)
    assert unlearn("forget", *arguments).code == 0
    first = content_of(tmp_path)
    assert unlearn("forget", *arguments).code == 2
    assert content_of(tmp_path) == first
    processor = (*head(digits, "super"), "--finalizer", "none", "--seed", 1, "--force", "--out", tmp_path)
    assert unlearn("forget", *processor).code == 0
    assert content_of(tmp_path)["made"]["seed"] == 1
    assert (tmp_path / "processor.npz").exists()
    assert unlearn("forget", *arguments, "--force").code == 0
    assert not (tmp_path / "processor.npz").exists(), "what an earlier request left and this one did not make"
    assert unlearn("verify", tmp_path / "certificate.json").code == 0
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing is left of the writing"


@pytest.mark.skipif(CHROMIUM is None, reason="no `chromium` on the PATH; install Debian's to run the browser tests")
def test_the_page_is_self_contained_and_fits_a_phone(unlearn, digits, tmp_path):
    out = tmp_path / "out"
    assert (
        unlearn(
            "forget",
            *head(digits, "super"),
            "--finalizer",
            "mse",
            "--verify-retrain",
            "--retrain-epochs",
            3,
            "--out",
            out,
        ).code
        == 0
    )
    page_text = (out / "certificate.html").read_text()
    assert not [
        word for word in ("http:", "https:", "src=", "<script", "<link", "@import", "url(") if word in page_text
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], env={**os.environ, "HOME": str(tmp_path)}
        )
        try:
            page = browser.new_page(viewport={"width": 360, "height": 740})
            page.goto((out / "certificate.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            text = page.inner_text("body")
            page.screenshot(path=tmp_path / "phone.png", full_page=True)
        finally:
            browser.close()
    content = content_of(out)
    for said in (
        "does not guarantee",
        content["proxy"]["method"],
        json.loads((out / "certificate.json").read_text())["digest"]["value"],
    ):
        assert said in text


@contextmanager
def served(model: str, tracking_uri: str, folder: Path) -> Iterator[str]:
    """The address of ``mlflow models serve`` on loopback; it and its children end with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": tracking_uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HOME": str(folder),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", model, "--env-manager", "local"]
    with (folder / f"{port}.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its process group has its id, and nothing else is in it
        )
    try:
        deadline = time.monotonic() + SERVER_START
        while not answers(f"http://127.0.0.1:{port}/ping"):
            said = (folder / f"{port}.log").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.3)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def answers(address: str) -> bool:
    try:
        with LOOPBACK.open(address, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def ask(address: str, inputs: object) -> np.ndarray:
    body = json.dumps({"inputs": inputs}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with LOOPBACK.open(request, timeout=60) as response:
        return np.array(json.loads(response.read())["predictions"])


def in_a_process(*arguments, cwd: Path) -> subprocess.CompletedProcess[str]:
    """MLflow changes the process that it is imported into, so that it gets one of its own."""
    command = [sys.executable, "-m", "workflows", *map(str, arguments)]
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "PYTHONPATH": root})


@pytest.mark.slow
def test_mlflow_serves_the_unlearned_model_and_the_processor_around_a_black_box(digits, conv, tmp_path):
    """Both registered under one database, both really served, the answers those of the written files."""
    uri = f"sqlite:///{tmp_path / 'registry.db'}"
    registered = in_a_process(
        *(
            "forget",
            "--model",
            "their_nets:build",
            "--weights",
            "weights.pt",
            "--data",
            "features.npz",
            "--features-from",
            "embed",
        ),
        *(
            "--ids",
            "rows.txt",
            "--proxy",
            "lda",
            "--epochs",
            5,
            "--out",
            tmp_path / "network",
            "--register",
            "their-model",
        ),
        cwd=conv,
    )
    assert registered.returncode == 0, registered.stderr
    assert "registered: models:/their-model/1 in sqlite:///" in registered.stdout
    black = (
        "--logits",
        digits / "super_logits.npz",
        "--data",
        digits / "features.npz",
        "--ids",
        digits / "subclass.csv",
    )
    boxed = in_a_process(
        "forget", *black, "--out", tmp_path / "box", "--register", "box", "--tracking-uri", uri, cwd=tmp_path
    )
    assert boxed.returncode == 0, boxed.stderr
    data = load_feature_set(digits / "features.npz")
    x = data.test_x[:5]
    network_uri = f"sqlite:///{tmp_path / 'network' / 'mlflow.db'}"
    with (
        served("models:/their-model/1", network_uri, tmp_path) as network,
        served("models:/box/1", uri, tmp_path) as box,
    ):
        said = ask(network, x.tolist())
        with np.load(digits / "super_logits.npz") as logits:
            test_logits = logits["test_logits"][:5]
        boxed_answer = ask(box, {"logits": test_logits.tolist(), "features": x.tolist()})
    their_nets = sys.modules["their_nets"]
    net = their_nets.build()
    net.load_state_dict(torch.load(tmp_path / "network" / "weights.pt", weights_only=True))
    with torch.no_grad():
        np.testing.assert_allclose(said, net.eval()(torch.from_numpy(x)).numpy(), atol=1e-6)
    np.testing.assert_allclose(
        boxed_answer, load_processor(tmp_path / "box" / "processor.npz")(test_logits, x), atol=1e-6
    )
    from mlflow import MlflowClient

    from tracking.mlflow_tracker import quiet_migration

    with quiet_migration():
        client = MlflowClient(network_uri, registry_uri=network_uri)
        run = client.get_model_version("their-model", "1").run_id
        assert run is not None
        assert "certificate.json" in {artifact.path for artifact in client.list_artifacts(run)}
