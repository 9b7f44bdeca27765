"""Prepare a model of your own for deletion requests, once.

Compute from a model and its training data what requests start from: fold models that never saw each record, the
network's curvature, statistics of the data. A request with 'unlearn forget --prepared STATE' then reads its own records and
a few others, whatever the size of the data, and its certificate says how close to a retrain it comes. For large data,
--workers or --address computes every part as a step on Ray: an interrupted command, given again, goes on.

unlearn prepare --model classifier.safetensors --arch mlp1 --data features.npz --out state
"""

from __future__ import annotations

import argparse

from rich.console import Console

from workflows.commands import options
from workflows.commands.values import COUNT, DIR


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "unlearn prepare --model M --data NPZ [options]"
    options.add_model(parser.add_argument_group("the model"))
    options.add_training_data(parser.add_argument_group("data"))
    earlier = "leave out what was forgotten by now: the ledger of earlier requests on this model"
    add = parser.add_argument_group("earlier requests").add_argument
    add("--ledger", **DIR, help=earlier)
    options.add_wait(add)
    parts = (
        "also prepare this: probe, the linear classifier that --method probe and fresh start from; fold-networks, which "
        "--method crossfit-net asks; young, a network after a few epochs, from which --method short-young starts (for "
        "ResNets and mlp2 it is prepared in any case); each takes long"
    )
    parser.add_argument_group("what").add_argument(
        "--with", dest="also", action="append", choices=("probe", "fold-networks", "young"), metavar="PART", help=parts
    )
    group = parser.add_argument_group("where", "In this process, unless workers are asked for: then on Ray.")
    group.add_argument("--device", default="cpu", help="in this process: compute here, such as cuda:0")
    workers = "start this many, each with one thread (with --address: one per CPU); what they finished is kept beside "
    group.add_argument(
        "--workers", **COUNT, help=workers + "--out, in OUT.steps, until the state is whole: rerun to resume"
    )
    cluster = "join the Ray cluster whose head is at HOST:PORT (default: a local Ray); all nodes must see --out"
    group.add_argument("--address", metavar="A", help=cluster)
    options.add_out(group, "prepared", "write the state here")
    group.add_argument("--force", action="store_true", help="replace a state that is there already")


def run(arguments: argparse.Namespace, console: Console) -> int:
    from unlearn_core.arithmetic import arithmetic
    from workflows.preparation import run_preparation

    with arithmetic():
        return run_preparation(arguments, console)
