"""Requests of which the model is bad: weights, classifiers of scikit-learn, plans of many models."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import skops.io
import torch
from safetensors.torch import save
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.workflows.fuzz.cases import (
    LONG,
    PLACES,
    STATE,
    Case,
    arrays,
    cut,
    damaged_archives,
    forget,
    npz,
    places,
    put,
)

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
