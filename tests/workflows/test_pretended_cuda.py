"""Every kind of step on a pretended GPU: nothing mixes devices, and where kernels are the CPU's, so are the bits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from tasks.store import DONE
from tests.commands import unlearn
from tests.pretended_cuda import DeviceMix, pretended_cuda
from tests.processes import Ended
from tests.stored import content
from unlearn_core.data import load_dataset, load_feature_set, save_feature_set
from unlearn_core.data.images import ImageSet, save_image_file
from unlearn_core.data.weights import save_safetensors
from unlearn_core.grid import LabelSpace
from unlearn_core.nets.resnet import ResNetStack
from unlearn_core.problem import Inputs, make_cell, make_problem
from unlearn_core.recipes import RESNET_TRAINING, Visit, training_recipe
from unlearn_core.references import train_reference
from unlearn_core.training import Member, train

BACKBONES = ("test_vit", "test_resnet")  # timm's own for tests: the smallest that it has


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> Path:
    """Some digits."""
    digits, path = load_dataset("digits"), tmp_path_factory.mktemp("few") / "few.npz"
    parts = {"train_x": 300, "train_y": 300, "test_x": 100, "test_y": 100}
    save_feature_set(path, replace(digits, **{name: getattr(digits, name)[:n] for name, n in parts.items()}))
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Four classes told apart by colour."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("images") / "colours.npz"
    colours = np.array([[200, 40, 40], [200, 120, 40], [40, 200, 40], [40, 40, 200]])

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % 4
        noise = rng.normal(scale=40, size=(count, 20, 20, 3))
        return (colours[y][:, None, None] + noise).clip(0, 255).astype(np.uint8), y.astype(np.int64)

    save_image_file(path, ImageSet("colours", *part(16), *part(8), ("a", "b", "c", "d"), np.array([0, 0, 1, 1])))
    return path


def on_both(folder: Path, *command: object) -> tuple[Ended, Ended]:
    """A command that ends well on the CPU and on the pretended GPU, each with an output folder of its own."""
    here = unlearn(*command, "--device", "cpu", "--out", folder / "cpu")
    assert here.returncode == 0, here
    with pretended_cuda():
        there = unlearn(*command, "--device", "cuda", "--out", folder / "cuda")
    assert there.returncode == 0, there
    return here, there


def test_the_pretended_device_refuses_what_a_real_one_refuses():
    with pretended_cuda() as pretence:
        there, here = torch.ones(2, device="cuda"), torch.ones(2)
        assert (there.device, there.is_cuda) == (torch.device("cuda:0"), True)
        for mixed in (lambda: there + here, lambda: here + there, lambda: torch.stack([here, there])):
            with pytest.raises(DeviceMix, match="meets CPU tensors"):
                mixed()
        with pytest.raises((TypeError, RuntimeError)):
            there.numpy()
        assert pretence.n_waits == 0
        assert float((there + torch.tensor(1.0)).sum()) == 4.0, "a number goes along with the launch"
        assert there[torch.tensor([True, False])].cpu().tolist() == [1.0]
        assert set(pretence.waits) == {
            "aten._local_scalar_dense.default",
            "aten.index.Tensor by rows on the CPU",
            "aten.index.Tensor by a mask",
            "aten._to_copy.default between devices",
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "scenario", "key", "methods"),
    [
        ("linear", "random", 50, "all"),
        ("linear", "class", 2, "flow,truncate,newton"),
        ("mlp2", "subclass", 1, "lda-2c,crossfit,newton-crossfit,ssd,salun,short-warm"),
    ],
)
def test_grids_of_heads_have_the_cpus_bits(tmp_path, few, arch, scenario, key, methods):
    chosen = ("--features", few, "--arch", arch, "--scenario", scenario, "--key", key, "--seeds", "0")
    on_both(tmp_path, "grid", *chosen, "--methods", methods, "--epochs", 3, "--local", "--no-tracking")
    here, there = content(tmp_path / "cpu"), content(tmp_path / "cuda")
    assert len(here) > 10
    assert here == there


@pytest.mark.slow
def test_a_resnet_runs_through_every_kind_of_step_and_is_saved(tmp_path, images):
    """Base, retrain and floor are written in spite of their memory format, and read again by sketch, methods and audit.

    The small one: on a device ResNet-18, whose own bits are below, is the same class around more layers.
    """
    out, methods = tmp_path / "out", "lda-2c,ssd"
    with pretended_cuda():
        ended = unlearn(
            "grid", "--dataset", images, "--arch", "resnet8", "--scenario", "random", "--key", 4, "--seeds", 0,
            "--methods", methods, "--epochs", 1, "--resnet-weights", "random", "--resnet-size", 32, "--sketch-dim", 8,
            "--local", "--device", "cuda", "--no-tracking", "--out", out,
        )  # fmt: skip
    assert ended.returncode == 0, ended
    kinds = {path.parent.parent.name for path in out.rglob(DONE)}
    networks = {"base", "retrain", "floor", "sketch", "prepared", "unlearn", "audit"}
    assert kinds == {"images", "resized", "projection"} | networks


def trained_resnet(device: str, channels_last: bool) -> ResNetStack:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)).to(device)
    stack = ResNetStack.initialise(3, torch.Generator().manual_seed(1), device)
    if channels_last:
        stack.as_module()[0].to(memory_format=torch.channels_last)
    how = replace(RESNET_TRAINING, batch_size=6)
    train(stack, images, [Member(0, "base", torch.arange(12) % 3)], training_recipe(Visit.ALL, 1), how)
    return stack


def test_a_resnet_differs_from_the_cpus_by_its_memory_format_alone():
    """Channels-last, a convolution sums in another order; the CPU's own network in that format has the same bits."""
    with pretended_cuda():
        there = trained_resnet("cuda", channels_last=False).state(0)
    same, plain = (
        trained_resnet("cpu", channels_last=True).state(0),
        trained_resnet("cpu", channels_last=False).state(0),
    )
    assert all(torch.equal(there[name], same[name]) for name in there)
    different = [name for name in there if not torch.equal(there[name], plain[name])]
    assert different
    # Adam's steps are as long as the learning rate, whatever the gradient: rounding can turn a small one's sign
    steps = 2 * 2 * RESNET_TRAINING.lr
    weights = [name for name in different if "running" not in name]
    assert all((there[name] - plain[name]).abs().max() <= steps for name in weights)


@pytest.mark.parametrize("model", BACKBONES)
def test_features_of_a_backbone_are_the_cpus(tmp_path, images, model):
    """Up to float32's rounding: channels-last, and with attention as CUDA composes it, sums have another order."""
    torch.manual_seed(0)
    net = timm.create_model(f"{model}.r160_in1k", pretrained=False)
    save_safetensors(tmp_path / "weights.safetensors", net.state_dict())
    files = {name: tmp_path / f"{name}.npz" for name in ("cpu", "cuda")}
    for device, file in files.items():
        network = ("--backbone", f"timm/{model}.r160_in1k", "--weights", tmp_path / "weights.safetensors")
        chosen = ("--dataset", images, *network)
        where = ("--local", "--device", device, "--out", tmp_path / device, "--file", file)
        if device == "cuda":
            with pretended_cuda():
                ended = unlearn("features", *chosen, *where)
        else:
            ended = unlearn("features", *chosen, *where)
        assert ended.returncode == 0, ended
    here, there = (load_feature_set(file).train_x for file in files.values())
    np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5 * float(np.abs(here).max()))


@pytest.fixture
def model(tmp_path, few) -> tuple[object, ...]:
    """A head trained on the digits, as a user has it, and a request."""
    data = load_feature_set(few)
    problem = make_problem(Inputs(data), LabelSpace.FINE)
    net = train_reference("base", problem, "linear", [make_cell(data, data.train_y < 0, 0)], 20).net
    save_safetensors(tmp_path / "weights.safetensors", net.state(0))
    (tmp_path / "request.txt").write_text("\n".join(map(str, np.random.default_rng(0).permutation(300)[:20])))
    return ("--model", tmp_path / "weights.safetensors", "--arch", "linear", "--data", few)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["crossfit", "newton"])
def test_a_request_on_a_prepared_state_has_the_cpus_bits(tmp_path, model, method):
    request = ("--ids", tmp_path / "request.txt", "--method", method, "--force")
    for device in ("cpu", "cuda"):
        prepare = ("prepare", *model, "--device", device, "--out", tmp_path / f"state-{device}")
        forget = (
            "forget", *model, *request, "--prepared", tmp_path / f"state-{device}", "--device", device,
            "--out", tmp_path / device,
        )  # fmt: skip
        for command in (prepare, forget):
            if device == "cuda":
                with pretended_cuda():
                    ended = unlearn(*command)
            else:
                ended = unlearn(*command)
            assert ended.returncode in (0, 1), ended
    here, there = (tmp_path / device / "weights.safetensors" for device in ("cpu", "cuda"))
    assert here.read_bytes() == there.read_bytes()
    said = [
        json.loads((tmp_path / device / "certificate.json").read_text())["certificate"] for device in ("cpu", "cuda")
    ]
    first, second = ((one["outcome"], one["reason"]) for one in said)
    assert first == second


@pytest.mark.slow
def test_another_precision_is_another_step(tmp_path, few):
    chosen = ("--features", few, "--arch", "linear", "--scenario", "random", "--key", 50, "--seeds", "0")
    grid = (
        "grid",
        *chosen,
        "--methods",
        "newton",
        "--epochs",
        1,
        "--local",
        "--no-tracking",
        "--out",
        tmp_path / "out",
    )
    refused = unlearn(*grid, "--precision", "tf32")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--precision tf32 is for GPUs: cpu computes in float32" in refused.stderr
    assert not (tmp_path / "out").exists()
    with pretended_cuda():
        first, second = (
            unlearn(*grid, "--device", "cuda", "--precision", precision) for precision in ("float32", "tf32")
        )
    assert (first.returncode, second.returncode) == (0, 0), (first, second)
    identities = [json.loads(path.read_text())["identity"] for path in (tmp_path / "out").rglob(DONE)]
    bases = [one["config"].get("precision") for one in identities if one["kind"] == "base"]
    assert sorted(map(str, bases)) == ["None", "tf32"]
