"""What goes in and out as files: requests, weights, certificates."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
import sys

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from safetensors import safe_open
from safetensors.torch import save_file

from tests.processes import run
from unlearn_core.errors import BadInput
from unlearn_core.finalize import load_processor
from unlearn_core.forgetting.certificate import (
    Certificate,
    NamedFile,
    arrays_sha256,
    read_certificate,
    state_sha256,
    summarise,
    verify_certificate,
)
from unlearn_core.forgetting.keys import Signature, is_weak, read_public_key, sign
from unlearn_core.forgetting.model_files import load_logits, read_weights_file
from unlearn_core.forgetting.request import RecordList, find_rows, read_request
from unlearn_core.nets.naming import find_prefix

IDS = np.array([f"r{i}" for i in range(20)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "id\nr3\nr5\nr3\n"),
        ("a.csv", "\ufeffid,why\r\nr3,asked\r\nr5,\r\nr3,again\r\n"),
        ("a.csv", "r3\nr5\nr3\n"),
        ("a.csv", "name,row\nx,3\ny,5\nz,3\n"),
        ("a.jsonl", '"r3"\n"r5"\n\n"r3"\n'),
        ("a.jsonl", '{"id": "r3"}\n{"id": "r5", "by": "x"}\n{"id": "r3"}'),
        ("a.jsonl", '{"row": 3}\n{"row": 5}\n{"row": 3}\n'),
        ("a.txt", "r3\n\nr5\r\nr3\n"),
    ],
)
def test_a_request_is_read_in_any_of_its_forms(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    asked = find_rows(read_request(tmp_path / name), 20, IDS)
    assert asked.rows.tolist() == [3, 5]
    assert len(asked.repeated) == 1, "named, and counted once"


ODD = ["acct", "acct#1", " acct", "a\nb", "a", "b", "x\u2028y", "x", "#", "007"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "acct#1\n", ["acct#1"]),
        ("a.txt", " acct\n", [" acct"]),
        ("a.txt", "#\n", ["#"]),
        ("a.txt", "x\u2028y\n", ["x\u2028y"]),
        ("a.csv", 'id\n"a\nb"\n', ["a\nb"]),
        ("a.csv", "id\nacct#1\n acct\n", ["acct#1", " acct"]),
        ("a.jsonl", '"a\\nb"\n"x\u2028y"\n', ["a\nb", "x\u2028y"]),
    ],
)
def test_ids_are_taken_literally(tmp_path, name, text, expected):
    """Each of these used to forget another record than the one asked for, or none."""
    (tmp_path / name).write_bytes(text.encode())
    rows = find_rows(read_request(tmp_path / name), len(ODD), np.array(ODD)).rows
    assert sorted(ODD[row] for row in rows) == sorted(expected)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "r1 # urgent\n", "are taken literally, as 'r1 # urgent' was"),
        ("a.txt", "r1 \n", "are taken literally, as 'r1 ' was"),
        ("a.csv", 'id\n"r1\nr2"\n', r"ids 'r1\nr2' are not in the data"),
        ("a.csv", "id\nr1\n \n", "record 2 has no id"),
        ("a.csv", 'id\n"r1\n', "is no CSV that can be read"),
        ("a.csv", "id\n" + "r" * 200_000, "is no CSV that can be read"),
        ("a.csv", "id,id\nr1,r2\n", "has 2 columns 'id'"),
        ("a.csv", "row\n007\n", "007 is no row of the data"),
        ("a.csv", "row\n" + "9" * 5000, "is no row of the data"),
        ("a.csv", "row\n\u0663\n", "is no row of the data"),
        ("a.jsonl", '{"id": "r1", "id": "r2"}', "a name is there twice"),
        ("a.jsonl", "9" * 5000, "line 1 is not JSON"),
        ("a.jsonl", "[" * 100_000, "line 1 is not JSON"),
        ("a.jsonl", '"\\ud800"', "are not in the data"),
    ],
)
def test_what_cannot_be_taken_literally_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text.encode())
    with pytest.raises(BadInput) as refusal:
        find_rows(read_request(tmp_path / name), 20, IDS)
    assert message in str(refusal.value)
    assert len(str(refusal.value)) < 600
    assert str(refusal.value).isprintable(), "also a lone surrogate, which no terminal can show"


@pytest.mark.parametrize("text", ["3\n5\n", '{"row": 3}\n{"row": "5"}', "3"])
def test_without_ids_records_are_row_numbers(tmp_path, text):
    path = tmp_path / ("a.jsonl" if "{" in text else "a")
    path.write_text(text)
    assert set(find_rows(read_request(path), 20, None).rows) <= {3, 5}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "names no record"),
        ("a.csv", b"id\n", "names no record"),
        ("a.csv", b"a,b\n1,2\n", "name the one with the records 'id' or 'row'"),
        ("a.csv", b"id,x\nr1,2\n,3\n", "record 2 has no id"),
        ("a.jsonl", b"{]\n", "line 1 is not JSON"),
        ("a.jsonl", b'{"name": 1}\n', "line 1 names no record"),
        ("a.jsonl", b"1.5\n", "line 1 names no record"),
        ("a.jsonl", b'{"row": 1}\n{"id": "r1"}\n', "some records by id and some by row"),
        ("a.txt", b"\n\r\n", "names no record"),
        ("a.txt", b"\xff\xfe\x00", "is not UTF-8 text"),
        ("a.txt", b"r1\nr99\nr98\n", "ids r99, r98 are not in the data; it has 20 records"),
        ("a.csv", b"row\n20\n", "20 is no row of the data"),
        ("a.csv", b"row\n-1\n", "-1 is no row of the data"),
        ("a.txt", b"\n".join(f"r{i}".encode() for i in range(20)), "forgets all 20 rows; delete the model instead"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput) as refusal:
        find_rows(read_request(tmp_path / name), 20, IDS)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", [str, int])
def test_records_are_found_in_the_order_of_their_ids(kind):
    """With that order known, by bisection; the same rows as by reading all ids."""
    rng = np.random.default_rng(0)
    for n_rows in (2, 3, 64, 1000):
        ids = np.array([kind(one) for one in 3 * rng.permutation(n_rows) - 4])
        asked = RecordList("a request", tuple(str(one) for one in rng.choice(ids, n_rows // 2, replace=False)))
        order = np.argsort(ids, kind="stable")
        np.testing.assert_array_equal(find_rows(asked, n_rows, ids, order).rows, find_rows(asked, n_rows, ids).rows)
        for missing in ("-5", "0", "9999", "x", "", str(10**30)):
            with pytest.raises(BadInput, match="not in the data"):
                find_rows(RecordList("a request", (*asked.names, missing)), n_rows, ids, order)


STATE = {"a.weight": torch.arange(6.0).view(2, 3), "b.bias": torch.zeros(2), "n": torch.tensor(3)}


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("w.safetensors", lambda path: save_file(STATE, path, metadata={"format": "pt", "by": "me"})),
        ("w.safetensors", lambda path: save_file({f"module.{k}": v for k, v in STATE.items()}, path)),
        ("w.safetensors", lambda path: save_file({k: v.half() for k, v in STATE.items()}, path)),
        ("w.pt", lambda path: torch.save(STATE, path)),
        ("w.pt", lambda path: torch.save({f"module.{k}": v for k, v in STATE.items()}, path)),
        ("w.pt", lambda path: torch.save({"state_dict": STATE, "epoch": 3, "optimizer": {"m": torch.ones(3)}}, path)),
    ],
)
def test_weights_leave_in_the_format_and_with_the_keys_that_came_in(tmp_path, name, write):
    path = tmp_path / name
    write(path)
    safetensors = path.suffix == ".safetensors"
    weights = read_weights_file(path)
    own = find_prefix(weights.tensors, STATE)
    assert own.to_network(weights.tensors).keys() == STATE.keys()
    (tmp_path / "out").mkdir()
    written = tmp_path / "out" / name
    weights.write(written, {k: v + 1 for k, v in own.to_file(own.to_network(weights.tensors)).items()})
    before, after = raw(path, safetensors), raw(written, safetensors)
    assert list(before) == list(after)
    for key, tensor in after.items():
        assert tensor.dtype == before[key].dtype
        torch.testing.assert_close(tensor, before[key] + 1)
    if safetensors:
        with safe_open(path, "pt") as a, safe_open(written, "pt") as b:
            assert a.metadata() == b.metadata()
    else:
        kept = set(torch.load(path, weights_only=True)) - set(torch.load(written, weights_only=True))
        assert kept <= {"epoch", "optimizer"}, "what was trained beside the weights is left out"
        assert set(weights.dropped) == kept


def raw(path, safetensors):
    """Every tensor of a file by its own name, read by the library that the format is of."""
    if safetensors:
        with safe_open(path, "pt") as archive:
            return {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
    stored = torch.load(path, weights_only=True)
    return stored.get("state_dict", stored)


def test_a_pickle_as_weights_is_refused_and_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    (tmp_path / "w.pt").write_bytes(pickle.dumps(Trap()))
    torch.save({"a": Trap()}, tmp_path / "w2.pt")
    for name in ("w.pt", "w2.pt"):
        with pytest.raises(BadInput, match="save it again"):
            read_weights_file(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_logits_are_read_and_checked_against_the_data(tmp_path):
    path = tmp_path / "logits.npz"
    train, test = np.arange(6.0).reshape(3, 2), np.ones((2, 2), np.float32)
    np.savez(path, train_logits=train, test_logits=test, notes=np.array(["any"]))
    logits = load_logits(path, 3, 2)
    np.testing.assert_array_equal(logits.train, train)
    np.testing.assert_array_equal(logits.test, test)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_logits": np.ones((3, 2))}, "array 'test_logits' is missing; a logits file needs train_logits, test"),
        ({"train_logits": np.ones((4, 2)), "test_logits": np.ones((2, 2))}, r"the data needs floats \(3, classes\)"),
        (
            {"train_logits": np.ones((3, 2), int), "test_logits": np.ones((2, 2))},
            "train_logits has shape .* dtype int64",
        ),
        ({"train_logits": np.ones((3, 2)), "test_logits": np.ones((2, 5))}, "are of 2 classes, test_logits of 5"),
        ({"train_logits": np.array([object()] * 3), "test_logits": np.ones((2, 2))}, "'train_logits' is pickled"),
    ],
)
def test_logits_that_do_not_fit_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "logits.npz", **arrays)
    with pytest.raises(BadInput, match=message):
        load_logits(tmp_path / "logits.npz", 3, 2)


def test_what_is_no_logits_file_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"no logits file at .*; it is an \.npz with train_logits, test_logits"):
        load_logits(tmp_path / "none.npz", 3, 2)
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(BadInput, match=r"text\.npz is not an \.npz archive; write it with numpy\.savez"):
        load_logits(tmp_path / "text.npz", 3, 2)


def private_pem(path, key=None, encryption=None):
    key = key or ed25519.Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()))
    return key


ROLES = ("model", "data", "request", "unlearned")
UNLEARNED = {"outcome": "unlearned", "model": {"kind": "mlp1"}, "finalizer": {"name": "kl"}, "files": []}


@pytest.fixture
def signed(tmp_path):
    """A small certificate over its files, its signer's key, and where it lies."""
    for role in ROLES:
        (tmp_path / f"{role}.npz").write_bytes(bytes(range(256)) + role.encode())
    key = private_pem(tmp_path / "key.pem")
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    certificate = Certificate.of({**UNLEARNED, "numbers": [1.5, float("inf"), 3], "text": "ünlearned"})
    certificate = certificate.with_files([NamedFile.of(role, tmp_path / f"{role}.npz", tmp_path) for role in ROLES])
    certificate = dataclasses.replace(certificate, signature=sign(certificate.canonical, tmp_path / "key.pem"))
    (tmp_path / "certificate.json").write_text(certificate.text())
    return tmp_path / "certificate.json"


def found(path, **options) -> dict[str, str]:
    return {check.what: str(check.found) for check in verify_certificate(path, **options)}


def holds(path, **options) -> bool:
    try:
        return not any(check.failed for check in verify_certificate(path, **options))
    except BadInput:
        return False


def test_a_certificate_verifies_until_any_byte_of_it_changes(signed):
    assert holds(signed, public_key=signed.parent / "public.pem")
    assert holds(signed)
    content = signed.read_bytes()
    # in place: to write thousands of files anew takes longer than to verify them
    with signed.open("r+b", buffering=0) as file:
        for at, byte in enumerate(content):
            for flip in (1, 32):  # 32 turns a letter into its capital, which hexadecimal readers take for the same
                os.pwrite(file.fileno(), bytes([byte ^ flip]), at)
                assert not holds(signed), f"byte {at} flipped by {flip}, in {content[max(0, at - 20) : at + 20]!r}"
            os.pwrite(file.fileno(), bytes([byte]), at)
    assert signed.read_bytes() == content
    signed.write_bytes(content + b" ")
    assert not holds(signed)
    signed.write_bytes(content)
    assert holds(signed)


def test_a_file_that_changed_moved_or_vanished_is_named(signed):
    data = signed.parent / "data.npz"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(bytes(content))
    assert [what for what, outcome in found(signed).items() if outcome == "FAILED"] == ["data"]
    content[100] ^= 1
    (signed.parent / "elsewhere.npz").write_bytes(bytes(content))
    data.unlink()
    assert "--file data=PATH" in next(c.detail for c in verify_certificate(signed) if c.what == "data")
    assert holds(signed, elsewhere={"data": signed.parent / "elsewhere.npz"})
    with pytest.raises(BadInput, match="names no file 'logits'; it names model, data, request"):
        verify_certificate(signed, {"logits": data})


def test_each_forgery_is_called_what_it_is(signed):
    """Without a key to compare with, what is consistent is not called verified: the words say what is not known."""
    public, certificate = signed.parent / "public.pem", read_certificate(signed)
    assert found(signed)["signature"] == "UNKNOWN"
    assert "nobody vouched for" in summarise(verify_certificate(signed))
    assert set(found(signed, public_key=public).values()) == {"ok"}
    assert summarise(verify_certificate(signed, public_key=public)) == "verified: all 7 checks hold"

    forged = dataclasses.replace(certificate, content={**certificate.content, "numbers": [2.5]})
    signed.write_text(forged.text())
    assert found(signed)["certificate"] == "ok", "edited, with a digest of its own"
    assert found(signed)["signature"] == "FAILED"

    signed.write_text(dataclasses.replace(forged, signature=None).text())
    assert found(signed)["signature"] == "UNSIGNED"
    assert not any(check.failed for check in verify_certificate(signed))
    said = summarise(verify_certificate(signed))
    assert said.startswith("intact but unsigned: all 6 other checks hold")
    assert "anybody" in said
    assert found(signed, require_signature=True)["signature"] == "FAILED"
    assert found(signed, public_key=public)["signature"] == "FAILED"

    private_pem(signed.parent / "other.pem")
    other = sign(forged.canonical, signed.parent / "other.pem")
    signed.write_text(dataclasses.replace(forged, signature=other).text())
    assert found(signed)["signature"] == "UNKNOWN"
    assert found(signed, require_signature=True)["signature"] == "UNKNOWN"
    assert found(signed, public_key=public)["signature"] == "FAILED"


P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P


def add(a, b):
    """The Edwards curve's addition, as RFC 8032 has it."""
    (x1, y1), (x2, y2) = a, b
    k = D * x1 * x2 * y1 * y2
    return (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P


def times(n, a):
    total = (0, 1)
    for bit in bin(n)[2:]:
        total = add(total, total)
        total = add(total, a) if bit == "1" else total
    return total


def compressed(point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


BASE = (
    0x216936D3CD6E53FEC0A4E231FDD6DC5C692CC7609525A7B2C9562D608F25D51A,
    0x6666666666666666666666666666666666666666666666666666666666666658,
)
ORDER = 2**252 + 27742317777372353535851937790883648493


def torsion() -> set[bytes]:
    """The points of order 1, 2, 4 and 8: L times any point of the curve."""
    points, y = set(), 2
    while len(points) < 8:
        square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
        root = pow(square, (P + 3) // 8, P)
        x = root if root * root % P == square else root * pow(2, (P - 1) // 4, P) % P
        if x * x % P == square:
            points |= {compressed(times(ORDER, (sign * x % P, y))) for sign in (1, -1)}
        y += 1
    return points


def test_keys_of_low_order_are_weak_and_others_are_not():
    weak = torsion()
    assert len(weak) == 8
    assert all(is_weak(key) for key in weak)
    assert is_weak((P + 1).to_bytes(32, "little")), "the identity, written in another way"
    assert is_weak(b"short")
    rng = np.random.default_rng(0)
    for _ in range(50):
        key = ed25519.Ed25519PrivateKey.from_private_bytes(rng.bytes(32))
        assert not is_weak(key.public_key().public_bytes_raw())


def test_a_signature_that_needs_no_private_key_fails(signed):
    """Under the identity as a key, S B = R + h A holds for every message if R = S B."""
    certificate = read_certificate(signed)
    s = 1234567
    value = compressed(times(s, BASE)) + s.to_bytes(32, "little")
    forged = Signature((1).to_bytes(32, "little"), value)
    assert forged.is_over(certificate.canonical), "the library takes it"
    signed.write_text(dataclasses.replace(certificate, signature=forged).text())
    check = next(check for check in verify_certificate(signed) if check.what == "signature")
    assert check.failed
    assert "weak" in check.detail
    key = ed25519.Ed25519PublicKey.from_public_bytes(forged.public_key)
    weak = signed.parent / "weak.pem"
    weak.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(BadInput, match="weak key"):
        verify_certificate(signed, public_key=weak)


@pytest.mark.parametrize("left_out", [(), *((role,) for role in ROLES), ROLES])
def test_a_list_of_files_must_be_complete(signed, left_out):
    certificate = read_certificate(signed)
    kept = [vars(file) for file in certificate.files if file.role not in left_out]
    shorter = Certificate({**certificate.content, "files": kept})
    signed.write_text(shorter.text())
    assert found(signed)["files"] == ("FAILED" if left_out else "ok")


@pytest.mark.parametrize(
    ("content", "roles", "complete"),
    [
        ({"finalizer": {"name": "none"}}, ("model", "data", "request", "processor"), True),
        ({"finalizer": {"name": "none"}}, ROLES, False),
        (
            {"finalizer": {"name": "none"}, "model": {"kind": "black box"}},
            ("logits", "data", "request", "processor"),
            True,
        ),
        ({"finalizer": {"name": "none"}, "model": {"kind": "black box"}}, ("logits", "data", "request"), False),
        ({"outcome": "nothing to unlearn"}, ("model", "data", "request"), True),
        ({"outcome": "nothing to unlearn"}, ("data", "request"), False),
        ({}, (*ROLES, "data"), False),
        ({"outcome": None, "model": None}, ROLES, False),
    ],
)
def test_what_a_complete_list_is_depends_on_the_outcome(signed, content, roles, complete):
    (signed.parent / "one").write_bytes(b"1")
    files = [NamedFile.of(role, signed.parent / "one", signed.parent) for role in roles]
    signed.write_text(Certificate.of({**UNLEARNED, **content}).with_files(files).text())
    assert found(signed)["files"] == ("ok" if complete else "FAILED")


def test_numbers_that_json_lacks_become_null_and_the_digest_is_over_plain_json(signed):
    document = json.loads(signed.read_text(), parse_constant=lambda constant: pytest.fail(constant))
    assert document["certificate"]["numbers"] == [1.5, None, 3]
    canonical = json.dumps(document["certificate"], sort_keys=True, separators=(",", ":")).encode()
    assert document["digest"]["value"] == hashlib.sha256(canonical).hexdigest()
    public = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(document["signature"]["public_key"]))
    public.verify(bytes.fromhex(document["signature"]["value"]), canonical)  # raises if it does not hold


def test_documents_and_hashes_stay_what_they_were(tmp_path):
    """Certificates and ledgers are checked by them for years: these digests were computed by version 1 of both formats."""
    private_pem(tmp_path / "key.pem", ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    certificate = Certificate.of({"numbers": [1.5, float("inf"), 3], "text": "ünlearned", "files": []})
    certificate = dataclasses.replace(certificate, signature=sign(certificate.canonical, tmp_path / "key.pem"))
    text = hashlib.sha256(certificate.text().encode()).hexdigest()
    assert text == "c2fb640c580d2e785d724519ffad46b80e4d5465c019f7652fa27fd06e474ecc"
    arrays = {"b": np.array(["x", "yz"]), "a": np.arange(6, dtype=np.int32).reshape(2, 3).T}
    assert arrays_sha256(arrays) == "6d6ae2396f177d08d083907e95b028023a83cb008a2f6e49a8ee44da9735f216"
    state = {"w": torch.arange(4.0).to(torch.bfloat16).view(2, 2), "n": torch.tensor(3)}
    assert state_sha256(state) == "f8366c8803a26957032f3be737ea640216728a44a5ccfdd9f023b78d265e3b71"


def test_a_certificate_is_verified_without_torch_or_numpy(signed):
    code = (
        "import sys; from pathlib import Path; from unlearn_core.forgetting.certificate import verify_certificate\n"
        f"passed = [not check.failed for check in verify_certificate(Path({str(signed)!r}))]\n"
        "print(passed, {'torch', 'numpy'} & set(sys.modules))"
    )
    assert run([sys.executable, "-c", code]).stdout == f"{[True] * 7} set()\n"


def test_keys_that_cannot_sign_are_refused(tmp_path):
    private_pem(tmp_path / "locked.pem", encryption=BestAvailableEncryption(b"secret"))
    private_pem(tmp_path / "curve.pem", ec.generate_private_key(ec.SECP256R1()))
    (tmp_path / "text.pem").write_text("hello")
    for name, message in (
        ("none.pem", "no key at"),
        ("locked.pem", "has a password; put it into the environment as UNLEARN_KEY_PASSWORD"),
        ("curve.pem", "no Ed25519 key"),
        ("text.pem", "no private key"),
    ):
        with pytest.raises(BadInput, match=message):
            sign(b"", tmp_path / name)


def test_a_key_may_have_a_password(tmp_path, monkeypatch):
    key = private_pem(tmp_path / "locked.pem", encryption=BestAvailableEncryption("gehäim".encode()))
    monkeypatch.setenv("UNLEARN_KEY_PASSWORD", "gehäim")
    assert sign(b"message", tmp_path / "locked.pem").is_over(b"message")
    assert read_public_key(tmp_path / "locked.pem") == key.public_key().public_bytes_raw()
    monkeypatch.setenv("UNLEARN_KEY_PASSWORD", "wrong")
    with pytest.raises(BadInput, match="no private key that can be read"):
        sign(b"message", tmp_path / "locked.pem")
    monkeypatch.delenv("UNLEARN_KEY_PASSWORD")
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: asked.append(prompt) or "gehäim")
    for _ in range(2):
        assert sign(b"message", tmp_path / "locked.pem").is_over(b"message")
    assert len(asked) == 1, "asked for once, though the key is read before the work and after it"


def test_what_is_no_certificate_or_processor_is_said_in_one_line(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_text('{"certificate": {"format": "other"}, "signature": null}')
    for name in ("a.json", "b.json", "c.json"):
        with pytest.raises(BadInput):
            read_certificate(tmp_path / name)
    np.savez(tmp_path / "p.npz", eta=np.array(1.0))
    for name in ("p.npz", "q.npz"):
        with pytest.raises(BadInput, match="no logit processor"):
            load_processor(tmp_path / name)
