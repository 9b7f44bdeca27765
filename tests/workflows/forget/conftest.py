"""What an engineer with a deletion request has: a model, its data, a list of records."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from unlearn_core.data import (
    FeatureSet,
    ImageSet,
    load_dataset,
    save_feature_set,
    save_image_file,
)
from unlearn_core.grid import LabelSpace
from unlearn_core.problem import Inputs, make_cell, make_problem
from unlearn_core.references import train_reference

NETWORK = """
import torch
from torch import nn
from torch.nn import functional


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.2)
        self.embed = nn.Linear(6 * 16, 24)
        self.out = nn.Linear(24, 10)

    def forward(self, x):
        hidden = functional.max_pool2d(torch.relu(self.norm(self.conv(x.view(-1, 1, 8, 8)))), 2)
        return self.out(torch.relu(self.embed(self.drop(hidden.flatten(1)))))


class OnImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.out = nn.Linear(8 * 16, 10)

    def forward(self, x):
        assert x.shape[1:] == (3, 8, 8) and 0 <= x.min() and x.max() <= 1  # what images are said to arrive as
        return self.out(functional.max_pool2d(torch.relu(self.conv(x)), 2).flatten(1))


class OnNormedImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Linear(8 * 16, 10)

    def forward(self, x):
        return self.out(functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1))


def build():
    return Conv()


def on_images():
    return OnImages()


def on_normed_images():
    return OnNormedImages()


def broken():
    raise RuntimeError("no disk")
"""


def _write_request(path: Path, ids) -> None:
    path.write_text("id\n" + "\n".join(map(str, ids)) + "\n")


def _prepare(folder: Path, data: FeatureSet, epochs: int) -> Path:
    """A user's folder: features with ids, an mlp1 on fine labels and one on superclasses, requests, logits."""
    data = replace(data, ids=np.array([f"rec-{i}" for i in range(len(data.train_y))]))
    ids = data.ids
    assert ids is not None
    save_feature_set(folder / "features.npz", data)
    cell = make_cell(data, data.train_y == 0, 42)
    for space, name in ((LabelSpace.FINE, "fine"), (LabelSpace.SUPERCLASS, "super")):
        problem = make_problem(Inputs(data), space)
        net = train_reference("base", problem, "mlp1", [cell], epochs).net
        save_file(net.state(0), folder / f"{name}.safetensors", metadata={"format": "pt"})
        train_logits, test_logits = (net.logits(0, x).numpy() for x in (problem.train.inputs, problem.test.inputs))
        np.savez(folder / f"{name}_logits.npz", train_logits=train_logits, test_logits=test_logits)
    order = np.random.default_rng(42).permutation(len(ids))
    _write_request(folder / "subclass.csv", ids[data.train_y == 0])
    (folder / "fifty.jsonl").write_text("\n".join(json.dumps({"id": i}) for i in ids[order[:50]].tolist()))
    (folder / "one.txt").write_text(f"{ids[order[0]]}\n")
    return folder


@pytest.fixture
def write_request():
    return _write_request


@pytest.fixture
def prepare():
    return _prepare


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    return _prepare(tmp_path_factory.mktemp("digits"), load_dataset("digits"), epochs=25)


@pytest.fixture(scope="session")
def conv(tmp_path_factory) -> Path:
    """A user's own convolutional network, trained by their own loop, saved by torch."""
    folder = tmp_path_factory.mktemp("conv")
    (folder / "their_nets.py").write_text(NETWORK)
    data = load_dataset("digits")
    save_feature_set(folder / "features.npz", data)
    sys.path.insert(0, str(folder))
    try:
        import their_nets  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(folder))
    pictures = {part: as_images(x) for part, x in (("train", data.train_x), ("test", data.test_x))}
    save_image_file(
        folder / "images.npz",
        ImageSet("digits", pictures["train"], data.train_y, pictures["test"], data.test_y, data.class_names),
    )
    torch.manual_seed(0)
    as_seen = torch.from_numpy(pictures["train"]).permute(0, 3, 1, 2) / 255
    fit(their_nets.build(), torch.from_numpy(data.train_x), data.train_y, folder / "weights.pt")
    fit(their_nets.on_images(), as_seen, data.train_y, folder / "on_images.pt")
    fit(their_nets.on_normed_images(), as_seen, data.train_y, folder / "on_normed_images.pt")
    (folder / "rows.txt").write_text("\n".join(map(str, np.flatnonzero(data.train_y == 7)[:100])))
    return folder


def as_images(x: np.ndarray) -> np.ndarray:
    """(N, 8, 8, 3) grey pictures of digits."""
    return np.repeat((255 * x).astype(np.uint8).reshape(-1, 8, 8, 1), 3, axis=3)


def fit(net: torch.nn.Module, x: torch.Tensor, labels: np.ndarray, path: Path) -> None:
    """A training loop that shares nothing with ours."""
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        functional.cross_entropy(net(x), torch.from_numpy(labels)).backward()
        optimizer.step()
    torch.save(net.state_dict(), path)
