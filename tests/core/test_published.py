"""Networks that other libraries name, and networks that answer more than logits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from unlearn_core import forget
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.model_files import load_model
from unlearn_core.nets.make import blueprint
from unlearn_core.nets.module import ModuleStack

IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8))


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_timm_classifier_is_built_for_the_classes_of_its_weights(tmp_path, prefix):
    """Oracle: timm's own network on images that are normalised by timm's own numbers."""
    torch.manual_seed(0)
    net = timm.create_model("test_resnet", pretrained=False, num_classes=7).eval()
    torch.save({prefix + name: tensor for name, tensor in net.state_dict().items()}, tmp_path / "w.pt")
    model = load_model(tmp_path / "w.pt", blueprint("timm:test_resnet"), IMAGES)
    assert model.net.n_classes == 7
    normalised_by: Any = net.pretrained_cfg
    mean, std = (torch.tensor(normalised_by[name])[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        expected = net((IMAGES.permute(0, 3, 1, 2) / 255 - mean) / std)
    torch.testing.assert_close(model.net.logits(0, IMAGES), expected)
    assert "images are normalised as for timm's test_resnet" in model.understood
    fresh = model.blueprint.fresh(model.net, IMAGES, seed=1)
    assert fresh.n_classes == 7
    (tmp_path / "out").mkdir()
    written = torch.load(model.write(tmp_path / "out", fresh), weights_only=True)
    assert list(written) == [prefix + name for name in net.state_dict()]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("timm:no_such_network", "unknown backbone 'timm/no_such_network'"),
        ("timm:hf-hub:timm/resnet18.a1_in1k", "unknown backbone"),
        ("hf:nowhere", "nowhere holds no config.json"),
    ],
)
def test_names_that_mean_nothing_are_refused(address, message):
    with pytest.raises(BadInput, match=message):
        blueprint(address)


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "w.pt")
    with pytest.raises(BadInput, match=r"no fc\.weight, which is the classifier of timm's test_resnet"):
        load_model(tmp_path / "w.pt", blueprint("timm:test_resnet"), IMAGES)


def test_without_transformers_there_is_one_clear_line(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadInput, match="needs the package transformers, which is not installed") as refusal:
        blueprint(f"hf:{tmp_path}")
    assert len(str(refusal.value).splitlines()) == 1


class Vit(nn.Module):
    """As transformers builds a classifier from its configuration."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.classifier: nn.Linear = nn.Linear(3, config["classes"])

    def forward(self, pixel_values: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.classifier(pixel_values.mean((2, 3))))


def test_a_classifier_of_transformers_is_built_from_its_folder(tmp_path, monkeypatch):
    """The package is not a dependency, so that a stand-in with its calls takes its place: from the disk, no remote code."""

    def read_config(folder: Path, local_files_only: bool, trust_remote_code: bool) -> dict[str, Any]:
        assert (local_files_only, trust_remote_code) == (True, False)
        return json.loads((folder / "config.json").read_text())

    def build(config: dict[str, Any], trust_remote_code: bool) -> Vit:
        assert not trust_remote_code
        return Vit(config)

    stand_in = SimpleNamespace(
        AutoConfig=SimpleNamespace(from_pretrained=read_config),
        AutoModelForImageClassification=SimpleNamespace(from_config=build),
    )
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    torch.manual_seed(0)
    net = Vit({"classes": 5})
    (tmp_path / "config.json").write_text(json.dumps({"classes": 5}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.2] * 3}))
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    model = load_model(tmp_path / "model.safetensors", blueprint(f"hf:{tmp_path}"), IMAGES)
    with torch.no_grad():
        expected = net((IMAGES.permute(0, 3, 1, 2) / 255 - 0.5) / 0.2).logits
    torch.testing.assert_close(model.net.logits(0, IMAGES), expected)
    assert "images are normalised as preprocessor_config.json says" in model.understood


class Answers(nn.Module):
    """As the networks of transformers answer, or plainly."""

    def __init__(self, more: bool) -> None:
        super().__init__()
        self.head: nn.Linear = nn.Linear(4, 3)
        self.more: bool = more

    def forward(self, x: torch.Tensor) -> torch.Tensor | SimpleNamespace:
        logits = self.head(x)
        return SimpleNamespace(logits=logits, loss=None) if self.more else logits


@pytest.mark.parametrize("method", ["lda", "newton"])
def test_an_answer_with_logits_is_taken_for_them(method):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (rng.normal(size=(60, 4)) + 2 * np.eye(4)[y]).astype(np.float32)
    states = []
    for more in (False, True):
        torch.manual_seed(0)
        net = Answers(more)
        result = forget(net, x, y, [0, 3, 5], method)
        states.append(result.model.state_dict())
        assert isinstance(result.model, Answers), "the user's own kind of network comes back"
        assert torch.equal(
            ModuleStack(net, torch.from_numpy(x)).penultimate(0, torch.from_numpy(x)), torch.from_numpy(x)
        )
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_file_in_the_current_folder_does_not_replace_an_installed_package(tmp_path, monkeypatch):
    """Before, the folder came first on the path."""
    for place, width in (("installed", 2), ("here", 3)):
        (tmp_path / place).mkdir()
        code = f"from torch import nn\n\n\ndef build():\n    return nn.Linear(4, {width})\n"
        (tmp_path / place / "twin_of_a_package.py").write_text(code)
    (tmp_path / "here" / "only_here.py").write_text(code)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "installed")])
    monkeypatch.chdir(tmp_path / "here")
    for module, width in (("twin_of_a_package", 2), ("only_here", 3)):
        known = blueprint(f"{module}:build").restore(nn.Linear(4, width).state_dict(), torch.zeros(2, 4))
        assert known.n_classes == width
