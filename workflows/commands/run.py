"""Run one variant and print its table.

Run one variant: a data set, a network and what it is to forget. Train the network (base), retrain it without the
records (retrain, and once more as floor), and measure how close every method comes to the retrained one, over several
seeds. Without options: digits, mlp1, forget subclass 0. Rerun the same command to resume: finished steps are kept and
none runs twice.

unlearn run --dataset features.npz --scenario class --key 3 --methods lda-2c,ft --seeds 0,1
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.console import Console

from unlearn_core.grid import ARCHITECTURES, SEEDS, Scenario
from workflows.commands import options
from workflows.commands.values import chosen, one_of
from workflows.display import speaker
from workflows.layout import Layout

if TYPE_CHECKING:
    from workflows.commands.selection import Part


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dataset", default="digits", help=f"data set: {options.DATASETS}")
    networks = f"network: {', '.join(ARCHITECTURES)}"
    add("--arch", default="mlp1", type=one_of(ARCHITECTURES), metavar="ARCH", help=networks)
    forgotten = f"what to forget. {options.SCENARIOS}"
    add("--scenario", default="subclass", type=one_of(tuple(Scenario)), metavar="SCENARIO", help=forgotten)
    add("--key", default=0, type=int, help="the label to forget; for random, the number of rows")
    options.add_running(parser, "runs/latest")


def run(arguments: argparse.Namespace, console: Console) -> int:
    from workflows.commands.running import check_device, conclude, run_parts
    from workflows.commands.selection import Part, data_options
    from workflows.grid import choose_variants
    from workflows.sources import open_sources

    check_device(arguments)
    source = open_sources(data_options(arguments, [arguments.dataset]), [arguments.arch])[0]
    variants = choose_variants(source, [arguments.arch], [Scenario(arguments.scenario)], [arguments.key])
    part = Part(source, variants)
    outcome = run_parts([part], arguments, console)
    if not outcome.state.failures:
        _print_results(part, arguments, console)
    return conclude(outcome, arguments, console)


def _print_results(part: Part, arguments: argparse.Namespace, console: Console) -> None:
    """The variant's table, and where its results and its figure are."""
    from tracking.figures import write_evolution
    from tracking.tables.benchmark import benchmark_table
    from tracking.tables.exports import rich_table
    from tracking.tree import TreeVariant, read_entries, tree_path

    layout, seeds = Layout(arguments.out), chosen(arguments.seeds, SEEDS)
    variant, backbone = part.variants[0], part.source.backbone
    entries = [e for e in read_entries(layout.results, variant, backbone) if e["seed"] in seeds]
    table = benchmark_table(TreeVariant(variant, backbone, tuple(entries)))
    console.print(rich_table(table))
    say = speaker(console)
    for note in table.notes:
        say(note)
    figures = write_evolution(layout.figures, entries, variant)
    say(f"results: {tree_path(layout.results, variant, backbone)}")
    say(f"figure: {figures[-1]}")
