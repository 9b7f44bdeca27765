"""More than 2,500 bad inputs: each is refused in a line, none ends in a traceback, leaves a file behind or is accepted.

A case is a command and at most one file. The tables below are products of what can be wrong with where it can be wrong; all
runs in this process, on a model of 15 weights.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import signal
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
import torch
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from safetensors.torch import save
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tracking.tree_writer import write_entries
from unlearn_core.forgetting.certificate import Certificate, read_certificate
from unlearn_core.grid import Scenario, Variant
from unlearn_core.records import (
    EpochMetrics,
    MethodRecord,
    ReferenceRecord,
    Scores,
    cell_entry,
    method_entry,
    reference_entry,
)
from workflows import cli

N, LEAST = 40, 2500
IDS = [f"rec-{i}" for i in range(N)]
STATE = {"layers.0.weight": 2 * torch.eye(4)[:3], "layers.0.bias": torch.zeros(3)}


@dataclass(frozen=True)
class Case:
    """A command line, and the bad file that it names, if it names one."""

    arguments: tuple[str, ...]
    file: str | None = None
    content: bytes = b""


FILES = {"--model": "w.safetensors", "--data": "data.npz", "--ids": "ids.txt", "--out": "out"}


def forget(file: str | None = None, content: bytes = b"", /, **given: object) -> Case:
    """A request that is good but for what is given; ``None`` leaves an option out."""
    files = {"arch": "linear", **{option[2:]: name for option, name in FILES.items()}, **given}
    named = ((f"--{option.replace('_', '-')}", value) for option, value in files.items() if value is not None)
    return Case(("forget", *(str(part) for option in named for part in option)), file, content)


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(N + 20) % 3
    x = (rng.normal(size=(N + 20, 4)) + 2 * np.eye(4)[y]).astype(np.float32)
    parts = {"train_x": x[:N], "train_y": y[:N], "test_x": x[N:], "test_y": y[N:]}
    return {**parts, "ids": np.array(IDS), "superclass": np.array([0, 1, 1]), "class_names": np.array(["a", "b", "c"])}


def npz(**content: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, allow_pickle=True, **content)
    return file.getvalue()


def logits() -> dict[str, np.ndarray]:
    known = arrays()
    return {f"{part}_logits": 4.0 * np.eye(3)[known[f"{part}_y"]] for part in ("train", "test")}


def cut(content: bytes, pieces: int) -> Iterator[bytes]:
    """The beginnings of a file."""
    yield from (content[: len(content) * i // pieces] for i in range(pieces))


# Requests

UNKNOWN = [
    "nobody", "rec", "rec-", "rec-40", "rec--1", "rec-00", "rec-01", "REC-1", "Rec-1", "rec-1 ", " rec-1", "\trec-1",
    "rec-1\t",
    "rec-1#", "rec-1 # by post", "#rec-1", "# rec-1", "rec-1;", "rec-1;rec-2", "rec-1 rec-2", "rec-1.", "rec-1.0",
    "rec-1e0",
    "rec\u20101", "rec\u22121", "rec-\u0661", "rec-\uff11", "\u200brec-1", "rec-1\u200b", "rec-1\u00a0", "\u202erec-1",
    "rec-1\u2028", "rec-1\x0b", "rec-1\x0c", "rec-1\x1c", "rec-1\x85", "rec-1\x00", "\x1b[2Krec-1", "\x07",
    "rec-1\ufeff",
    "r\u0435c-1", "'rec-1'", "`rec-1`", "rec-1/", "../rec-1", "rec-1\\", "rec-*", "rec-?", "rec-[1]", "%72ec-1",
    "rec-1'--",
    "0", "1", "-1", "1.0", "1e3", "NaN", "null", "true", "[]", "{}", "x" * 100_000, "9" * 5000, "\U0001f600",
    "rec-1" * 1000,
]  # fmt: skip
ROWS = [
    "-1",
    "40",
    "1.0",
    "1e1",
    "0x1",
    "007",
    " 1",
    "1 ",
    "+1",
    "\u0663",
    "\u00b2",
    "9" * 5000,
    "rec-1",
    "NaN",
    "1,000",
    "1_0",
]
BROKEN_TEXT = [b"\xff\xfe", b"\x80rec-1", b"rec-1\n\xc3", "rec-1".encode("utf-16"), b"\xed\xa0\x80"]
BROKEN_CSV = [
    b'"', b'id\n"rec-1', b'id\n"rec-1"x\n', b"id,id\nrec-1,rec-2\n", b"row,row\n1,2\n", b"a,b\nrec-1,x\n", b"id\n",
    b"", b"\n\n", b"id,x\n,1\n",
    b"x,id\n1\n", b"x,id\n1,\n", b"id\nrec-1\n \n", b'id\n""\n', b"rec-1,rec-2\n", b"rec-1\nrec-2,x\n",
    b"id;x\nrec-1;y\n",
    b"id\tx\nrec-1\ty\n", b'id\n"rec-1\nrec-2"\n', b"id\n" + b"x" * 200_000, b"row\n1\n-2\n", b"row\n\n",
    b"ids\nrec-1\n", b"id,row\n,1\n",
]  # fmt: skip
BROKEN_JSON = [
    b"{", b"}", b"[1", b'"', b"rec-1", b"nan", b"NaN", b"Infinity", b"-", b"1.5", b"1e3", b"true", b"null", b"[]",
    b"{}", b'["rec-1"]', b'""',
    b'{"id": null}', b'{"id": ""}', b'{"id": ["rec-1"]}', b'{"id": {"id": "rec-1"}}', b'{"id": 1.0}', b'{"id": true}',
    b'{"ID": "rec-1"}',
    b'{"name": "rec-1"}', b'{"id": "rec-1", "id": "rec-2"}', b'{"row": 1}\n{"id": "rec-1"}', b'{"row": -1}',
    b'{"row": 1.0}', b'{"row": null}',
    b'{"row": 40}', b'{"row": "x"}', b'"rec-1" "rec-2"', b'"rec-1",', b"'rec-1'", b'"\\ud800"', b'"\\x"', b"9" * 5000,
    b"[" * 50_000,
    b'{"id":' * 20_000, b'"' + b"x" * 10**6 + b'"', b'{"id": "rec-1"', b'\n\n{"id"}', b"\x00", b'"rec-1\n"',
]  # fmt: skip


def requests() -> Iterator[Case]:
    def asked(name: str, content: bytes) -> Case:
        return forget(f"bad.{name}", content, ids=f"bad.{name}")

    for name in UNKNOWN:
        quoted = '"' + name.replace('"', '""') + '"'
        yield asked("txt", f"rec-0\n{name}\n".encode())
        yield asked("csv", f"why,id\nx,rec-0\ny,{quoted}\n".encode())
        yield asked("jsonl", json.dumps({"id": name}).encode() + b'\n{"id": "rec-0"}')
    for row in ROWS:
        yield asked("csv", f'row\n"{row}"\n'.encode())
        yield asked("jsonl", json.dumps({"row": row}).encode())
    for name, contents in (
        ("txt", BROKEN_TEXT),
        ("csv", BROKEN_TEXT + BROKEN_CSV),
        ("jsonl", BROKEN_TEXT + BROKEN_JSON),
    ):
        yield from (asked(name, content) for content in contents)
    yield asked("txt", b"\n".join(name.encode() for name in IDS))


# Arrays

WRONG = [
    np.zeros(0), np.zeros((0, 4), np.float32), np.zeros((N, 0), np.float32), np.array(1.0), np.array("x"),
    np.zeros((N, 4), complex),
    np.full((N, 4), np.nan, np.float32), np.full((N, 4), np.inf, np.float32), np.full((N, 4), -np.inf), np.zeros((N,
    2, 2), np.float32),
    np.full((N, 4), "x"), np.full((N, 4), None), np.full(N, None), np.zeros((N, 4), "M8[s]"), np.zeros(N, "m8[s]"),
    np.zeros(N, "S3"),
    np.zeros(N, [("a", int)]), np.zeros(N, np.longdouble), np.full(N, -1), np.full(N, 3), np.full(N, 2**62),
    np.full(N, 2**64 - 1, np.uint64),
    np.zeros(N, float), np.zeros(N, bool), np.zeros(N - 1, int), np.zeros((N, 1), int), np.arange(N) % 2 * 2,
    np.full(N, "rec-1"),
    np.where(np.arange(N) == 7, 200_000_000, np.arange(N) % 3),
]  # fmt: skip


def archives() -> Iterator[bytes]:
    """Data sets of which one thing is wrong, whatever they are for."""
    known = arrays()
    for name in known:
        yield from (npz(**{**known, name: wrong}) for wrong in WRONG)
    for name in ("train_x", "train_y", "test_x", "test_y"):
        yield npz(**{other: value for other, value in known.items() if other != name})
    yield npz(**known, more=np.zeros(3))
    yield npz(**{**known, "test_x": known["test_x"][:, :3]})
    yield npz(**{**known, "train_x": known["train_x"][::-1][:10]})
    yield npz(**{**known, "class_names": np.array(["a", "b"])})
    yield npz(**{**known, "superclass": np.array([0, 2, 2])})
    yield npz(**{**known, "superclass": np.array([-1, 0, 1])})
    yield from damaged_archives(npz(**known))


def damaged_archives(whole: bytes, length: int = N) -> Iterator[bytes]:
    """Args: length: of an array in it, of which a header is made to say something else."""
    said, longer, no_shape = (f"({n},".encode() for n in (length, "9" * len(str(length)), "(" + str(length)[1:]))
    yield from cut(whole, 40)
    yield from (b"hello", b"\x93NUMPY", b"PK", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), bytes(1000), pickle.dumps([1]))
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
        starts = [info.header_offset for info in archive.infolist()]
    directory = whole.index(b"PK\x01\x02")

    def flipped(at: int, bits: int) -> bytes:
        changed = bytearray(whole)
        changed[at] ^= bits
        return bytes(changed)

    for start in starts:
        yield flipped(start, 1)  # its signature
        yield flipped(start + 160, 0xFF)  # its content
    yield flipped(directory, 1)
    yield flipped(directory + 8, 1)  # encrypted
    yield flipped(directory + 10, 0x63)
    yield flipped(directory + 24, 0xFF)  # its size

    def rewritten(change: Callable[[str, bytes], tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as archive:
            for name, content in members.items():
                archive.writestr(*change(name, content))
        return file.getvalue()

    yield rewritten(lambda name, content: (name, b""))
    yield rewritten(lambda name, content: (name, b"text"))
    yield rewritten(lambda name, content: (name, content[:-1]))
    yield rewritten(lambda name, content: (name, content + b"x"))
    yield rewritten(lambda name, content: (name, content.replace(said, longer)))
    yield rewritten(lambda name, content: (name, content.replace(b"'descr'", b"'descx'")))
    yield rewritten(lambda name, content: (name, content.replace(said, no_shape)))
    yield rewritten(lambda name, content: (name, content.replace(b"\x93NUMPY\x01", b"\x93NUMPY\x09")))
    yield rewritten(lambda name, content: (f"../{name}", content))
    yield rewritten(lambda name, content: (name.removesuffix(".npy"), content[:7]))


def data_sets() -> Iterator[Case]:
    yield from (forget("bad.npz", content, data="bad.npz") for content in archives())
    known = arrays()
    few = {name: value for name, value in known.items() if name not in ("ids", "superclass", "class_names")}
    images = {"train_images": np.zeros((N, 8, 8, 3)), "test_images": np.zeros((20, 8, 8), np.uint8)}
    yield forget("bad.npz", npz(**images, train_y=known["train_y"], test_y=known["test_y"]), data="bad.npz")
    yield forget("bad.npz", npz(**few), data="bad.npz")  # of which the ids that are asked for are no rows
    narrow = {part: known[part][:, :3] for part in ("train_x", "test_x")}
    yield forget("bad.npz", npz(**{**known, **narrow}), data="bad.npz")
    for content in (npz(**{**known, "train_y": known["train_y"][::-1]}), *damaged_archives(npz(**known))):
        yield forget("bad.npz", content, features="bad.npz")


def black_boxes() -> Iterator[Case]:
    def answers(content: bytes) -> Case:
        return forget("bad.npz", content, logits="bad.npz", model=None, arch=None)

    known = logits()
    for name in known:
        yield from (answers(npz(**{**known, name: wrong})) for wrong in WRONG)
        yield answers(npz(**{name: known[name]}))
    yield from (answers(content) for content in damaged_archives(npz(**known)))
    yield answers(npz(**{name: value[:, :1] for name, value in known.items()}))


# Weights

SHAPES = [(), (0,), (3,), (4,), (4, 3), (3, 4, 1), (3, 5), (2, 4), (0, 4), (3, 0), (1, 1)]


def weights() -> Iterator[Case]:
    def of(content: bytes, name: str = "bad.safetensors") -> Case:
        return forget(name, content, model=name)

    whole = save(STATE)
    yield from (of(content) for content in cut(whole, 60))
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + length])
    for change in (
        {"dtype": "F99"}, {"dtype": "I64"}, {"dtype": None}, {"shape": [3, 5]}, {"shape": [-3, -4]}, {"shape": "x"},
        {"shape": [2**40, 2**40]},
        {"data_offsets": [0, 10**12]}, {"data_offsets": [8, 0]}, {"data_offsets": [0]}, {"data_offsets": None},
    ):  # fmt: skip
        changed = json.dumps({**header, "layers.0.weight": {**header["layers.0.weight"], **change}}).encode()
        yield of(struct.pack("<Q", len(changed)) + changed + whole[8 + length :])
    for text in (b"{", b"[]", b"null", b"{}", b'{"a":', b"[" * 50_000, b"\xff" * 50):
        yield of(struct.pack("<Q", len(text)) + text + whole[8 + length :])
    yield of(struct.pack("<Q", 2**63) + whole[8:])
    for name, value in STATE.items():
        for shape in SHAPES:
            if shape != tuple(value.shape):
                yield of(save({**STATE, name: torch.ones(shape)}))
        for odd in (float("nan"), float("inf"), -float("inf")):
            yield of(save({**STATE, name: torch.full(value.shape, odd)}))
        yield of(save({other: tensor for other, tensor in STATE.items() if other != name}))
        yield of(save({("x." if other == name else "") + other: tensor for other, tensor in STATE.items()}))
    yield of(save({**STATE, "layers.1.weight": torch.ones(3, 3), "layers.1.bias": torch.ones(3)}))
    yield of(save({**STATE, "more": torch.ones(1)}))
    file = io.BytesIO()
    torch.save(STATE, file)
    yield from (of(content, "bad.pt") for content in cut(file.getvalue(), 40))
    for value in (
        [1],
        {},
        {"a": 1},
        {1: torch.ones(1)},
        {"a": object},
        torch.nn.Linear(2, 2),
        torch.ones(3),
        "x",
        {"state_dict": {}},
    ):
        file = io.BytesIO()
        torch.save(value, file)
        yield of(file.getvalue(), "bad.pt")
        with contextlib.suppress(TypeError, AttributeError):
            yield of(pickle.dumps(value), "bad.pth")
    yield from (
        of(whole, name) for name in ("certificate.json", "certificate.html", "certificate.dsse.json", "processor.npz")
    )


# Classifiers of scikit-learn

COEF, INTERCEPT = np.eye(3, 4), np.zeros(3)
LINEAR = {"coef_": COEF, "intercept_": INTERCEPT, "classes_": np.arange(3)}
MLP = {"coefs_0": np.ones((4, 5)), "intercepts_0": np.ones(5), "coefs_1": np.ones((5, 3)), "intercepts_1": np.ones(3)}
NO_LAYER = [
    np.zeros(0), np.array(1.0), np.zeros((0, 4)), np.zeros((3, 0)), np.zeros((4, 3, 1)), np.zeros((2, 9)),
    np.zeros(9), np.full((3, 4), None), np.full(3, None), np.full((3, 4), "x"), np.zeros((3, 4), int),
    np.zeros((3, 4), complex), np.zeros(3, bool), np.zeros(3, "M8[s]"), np.zeros((3, 4), np.longdouble)[:2],
]  # fmt: skip
ODD = (np.nan, np.inf, -np.inf)


def classifiers() -> Iterator[Case]:
    def of(content: bytes, name: str = "bad.npz") -> Case:
        return forget(name, content, model=name, arch=None)

    for known, length in ((LINEAR, 3), (MLP, 5)):
        for name, value in known.items():
            yield from (of(npz(**{**known, name: wrong})) for wrong in NO_LAYER)
            if name != "classes_":
                yield from (of(npz(**{**known, name: np.full(value.shape, odd)})) for odd in ODD)
                yield of(npz(**{other: array for other, array in known.items() if other != name}))
        yield of(npz(**known, more=INTERCEPT))
        yield from (of(content) for content in damaged_archives(npz(**known), length))
    yield of(npz(**LINEAR, **MLP))
    yield of(npz(**{**MLP, "coefs_0": MLP["coefs_1"], "coefs_1": MLP["coefs_0"]}))
    yield of(npz(**{f"coefs_{i}": np.eye(4) for i in range(9)}, **{f"intercepts_{i}": np.ones(4) for i in range(9)}))
    yield from (of(content, "bad.skops") for content in skops_files())


def skops_files() -> Iterator[bytes]:
    """Files of a fitted classifier of which one thing is wrong, and of what is no such classifier."""

    def changed(**fitted: Any) -> bytes:
        classifier = LogisticRegression().fit(known["train_x"], known["train_y"])
        for name, value in fitted.items():
            setattr(classifier, name, value)
        return skops.io.dumps(classifier)

    known = arrays()
    for name, value in (("coef_", COEF), ("intercept_", INTERCEPT)):
        yield from (changed(**{name: wrong}) for wrong in NO_LAYER if not wrong.dtype.hasobject)
        yield from (changed(**{name: np.full(value.shape, odd)}) for odd in ODD)
        yield from (changed(**{name: wrong}) for wrong in (None, "x", [[]], {}))
    yield changed(classes_=np.arange(2))
    for other in (
        LogisticRegression(), MLPClassifier(), LinearRegression().fit(known["train_x"], known["train_y"]), [1], "x",
        None, known["train_x"], make_pipeline(StandardScaler(), LogisticRegression()),
        SGDClassifier(loss="hinge").fit(known["train_x"], known["train_y"]),
    ):  # fmt: skip
        yield skops.io.dumps(other)
    whole = changed()
    yield from cut(whole, 40)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(members["schema.json"])
    for at in list(places(schema))[1:60]:
        if at in (("__class__",), ("__module__",)) or at[-1] in (
            "__loader__",
            "content",
        ):  # of settings no type is read
            for value in ("os.system", 7, None, []):
                yield zipped({**members, "schema.json": json.dumps(put(schema, at, value)).encode()})
    yield from (
        zipped({**members, "schema.json": text}) for text in (b"", b"{", b"[]", b"null", b"[" * 50_000, b"\xff")
    )
    yield from (zipped({name: b for name, b in members.items() if name != gone}) for gone in members)
    yield from (zipped({**members, name: b"x"}) for name in members)


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


# Plans of many models

GOOD = '[a]\nmodel = "w.safetensors"\ndata = "data.npz"\narch = "linear"\n'


def many_models() -> Iterator[Case]:
    def of(text: str | bytes, *more: str) -> Case:
        content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        given = ("--plan", "bad.toml", "--ids", "ids.txt", "--out", "out", "--local")
        return Case(("forget", *given, *more), "bad.toml", content)

    yield from (
        of(text) for text in ("", "# none", "[", "[a", "a", "= 1", "a = 1", "a = []", "[[a]]\nx = 1", GOOD + "]")
    )
    yield from (
        of(content) for content in (b"\xff", bytes(9), b"a = " + b"[" * 50_000, b"PK\x03\x04", b"\xef\xbb\xbf[")
    )
    yield of(GOOD + GOOD)  # two models of one name
    names = ("", ".", "..", "../a", "a/b", "/a", "a b", "store", "requests", "summary.html", "<b>", "x" * 101, "\u0430")
    yield from (of(GOOD.replace("[a]", f"[{json.dumps(name)}]")) for name in names)
    for key in ("out", "ids", "plan", "local", "dry_run", "modle", "", "MODEL", "data-", "help", "address"):
        yield of(f"{GOOD}{json.dumps(key)} = 1\n")
    for option in ("model", "data", "features", "weights", "logits"):
        good = "".join(line + "\n" for line in GOOD.splitlines() if not line.startswith(option))
        for value in ("nowhere.npz", "", ".", "a_file/x", "loop", "../nowhere", LONG, "no\nwhere"):
            yield of(f"{good}{option} = {json.dumps(value)}\n")
        yield from (
            of(f"{good}{option} = {value}\n") for value in ("[]", "{}", '["data.npz"]', "1979-05-27", "true", "7")
        )
    yield of(GOOD.replace('data = "data.npz"\n', ""))
    yield from (of(f"{GOOD}id_column = {value}\n") for value in ("1", "[]", "true", '"nothing"', '""', '"rec"'))
    yield of(GOOD + GOOD.replace("[a]", "[b]").replace("w.safetensors", "nowhere.safetensors"))
    for option in (
        "--model=w.safetensors",
        "--data=data.npz",
        "--logits=logits.npz",
        "--method=lda",
        "--force",
        "--lr=1",
    ):
        yield of(GOOD, option)
    yield from (of(GOOD, f"--out={place}") for place in ("a_file", "a_file/x", "loop/x", "/dev/null/x"))
    yield from (of(GOOD, f"--workers={count}") for count in ("0", "-1", "x", ""))
    good = ("forget", "--plan", "bad.toml", "--local", "--out", "out")
    yield from (Case((*good, "--ids", place), "bad.toml", GOOD.encode()) for place in (*PLACES, "data.npz"))
    yield Case((*good, "--ids", "a_file.md"), "bad.toml", GOOD.encode())  # "mine", which no model has
    yield Case(good, "bad.toml", GOOD.encode())
    yield from (Case((*good[:1], f"--plan={place}", "--ids", "ids.txt", "--out", "out")) for place in PLACES)


# Options

NUMBERS = [
    "nan",
    "-nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "",
    "x",
    "1e",
    "0x1",
    "1,5",
    "1 2",
    "--",
    "\ud800",
    "\u0663x",
    "9" * 5000,
]
COUNTS = [*NUMBERS[3:], "1.0", "1.5", "1e3", "-0", "+1", "1_0"]
LONG = "x" * 5000
PLACES = [
    "",
    LONG,
    "x" * 300,
    "/dev/null/x",
    "no\nwhere",
    "nowhere/at/all",
    "\udcff",
    ".",
    "/",
    "~nobody/x",
    "a_file/x",
    "loop/x",
]


def numbers() -> Iterator[Case]:
    for option in ("--epochs", "--patience", "--batch-size", "--verify-retrain", "--audit"):
        yield from (replace(good := forget(), arguments=(*good.arguments, option, value)) for value in COUNTS)
    for option in ("--lr", "--ridge", "--cap"):
        for value in NUMBERS:
            if (option, value) not in (
                ("--cap", "inf"),
                ("--cap", NUMBERS[-1]),
                ("--ridge", "0"),
            ):  # no limit, no ridge
                yield replace(good := forget(), arguments=(*good.arguments, f"{option}={value}"))
    for value in COUNTS:
        if value not in ("0", "-0"):
            yield replace(good := forget(), arguments=(*good.arguments, f"--seed={value}"))
    for value in ("nan", "-inf", "", "x", "1e"):
        yield replace(good := forget(), arguments=(*good.arguments, f"--max-drop={value}"))


def options() -> Iterator[Case]:
    yield from numbers()
    good = forget().arguments
    for option in ("--proxy", "--finalizer", "--arch", "--shrinkage", "--device"):
        yield from (
            Case((*good, f"{option}={value}")) for value in ("", "x", "LDA", "auto ", "\ud800", LONG, "cuda:99", "../x")
        )
    for option in ("data", "ids", "model", "features", "sign"):
        yield from (forget(**{option: place}) for place in PLACES)
    yield from (
        forget(out=place) for place in ("a_file", "a_file/x", "loop", "x" * 300, LONG, "certified", "/dev/null/x")
    )
    yield from (
        forget(ledger=place) for place in ("a_file", "a_file/x", "loop", "x" * 300, ".", "certified", "/dev/null")
    )
    yield from (forget(features_from=layer) for layer in ("", "x", "layers.0", "\ud800", LONG, "0"))
    yield from (forget(register=name) for name in ("", " ", "a/b", "a:b", "/"))
    addresses = (
        "",
        ":",
        "x:",
        ":x",
        "nowhere:build",
        "os:nothing",
        "os:getcwd",
        "sys:exit",
        "a b:c",
        "\ud800:x",
        ".x:y",
        LONG + ":x",
    )
    yield from (forget(model=address, arch=None, weights="w.safetensors") for address in addresses)
    yield from (
        Case((*good, *more))
        for more in (["--no-such-option"], ["stray"], ["--logits", "logits.npz"], ["--weights", "w.safetensors"])
    )
    for name in ("data", "ids", "model"):
        yield forget(**{name: None})
    yield from (Case(arguments) for arguments in ((), ("forge",), ("forget", "-x"), ("",), ("\ud800",)))
    yield from keys("forget")


def keys(command: str) -> Iterator[Case]:
    """PEM files that cannot sign, or that no signature can be of."""
    curve, good = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()
    private = [key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) for key in (curve, good)]
    public = [key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in (curve, good)]
    junk = [
        b"",
        b"x",
        b"-----BEGIN PRIVATE KEY-----",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        bytes(100),
    ]
    for content in (*junk, private[0], public[0], *cut(private[1], 10), *cut(public[1], 10), b"x" * (1 << 21)):
        if command == "forget":
            yield forget("bad.pem", content, sign="bad.pem")
        else:
            yield Case(("verify", "certified/certificate.json", "--public-key", "bad.pem"), "bad.pem", content)


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

VALUES = [None, True, -1, 10**30, 1.5, "", "x", "\ud800", "\x1b[2J", [], {}, [[]], {"a": None}]


def places(value: Any, at: tuple = ()) -> Iterator[tuple]:
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield from places(child, (*at, key))


def put(document: Any, at: Sequence[Any], value: Any) -> Any:
    """A copy of a JSON document with another value at a place."""
    if not at:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[at[0]] = put(copy[at[0]], at[1:], value)
    return copy


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


# Plans and grids


def grids() -> Iterator[Case]:
    values = {
        "--dataset": ["", ",", "x", "imagenet", "digits.csv", *PLACES[1:]],
        "--arch": ["", ",", "x", "MLP1", "mlp1;linear", "mlp3", "resnet18", "\ud800"],
        "--scenario": ["", ",", "x", "Class", "class;random", "sub"],
        "--key": ["", ",", "x", "-1", "1.5", "10", "9" * 5000, "1;2", "0x1", "\u00b2"],
        "--seeds": ["", ",", "x", "-1", "1.5", "9" * 5000, "1;2", "nan"],
        "--methods": ["", ",", "x", "LDA", "lda;qda", "all,x", "\ud800"],
        "--preset": ["", "x", "Paper"],
        "--finalizer": ["", "x", "KL"],
        "--schedule": ["", "x"],
        "--shrinkage": ["", "x"],
        "--dir-on-test": ["", "x"],
        "--ridge": [value for value in NUMBERS if value != "0"],
        "--cap": [value for value in NUMBERS[:-1] if value != "inf"],
        "--epochs": COUNTS,
        "--workers": COUNTS,
        "--resolution": COUNTS,
        "--image-size": COUNTS,
        "--mean": ["", "x", "1", "1,2", "1,2,3,4", "a,b,c", "1;2;3"],
        "--interpolation": ["", "x"],
        "--features": PLACES,
        "--no-such": ["x"],
    }
    for command, fixed in (("plan", ()), ("grid", ("--local", "--no-tracking"))):
        good = (
            command,
            "--arch",
            "linear",
            "--scenario",
            "class",
            "--key",
            "0",
            "--seeds",
            "0",
            "--methods",
            "lda",
            *fixed,
            "--out",
            "out",
        )
        for option, bad in values.items():
            start = good if option in ("--dataset", "--features") else (*good, "--dataset", "digits")
            start = tuple(part for pair in _pairs(start) if pair[0] != option for part in pair)
            yield from (Case((*start, f"{option}={value}")) for value in bad)
        for i, content in enumerate(archives()):
            if i % 10 == 0:
                yield Case((*good, "--features", "bad.npz"), "bad.npz", content)
    yield from (Case((*good, "--dataset", "digits", "--device", device)) for device in ("", "x", "cuda:99", "\ud800"))


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Options with their values."""
    group: list[str] = []
    for part in arguments:
        if part.startswith("--") and group:
            yield tuple(group)
            group = []
        group.append(part)
    yield tuple(group)


TABLES: dict[str, Callable[[Path], Iterator[Case]]] = {
    "requests": lambda _: requests(),
    "data sets": lambda _: data_sets(),
    "black boxes": lambda _: black_boxes(),
    "weights": lambda _: weights(),
    "classifiers": lambda _: classifiers(),
    "plans of many models": lambda _: many_models(),
    "options": lambda _: options(),
    "ledgers": ledgers,
    "certificates": certificates,
    "reports": reports,
    "grids": lambda _: grids(),
}


def call(arguments: Sequence[str]) -> tuple[object, str]:
    """A command in this process: its exit code, and what it says of errors."""
    errors = io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            cli.main(list(arguments))
    except SystemExit as ending:
        return ending.code, errors.getvalue()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """Good files, beside which each case puts its bad one."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "data.npz").write_bytes(npz(**arrays()))
    (folder / "logits.npz").write_bytes(npz(**logits()))
    (folder / "w.safetensors").write_bytes(save(STATE))
    (folder / "ids.txt").write_text("rec-0\nrec-3\nrec-6\n")
    (folder / "a_file").write_text("")
    (folder / "a_file.md").write_text("mine")
    (folder / "figures").mkdir()
    (folder / "loop").symlink_to("loop")
    write_entries(folder / "tree", Variant("digits", "mlp1", Scenario.CLASS, 0), "pixels", [results()])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(cli, "build_parser", cache(cli.build_parser))  # half of the time that all of this would take
        code, said = call(forget(logits="logits.npz", model=None, arch=None, proxy="lda", out="certified").arguments)
        assert code == 0, said
        assert call(["verify", "certified/certificate.json"])[0] == 0
        code, said = call(forget(ledger="ledger", proxy="lda", finalizer="mse", force="").arguments[:-1])
        assert code == 0, said
        shutil.rmtree(folder / "out")
        yield folder


def everything_in(folder: Path) -> set[tuple[str, int, int]]:
    found = set()
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            state = os.lstat(place := os.path.join(path, name))
            found.add((place, state.st_size, 0 if name in folders else state.st_mtime_ns))
    return found


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.filterwarnings("ignore")
def test_every_bad_input_is_refused_in_a_line_and_leaves_nothing(folder, table):
    wrong = []
    for case in TABLES[table](folder):
        with _bad_file(folder, case):
            before = everything_in(folder)
            code, said = call(case.arguments)
            if code not in ((1, 2) if case.arguments[:1] == ("verify",) else (2,)):
                wrong.append((case, code, said))
                break  # for what it wrote may be why the next ones are refused
            elif everything_in(folder) != before:
                wrong.append((case, "left", everything_in(folder) ^ before))
            elif code == 2 and not 1 <= len(said.splitlines()) <= (2 if "usage:" in said else 1):
                wrong.append((case, "lines", said))
    shown = "\n".join(f"{str(case)[:300]}: {code} {str(said)[:300]}" for case, code, said in wrong[:20])
    assert not wrong, f"{len(wrong)} of them:\n{shown}"


@contextlib.contextmanager
def _bad_file(folder: Path, case: Case) -> Iterator[None]:
    if case.file is None:
        yield
        return
    place = folder / case.file
    place.parent.mkdir(parents=True, exist_ok=True)
    before = place.read_bytes() if place.exists() else None
    place.write_bytes(case.content)
    try:
        yield
    finally:
        place.unlink() if before is None else place.write_bytes(before)


def test_there_are_as_many_as_is_said(folder):
    cases = {case for table in TABLES.values() for case in table(folder)}
    commands = {
        command: sum(case.arguments[:1] == (command,) for case in cases)
        for command in ("forget", "verify", "report", "plan", "grid")
    }
    assert len(cases) >= LEAST
    assert min(commands.values()) >= 100, commands
