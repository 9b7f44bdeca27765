"""Frozen backbones of timm and torchvision: pooled features of images, each resized once and straight from its original."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from unlearn_core.arithmetic import arithmetic
from unlearn_core.data.weights import Library, find_model, load_weights, timm_config, torchvision_weights
from unlearn_core.errors import BadInput
from unlearn_core.precision import Precision

Triple = tuple[float, float, float]
Interpolation = Literal["bicubic", "bilinear"]

DEFAULT_BACKBONE = "dinov2-small"
DEFAULT_FOLDER = "dinov2"  # as the paper's results have it
# of the original DINOv2 files: stands for masked patches in training, and no feature depends on it
TRAINING_ONLY = frozenset({"mask_token"})
# with the published weights these two turn ImageNet's normalisation into the one they were trained with
NORMALISE_AGAIN = ("googlenet", "inception_v3")
# their classifiers for training, which published files have or lack
AUXILIARY = ("aux1", "aux2", "AuxLogits")


@dataclass(frozen=True)
class BackboneSpec:
    """A published model and how images are made ready for it.

    Attributes:
        name: as the user says it.
        model: the library's own full name of it.
        resolution: side of the square images it sees.
        mean, std: of the channels, for pixels in 0..1.
    """

    name: str
    library: Library
    model: str
    resolution: int
    mean: Triple
    std: Triple
    interpolation: Interpolation

    def __post_init__(self) -> None:
        if self.resolution < 1:
            raise BadInput(f"{self.name}: resolution {self.resolution} is not a size; give a number of pixels")
        for what, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3 or not all(math.isfinite(value) for value in values):
                raise BadInput(f"{self.name}: {what} is {values}; give three numbers, for red, green and blue")
        if min(self.std) <= 0:
            raise BadInput(f"{self.name}: std is {self.std}; each must be greater than 0")
        if self.interpolation not in ("bicubic", "bilinear"):
            raise BadInput(f"{self.name}: unknown interpolation {self.interpolation!r}; there are bicubic, bilinear")

    @property
    def folder(self) -> str:
        """Its folder in the results tree."""
        return DEFAULT_FOLDER if self.name == DEFAULT_BACKBONE else re.sub(r"[^A-Za-z0-9.-]+", "_", self.name)

    def identity(self) -> dict[str, Any]:
        """Everything but the weights that changes the features, as plain JSON values."""
        return {
            "library": self.library,
            "model": self.model,
            "resolution": self.resolution,
            "mean": list(self.mean),
            "std": list(self.std),
            "interpolation": self.interpolation,
        }

    @staticmethod
    def from_identity(identity: Mapping[str, Any]) -> BackboneSpec:
        """The specification whose identity that is, known by its full name."""
        triples = {what: tuple(identity[what]) for what in ("mean", "std")}
        return BackboneSpec(name=f"{identity['library']}/{identity['model']}", **{**identity, **triples})


def backbone_spec(
    name: str = DEFAULT_BACKBONE,
    resolution: int | None = None,
    mean: Triple | None = None,
    std: Triple | None = None,
    interpolation: Interpolation | None = None,
) -> BackboneSpec:
    """The named backbone; what is not given is as its weights were published."""
    published = find_model(name)
    own = _as_published(published.library, published.model)
    own = replace(own, name=name, resolution=published.resolution or own.resolution)
    given = {"resolution": resolution, "mean": mean, "std": std, "interpolation": interpolation}
    spec = replace(own, **{what: value for what, value in given.items() if value is not None})
    if spec.resolution != own.resolution:
        feature_dim(spec)  # refuses a size that the model cannot take
    return spec


@functools.cache
def feature_dim(spec: BackboneSpec) -> int:
    """Features per image, found without weights and, for almost all architectures, without computing anything."""
    refusal: Exception | None = None
    # the second is for architectures that read numbers out of tensors, which have none on the meta device
    for device in ("meta", "cpu"):
        try:
            with torch.device(device), torch.inference_mode():
                module = _without_weights(spec).module.eval()
                shape = module(torch.zeros(1, 3, spec.resolution, spec.resolution)).shape
        except BadInput:
            raise
        except (AssertionError, ValueError) as error:
            refusal = error
            break
        except RuntimeError as error:
            refusal = error
        else:
            if len(shape) != 2:
                raise BadInput(f"{spec.name} gives features of shape {tuple(shape[1:])}; take a model that pools them")
            return shape[1]
    raise BadInput(
        f"{spec.name} does not take {spec.resolution} x {spec.resolution} images; {_remedy(spec)}"
    ) from refusal


@functools.cache
def forward_operations(spec: BackboneSpec) -> float:
    """Floating-point operations of one image's forward pass, counted without computing it."""
    from torch.utils.flop_counter import FlopCounterMode  # it loads Triton, of which features need nothing

    with torch.device("meta"), torch.inference_mode(), FlopCounterMode(display=False) as counter:
        _without_weights(spec).module.eval()(torch.zeros(1, 3, spec.resolution, spec.resolution))
    return float(counter.get_total_flops())


def build_backbone(spec: BackboneSpec, weights: Path) -> nn.Module:
    """The frozen network from prepared images (N, 3, R, R) to pooled features (N, d), with the weights of a file."""
    state = load_weights(weights)
    features = _without_weights(spec)
    wanted = features.module.state_dict()
    problems = [
        f"{key} has shape {tuple(state[key].shape)}, not {tuple(tensor.shape)}"
        for key, tensor in wanted.items()
        if key in state and state[key].shape != tensor.shape
    ]
    fitting = {key: tensor for key, tensor in state.items() if key not in wanted or tensor.shape == wanted[key].shape}
    absent, unknown = features.module.load_state_dict(fitting, strict=False)
    problems += [f"{key} is missing" for key in absent if key not in state]
    problems += [f"{key} is unknown" for key in unknown if key not in features.head_keys | TRAINING_ONLY]
    if problems:
        raise BadInput(
            f"{weights} does not fit {spec.library}'s {spec.model}: {problems[0]} ({len(problems)} such keys); give the "
            "weights of that model"
        )
    return features.module.eval().requires_grad_(False)


def preprocess(images: torch.Tensor, spec: BackboneSpec) -> torch.Tensor:
    """Images (B, H, W, 3) uint8 as the network sees them, (B, 3, R, R) float32, on the device they are on."""
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != torch.uint8:
        raise BadInput(
            f"images have shape {tuple(images.shape)}, dtype {images.dtype}; they must be (N, H, W, 3) uint8"
        )
    size = spec.resolution
    height, width = images.shape[1:3]
    shorter = min(height, width)
    resized = functional.interpolate(
        images.permute(0, 3, 1, 2).float(),
        (height * size // shorter, width * size // shorter),
        mode=spec.interpolation,
        antialias=True,
    )
    top, left = (round((side - size) / 2) for side in resized.shape[2:])
    # bicubic overshoots; the 8-bit images that backbones are trained on cannot
    pixels = resized[:, :, top : top + size, left : left + size].clamp(0, 255)
    mean, std = (torch.tensor(values, device=images.device).view(3, 1, 1) for values in (spec.mean, spec.std))
    return (pixels / 255 - mean) / std


def extract(
    module: nn.Module,
    spec: BackboneSpec,
    images: NDArray[np.uint8],
    device: torch.device | str,
    batch_size: int = 64,
    half: bool = False,
    on_batch: Callable[[int], None] | None = None,
) -> NDArray[np.floating]:
    """Features (N, d) of ``images`` (N, H, W, 3), computed in float32; ``module`` moves to the device.

    Args:
        images: may be memory-mapped; one batch at a time is read.
        half: store them as float16.
        on_batch: called with the number of images done.
    """
    if batch_size < 1:
        raise BadInput(f"batch size {batch_size} is not a number of images; give 1 or more")
    layout = torch.channels_last if torch.device(device).type == "cuda" else torch.contiguous_format
    module.to(device).to(memory_format=layout)
    features: NDArray[np.floating] | None = None
    # whatever a grid's networks run in: features are made once, for all of them
    with torch.inference_mode(), arithmetic(Precision.FLOAT32), _deterministic_convolutions():
        for start in range(0, len(images), batch_size):
            rows = slice(start, min(start + batch_size, len(images)))
            pixels = torch.from_numpy(np.array(images[rows])).to(device)  # a copy, for a memory map is read-only
            batch = module(preprocess(pixels, spec).contiguous(memory_format=layout)).cpu().numpy()
            if features is None:
                features = np.empty((len(images), batch.shape[1]), dtype=np.float16 if half else np.float32)
            features[rows] = batch
            if on_batch is not None:
                on_batch(rows.stop)
    if features is None:
        raise BadInput("there are no images to extract features of; give at least one")
    return features


@contextlib.contextmanager
def _deterministic_convolutions() -> Iterator[None]:
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def _as_published(library: Library, model: str) -> BackboneSpec:
    """How images were made ready for a model when its weights were published."""
    if library == "timm":
        config = timm_config(model)
        resolution, interpolation = config.input_size[-1], config.interpolation
    else:
        config = torchvision_weights(model).transforms()
        resolution, interpolation = config.crop_size[0], config.interpolation.value
    mean, std = tuple(config.mean), tuple(config.std)
    return BackboneSpec(f"{library}/{model}", library, model, resolution, mean, std, interpolation)


@dataclass(frozen=True)
class _Features:
    """A network from images to pooled features, and the keys that only its classifier has."""

    module: nn.Module
    head_keys: Set[str]


def _without_weights(spec: BackboneSpec) -> _Features:
    return _timm_features(spec) if spec.library == "timm" else _torchvision_features(spec)


def _timm_features(spec: BackboneSpec) -> _Features:
    import timm

    with torch.device("meta"):
        classifier = timm.create_model(spec.model, num_classes=1000)
    options: dict[str, Any] = {}
    if spec.resolution != _as_published("timm", spec.model).resolution:
        if "dynamic_img_size" in inspect.signature(type(classifier)).parameters:
            # position embeddings stay as they are in the file, and are interpolated when they are used
            options = {"dynamic_img_size": True}
        elif timm_config(spec.model).fixed_input_size:
            options = {"img_size": spec.resolution}
    module = timm.create_model(spec.model, num_classes=0, **options)
    return _Features(module, classifier.state_dict().keys() - module.state_dict().keys())


def _torchvision_features(spec: BackboneSpec) -> _Features:
    from torchvision.models import get_model

    options: dict[str, Any] = {}
    if spec.model in NORMALISE_AGAIN:
        options = {"transform_input": True, "init_weights": False}
    elif spec.model.startswith("vit_"):
        options = {"image_size": _as_published("torchvision", spec.model).resolution}
    module = get_model(spec.model, **options)
    classifier_keys = module.state_dict().keys()
    for name in AUXILIARY:
        if hasattr(module, name):
            setattr(module, name, None)
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise BadInput(f"{spec.name} has no linear classifier to take the input of; choose another model")
    module.set_submodule(linear[-1], nn.Identity())
    return _Features(module, classifier_keys - module.state_dict().keys())


def _remedy(spec: BackboneSpec) -> str:
    own = _as_published(spec.library, spec.model).resolution
    if spec.library == "timm":
        with torch.device("meta"):
            module = _timm_features(replace(spec, resolution=own)).module
        patch, _ = getattr(getattr(module, "patch_embed", None), "patch_size", (1, 1))
        if spec.resolution % patch:
            below = max(spec.resolution // patch, 1) * patch
            return f"choose a multiple of its patch size {patch}, such as {below} or {below + patch}"
    return f"its own resolution is {own}"
