"""Where a grid's data comes from: a data set as one family of networks sees it, and the steps that bring it in.

Heads see features: a file's, or a backbone's, computed shard by shard. ResNets see images at their own size. A plan can be
made before data and weights are there; only running needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tasks.step import Kind, Step
from unlearn_core.data.datasets import PUBLISHED, holds_images, load_dataset, load_images
from unlearn_core.data.feature_set import FeatureSet, fingerprint
from unlearn_core.data.labelled import LabelledSet
from unlearn_core.errors import BadInput
from unlearn_core.grid import HEADS, RESNET, RESNETS, SMALL_RESNET, SMALL_SIZE, Scenario, Variant

KEYS_PER_SCENARIO = 5
RANDOM_SIZES: tuple[int, ...] = (1, 50, 500, 5000)  # app:experiments_setup
SHARD_IMAGES = 1024
UNKNOWN = "unknown"
"""The fingerprint of what is not there yet."""


@dataclass(frozen=True)
class DataOptions:
    """What the user said about data, backbones and weights."""

    datasets: tuple[str, ...] = ("digits",)
    features: Path | None = None
    data_root: Path = Path("data")
    download: bool = False
    image_size: int | None = None
    backbone: str = "dinov2-small"
    weights: Path | None = None
    resolution: int | None = None
    interpolation: Literal["bicubic", "bilinear"] | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    half: bool = False
    shard_images: int = SHARD_IMAGES
    resnet_weights: str = "imagenet"
    """``imagenet``, ``random`` or the path of a file."""
    resnet_size: int = 64
    sketch_layer: str = "layer3"
    sketch_dim: int = 512


@dataclass(frozen=True, eq=False)
class Source:
    """A data set as the planner sees it: what it is, not where.

    Attributes:
        backbone: a folder of the results tree: what made the features, or ``resnet``.
        archs: the architectures that can be trained on it.
        data: the step whose arrays networks are trained on.
        dim: features of a row, or the side of an image.
        training: what identifies a training on it beside architecture and seed.
        hints: what a worker needs for it.
        sketch: layer and dimension of what proxies see, if that is not ``data`` itself.
        rows_of: training rows of each fine label; empty if that is not known yet.
        missing: what is not there yet, without which it cannot be run; only a plan has any.
    """

    name: str
    backbone: str
    archs: tuple[str, ...]
    data: Step
    fingerprint: str
    n_fine: int
    n_train: int
    n_test: int
    dim: int
    has_superclass: bool
    training: dict[str, Any] = field(default_factory=dict)
    hints: dict[str, Any] = field(default_factory=dict)
    sketch: dict[str, Any] | None = None
    rows_of: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()

    def n_forget(self, variant: Variant) -> int | None:
        """How many rows a variant forgets, if that is known."""
        if variant.scenario is Scenario.RANDOM:
            return variant.key
        return self.rows_of[variant.key] if self.rows_of else None

    def keys(self, scenario: Scenario) -> tuple[int, ...]:
        """The grid's keys: five evenly spaced labels ({0, 2, .., 8} of 10, {0, 20, .., 80} of 100), or sizes that fit."""
        if scenario is Scenario.RANDOM:
            return tuple(size for size in RANDOM_SIZES if size < self.n_train)
        count = min(KEYS_PER_SCENARIO, self.n_fine)
        return tuple(self.n_fine // count * i for i in range(count))


def open_sources(options: DataOptions, archs: Sequence[str] | None = None, planning: bool = False) -> list[Source]:
    """The sources of some data sets, for the architectures asked for; None is all that the data allows.

    Args:
        planning: what is not there yet is planned for from its published size instead of being refused.
    """
    names = (str(options.features),) if options.features is not None else options.datasets
    sources = [source for name in names for source in _open(name, options, archs, planning)]
    possible = {arch for source in sources for arch in source.archs}
    if impossible := [arch for arch in archs or () if arch not in possible]:
        need = f"heads need features, {' and '.join(RESNETS)} need images"
        raise BadInput(f"{impossible[0]} cannot be trained on {', '.join(names)}: {need}")
    return sources


def _open(name: str, options: DataOptions, archs: Sequence[str] | None, planning: bool) -> list[Source]:
    if not holds_images(name):
        return [feature_source(name)]
    images = _open_images(name, options, planning)
    sources = []
    if archs is None or set(archs) & set(HEADS):
        sources.append(_backbone_source(images, options, planning))
    if archs is None or RESNET in archs:
        sources.append(_resnet_source(images, options, planning))
    if SMALL_RESNET in (archs or ()):  # no part of the paper's grid: it runs if it is asked for
        sources.append(_on_images(images, options, SMALL_RESNET, SMALL_SIZE, "random"))
    return sources


def feature_source(name_or_path: str) -> Source:
    """Heads on a feature set: digits, or a file's."""
    features: FeatureSet = load_dataset(name_or_path)
    place = str(Path(name_or_path).resolve()) if name_or_path.endswith(".npz") else name_or_path
    identity = fingerprint(features)
    return Source(
        name=features.name,
        backbone=features.backbone,
        archs=HEADS,
        data=Step(Kind.FEATURES, {"dataset": features.name, "fingerprint": identity}, hints={"source": place}),
        fingerprint=identity,
        n_fine=features.n_fine,
        n_train=len(features.train_y),
        n_test=len(features.test_y),
        dim=features.dim,
        has_superclass=features.superclass is not None,
        rows_of=_rows_of(features),
    )


def _open_images(name: str, options: DataOptions, planning: bool) -> Source:
    """A set of images as they are, which no network sees yet."""
    place = name if name in PUBLISHED else str(Path(name).resolve())
    hints = {"source": place, "data_root": str(options.data_root.resolve()), "image_size": options.image_size}

    def source(name: str, identity: str, n_fine: int, n_train: int, n_test: int, supers: bool, *missing: str) -> Source:
        step = Step(Kind.IMAGES, {"dataset": name, "fingerprint": identity}, hints=hints)
        return Source(name, "", (), step, identity, n_fine, n_train, n_test, 0, supers, missing=missing)

    try:
        images = load_images(name, options.data_root, options.download, options.image_size)
    except BadInput as error:
        if not planning or name not in PUBLISHED:
            raise
        size = PUBLISHED[name]
        return source(name, UNKNOWN, size.n_fine, size.n_train, size.n_test, size.n_super > 0, str(error))
    has_superclass = images.superclass is not None
    counts = images.n_fine, len(images.train_y), len(images.test_y)
    return replace(source(images.name, fingerprint(images), *counts, has_superclass), rows_of=_rows_of(images))


def _rows_of(data: LabelledSet) -> tuple[int, ...]:
    return tuple(np.bincount(data.train_y, minlength=data.n_fine).tolist())


def _find(
    weights: str, given: Path | None, options: DataOptions, planning: bool
) -> tuple[Path | None, tuple[str, ...]]:
    """Where a model's weights lie, or what is missing."""
    from unlearn_core.data.weights import find_weights

    try:
        return find_weights(weights, given, options.data_root, options.download), ()
    except BadInput as error:
        if not planning:
            raise
        return None, (str(error),)


def _backbone_source(images: Source, options: DataOptions, planning: bool) -> Source:
    """Heads on the features of a frozen backbone."""
    from unlearn_core.data.backbones import backbone_spec, feature_dim
    from unlearn_core.data.weights import weights_fingerprint

    spec = backbone_spec(options.backbone, options.resolution, options.mean, options.std, options.interpolation)
    place, missing = _find(options.backbone, options.weights, options, planning)
    identity = {
        "backbone": spec.identity(),
        "weights": UNKNOWN if place is None else weights_fingerprint(place),
        "dtype": "float16" if options.half else "float32",
    }
    hints = {"weights": str(place.resolve()) if place else ""}
    shards = {
        f"{part}-{start:07d}": Step(
            Kind.SHARD,
            {"part": part, "start": start, "stop": min(start + options.shard_images, count), **identity},
            {"images": images.data},
            hints,
        )
        for part, count in (("train", images.n_train), ("test", images.n_test))
        for start in range(0, count, options.shard_images)
    }
    features = Step(Kind.FEATURES, {"dataset": images.name, **identity}, {"images": images.data, **shards})
    return replace(
        images,
        backbone=spec.folder,
        archs=HEADS,
        data=features,
        dim=feature_dim(spec),
        missing=images.missing + missing,
    )


def _resnet_source(images: Source, options: DataOptions, planning: bool) -> Source:
    """ResNet-18 on images at its size."""
    from unlearn_core.data.weights import weights_fingerprint

    place, missing, initial = None, (), "random"
    if options.resnet_weights != "random":
        given = None if options.resnet_weights == "imagenet" else Path(options.resnet_weights)
        place, missing = _find("torchvision/resnet18", given, options, planning)
        initial = UNKNOWN if place is None else weights_fingerprint(place)
    source = _on_images(images, options, RESNET, options.resnet_size, initial)
    hints = {"initial": str(place.resolve())} if place else {}
    return replace(source, missing=images.missing + missing, hints=hints)


def _on_images(images: Source, options: DataOptions, arch: str, size: int, initial: str) -> Source:
    """A network on images of its size, whose proxies see a sketch; ``initial`` says what its body starts from."""
    return replace(
        images,
        backbone="resnet",
        archs=(arch,),
        data=Step(Kind.RESIZED, {"size": size}, {"images": images.data}),
        dim=size,
        training={"initial": initial},
        sketch={"layer": options.sketch_layer, "dim": options.sketch_dim},
    )
