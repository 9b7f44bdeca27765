"""Frozen backbones give the features that timm and torchvision give themselves, however the images are batched."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision.transforms import InterpolationMode, v2

from unlearn_core.data.backbones import BackboneSpec, backbone_spec, build_backbone, extract, feature_dim, preprocess
from unlearn_core.errors import BadInput

VIT = "vit_small_patch14_dinov2.lvd142m"
SMALL = "test_resnet.r160_in1k"
N_IMAGES = 7


def assert_close(found: NDArray, expected: NDArray) -> None:
    """Up to float32 sums of some hundred terms in another order; features are of order 1."""
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def random_images(height: int, width: int, n: int = N_IMAGES) -> NDArray[np.uint8]:
    """Smooth blobs over noise, with black and white in them, so that interpolation has something to overshoot."""
    rng = np.random.default_rng(height * width)
    coarse = torch.from_numpy(rng.normal(size=(n, 3, 4, 4)))
    blobs = nn.functional.interpolate(coarse, (height, width), mode="nearest").permute(0, 2, 3, 1).numpy()
    return np.clip(128 + 150 * blobs + rng.normal(size=blobs.shape, scale=20), 0, 255).astype(np.uint8)


def random_state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Weights under which every layer matters; DINOv2's own start scales each block by 1e-5."""
    generator = torch.Generator().manual_seed(1)
    state = {}
    for key, tensor in module.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if not tensor.is_floating_point():
            state[key] = torch.zeros(tensor.shape, dtype=tensor.dtype)
        elif key.endswith("running_var") or (tensor.ndim == 1 and key.endswith(("weight", "gamma"))):
            state[key] = 1 + 0.2 * noise.clamp(-2, 2)
        else:
            state[key] = noise * (0.05 if tensor.ndim < 2 else tensor[0].numel() ** -0.5)
    return state


def images_as_torchvision_prepares_them(images: NDArray[np.uint8], spec: BackboneSpec) -> torch.Tensor:
    """One image at a time; clamped, as an 8-bit image would be."""
    interpolation = InterpolationMode(spec.interpolation)
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Resize(spec.resolution, interpolation, antialias=True),
            v2.CenterCrop(spec.resolution),
            v2.Lambda(lambda image: image.clamp(0, 1)),
            v2.Normalize(spec.mean, spec.std),
        ]
    )
    return torch.stack([transform(image) for image in images])


@pytest.fixture(scope="module")
def vit_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("vit") / "weights.safetensors"
    with torch.device("meta"):
        shapes = timm.create_model(VIT)
    save_file(random_state(shapes), path)
    return path


@pytest.fixture(scope="module")
def small_state() -> dict[str, torch.Tensor]:
    return random_state(timm.create_model(SMALL))


def test_vit_features_are_timms_class_token_after_the_norm_whatever_the_batches(vit_file):
    spec = backbone_spec("dinov2-small", resolution=56)
    backbone = build_backbone(spec, vit_file)
    # another way to the same features: timm itself loads the file, and fits the position embeddings to the size once
    oracle: Any = timm.create_model(
        VIT, pretrained=True, pretrained_cfg_overlay={"file": str(vit_file)}, num_classes=0, img_size=56
    ).eval()
    images = random_images(32, 32)
    with torch.inference_mode():
        tokens = oracle.forward_features(images_as_torchvision_prepares_them(images, spec))
    expected = tokens[:, 0].numpy()
    assert np.ptp(expected, axis=0).mean() > 0.1, "the images must make a difference"

    whole = extract(backbone, spec, images, "cpu")
    assert whole.shape == (N_IMAGES, 384)
    assert whole.dtype == np.float32
    assert_close(whole, expected)
    for batch_size in (1, 3):
        assert_close(extract(backbone, spec, images, "cpu", batch_size), expected)
    in_two_calls = [extract(backbone, spec, part, "cpu", batch_size=2) for part in (images[:4], images[4:])]
    assert_close(np.concatenate(in_two_calls), expected)


def test_the_original_dinov2_file_is_taken_too(vit_file, tmp_path):
    # a pickled state dict, with a token that is of use in training only
    torch.save({**load_file(vit_file), "mask_token": torch.zeros(1, 384)}, tmp_path / "dinov2_vits14_pretrain.pth")
    backbone = build_backbone(backbone_spec(), tmp_path / "dinov2_vits14_pretrain.pth")
    for key, tensor in load_file(vit_file).items():
        assert torch.equal(backbone.state_dict()[key], tensor)


def test_a_backbone_is_frozen(small_state, tmp_path):
    save_file(small_state, tmp_path / "small.safetensors")
    backbone = build_backbone(backbone_spec(SMALL), tmp_path / "small.safetensors")
    assert not any(part.training for part in backbone.modules())
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


def test_resnet18_features_are_torchvisions_own(tmp_path):
    oracle = torchvision.models.resnet18()
    state = random_state(oracle)
    oracle.load_state_dict(state)
    oracle.set_submodule("fc", nn.Identity())
    # as in the published file: with the classifier, without counters of training batches
    torch.save({k: v for k, v in state.items() if "num_batches" not in k}, tmp_path / "resnet18.pth")
    spec = backbone_spec("torchvision/resnet18", resolution=64)
    images = random_images(48, 70)
    np.save(tmp_path / "images.npy", images)
    backbone = build_backbone(spec, tmp_path / "resnet18.pth")
    done: list[int] = []
    features = extract(
        backbone, spec, np.load(tmp_path / "images.npy", mmap_mode="r"), "cpu", batch_size=3, on_batch=done.append
    )
    assert done == [3, 6, 7]
    with torch.inference_mode():
        expected = oracle.eval()(images_as_torchvision_prepares_them(images, spec)).numpy()
    assert_close(features, expected)
    halves = extract(backbone, spec, images, "cpu", batch_size=3, half=True)
    assert halves.dtype == np.float16
    np.testing.assert_array_equal(halves, features.astype(np.float16))


@pytest.mark.parametrize("with_auxiliary", [True, False])
def test_googlenet_normalises_as_with_its_published_weights(tmp_path, with_auxiliary):
    oracle = torchvision.models.googlenet(transform_input=True, aux_logits=with_auxiliary, init_weights=False)
    state = random_state(oracle)
    oracle.load_state_dict(state)
    oracle.set_submodule("fc", nn.Identity())
    save_file(state, tmp_path / "googlenet.safetensors")
    spec = backbone_spec("torchvision/googlenet", resolution=64)
    images = random_images(32, 32, n=2)
    features = extract(build_backbone(spec, tmp_path / "googlenet.safetensors"), spec, images, "cpu")
    with torch.inference_mode():
        expected = oracle.eval()(images_as_torchvision_prepares_them(images, spec)).numpy()
    assert_close(features, expected)


@pytest.mark.parametrize(
    ("interpolation", "size"),
    [*itertools.product(["bicubic", "bilinear"], [(32, 32), (56, 56), (150, 150), (40, 67), (133, 90)])],
)
def test_images_are_prepared_as_torchvision_prepares_them(interpolation, size):
    spec = backbone_spec(SMALL, resolution=56, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), interpolation=interpolation)
    images = random_images(*size)
    prepared = preprocess(torch.from_numpy(images), spec)
    assert prepared.shape == (N_IMAGES, 3, 56, 56)
    assert prepared.dtype == torch.float32
    torch.testing.assert_close(prepared, images_as_torchvision_prepares_them(images, spec), rtol=0, atol=1e-5)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_eight_bit_resizing_differs_by_its_rounding(interpolation):
    # torchvision rounds after each of its two passes, and clamps: of grey images, nothing is clamped
    images = torch.from_numpy(random_images(40, 67) // 2 + 64)
    spec = backbone_spec(SMALL, 56, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), interpolation=interpolation)
    resize = v2.Resize(56, InterpolationMode(interpolation), antialias=True)
    expected = v2.CenterCrop(56)(resize(images.permute(0, 3, 1, 2)))
    assert (255 * preprocess(images, spec) - expected).abs().max() < 2


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        ("dinov2-small", 384),
        ("dinov2-base", 768),
        ("resnet18", 512),
        ("torchvision/resnet50", 2048),
        ("torchvision/vit_b_16", 768),
        ("torchvision/vgg11", 4096),
        ("torchvision/regnet_x_400mf", 400),
    ],
)
def test_feature_dimensions_are_the_published_ones(name, dim):
    assert feature_dim(backbone_spec(name)) == dim


def test_the_default_is_dinov2_small_at_224():
    spec = backbone_spec()
    assert spec == backbone_spec("dinov2-small")
    assert (spec.library, spec.model, spec.resolution, spec.folder) == ("timm", VIT, 224, "dinov2")
    assert (spec.mean, spec.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert spec.interpolation == "bicubic"


def test_what_is_not_given_is_as_published():
    assert backbone_spec(VIT).resolution == 518
    assert backbone_spec("vit_base_patch16_224").mean == (0.5, 0.5, 0.5)
    assert backbone_spec("torchvision/resnet18").interpolation == "bilinear"
    assert backbone_spec("torchvision/efficientnet_b4").resolution == 380


def test_identity_is_all_that_changes_features():
    spec = backbone_spec("resnet18", resolution=64)
    assert json.loads(json.dumps(spec.identity())) == spec.identity()
    assert spec.identity() == backbone_spec("timm/resnet18.a1_in1k", resolution=64).identity()
    different = [
        backbone_spec("resnet18"),
        backbone_spec("torchvision/resnet18", resolution=64, interpolation="bicubic"),
        backbone_spec("resnet18", resolution=64, mean=(0.5, 0.5, 0.5)),
        backbone_spec("resnet18", resolution=64, std=(0.5, 0.5, 0.5)),
        backbone_spec("resnet18", resolution=64, interpolation="bilinear"),
    ]
    assert all(other.identity() != spec.identity() for other in different)


def test_folders_are_one_name():
    for name in ("torchvision/resnet18", "timm/resnet18.a1_in1k", "dinov2-base", "resnet18"):
        folder = backbone_spec(name).folder
        assert Path(folder).name == folder
        assert folder not in (".", "..")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "dinov2-tiny"}, r"unknown backbone 'dinov2-tiny'; the nearest are dinov2-"),
        (
            {"resolution": 100},
            r"dinov2-small does not take 100 x 100 images; choose a multiple of its patch size 14, such as 98 or 112",
        ),
        ({"resolution": 0}, r"resolution 0 is not a size"),
        ({"name": "torchvision/vit_b_16", "resolution": 256}, r"not take 256 x 256 images; its own resolution is 224"),
        ({"name": "torchvision/alexnet", "resolution": 32}, r"not take 32 x 32 images; its own resolution is 224"),
        ({"mean": (0.5, 0.5)}, r"mean is \(0.5, 0.5\); give three numbers"),
        ({"std": (0.2, 0.0, 0.2)}, r"std is \(0.2, 0.0, 0.2\); each must be greater than 0"),
        ({"interpolation": "nearest"}, r"unknown interpolation 'nearest'; there are bicubic, bilinear"),
    ],
)
def test_a_backbone_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(BadInput, match=message):
        backbone_spec(**arguments)


def test_a_model_without_a_linear_classifier_is_refused():
    with pytest.raises(BadInput, match="torchvision/squeezenet1_0 has no linear classifier"):
        feature_dim(backbone_spec("torchvision/squeezenet1_0"))


def test_weights_that_do_not_fit_are_refused_with_the_first_key_and_their_number(small_state, tmp_path):
    def without(*keys):
        return {key: value for key, value in small_state.items() if key not in keys}

    cut = {**small_state, "conv1.0.weight": small_state["conv1.0.weight"][:, :1].contiguous()}
    cases = {
        r"conv1.0.weight has shape \(\d+, 1, 3, 3\), not \(\d+, 3, 3, 3\) \(1 such keys\)": cut,
        r"conv1.0.weight is missing \(2 such keys\)": without("conv1.0.weight", "bn1.bias"),
        r"conv9.weight is unknown \(1 such keys\)": {**small_state, "conv9.weight": torch.ones(2)},
        r"conv1.0.weight has shape .* \(2 such keys\)": {k: v for k, v in cut.items() if k != "bn1.bias"},
    }
    for message, state in cases.items():
        save_file(state, tmp_path / "file.safetensors")
        expected = rf"file.safetensors does not fit timm's {SMALL}: {message}; give the weights of that model"
        with pytest.raises(BadInput, match=expected):
            build_backbone(backbone_spec(SMALL), tmp_path / "file.safetensors")


@pytest.mark.parametrize("classifier", ["absent", "of ten classes"])
def test_the_classifier_of_the_file_does_not_matter(small_state, tmp_path, classifier):
    state = {key: value for key, value in small_state.items() if not key.startswith("fc.")}
    if classifier == "of ten classes":
        state |= {"fc.weight": torch.zeros(10, small_state["fc.weight"].shape[1]), "fc.bias": torch.zeros(10)}
    save_file(state, tmp_path / "file.safetensors")
    spec = backbone_spec(SMALL, resolution=32)
    images = random_images(32, 32, n=2)
    oracle: Any = timm.create_model(SMALL)
    oracle.load_state_dict(small_state)
    with torch.inference_mode():
        maps = oracle.eval().forward_features(images_as_torchvision_prepares_them(images, spec))
    features = extract(build_backbone(spec, tmp_path / "file.safetensors"), spec, images, "cpu")
    assert_close(features, maps.mean(dim=(2, 3)).numpy())


def test_images_of_another_kind_are_refused():
    spec, module = backbone_spec(SMALL), nn.Identity()
    cases: list[tuple[Any, str]] = [
        (np.zeros((2, 8, 8), np.uint8), r"shape \(2, 8, 8\), dtype torch.uint8; they must be \(N, H, W, 3\) uint8"),
        (np.zeros((2, 3, 8, 8), np.uint8), r"shape \(2, 3, 8, 8\)"),
        (np.zeros((2, 8, 8, 3), np.float32), r"dtype torch.float32"),
        (np.zeros((0, 8, 8, 3), np.uint8), r"there are no images"),
    ]
    for images, message in cases:
        with pytest.raises(BadInput, match=message):
            extract(module, spec, images, "cpu")
    with pytest.raises(BadInput, match="batch size 0"):
        extract(module, spec, np.zeros((2, 8, 8, 3), np.uint8), "cpu", batch_size=0)
