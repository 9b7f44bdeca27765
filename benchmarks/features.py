"""What does sharding cost? Images per second of the sharded extraction on one Ray worker, beside a plain batched loop.

A randomly initialised ViT-S/14 (DINOv2-Small's architecture), one thread each, taking turns. The plain loop does what has
to be done anyway: prepare a batch, forward, keep the features. The sharded one also reads the images from the store, runs
the executor, writes and checks every shard, and puts them together.

    python -m benchmarks.features [--images 1024] [--resolution 98]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
import timm
import torch
from safetensors.torch import save_file

from benchmarks.timing import best_of_turns
from tasks.executor import execute, find_cached
from tasks.ray_backend import Placement, RayBackend, ray_session
from tasks.state import State
from tasks.step import Kind, closure
from tasks.store import Store
from unlearn_core.data.backbones import backbone_spec, build_backbone, preprocess
from unlearn_core.data.images import ImageSet, save_image_file
from unlearn_core.grid import HEADS
from workflows.sources import DataOptions, open_sources

BATCH = 64
TARGET = 1.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--resolution", type=int, default=98)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory, ray_session(None) as watch:
        folder = Path(directory)
        images = np.random.default_rng(0).integers(0, 256, (arguments.images, 32, 32, 3), dtype=np.uint8)
        labels = np.arange(len(images)) % 2
        save_image_file(
            folder / "images.npz", ImageSet("images", images, labels, images[:2], labels[:2], ("a", "b"), None)
        )
        torch.manual_seed(0)
        model = timm.create_model("vit_small_patch14_dinov2.lvd142m", pretrained=False, num_classes=0)
        save_file(model.state_dict(), folder / "weights.safetensors")
        options = DataOptions(
            datasets=(str(folder / "images.npz"),),
            weights=folder / "weights.safetensors",
            resolution=arguments.resolution,
            shard_images=256,
        )
        target = open_sources(options, HEADS)[0].data
        backend = RayBackend(folder / "store", Placement(workers=1, cpus=1, gpus=0.0), watch)
        store = Store(folder / "store")

        def sharded() -> None:
            for kind in (Kind.SHARD, Kind.FEATURES):
                shutil.rmtree(store.root / "steps" / kind, ignore_errors=True)
            steps = closure([target])
            state = State(steps, *find_cached(steps, store))
            execute(state, backend, on_done=lambda step: None, on_change=lambda state: None)
            if state.failures:
                raise RuntimeError(next(iter(state.failures.values())).traceback)

        spec = backbone_spec("dinov2-small", arguments.resolution)
        backbone = build_backbone(spec, folder / "weights.safetensors")

        def plain() -> None:
            with torch.inference_mode():
                torch.cat([backbone(preprocess(batch, spec)) for batch in torch.from_numpy(images).split(BATCH)])

        best = best_of_turns({"plain loop": plain, "sharded, on Ray": sharded}, arguments.turns)
        backend.close()
    for name, seconds in best.items():
        print(f"{name:16} {arguments.images / seconds:8.1f} images/s")
    ratio = best["sharded, on Ray"] / best["plain loop"]
    print(f"sharded / plain: {ratio:.3f} of the time (target: at most {TARGET})")


if __name__ == "__main__":
    main()
