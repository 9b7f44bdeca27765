"""What tables of bad inputs are made of: a case, good files of which one thing is made wrong, and values that are wrong.

A case is a command and at most one file, on a model of 15 weights.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

N = 40
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


# Values

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


# Archives of arrays

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


# Keys


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
