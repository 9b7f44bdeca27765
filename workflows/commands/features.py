"""Compute a backbone's features of a data set and write them to a file.

Run a frozen backbone over a data set's images and write its features to a file for 'unlearn grid --features' and
'unlearn run --dataset'. A grid with the same --out uses the same shards. Rerun the same command to resume: finished
shards are kept.

unlearn features --dataset cifar10 --data-root data --download --file cifar10_dinov2.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from tasks.store import Store
from unlearn_core.errors import BadInput
from unlearn_core.grid import HEADS
from workflows.commands import options
from workflows.commands.values import FILE
from workflows.display import speaker
from workflows.layout import Layout


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dataset", default="cifar10", help=f"data set: {options.DATASETS}")
    file = "write the feature set here (default: DATASET_BACKBONE.npz in the current folder)"
    parser.add_argument("--file", **FILE, help=file)
    options.add_out(parser, "runs/grid", "keep finished shards here")
    options.add_data(parser)
    options.add_machine(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    from tasks.compute.data import write_features
    from workflows.commands.running import check_device, conclude, driving, run_steps
    from workflows.commands.selection import data_options
    from workflows.results import Recorder
    from workflows.sources import open_sources

    check_device(arguments)
    source = open_sources(data_options(arguments, [arguments.dataset]), HEADS)[0]
    if "images" not in source.data.needs:
        raise BadInput(
            f"{arguments.dataset} holds features already; give images: cifar10, cifar100, a file or a folder"
        )
    file: Path = arguments.file or Path(f"{source.name}_{source.backbone}.npz")
    if file.suffix != ".npz":
        raise BadInput(f"--file {file} must end in .npz, as feature sets do")
    layout = Layout(arguments.out)
    title = f"{source.name}: features by {arguments.backbone}"
    with driving(arguments, console):
        recorder = Recorder(layout, None, track=False)
        outcome = run_steps([source.data], [source], title, recorder, arguments, console)
        if not outcome.state.failures:
            write_features(source.data, Store(layout.store), file)
            speaker(console)(f"features: {file}")
    return conclude(outcome, arguments, console, f"unlearn grid --features {file}")
