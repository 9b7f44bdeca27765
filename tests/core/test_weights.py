"""Weights files: read from every format that holds tensors alone, found or fetched to one place, refused in one line."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torchvision.models import get_model, get_model_weights

from unlearn_core.data.weights import find_model, find_weights, load_weights, save_safetensors, weights_fingerprint
from unlearn_core.errors import BadInput

SMALL_TIMM = "test_resnet.r160_in1k"
SMALL_TORCHVISION = "shufflenet_v2_x0_5"
DINOV2 = "vit_small_patch14_dinov2.lvd142m"


def tensors() -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.bias": torch.tensor([1.0, -1.0])}


def refusal(function, *arguments) -> str:
    """The line that a refused input is answered with."""
    with pytest.raises(BadInput) as caught:
        function(*arguments)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def write_safetensors(path: Path) -> None:
    save_file(tensors(), path)


def write_old_format(path: Path) -> None:
    torch.save(tensors(), path, _use_new_zipfile_serialization=False)


def torch_saved(content):
    return lambda path: torch.save(content, path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.safetensors", write_safetensors),
        ("a.bin", write_safetensors),
        ("a.pth", torch_saved(tensors())),
        ("a.pth", write_old_format),
        ("a.pt", torch_saved({"state_dict": tensors(), "epoch": 3})),
        ("a.pth", torch_saved({"model": tensors()})),
        ("a.pth", torch_saved({f"module.{key}": value for key, value in tensors().items()})),
        ("a.pth", torch_saved({"state_dict": {f"module.{key}": value for key, value in tensors().items()}})),
    ],
)
def test_every_format_gives_the_same_tensors(tmp_path, name, write):
    write(tmp_path / name)
    loaded = load_weights(tmp_path / name)
    assert loaded.keys() == tensors().keys()
    for key, value in tensors().items():
        assert torch.equal(loaded[key], value)


def test_the_bytes_of_a_file_do_not_depend_on_the_memory_format(tmp_path):
    """On a GPU a ResNet is channels-last, which safetensors refuses."""
    rows = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    save_safetensors(tmp_path / "plain", {"conv1.weight": rows})
    save_safetensors(tmp_path / "last", {"conv1.weight": rows.to(memory_format=torch.channels_last)})
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "last").read_bytes()


def test_a_safetensors_file_that_begins_like_an_archive_is_read(tmp_path):
    # its first bytes are the length of the header: 0x4b50 is "PK", as zip files begin
    path = tmp_path / "a.bin"
    save_file(tensors(), path, metadata={"note": "x" * 19000})
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    padded = raw[8 : 8 + length].ljust(0x4B50)
    path.write_bytes(b"PK\0\0\0\0\0\0" + padded + raw[8 + length :])
    assert torch.equal(load_weights(path)["layer.bias"], tensors()["layer.bias"])


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("writer", ["torch", "torch before 1.6", "pickle"])
def test_a_malicious_pickle_is_refused_and_not_executed(tmp_path, writer):
    executed, path = tmp_path / "executed", tmp_path / "weights.pth"
    content = {"layer.weight": Malicious(executed)}
    if writer == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=writer == "torch")
    assert "weights.pth holds pickled objects, which are not loaded; save it again with" in refusal(load_weights, path)
    assert not executed.exists()


def cut(write):
    def write_half(path: Path) -> None:
        write(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return write_half


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "no weights at"),
        (
            lambda path: path.write_text("hello, world"),
            "is neither safetensors nor a PyTorch state dict; save it again",
        ),
        (lambda path: path.write_bytes(b""), "is neither safetensors nor a PyTorch state dict; save it again"),
        (torch_saved({}), "holds no named tensors but a dict; save it again"),
        (torch_saved(torch.ones(3)), "holds no named tensors but a Tensor; save it again"),
        (torch_saved({**tensors(), "epoch": 3}), "entry 'epoch' has type int, not Tensor; save it again"),
        (cut(torch_saved(tensors())), "is a damaged state dict"),
        (cut(write_old_format), "; "),
    ],
)
def test_a_file_without_usable_weights_is_refused_by_name(tmp_path, write, message):
    path = tmp_path / "some.pth"
    write(path)
    line = refusal(load_weights, path)
    assert "some.pth" in line
    assert message in line


def test_a_damaged_safetensors_file_is_refused_by_name(tmp_path):
    path = tmp_path / "some.safetensors"
    cut(write_safetensors)(path)
    assert "some.safetensors is not a whole safetensors file" in refusal(load_weights, path)


def test_flipped_bytes_give_tensors_or_a_refusal(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "some.pth"
    for write in (write_old_format, torch_saved(tensors()), write_safetensors):
        write(path)
        good = path.read_bytes()
        for _ in range(60):
            damaged = np.frombuffer(good, dtype=np.uint8).copy()
            damaged[rng.integers(0, len(good), size=4)] = rng.integers(0, 256, size=4)
            path.write_bytes(damaged.tobytes())
            with contextlib.suppress(BadInput):
                assert load_weights(path)


def test_fingerprint_is_the_published_sha256(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    # the test vector of FIPS 180-2
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert weights_fingerprint(tmp_path / "abc") == expected


@pytest.mark.parametrize(
    ("name", "library", "model"),
    [
        ("dinov2-small", "timm", DINOV2),
        (DINOV2, "timm", DINOV2),
        ("timm/vit_small_patch14_dinov2", "timm", DINOV2),
        ("resnet18", "timm", "resnet18.a1_in1k"),
        ("torchvision/resnet18", "torchvision", "resnet18"),
        ("shufflenet_v2_x0_5", "torchvision", "shufflenet_v2_x0_5"),
    ],
)
def test_names_of_models(name, library, model):
    found = find_model(name)
    assert (found.library, found.model) == (library, model)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dinov2-smal", "unknown backbone 'dinov2-smal'; the nearest are dinov2-small,"),
        ("torchvision/resnt18", "unknown backbone 'torchvision/resnt18'; the nearest are"),
        ("timm/vit_b_16", "unknown backbone 'timm/vit_b_16'; the nearest are"),
        ("", "unknown backbone ''; take dinov2-small,"),
        ("resnet18.imagenet", "resnet18 has no weights 'imagenet' in timm; there are resnet18.a1_in1k,"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, message):
    assert message in refusal(find_model, name)


@pytest.mark.parametrize(
    ("name", "source", "place"),
    [
        ("dinov2-small", f"timm/{DINOV2}/resolve/main/model.safetensors", f"weights/{DINOV2}.safetensors"),
        ("torchvision/resnet18", "/resnet18-f37072fd.pth", "weights/resnet18.pth"),
        ("gcvit_tiny", "/gcvit_tiny_224_nvidia-ac783954.pth", "weights/gcvit_tiny.in1k.pth"),
    ],
)
def test_missing_weights_are_answered_with_file_place_and_options(tmp_path, name, source, place):
    line = refusal(find_weights, name, None, tmp_path, False)
    for part in (f"no weights for {name};", source, str(tmp_path / place), "--weights FILE", "--download"):
        assert part in line
    assert list(tmp_path.iterdir()) == []


def test_weights_are_found_where_the_message_says(tmp_path):
    (tmp_path / "weights").mkdir()
    place = tmp_path / "weights" / f"{DINOV2}.pth"
    torch.save(tensors(), place)
    assert find_weights("dinov2-small", None, tmp_path, download=True) == place
    assert find_weights(DINOV2, None, tmp_path, download=False) == place
    better = place.with_suffix(".safetensors")
    save_file(tensors(), better)
    assert find_weights("dinov2-small", None, tmp_path, download=False) == better


def test_a_given_file_comes_first_and_must_exist(tmp_path):
    given = tmp_path / "mine.pth"
    assert "no weights at" in refusal(find_weights, "dinov2-small", given, tmp_path, True)
    torch.save(tensors(), given)
    assert find_weights("dinov2-small", given, tmp_path, download=False) == given


@pytest.fixture
def no_network(tmp_path, monkeypatch):
    """Every connection goes to a port where nobody listens, and the libraries' caches are empty: their two folders."""
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    hub, torch_home = tmp_path / "hub", tmp_path / "torch"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setenv("TORCH_HOME", str(torch_home))
    huggingface_hub.close_session()  # it would remember the proxy of its first use
    yield hub, torch_home / "hub" / "checkpoints"
    huggingface_hub.close_session()


@pytest.mark.parametrize("name", ["dinov2-small", "torchvision/resnet18", "gcvit_tiny"])
def test_a_download_without_a_network_fails_at_once_in_one_line(tmp_path, no_network, monkeypatch, name):
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    line = refusal(find_weights, name, None, tmp_path / "data", True)
    assert waits == [], "the hub's client alone would wait and try again for most of a minute"
    assert f"the download of the weights for {name} failed (" in line
    assert str(tmp_path / "data" / "weights") in line
    assert "--weights FILE" in line
    assert not (tmp_path / "data").exists()


def test_a_torchvision_download_is_kept_as_safetensors(tmp_path, no_network):
    published = get_model(SMALL_TORCHVISION).state_dict()
    _, cache = no_network
    cache.mkdir(parents=True)
    url = get_model_weights(SMALL_TORCHVISION)["DEFAULT"].url
    torch.save(published, cache / url.rpartition("/")[2])
    place = find_weights(f"torchvision/{SMALL_TORCHVISION}", None, tmp_path, download=True)
    assert_kept(place, tmp_path / "weights" / f"{SMALL_TORCHVISION}.safetensors", published)
    assert find_weights(f"torchvision/{SMALL_TORCHVISION}", None, tmp_path, download=False) == place


def test_a_timm_download_is_kept_as_safetensors(tmp_path, no_network):
    published = timm.create_model(SMALL_TIMM).state_dict()
    cache, _ = no_network
    repository, commit = cache / f"models--timm--{SMALL_TIMM}", "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    save_file(published, repository / "snapshots" / commit / "model.safetensors")
    place = find_weights(SMALL_TIMM, None, tmp_path, download=True)
    assert_kept(place, tmp_path / "weights" / f"{SMALL_TIMM}.safetensors", published)


def assert_kept(place: Path, expected_place: Path, expected: dict[str, torch.Tensor]) -> None:
    assert place == expected_place
    assert list(place.parent.iterdir()) == [place]
    kept = load_file(place)
    assert kept.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(kept[key], value)


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path, no_network):
    _, cache = no_network
    cache.mkdir(parents=True)
    url = get_model_weights(SMALL_TORCHVISION)["DEFAULT"].url
    torch.save(get_model(SMALL_TORCHVISION).state_dict(), cache / url.rpartition("/")[2])
    (tmp_path / "data").write_text("a file")
    line = refusal(find_weights, SMALL_TORCHVISION, None, tmp_path / "data", True)
    assert f"cannot write {tmp_path / 'data' / 'weights'}" in line
    assert "--data-root" in line


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_colleagues_can_read_weights_as_the_umask_says(tmp_path, mask, mode):
    """safetensors alone gives 0600, whatever the umask is."""
    before = os.umask(mask)
    try:
        save_safetensors(tmp_path / "weights.safetensors", tensors())
    finally:
        os.umask(before)
    assert [(path.name, path.stat().st_mode & 0o777) for path in tmp_path.iterdir()] == [("weights.safetensors", mode)]
