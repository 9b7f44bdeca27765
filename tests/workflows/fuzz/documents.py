"""Documents of our own of which one thing is bad: ledgers, certificates, results."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from tests.workflows.fuzz.cases import LONG, PLACES, STATE, VALUES, Case, cut, forget, keys, npz, places, put
from unlearn_core.forgetting.certificate import Certificate, read_certificate
from unlearn_core.records import (
    EpochMetrics,
    MethodRecord,
    ReferenceRecord,
    Scores,
    cell_entry,
    method_entry,
    reference_entry,
)

# Ledgers


def ledgers(folder: Path) -> Iterator[Case]:
    """A ledger of one request, of which one thing is wrong."""
    known = {path.name: path.read_bytes() for path in (folder / "ledger").iterdir()}
    document = json.loads(known["ledger.json"])
    again = forget(ledger="ledger", proxy="lda")

    def of(content: bytes, name: str = "ledger.json") -> Case:
        return replace(again, file=f"ledger/{name}", content=content)

    yield from (of(content) for content in cut(known["ledger.json"], 40))
    for at in places(document):
        values = [[], {}, True, *(["../x", "/etc/passwd", ""] if "files" in at else [-1.5])]
        if at[-1:] != ("eta_max",):
            yield from (of(json.dumps(put(document, at, value)).encode()) for value in values)
    yield of(json.dumps(put(document, ("forgotten",), [0, 10**6])).encode())
    yield of(json.dumps(put(document, ("forgotten",), [3, 0])).encode())
    for name, content in known.items():
        if name != "ledger.json":
            yield from (of(beginning, name) for beginning in cut(content, 20))
    statistics = next(name for name in known if name.endswith(".npz"))
    with np.load(io.BytesIO(known[statistics])) as archive:
        sound = dict(archive)
    for name in sound:
        yield from (
            of(npz(**{**sound, name: wrong}), statistics) for wrong in (np.zeros(99), np.full(3, np.nan), np.array("x"))
        )
    for name in (name for name in known if name.endswith(".safetensors")):
        yield of(save(STATE | {"layers.0.bias": torch.ones(3)}), name)
        yield of(save({"x": torch.ones(3)}), name)


# Certificates


def certificates(folder: Path) -> Iterator[Case]:
    text = (folder / "certified" / "certificate.json").read_text()
    certificate, document = read_certificate(folder / "certified" / "certificate.json"), json.loads(text)

    def of(content: bytes | str, *more: str) -> Case:
        written = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        return Case(("verify", "certified/bad.json", *more), "certified/bad.json", written)

    yield from (of(content) for content in cut(text.encode(), 60))
    for i, at in enumerate(places(document)):  # with the digest of what it was
        value = VALUES[i % len(VALUES)]
        if json.dumps(put(document, at, value)) != json.dumps(document):
            yield of(json.dumps(put(document, at, value), indent=1) + "\n")
    content = json.loads(json.dumps(certificate.content))
    for at in (*places(content["files"], ("files",)), ("format",), ("version",), ("outcome",), ("model", "kind")):
        for value in VALUES[::3]:  # with a digest of its own
            if at[-1:] != ("kind",) or not isinstance(value, str):
                yield of(Certificate(put(content, at, value)).text())
    for old, new in (
        ('"version": 1', '"version": 1e999'), ('"version": 1', '"version": NaN'), ('"seed": 0', '"seed": -Infinity'),
        ('"seed": 0', '"seed": ' + "9" * 5000), ('"seed": 0', '"seed": ' + "[" * 50_000), ('"seed": 0',
        '"seed": 0, "seed": 1'),
        ('"signature": null', '"signature": {}'), ('"signature": null', '"signature": []'), ('"signature": null',
        '"signature": "x"'),
        ('"signature": null', '"signature": {"public_key": "zz", "value": "00"}'), ("{", "[", ), ("{", "\ufeff{"),
        ("}\n", "}\n "), ("\n", "\r\n"),
        ('"signature": null',
        '"signature": {"algorithm": "Ed25519", "public_key": "' + "00" * 32 + '", "value": "' + "00" * 64 + '"}'),
        ('"signature": null', '"signature": {"algorithm": "none", "public_key": "", "value": ""}'), ("certificate",
        "certificat\u0435"),
    ):  # fmt: skip
        assert old in text, old
        yield of(text.replace(old, new, 1))
    yield from (
        of(junk)
        for junk in (b"", b"null", b"[]", b"{}", b"1", b"\xff", bytes(100), b"PK\x03\x04", b'{"certificate": 1}')
    )
    good = "certified/certificate.json"
    for more in (
        ["--file", "x"],
        ["--file", "=x"],
        ["--file", "data="],
        ["--file", "nothing=data.npz"],
        ["--file", "data=ids.txt"],
    ):
        yield Case(("verify", good, *more))
    yield from (Case(("verify", good, "--file", f"data={place}")) for place in PLACES if place)
    yield from (Case(("verify", good, "--public-key", place)) for place in PLACES)
    yield from (Case(("verify", place)) for place in (*PLACES, "data.npz", "w.safetensors"))
    yield from (
        Case(("verify", *more))
        for more in ([], [good, "--require-signature"], [good, "--page", "ids.txt"], [good, good])
    )
    yield from keys("verify")


# Results

SCORES = Scores(0.1, 0.2, 0.1, 0.2, 0.9, 0.5, 0.5, 0.5)


def results() -> dict[str, Any]:
    row = reference_entry(ReferenceRecord(SCORES, seconds=2.0), retrain_seconds=2.0)
    epoch = EpochMetrics(1, 0.5, SCORES)
    method = method_entry(MethodRecord("ft", [epoch], epoch, epoch, 0.5, 0.25, 0.25, 0.0))
    return cell_entry(42, 5, 95, {"base": row, "retrain": row, "floor": row, "ft": method})


def reports(folder: Path) -> Iterator[Case]:
    name = "class_mlp1_raw.json"
    place = f"results/digits/pixels/{name}"

    def of(content: bytes | str, name: str = place) -> Case:
        written = content.encode() if isinstance(content, str) else content
        return Case(("report", "--results", "results", "--no-tracking", "--no-illustrations"), name, written)

    document = {"mlp1": {"0": [results()]}}
    yield from (of(content) for content in cut(json.dumps(document).encode(), 60))
    for at in [
        (),
        ("mlp1",),
        ("mlp1", "0"),
        ("mlp1", "0", 0),
        *(("mlp1", "0", 0, key) for key in ("seed", "n_forget", "n_retain")),
    ]:
        for value in VALUES:
            yield of(json.dumps(put(document, at, value)))
    for key in ("x", "-1", "00", "1.0", "", " 0", "9" * 30, "\u0663"):
        yield of(json.dumps({"mlp1": {key: [results()]}}))
    yield from (of(junk) for junk in (b"", b"\xff", b"NaN", b"[" * 50_000, b"9" * 5000, b'"\\ud800"', bytes(50)))
    yield of(json.dumps({"mlp1": {"0": [{**results(), "\ud800": 1}]}}))
    for other in (
        "klass_mlp1_raw.json",
        "class_mlp9_raw.json",
        "class_raw.json",
        "raw.json",
        "class_mlp1.json",
        "_raw.json",
    ):
        yield of(json.dumps(document), f"results/digits/pixels/{other}")
    yield from (of(json.dumps(document), f"results/{odd}/pixels/{name}") for odd in ("a\nb", "\x1b[2J", "x" * 100))
    tree = ("report", "--results", "tree", "--no-tracking", "--no-illustrations")
    for option in ("--results", "--notes"):
        yield from (Case((*tree, f"{option}={place}")) for place in PLACES)
    yield from (
        Case((*tree, f"--out={place}")) for place in ("a_file", "a_file/x", "loop/x", LONG, "x" * 300, "/dev/null")
    )
    yield from (
        Case((*tree, f"--document={place}"))
        for place in (*PLACES, "figures", "a_file", "a_file.md", "a_file/x.md", "loop/x.md")
    )
    yield from (Case((*tree, f"--table={name}")) for name in ("", ",", "nothing", "[", "\ud800", "..", LONG))
    yield Case((*tree, "--notes=bad.md"), "bad.md", b"\xff\xfe")
