"""Show what a grid would run and how long it would take.

Show what 'unlearn grid' with the same options would do, without doing it: steps by kind, how many are done already,
what cells share, and the time left, from times measured in --out or else from this machine's speed. CIFAR can be
planned before it is downloaded.

unlearn plan --dataset digits --arch mlp1 --out runs/digits
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tasks.state import State
from tasks.step import Kind, Step, closure
from tasks.store import Store
from workflows.commands import options
from workflows.commands.values import COUNT
from workflows.display import duration, speaker
from workflows.layout import Layout

SHARED = (Kind.FEATURES, Kind.RESIZED, Kind.SKETCH, Kind.PREPARED, Kind.BASE, Kind.RETRAIN)


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_out(parser, "runs/grid")
    parser.add_argument("--workers", default=2, **COUNT, help="estimate for this many")
    parser.add_argument("--steps", action="store_true", help="list every step with its id")
    options.add_selection(parser)
    options.add_data(parser)
    options.add_resnet(parser)
    options.add_settings(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    from workflows.commands.selection import cells_of, select_parts
    from workflows.rates import GpuModel, Rates
    from workflows.run import save_plan

    parts = select_parts(arguments, planning=True)
    cells = cells_of(parts, arguments)
    layout, steps = Layout(arguments.out), closure(cells)
    store = Store(layout.store)
    there = {kind: store.ids(kind) for kind in Kind}
    state = State(steps, {step.id for step in steps if step.id in there[step.kind] and store.has(step)})
    save_plan(layout, steps)
    say = speaker(console)
    n_methods = sum(step.kind is Kind.UNLEARN for step in steps)
    n_variants = sum(len(part.variants) for part in parts)
    say(f"{n_variants} variants, {len(cells)} cells, {n_methods} method runs, {len(steps)} steps")
    missing = dict.fromkeys(missing for part in parts for missing in part.source.missing)
    for what in missing:
        say(f"not there yet: {what}")
    if missing:
        say("planned from published sizes all the same; 'cached' then counts nothing that depends on what is missing")
    for line in _sharing(steps):
        say(line)
    rates, gpu = Rates(store, [part.source for part in parts]), GpuModel()
    left = [step for step in steps if step.id not in state.cached]
    seconds = {step.id: rates.seconds(step) for step in left}
    gpu_seconds = {step.id: gpu.seconds(rates.work(step)) for step in left}
    console.print(_costs(state, left, {step: known for step, (known, _) in seconds.items()}, gpu_seconds))
    total = sum(known for known, _ in seconds.values())
    measured = sum(was_measured for _, was_measured in seconds.values())
    say(
        f"about {duration(total / arguments.workers)} left on {arguments.workers} workers ({duration(total)} of work; "
        f"{measured} of {len(left)} steps from times measured in this store, the rest from this machine's GEMM rate)"
    )
    say(f"about {sum(gpu_seconds.values()) / 3600:.1f} GPU-hours left, by a model: {gpu}")
    if arguments.steps:
        for step in steps:
            say(f"{step.id[:12]} {'cached ' if step.id in state.cached else 'to run '} {step}")
    return 0


def _sharing(steps: Sequence[Step]) -> list[str]:
    """By kind, how many method runs need the same step."""
    uses = Counter(needed.id for step in steps if step.kind is Kind.UNLEARN for needed in step.needs.values())
    users = {kind: [uses[step.id] for step in steps if step.kind is kind] for kind in SHARED}
    return [
        f"each {kind} step is shared by {min(counts)} to {max(counts)} method runs"
        for kind, counts in users.items()
        if counts
    ]


def _costs(state: State, left: Sequence[Step], seconds: dict[str, float], gpu_seconds: dict[str, float]) -> Table:
    """Steps by kind, and the cost of those that are still to run."""
    table = Table(box=None, pad_edge=False)
    table.add_column("steps")
    for column in ("total", "cached", "to run", "hours on one worker", "GPU-hours"):
        table.add_column(column, justify="right")
    by_kind: defaultdict[str, list[str]] = defaultdict(list)
    for step in left:
        by_kind[step.kind].append(step.id)
    for kind, count in state.counts().items():
        to_run = by_kind[kind]
        hours = (sum(by_step[step] for step in to_run) / 3600 for by_step in (seconds, gpu_seconds))
        table.add_row(
            kind, str(count["total"]), str(count["cached"]), str(len(to_run)), *(f"{value:.2f}" for value in hours)
        )
    return table
