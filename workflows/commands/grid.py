"""Run many variants on Ray.

Run any part of the grid of variants: data set, network, what it is to forget. Without options, the paper's 112:
CIFAR-10 and CIFAR-100, heads on DINOv2 features and ResNet-18, all scenarios and keys. Rerun the same command to
resume: finished steps are kept and none runs twice.

unlearn grid --dataset digits --arch mlp1,linear --scenario class --scenario random --out runs/digits
"""

from __future__ import annotations

import argparse

from rich.console import Console

from workflows.commands import options


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_selection(parser)
    options.add_running(parser, "runs/grid")


def run(arguments: argparse.Namespace, console: Console) -> int:
    from workflows.commands.running import check_device, conclude, run_parts
    from workflows.commands.selection import select_parts

    check_device(arguments)
    return conclude(run_parts(select_parts(arguments), arguments, console), arguments, console)
