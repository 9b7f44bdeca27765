"""From images to rows of the grid: ResNet-18 and a backbone's features, as a stranger would run them."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from tests.commands import unlearn
from tests.processes import run, running, wait_until
from unlearn_core import methods
from unlearn_core.data import load_feature_set
from unlearn_core.data.images import ImageSet, save_image_file
from unlearn_core.grid import SEEDS

RESOLUTION = 42  # three patches of 14: a ViT-S/14 that a test can afford
ROOT = Path(__file__).resolve().parent.parent.parent


def make_images(side: int, n_train: int, n_test: int) -> ImageSet:
    """Four fine classes told apart by colour, in two superclasses."""
    rng = np.random.default_rng(0)
    colours = np.array([[200, 40, 40], [200, 120, 40], [40, 200, 40], [40, 40, 200]])

    def part(count):
        y = np.arange(count) % 4
        noise = rng.normal(scale=40, size=(count, side, side, 3))
        return (colours[y][:, None, None] + noise).clip(0, 255).astype(np.uint8), y.astype(np.int64)

    return ImageSet("colours", *part(n_train), *part(n_test), ("a", "b", "c", "d"), np.array([0, 0, 1, 1]))


@pytest.fixture(scope="module")
def image_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("images") / "colours.npz"
    save_image_file(path, make_images(20, 40, 12))
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A randomly initialised ViT-S/14, the architecture of DINOv2-Small."""
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch14_dinov2.lvd142m", pretrained=False, num_classes=0)
    path = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    save_file(model.state_dict(), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "chosen"), [("resnet8", methods.paper_methods()), ("resnet18", ("lda-2c", "dir", "salun"))]
)
def test_resnets_end_to_end(tmp_path, arch, chosen):
    """Base, retrain, floor and methods from random initialisation: the same records as the heads have.

    All 13 on the small network: the large one is the same class around another network, and has one method of each kind,
    proxies that see its sketch and one that masks its weights.
    """
    few = tmp_path / "colours.npz"
    save_image_file(few, make_images(20, 16, 8))
    command = (
        "run", "--dataset", few, "--arch", arch, "--scenario", "subclass", "--key", 0, "--seeds", 0,
        "--resnet-weights", "random", "--resnet-size", 32, "--sketch-dim", 8, "--epochs", 3, "--local", "--no-tracking",
        "--methods", ",".join(chosen), "--out", tmp_path / "out",
    )  # fmt: skip
    result = unlearn(*command)
    assert result.returncode == 0, result.stderr
    [file] = (tmp_path / "out" / "results" / "colours").glob(f"*/subclass_{arch}_raw.json")
    entry = json.loads(file.read_text())[arch]["results"]["0"][0]
    assert {*chosen, "base", "retrain", "floor"} <= set(entry)
    assert entry["n_forget"] == 4
    settings = entry["provenance"]["settings"]
    assert (settings["training_epochs"], settings["initial"], settings["sketch_dim"]) == (3, "random", 8)
    assert all(len(entry[method]["epochs"]) in (1, 20) for method in chosen)
    assert all(np.isfinite(entry[method]["best"]["kl_f"]) for method in chosen)
    again = unlearn(*command)
    assert "0 steps run" in again.stdout
    plan = (tmp_path / "out" / "plan.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in plan]
    assert [kinds.count(kind) for kind in ("images", "resized", "projection", "sketch", "base", "retrain")] == [1] * 6


def direct_features(images: np.ndarray, weights: Path) -> np.ndarray:
    """One image at a time through timm's own model."""
    from safetensors.torch import load_file
    from torch.nn import functional

    model = timm.create_model(
        "vit_small_patch14_dinov2.lvd142m", pretrained=False, num_classes=0, dynamic_img_size=True
    ).eval()
    model.load_state_dict(load_file(weights))
    config = timm.get_pretrained_cfg("vit_small_patch14_dinov2.lvd142m")
    assert config is not None
    mean, std = (torch.tensor(values)[:, None, None] for values in (config.mean, config.std))
    rows = []
    with torch.no_grad():
        for image in images:
            pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
            resized = functional.interpolate(pixels, (RESOLUTION,) * 2, mode="bicubic", antialias=True)
            rows.append(model((resized.clamp(0, 1) - mean) / std)[0])
    return torch.stack(rows).numpy()


def features_command(image_file: Path, weights: Path, out: Path, *more) -> tuple:
    return (
        "features", "--dataset", image_file, "--weights", weights, "--resolution", RESOLUTION,
        "--out", out, "--file", out / "features.npz", *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected(image_file, weights) -> np.ndarray:
    with np.load(image_file) as archive:
        return direct_features(archive["train_images"], weights)


@pytest.mark.slow
@pytest.mark.parametrize("shard", [7, 64])
def test_features_are_a_direct_forward_pass_whatever_the_shard_size(tmp_path, image_file, weights, expected, shard):
    result = unlearn(*features_command(image_file, weights, tmp_path, "--shard-images", shard, "--local"))
    assert result.returncode == 0, result.stderr
    features = load_feature_set(tmp_path / "features.npz")
    np.testing.assert_allclose(features.train_x, expected, atol=1e-5)
    np.testing.assert_array_equal(features.train_y, np.arange(40) % 4)
    np.testing.assert_array_equal(features.superclass, [0, 0, 1, 1])
    assert features.train_x.dtype == np.float32


@pytest.mark.slow
def test_features_on_ray_interrupted_go_on_shard_by_shard(
    tmp_path, image_file, weights, expected, cluster, ray_environment
):
    command = features_command(image_file, weights, tmp_path, "--shard-images", 2, "--address", cluster, "--half")
    shards = tmp_path / "store" / "steps" / "shard"
    driver = [sys.executable, "-m", "workflows", *command, "--workers"]
    with running([*driver, 1], ROOT, ray_environment) as process:
        wait_until(lambda: len(list(shards.glob("*/DONE.json"))) >= 3, "three shards", process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = {file.parent.name: file.read_bytes() for file in shards.glob("*/DONE.json")}
    assert len(before) < 26, "it was interrupted"
    result = run([*driver, 2], ROOT, ray_environment, seconds=1500)
    assert result.returncode == 0, result.stderr
    after = {file.parent.name: file.read_bytes() for file in shards.glob("*/DONE.json")}
    assert len(after) == 20 + 6
    assert all(after[step] == stamp for step, stamp in before.items()), "no shard was computed twice"
    features = load_feature_set(tmp_path / "features.npz")
    assert features.train_x.dtype == np.float16
    # half precision has 11 bits
    np.testing.assert_allclose(features.train_x.astype(np.float32), expected, atol=1e-5, rtol=2**-11)


def test_the_papers_grid_is_planned_without_its_data(tmp_path, unlearn_here):
    code, out, _ = unlearn_here("plan", "--data-root", tmp_path / "none", "--out", tmp_path / "grid")
    assert code == 0
    n_variants = 2 * 4 * (5 + 5 + 4)
    cells, runs = n_variants * len(SEEDS), n_variants * len(SEEDS) * len(methods.paper_methods())
    assert f"{n_variants} variants, {cells} cells, {runs} method runs" in out
    assert (n_variants, cells, runs) == (112, 560, 7280)
    assert "not there yet" in out
    assert "GPU-hours left, by a model" in out
    counts = {}
    for line in (tmp_path / "grid" / "plan.jsonl").read_text().splitlines():
        step = json.loads(line)
        counts[step["kind"]] = counts.get(step["kind"], 0) + 1
    assert counts["base"] == 2 * 4 * 2 * 5  # data set, architecture, label space, seed
    assert counts["retrain"] == counts["floor"] == counts["audit"] == 560
    assert counts["images"] == counts["resized"] == counts["features"] == 2
    assert counts["projection"] == 1, "Omega is one for all"
    assert counts["sketch"] == 2 * 2 * 5, "one per ResNet base"


def test_missing_data_and_weights_are_one_line(tmp_path, unlearn_here, image_file):
    code, _, error = unlearn_here("grid", "--data-root", tmp_path, "--out", tmp_path / "grid")
    assert code == 2
    assert error.count("\n") == 1
    assert "--download" in error
    code, _, error = unlearn_here(
        "grid", "--dataset", image_file, "--arch", "mlp1", "--data-root", tmp_path, "--out", tmp_path / "grid"
    )
    assert code == 2
    assert error.count("\n") == 1
    assert "--weights" in error
    assert "dinov2" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dataset", "digits", "--arch", "resnet18"), "resnet18 cannot be trained on digits"),
        (("--features", "x.npz", "--dataset", "digits"), "leave --dataset out"),
        (("--features", "nowhere_such.npz"), "no feature set at nowhere_such.npz"),
        (("--dataset", "mnist"), "unknown data set 'mnist'"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, unlearn_here, options, message):
    code, _, error = unlearn_here("grid", *options, "--out", tmp_path)
    assert code == 2
    assert error.count("\n") == 1
    assert message in error
