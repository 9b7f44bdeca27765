"""Prepare a model of your own for deletion requests, once.

Compute from a model and its training data what requests start from: fold models that never saw each record, the
network's curvature, statistics of the data. A request with 'unlearn forget --prepared STATE' then reads its own records and
a few others, whatever the size of the data, and its certificate says how close to a retrain it comes.

unlearn prepare --model classifier.safetensors --arch mlp1 --data features.npz --out state
"""

from __future__ import annotations

import argparse

from rich.console import Console

from workflows.commands import options
from workflows.commands.values import DIR


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "unlearn prepare --model M --data NPZ [options]"
    options.add_model(parser.add_argument_group("the model"))
    options.add_training_data(parser.add_argument_group("data"))
    earlier = "leave out what was forgotten by now: the ledger of earlier requests on this model"
    parser.add_argument_group("earlier requests").add_argument("--ledger", **DIR, help=earlier)
    group = parser.add_argument_group("where")
    group.add_argument("--device", default="cpu", help="compute here, such as cuda:0")
    options.add_out(group, "prepared", "write the state here")
    group.add_argument("--force", action="store_true", help="replace a state that is there already")


def run(arguments: argparse.Namespace, console: Console) -> int:
    from unlearn_core.arithmetic import arithmetic
    from workflows.deletion import run_preparation

    with arithmetic():
        return run_preparation(arguments, console)
