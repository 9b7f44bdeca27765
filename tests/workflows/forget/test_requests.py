"""``unlearn forget`` and ``unlearn verify`` as an engineer with a model and a list of records meets them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from safetensors.torch import load_file, save_file

from unlearn_core.data import (
    load_feature_set,
    save_feature_set,
)
from unlearn_core.finalize import load_processor
from unlearn_core.grid import LabelSpace

CIFAR = Path(__file__).resolve().parents[4] / "shared" / "data" / "cifar10_r50.npz"


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
    written = "unlearned" if content["outcome"] == "unlearned" else "unchanged"
    assert {"model", written} <= roles or {"logits", "processor"} <= roles
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


def check_verify_catches_a_changed_byte(unlearn_here, case: Path, out: Path, model: str) -> None:
    certificate = out / "certificate.json"
    assert unlearn_here("verify", certificate).code == 0
    written = next(file["role"] for file in content_of(out)["files"] if file["path"] == model)
    for path, role in (
        (out / model, written),
        (case / model, "model"),
        (case / "features.npz", "data"),
        (certificate, "certificate"),
    ):
        # in the certificate a letter of a hash, so that it still is JSON
        at = certificate.read_bytes().index(b'"base_sha256"') + 20 if path == certificate else path.stat().st_size // 2
        flip(path, at)
        answer = unlearn_here("verify", certificate)
        flip(path, at)
        assert answer.code == 1
        assert f"FAILED   {role}" in answer.out
    assert "intact but unsigned" in unlearn_here("verify", certificate).out


@pytest.mark.parametrize(
    ("network", "request_file", "n_forget"),
    [("super", "subclass.csv", 142), ("fine", "fifty.jsonl", 50), ("fine", "one.txt", 1)],
)
def test_a_request_on_digits_ends_with_a_certificate_that_verifies(
    unlearn_here, digits, tmp_path, network, request_file, n_forget
):
    out = tmp_path / "out"
    answer = unlearn_here("forget", *head(digits, network, request_file), "--out", out)
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
    check_verify_catches_a_changed_byte(unlearn_here, digits, out, name)


def asked_for(path: Path) -> list[str]:
    text = path.read_text()
    return [json.loads(line)["id"] for line in text.splitlines()] if path.suffix == ".jsonl" else text.split()


@pytest.mark.skipif(not CIFAR.exists(), reason=f"{CIFAR} is not on this machine; the test of digits says the same")
def test_requests_on_cifar_features(unlearn_here, prepare, tmp_path):
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
        assert unlearn_here("forget", *head(case, network, request), "--out", out, "--epochs", 10).code == 0
        check_complete(content_of(out))
        check_verify_catches_a_changed_byte(unlearn_here, case, out, f"{network}.safetensors")
    assert content_of(tmp_path / "subclass")["proxy"]["eta_max"] > 0


def test_a_signature_and_a_retrain_are_part_of_the_certificate(unlearn_here, digits, tmp_path):
    key = Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    out = tmp_path / "out"
    options = ("--sign", tmp_path / "key.pem", "--verify-retrain", "--retrain-epochs", 25)
    answer = unlearn_here("forget", *head(digits, "super"), "--out", out, *options)
    assert answer.code == 0, answer.err
    verified = unlearn_here("verify", out / "certificate.json", "--public-key", tmp_path / "public.pem")
    assert verified.code == 0
    assert key.public_key().public_bytes_raw().hex() in verified.out
    check = content_of(out)["retrain"]["checks"][0]
    kl = check["kl_retrain_to"]
    assert check["kl_f"] == kl["unlearned"]["forget"] < kl["base"]["forget"]
    assert check["kl_t"] == kl["unlearned"]["heldout"] < kl["base"]["heldout"]
    assert check["bound"]["measured"] <= check["bound"]["tight_bound"] + 1e-6  # some proxies are float32
    assert check["stein"]["n_f_at_0.001"] > 0
    assert f"the {check['n_forget']} records" in answer.out
    assert check["attack"]["from_chance"] == abs(check["attack"]["auc"] - 0.5)
    assert "loss attack on the records by the retrain" in answer.out
    (tmp_path / "key.pem").write_bytes(
        Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    other = unlearn_here("verify", out / "certificate.json", "--public-key", tmp_path / "key.pem")
    assert other.code == 1
    assert "FAILED   signature" in other.out


def test_a_convolutional_network_of_the_users_own(unlearn_here, conv, tmp_path, monkeypatch):
    monkeypatch.chdir(conv)
    out = tmp_path / "out"
    answer = unlearn_here(
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
    check_verify_catches_a_changed_byte(unlearn_here, conv, out, "weights.pt")
    for network, message in (
        ("their_nets:absent", "has no function 'absent'"),
        ("their_nets:broken", "fails (RuntimeError: no disk)"),
        ("no_such_package:build", "cannot import no_such_package"),
    ):
        refused = unlearn_here(
            *("forget", "--model", network, "--weights", "weights.pt", "--data", "features.npz"),
            *("--features-from", "embed", "--ids", "rows.txt", "--out", tmp_path / "none"),
        )
        assert (refused.code, message in refused.err) == (2, True), refused.err


def test_a_network_on_images(unlearn_here, conv, tmp_path, monkeypatch):
    monkeypatch.chdir(conv)
    out = tmp_path / "out"
    common = [
        *("forget", "--model", "their_nets:on_images", "--weights", "on_images.pt"),
        *("--data", "images.npz", "--ids", "rows.txt"),
    ]
    seen = ("--features-from", "penultimate", "--method", "lda")  # whose shift is one of the last layer
    answer = unlearn_here(*common, *seen, "--finalizer", "mse", "--out", out)
    assert answer.code == 0, answer.err
    content = content_of(out)
    check_complete(content)
    assert content["data"]["n_features"] == 8 * 16
    refused = unlearn_here(*common, "--out", tmp_path / "none")
    assert (refused.code, "layer of the model to take them from" in refused.err) == (2, True), refused.err


def test_a_black_box_gets_a_logit_processor(unlearn_here, digits, tmp_path):
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
    answer = unlearn_here("forget", *arguments, "--out", out)
    assert answer.code == 0, answer.err
    assert sorted(path.name for path in out.iterdir()) == ["certificate.html", "certificate.json", "processor.npz"]
    content = content_of(out)
    check_complete(content)
    with np.load(digits / "super_logits.npz") as logits:
        shifted = load_processor(out / "processor.npz")(logits["test_logits"], data.test_x)
    right = shifted.argmax(1) == data.test_labels(LabelSpace.SUPERCLASS)
    assert content["accuracy"]["after"]["heldout"] == pytest.approx(right.mean())
    assert unlearn_here("verify", out / "certificate.json").code == 0
    flip(out / "processor.npz", 200)
    assert unlearn_here("verify", out / "certificate.json").code == 1


def test_features_of_a_cached_backbone(unlearn_here, digits, tmp_path):
    """Proxies see other features of the same rows than the network reads."""
    data = load_feature_set(digits / "features.npz")
    save_feature_set(tmp_path / "seen.npz", replace(data, train_x=data.train_x[:, 8:56], test_x=data.test_x[:, 8:56]))
    out = tmp_path / "out"
    arguments = (*head(digits, "super"), "--features", tmp_path / "seen.npz", "--finalizer", "mse", "--out", out)
    assert unlearn_here("forget", *arguments).code == 0
    assert content_of(out)["data"]["n_features"] == 48
    assert "features" in {file["role"] for file in content_of(out)["files"]}
    save_feature_set(
        tmp_path / "seen.npz", replace(data, train_x=data.train_x[::-1], train_y=data.train_y[::-1].copy())
    )
    refused = unlearn_here("forget", *arguments, "--force")
    assert (refused.code, "must be of the same rows" in refused.err) == (2, True)


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(unlearn_here, digits, tmp_path):
    ledger = tmp_path / "ledger"
    answer = unlearn_here("forget", *head(digits, "super"), "--out", tmp_path / "out", "--ledger", ledger, "--dry-run")
    assert answer.code == 0, answer.err
    for word in ("lda-2c", "qda-mix", "admissible", "eta_max", "KL(base||target)", "nothing was written"):
        assert word in answer.out
    assert not list(tmp_path.iterdir())


def test_a_model_that_loses_too_much_is_not_written_unless_forced(unlearn_here, digits, tmp_path):
    arguments = (*head(digits, "super"), "--finalizer", "mse", "--max-drop", -50, "--out", tmp_path / "out")
    refused = unlearn_here("forget", *arguments)
    assert refused.code == 2
    assert "beyond --max-drop -50" in refused.err
    assert not list(tmp_path.iterdir())
    assert unlearn_here("forget", *arguments, "--force").code == 0
    assert (tmp_path / "out" / "super.safetensors").exists()


def test_a_ledger_keeps_the_sequence(unlearn_here, write_request, digits, tmp_path):
    data = load_feature_set(digits / "features.npz")
    assert data.ids is not None
    zeros = data.ids[data.train_y == 0]
    write_request(tmp_path / "a.csv", zeros[:80])
    write_request(tmp_path / "b.csv", [*zeros[75:], zeros[100]])
    common = ["--arch", "mlp1", "--data", digits / "features.npz", "--ledger", tmp_path / "ledger", "--proxy", "lda"]
    first = unlearn_here(
        "forget", "--model", digits / "super.safetensors", *common, "--ids", tmp_path / "a.csv", "--out", tmp_path / "1"
    )
    assert first.code == 0, first.err
    made = tmp_path / "1" / "super.safetensors"
    second = unlearn_here("forget", "--model", made, *common, "--ids", tmp_path / "b.csv", "--out", tmp_path / "2")
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
    third = unlearn_here(
        *("forget", "--model", tmp_path / "2" / "super.safetensors", *common, "--ids", tmp_path / "c.csv"),
        *("--finalizer", "none", "--out", tmp_path / "p"),
    )
    assert third.code == 0, third.err
    base = load_file(digits / "super.safetensors")
    for name, tensor in load_file(tmp_path / "p" / "super.safetensors").items():
        assert torch.equal(tensor, base[name]), "a processor shifts the base's logits, not those of what was distilled"
    before = sorted((path.name, path.read_bytes()) for path in (tmp_path / "ledger").iterdir())
    other = unlearn_here(
        "forget", "--model", digits / "fine.safetensors", *common, "--ids", tmp_path / "b.csv", "--out", tmp_path / "3"
    )
    assert (other.code, "is for another model" in other.err) == (2, True), other.err
    assert sorted((path.name, path.read_bytes()) for path in (tmp_path / "ledger").iterdir()) == before
    assert not (tmp_path / "3").exists()


def test_half_precision_weights_leave_as_they_came(unlearn_here, digits, tmp_path):
    halves = {name: tensor.half() for name, tensor in load_file(digits / "super.safetensors").items()}
    save_file(halves, tmp_path / "half.safetensors")
    out = tmp_path / "out"
    answer = unlearn_here(
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


def test_a_certificate_is_written_over_only_when_forced(unlearn_here, digits, tmp_path):
    arguments = (*head(digits, "super"), "--finalizer", "mse", "--out", tmp_path)
    assert unlearn_here("forget", *arguments).code == 0
    first = content_of(tmp_path)
    assert unlearn_here("forget", *arguments).code == 2
    assert content_of(tmp_path) == first
    processor = (*head(digits, "super"), "--finalizer", "none", "--seed", 1, "--force", "--out", tmp_path)
    assert unlearn_here("forget", *processor).code == 0
    assert content_of(tmp_path)["made"]["seed"] == 1
    assert (tmp_path / "processor.npz").exists()
    assert unlearn_here("forget", *arguments, "--force").code == 0
    assert not (tmp_path / "processor.npz").exists(), "what an earlier request left and this one did not make"
    assert unlearn_here("verify", tmp_path / "certificate.json").code == 0
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing is left of the writing"


def test_the_page_is_self_contained_and_fits_a_phone(browser, unlearn_here, digits, tmp_path):
    out = tmp_path / "out"
    assert (
        unlearn_here(
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
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.goto((out / "certificate.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    text = page.inner_text("body")
    page.screenshot(path=tmp_path / "phone.png", full_page=True)
    page.close()
    content = content_of(out)
    for said in (
        "does not guarantee",
        content["proxy"]["method"],
        json.loads((out / "certificate.json").read_text())["digest"]["value"],
    ):
        assert said in text
