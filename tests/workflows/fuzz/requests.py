"""Requests of which the records, the data, the answers of a black box or the options are bad."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.workflows.fuzz.cases import (
    COUNTS,
    IDS,
    LONG,
    NUMBERS,
    PLACES,
    WRONG,
    Case,
    N,
    archives,
    arrays,
    damaged_archives,
    forget,
    keys,
    logits,
    npz,
)

# Records

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


# Data


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


# Options


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
