"""The steps that bring data in: images, images at a network's size, a backbone's features shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from tasks.cache import Cache
from tasks.compute.reading import read_array
from tasks.files import ARRAYS, LABELS, SHARD
from tasks.step import Kind, Step
from tasks.store import Store
from unlearn_core.data.backbones import BackboneSpec, build_backbone, extract
from unlearn_core.data.datasets import load_dataset, load_images
from unlearn_core.data.feature_set import FeatureSet
from unlearn_core.data.images import ImageSet, resize_images
from unlearn_core.data.labelled import PARTS, LabelledSet, fingerprint
from unlearn_core.data.weights import weights_fingerprint
from unlearn_core.errors import BadInput

Write = Callable[[Path], None]

IMAGE_KINDS = (Kind.IMAGES, Kind.RESIZED)


def compute_images(steps: Sequence[Step], store: Store, cache: Cache) -> list[Write]:
    """Copy images into the store, so that every worker can map them."""

    def load(hints: Mapping[str, Any]) -> ImageSet:
        return load_images(hints["source"], Path(hints["data_root"]), image_size=hints["image_size"])

    return [_arrays_writer(_checked(step, load(step.hints))) for step in steps]


def compute_resized(steps: Sequence[Step], store: Store, cache: Cache) -> list[Write]:
    """Resize every image to the network's size, once; originals and results are mapped, not held in memory."""

    def writer(step: Step) -> Write:
        originals, size = store.path(step.needs["images"]), step.config["size"]

        def write(directory: Path) -> None:
            for part in PARTS:
                images = np.load(originals / f"{part}_x.npy", mmap_mode="c", allow_pickle=False)
                shape = (len(images), size, size, 3)
                out = open_memmap(directory / f"{part}_x.npy", mode="w+", dtype=np.uint8, shape=shape)
                resize_images(images, size, out)
                out.flush()
            _copy_labels(originals, directory)

        return write

    return [writer(step) for step in steps]


def compute_shard(steps: Sequence[Step], store: Store, cache: Cache) -> list[Write]:
    """Compute a backbone's features of one range of images."""

    def writer(step: Step) -> Write:
        config, place = step.config, Path(step.hints["weights"])
        spec = BackboneSpec.from_identity(config["backbone"])

        def build():
            if weights_fingerprint(place) != config["weights"]:
                raise BadInput(f"{place} changed since the plan was made; run the command again")
            return build_backbone(spec, place).to(cache.device)

        backbone = cache.get(f"backbone/{config['weights']}/{sorted(config['backbone'].items())}", build)
        images = np.load(
            store.path(step.needs["images"]) / f"{config['part']}_x.npy", mmap_mode="c", allow_pickle=False
        )
        rows = images[config["start"] : config["stop"]]
        features = extract(backbone, spec, rows, cache.device, half=config["dtype"] == "float16")
        return lambda directory: np.save(directory / SHARD, features, allow_pickle=False)

    return [writer(step) for step in steps]


def compute_features(steps: Sequence[Step], store: Store, cache: Cache) -> list[Write]:
    """Copy a feature set into the store: from its file, or from its shards."""
    return [
        _assembly(step, store)
        if "images" in step.needs
        else _arrays_writer(_checked(step, load_dataset(step.hints["source"])))
        for step in steps
    ]


def _assembly(step: Step, store: Store) -> Write:
    """Write shards one after the other, straight into the result's file."""

    def write(directory: Path) -> None:
        for part in PARTS:
            shards = sorted(
                (shard for shard in step.needs.values() if shard.kind is Kind.SHARD and shard.config["part"] == part),
                key=lambda shard: shard.config["start"],
            )
            n_rows = shards[-1].config["stop"]
            out: NDArray | None = None
            for shard in shards:
                features = np.load(store.path(shard) / SHARD, mmap_mode="r", allow_pickle=False)
                if out is None:
                    shape = (n_rows, features.shape[1])
                    out = open_memmap(directory / f"{part}_x.npy", mode="w+", dtype=features.dtype, shape=shape)
                out[shard.config["start"] : shard.config["stop"]] = features
        _copy_labels(store.path(step.needs["images"]), directory)

    return write


def load_arrays(step: Step, store: Store) -> LabelledSet:
    """A stored data set; large arrays are memory-mapped."""
    directory = store.path(step)
    arrays = {name: read_array(directory / f"{name}.npy") for name in ARRAYS if (directory / f"{name}.npy").exists()}
    kind = ImageSet if step.kind in IMAGE_KINDS else FeatureSet
    return kind.from_arrays(_dataset_of(step), arrays, source=str(directory))


def write_features(step: Step, store: Store, file: Path) -> None:
    """Write a stored feature set as a file that ``load_feature_set`` reads."""
    features = load_arrays(step, store)
    if not isinstance(features, FeatureSet):
        raise TypeError(f"{step} holds no features")
    features.write(file)


def _dataset_of(step: Step) -> str:
    return step.config["dataset"] if "dataset" in step.config else _dataset_of(step.needs["images"])


def _checked(step: Step, data: LabelledSet) -> LabelledSet:
    if fingerprint(data) != step.config["fingerprint"]:
        raise BadInput(f"{step.hints['source']} changed since the plan was made; run the command again")
    return data


def _arrays_writer(data: LabelledSet) -> Write:
    def write(directory: Path) -> None:
        for name in ARRAYS:
            if (value := getattr(data, name)) is not None:
                np.save(directory / f"{name}.npy", np.asarray(value), allow_pickle=False)

    return write


def _copy_labels(source: Path, directory: Path) -> None:
    for name in LABELS:
        if (source / f"{name}.npy").exists():
            np.save(directory / f"{name}.npy", np.load(source / f"{name}.npy", allow_pickle=False), allow_pickle=False)
