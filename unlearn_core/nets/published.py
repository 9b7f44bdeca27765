"""Classifiers that timm or transformers know by name, with weights from this machine: nothing is ever downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unlearn_core.data.weights import find_model, stripped_prefixes, timm_config
from unlearn_core.errors import BadInput, first_line
from unlearn_core.nets.stack import State

TIMM, HF = "timm", "hf"
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"


@dataclass(frozen=True)
class Normalise:
    """A hook that brings images from [0, 1] to what a network was trained on; its weights keep their names."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, _module: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        images, *rest = given
        mean, std = (torch.tensor(values).to(images)[:, None, None] for values in (self.mean, self.std))
        return (images - mean) / std, *rest


@dataclass(frozen=True, eq=False)
class Published:
    """How a network is built for a number of classes, how many its weights are of, and what to say of it."""

    build: Callable[[int | None], nn.Module]
    n_classes: Callable[[State], int | None]
    note: str


def find_published(library: str, name: str) -> Published:
    return _of_timm(name) if library == TIMM else _of_transformers(name)


def _normalised(module: nn.Module, mean: Any, std: Any) -> nn.Module:
    module.register_forward_pre_hook(Normalise(tuple(map(float, mean)), tuple(map(float, std))))
    return module


def _of_timm(name: str) -> Published:
    import timm

    model = find_model(f"timm/{name}").model
    config = timm_config(model)
    classifier = config.classifier if isinstance(config.classifier, str) else (config.classifier or ("",))[0]

    def n_classes(tensors: State) -> int:
        for prefix in stripped_prefixes(tensors):
            for part in ("weight", "bias"):
                if (tensor := tensors.get(f"{prefix}{classifier}.{part}")) is not None:
                    return tensor.shape[0]
        raise BadInput(
            f"the weights have no {classifier}.weight, which is the classifier of timm's {model}; give the weights of "
            "this very architecture"
        )

    def build(classes: int | None) -> nn.Module:
        if classes is None:
            raise ValueError("the number of classes is known from the weights")
        return _normalised(timm.create_model(model, pretrained=False, num_classes=classes), config.mean, config.std)

    return Published(
        build,
        n_classes,
        f"images are normalised as for timm's {model}, mean {_text(config.mean)}, std {_text(config.std)}",
    )


def _of_transformers(name: str) -> Published:
    folder = Path(name)
    if not (folder / CONFIG).is_file():
        raise BadInput(f"{folder} holds no {CONFIG}; give the folder that save_pretrained wrote, as --model hf:FOLDER")
    try:
        from transformers import AutoConfig, AutoModelForImageClassification  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise BadInput(
            f"--model hf:{name} needs the package transformers, which is not installed; pip install transformers"
        ) from error
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{folder / CONFIG} describes no known network ({first_line(error)})") from error
    colours = _preprocessing(folder)

    def build(_classes: int | None) -> nn.Module:
        module = AutoModelForImageClassification.from_config(config, trust_remote_code=False)
        return module if colours is None else _normalised(module, *colours)

    told = f"images are normalised as {PREPROCESSOR} says" if colours else "images are not normalised"
    return Published(build, lambda _tensors: None, told)


def _preprocessing(folder: Path) -> tuple[Any, Any] | None:
    """Mean and standard deviation of the colours, if the folder says that images are normalised."""
    path = folder / PREPROCESSOR
    if not path.is_file():
        return None
    try:
        known = json.loads(path.read_bytes())
        mean, std = known["image_mean"], known["image_std"]
        wanted = known.get("do_normalize", True)
        Normalise(tuple(map(float, mean)), tuple(map(float, std)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(
            f"{path} does not say image_mean and image_std ({first_line(error)}); mend or remove it"
        ) from error
    return (mean, std) if wanted else None


def _text(values: Any) -> str:
    return "(" + ", ".join(f"{value:g}" for value in values) + ")"
