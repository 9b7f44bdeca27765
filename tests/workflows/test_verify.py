"""``unlearn verify``, on the certificate of a small real request: what it says of forgeries, and what it lets nobody say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from unlearn_core.forgetting.certificate import Certificate, NamedFile, read_certificate


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A request to a black box, and what came of it."""
    from workflows.cli import main

    folder = tmp_path_factory.mktemp("verify")
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = (rng.normal(size=(90, 4)) + 2 * np.eye(4)[y]).astype(np.float32)
    np.savez(folder / "data.npz", train_x=x[:60], train_y=y[:60], test_x=x[60:], test_y=y[60:])
    logits = (4 * np.eye(3)[y] + rng.normal(size=(90, 3))).astype(np.float32)
    np.savez(folder / "logits.npz", train_logits=logits[:60], test_logits=logits[60:])
    (folder / "ids.txt").write_text("0\n3\n6\n9\n")
    options = {"logits": "logits.npz", "data": "data.npz", "ids": "ids.txt", "out": "out"}
    paths = [part for name, file in options.items() for part in (f"--{name}", str(folder / file))]
    with pytest.raises(SystemExit) as ended:
        main(["forget", *paths, "--proxy", "lda"])
    assert ended.value.code == 0
    return folder / "out" / "certificate.json"


@pytest.fixture
def certificate(made):
    """The same for each test, whatever a test does to it."""
    kept = {path: path.read_bytes() for path in made.parent.iterdir()}
    yield made
    for path in made.parent.iterdir():
        path.unlink()
    for path, content in kept.items():
        path.write_bytes(content)


def lied(path: Path, at: tuple[str, ...], value: float) -> None:
    """The certificate with another claim, and a digest that fits it."""
    content = json.loads(json.dumps(read_certificate(path).content))
    inner = content
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    path.write_text(Certificate(content).text())
    (path.parent / "certificate.html").unlink(missing_ok=True)


def test_claims_are_measured_again_from_the_files(unlearn_here, certificate):
    answer = unlearn_here("verify", certificate, "--remeasure")
    assert answer.code == 0, answer.out
    assert "ok       measured again: 9 claims" in answer.out
    lied(certificate, ("accuracy", "after", "forgotten"), 0.01)
    assert unlearn_here("verify", certificate).code == 0, "which is why one measures again"
    answer = unlearn_here("verify", certificate, "--remeasure")
    assert answer.code == 1
    assert "forgotten accuracy after is" in answer.out


@pytest.mark.parametrize("finalizer", ["mse", "none"])
def test_claims_of_a_network_are_measured_again(unlearn_here, made, tmp_path, finalizer):
    state = {"layers.0.weight": 2 * torch.eye(4)[:3], "layers.0.bias": torch.zeros(3)}
    save_file(state, tmp_path / "w.safetensors")
    data = made.parent.parent
    options = (
        "--model",
        tmp_path / "w.safetensors",
        "--arch",
        "linear",
        "--data",
        data / "data.npz",
        "--ids",
        data / "ids.txt",
    )
    answer = unlearn_here(
        "forget", *options, "--proxy", "lda", "--finalizer", finalizer, "--out", tmp_path / "o", "--force"
    )
    assert answer.code == 0, answer.err
    certificate = tmp_path / "o" / "certificate.json"
    assert "ok       measured again" in unlearn_here("verify", certificate, "--remeasure").out
    kl = read_certificate(certificate).content["divergence"]["base_to_unlearned"]["retain"]
    lied(certificate, ("divergence", "base_to_unlearned", "retain"), 2 * kl + 1)
    assert (
        "FAILED   measured again: KL(base||unlearned), retain" in unlearn_here("verify", certificate, "--remeasure").out
    )


def test_unsigned_has_its_own_word_and_is_no_check_that_holds(unlearn_here, certificate):
    answer = unlearn_here("verify", certificate)
    assert answer.code == 0
    assert "UNSIGNED signature: none" in answer.out
    assert answer.out.splitlines()[-1].startswith("intact but unsigned: all 7 other checks hold")
    assert "verified" not in answer.out
    required = unlearn_here("verify", certificate, "--require-signature")
    assert required.code == 1
    assert "FAILED   signature: none" in required.out
    assert required.out.splitlines()[-1] == "not verified: 1 of 8 checks failed"


def test_a_certificate_that_lists_no_files_does_not_verify(unlearn_here, certificate):
    content = {**read_certificate(certificate).content, "files": []}
    certificate.write_text(Certificate(content).text())
    answer = unlearn_here("verify", certificate)
    assert answer.code == 1
    assert "FAILED   files: incomplete: no hash of data, logits, processor, request" in answer.out


def test_a_page_that_shows_something_else_fails(unlearn_here, certificate, tmp_path):
    page = certificate.parent / "certificate.html"
    said = page.read_text()
    assert "ok       page" in unlearn_here("verify", certificate).out
    page.write_text(said.replace("training records were unlearned", "training records were burned"))
    answer = unlearn_here("verify", certificate, "--page", tmp_path / "again.html")
    assert answer.code == 1
    assert "FAILED   page" in answer.out
    assert (tmp_path / "again.html").read_text() == said, "made from the JSON on demand"
    assert unlearn_here("verify", certificate, "--page", tmp_path / "again.html").code == 2, "nothing is written over"
    page.unlink()
    assert unlearn_here("verify", certificate).code == 0


def test_a_page_of_another_version_is_not_called_a_forgery(unlearn_here, certificate):
    content = read_certificate(certificate).content
    older = {**content, "made": {**content["made"], "software": {"unlearn-grid": "0.0.1"}}}
    certificate.write_text(Certificate(older).text())
    answer = unlearn_here("verify", certificate)
    assert answer.code == 0
    assert "UNKNOWN  page" in answer.out


def test_names_cannot_write_to_the_terminal(unlearn_here, certificate):
    """A role that clears the line and writes a better one."""
    real = read_certificate(certificate)
    files = [dataclasses.asdict(file) for file in real.files]
    evil = {**files[0], "role": "x\x1b[2K\rok signature\nverified: all 9 checks hold\u202e\ud800", "path": "\x9b31m"}
    certificate.write_text(Certificate({**real.content, "files": [*files, evil]}).text())
    answer = unlearn_here("verify", certificate)
    assert answer.code == 1
    assert all(line.isprintable() for line in (answer.out + answer.err).splitlines())
    assert "verified: all" not in {line[:13] for line in answer.out.splitlines()}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 1,', '"version": 1e999,'),
        ('"role": "data"', '"role": 3'),
        ('"role": "data"', '"role": null'),
        ('"path": "../data.npz"', '"path": ["../data.npz"]'),
        ('"path": "../data.npz"', '"path": "' + "x" * 5000 + '"'),
        ('"path": "../data.npz"', '"path": "a\\u0000b"'),
        ('"seed": 0', '"seed": ' + "9" * 5000),
        ('"seed": 0', '"seed": ' + "[" * 100_000),
        ('"signature": null', '"signature": {"public_key": 3, "value": "aa"}'),
    ],
)
def test_what_used_to_end_in_a_traceback(unlearn_here, certificate, old, new):
    text = certificate.read_text()
    assert old in text
    certificate.write_text(text.replace(old, new, 1))
    assert unlearn_here("verify", certificate).code in (1, 2)


def test_a_size_that_is_not_the_files_fails(unlearn_here, certificate):
    real = read_certificate(certificate)
    files = [vars(dataclasses.replace(file, bytes=file.bytes + 1)) for file in real.files]
    certificate.write_text(Certificate({**real.content, "files": files}).text())
    assert unlearn_here("verify", certificate).code == 1


def test_certificates_of_the_first_version_still_verify(unlearn_here, tmp_path):
    """As written before this was asked of them: no page, no software that is known."""
    for role in ("model", "data", "request", "unlearned"):
        (tmp_path / role).write_text(role)
    content = {"outcome": "unlearned", "model": {"kind": "mlp1"}, "finalizer": {"name": "kl"}, "files": []}
    files = [NamedFile.of(role, tmp_path / role, tmp_path) for role in ("model", "data", "request", "unlearned")]
    (tmp_path / "certificate.json").write_text(Certificate.of(content).with_files(files).text())
    assert json.loads((tmp_path / "certificate.json").read_text())["certificate"]["version"] == 1
    assert unlearn_here("verify", tmp_path / "certificate.json").code == 0
