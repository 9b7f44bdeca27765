"""``unlearn forget`` and ``verify`` on a small real network: what is written for which outcome, and as which other form."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from safetensors.torch import save_file

from unlearn_core.forgetting.certificate import Certificate, read_certificate
from unlearn_core.forgetting.envelope import Envelope, envelope_text, pre_authentication_encoding


@pytest.fixture
def asked(tmp_path) -> tuple:
    """A linear head, and a request that lda sees something in."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (rng.normal(size=(120, 4)) + 2 * np.eye(4)[y]).astype(np.float32)
    np.savez(tmp_path / "data.npz", train_x=x[:80], train_y=y[:80], test_x=x[80:], test_y=y[80:])
    save_file({"layers.0.weight": 2 * torch.eye(4)[:3], "layers.0.bias": torch.zeros(3)}, tmp_path / "w.safetensors")
    (tmp_path / "ids.txt").write_text("\n".join(str(row) for row in range(0, 36, 3)))
    files = ("--model", tmp_path / "w.safetensors", "--data", tmp_path / "data.npz", "--ids", tmp_path / "ids.txt")
    return ("forget", *files, "--arch", "linear", "--method", "lda", "--out", tmp_path / "out")


def roles(out: Path) -> dict[str, str]:
    return {file.role: Path(file.path).name for file in read_certificate(out / "certificate.json").files}


def test_what_was_not_unlearned_is_not_written_unless_forced(unlearn_here, asked, tmp_path):
    failing = (*asked, "--lr", "1e-12", "--epochs", 2)
    before = sorted(tmp_path.iterdir())
    answer = unlearn_here(*failing)
    assert answer.code == 1, answer.err
    assert "not unlearned, nothing was written" in answer.out
    assert "80% are required" in answer.out
    assert sorted(tmp_path.iterdir()) == before
    forced = unlearn_here(*failing, "--force")
    assert forced.code == 1
    content = read_certificate(tmp_path / "out" / "certificate.json").content
    assert content["outcome"] == "not unlearned"
    assert "Not unlearned, though 12 of 80" in (tmp_path / "out" / "certificate.html").read_text()
    assert roles(tmp_path / "out")["attempted"] == "w.safetensors"
    verified = unlearn_here("verify", tmp_path / "out" / "certificate.json", "--remeasure")
    assert verified.code == 0, verified.out
    assert "it says: not unlearned" in verified.out
    assert "ok       measured again" in verified.out


def test_a_base_that_knows_nothing_is_warned_of_in_the_terminal(unlearn_here, asked, tmp_path):
    """Its classes in another order."""
    state = {"layers.0.weight": 2 * torch.eye(4)[[1, 2, 0]], "layers.0.bias": torch.zeros(3)}
    save_file(state, tmp_path / "w.safetensors")
    assert "WARNING: the base is right on" in unlearn_here(*asked, "--finalizer", "none").out


def test_a_processor_does_not_call_the_base_unlearned(unlearn_here, asked, tmp_path):
    answer = unlearn_here(*asked, "--finalizer", "none")
    assert answer.code == 0, answer.err
    assert "unlearned: 100 % of the way" in answer.out
    assert set(roles(tmp_path / "out")) == {"model", "data", "request", "processor"}
    assert not (tmp_path / "out" / "w.safetensors").exists()
    assert unlearn_here("verify", tmp_path / "out" / "certificate.json").code == 0


def test_the_encoding_is_that_of_the_specification():
    """DSSE's own example: a body, its type, its encoding, and an ECDSA signature over that by a known key."""
    body, kind = b"hello world", "http://example.com/HelloWorld"
    encoded = pre_authentication_encoding(kind, body)
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    x = 46950820868899156662930047687818585632848591499744589407958293238635476079160
    y = 5640078356564379163099075877009565129882514886557779369047442380624545832820
    signature = "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="
    raw = base64.b64decode(signature)
    r, s = int.from_bytes(raw[:32]), int.from_bytes(raw[32:])
    key = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    key.verify(encode_dss_signature(r, s), encoded, ec.ECDSA(SHA256()))
    assert pre_authentication_encoding("", "\u00e9".encode()) == b"DSSEv1 0  2 \xc3\xa9"


@pytest.fixture
def signed(unlearn_here, asked, tmp_path):
    """The folder of a signed certificate, and its key."""
    key = Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    answer = unlearn_here(*asked, "--finalizer", "none", "--sign", tmp_path / "key.pem")
    assert answer.code == 0, answer.err
    return tmp_path / "out", key


def test_a_signed_certificate_comes_in_an_envelope_too(unlearn_here, signed, tmp_path):
    """Checked here as any other tool would: base64, JSON, Ed25519 and the encoding written out."""
    out, key = signed
    place = out / "certificate.dsse.json"
    envelope = json.loads(place.read_text())
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"]
    message = b" ".join([b"DSSEv1", str(len(kind)).encode(), kind.encode(), str(len(payload)).encode(), payload])
    key.public_key().verify(base64.b64decode(envelope["signatures"][0]["sig"]), message)
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicate"] == read_certificate(out / "certificate.json").content
    named = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    assert named == {file.path: file.sha256 for file in read_certificate(out / "certificate.json").files}
    vouched = ("--public-key", tmp_path / "public.pem")
    for form in ("certificate.json", "certificate.dsse.json"):
        answer = unlearn_here("verify", out / form, *vouched)
        assert answer.code == 0, answer.out
        assert answer.out.splitlines()[-1].startswith("verified: all")
    assert unlearn_here("verify", place).code == 2, "it holds no key"


def test_a_changed_or_foreign_envelope_fails(unlearn_here, signed, tmp_path):
    out, _ = signed
    place, vouched = out / "certificate.dsse.json", ("--public-key", tmp_path / "public.pem")
    text = place.read_text()
    envelope = json.loads(text)
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["outcome"] = "nothing to unlearn"
    forged = base64.b64encode(json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()).decode()
    place.write_text(json.dumps({**envelope, "payload": forged}))
    assert unlearn_here("verify", place, *vouched).code == 1
    assert "FAILED   envelope" in unlearn_here("verify", out / "certificate.json").out
    place.write_text(
        envelope_text(statement["predicate"], tmp_path / "key.pem")
    )  # the signer's own, of another certificate
    assert "certificate.dsse.json is of another certificate" in unlearn_here("verify", out / "certificate.json").out
    for junk in ({}, {"payloadType": 1}, {**envelope, "payload": "?"}, {**envelope, "signatures": [1]}):
        place.write_text(json.dumps({"payloadType": "x", **junk}))
        assert unlearn_here("verify", place, *vouched).code == 2
    place.write_text(text)
    stripped = read_certificate(out / "certificate.json")
    (out / "certificate.json").write_text(Certificate(stripped.content).text())
    assert "is not signed by the key of the certificate" in unlearn_here("verify", out / "certificate.json").out
    for_addresses = {**envelope, "payload": envelope["payload"].translate(str.maketrans("+/", "-_"))}
    assert Envelope.read(json.dumps(for_addresses).encode(), place) == Envelope.read(text.encode(), place)
