"""Whatever cannot be a request is refused in one line, and nothing is written."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from unlearn_core.data import (
    load_feature_set,
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
    save_file({"c.weight": torch.zeros(2, 3, 3, 3), "c.bias": torch.zeros(2)}, folder / "conv.safetensors")
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
            "it has no bias of 2 beside it",
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
        "no arch": (["--model", folder / "conv.safetensors", *features, *request], "say with --arch"),
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
        "black box audited": (
            ["--logits", digits / "fine_logits.npz", *features, *request, "--audit", 16],
            "--audit needs the network",
        ),
        "few shadows": ([*model, *features, *request, "--audit", 7], "ask for 8, 12"),
        "no network to audit": (
            [*model, *features, *request, "--audit", 16, "--finalizer", "none"],
            "use kl or mse",
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


def test_bad_input_is_one_line_and_exit_code_2_and_nothing_is_written(unlearn_here, digits, tmp_path):
    cases = bad_cases(tmp_path, digits)
    before = everything_in(tmp_path, digits)
    for name, (arguments, message) in cases.items():
        out = [] if "--out" in arguments else ["--out", tmp_path / "out"]
        answer = unlearn_here("forget", *arguments, *out)
        assert answer.code == 2, name
        assert message in answer.err, f"{name}: {answer.err}"
        assert len(answer.err.splitlines()) == 1, name
        assert everything_in(tmp_path, digits) == before, name
