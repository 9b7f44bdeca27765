"""What ``run``, ``grid``, ``tune`` and ``features`` share: check the device, run with progress shown, say how it ended."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence

from rich.console import Console

from tasks.executor import State
from tasks.step import Step
from tasks.store import Store
from unlearn_core.errors import BadInput
from workflows.commands.selection import Part, cells_of
from workflows.display import Display, duration, speaker
from workflows.driver_lock import hold
from workflows.layout import Layout
from workflows.litter import clear_litter
from workflows.rates import Rates
from workflows.results import Recorder
from workflows.run import Machine, Outcome, Workers, run_plan
from workflows.sources import Source

EXIT_FAILED_STEPS = 1
EXIT_TRACKING_BEHIND = 4


def check_device(arguments: argparse.Namespace) -> None:
    """Refuse a --device that this machine lacks before anything is written."""
    if not arguments.local:
        return
    import torch

    try:
        torch.zeros(1, device=arguments.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"--device {arguments.device} cannot be used here ({reason}); cpu always can") from error


@contextlib.contextmanager
def driving(arguments: argparse.Namespace, console: Console) -> Iterator[None]:
    """Hold --out for this command alone, and clear away what a killed one left there."""
    layout, say = Layout(arguments.out), speaker(console)
    with hold(layout.lock, say) as before:
        clear_litter(layout, before, say)
        yield


def run_parts(parts: Sequence[Part], arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run every cell of the chosen variants and record each as it finishes."""
    cells = cells_of(parts, arguments)
    variants = [variant for part in parts for variant in part.variants]
    sources = [part.source for part in parts]
    names = ", ".join(dict.fromkeys(source.name for source in sources))
    title = str(variants[0]) if len(variants) == 1 else f"{names}: {len(variants)} variants, {len(cells)} cells"
    with driving(arguments, console):
        recorder = Recorder(Layout(arguments.out), arguments.tracking_uri, track=not arguments.no_tracking)
        return run_steps(cells, sources, title, recorder, arguments, console)


def run_steps(
    targets: Sequence[Step],
    sources: Sequence[Source],
    title: str,
    recorder: Recorder,
    arguments: argparse.Namespace,
    console: Console,
    kept: Workers | None = None,
) -> Outcome:
    """Run ``targets`` and all that they need on the machine that ``add_machine`` asked for, or on workers that are kept."""
    layout = recorder.layout
    rates = Rates(Store(layout.store), sources)
    workers = 1 if arguments.local else arguments.workers or os.cpu_count() or 1

    def seconds_left(state: State) -> float:
        settled = state.cached | state.done | set(state.failures)
        return rates.total([step for step in state.steps if step.id not in settled]) / workers

    return run_plan(targets, layout, machine_of(arguments), recorder, Display(console, title, seconds_left), kept)


def machine_of(arguments: argparse.Namespace) -> Machine:
    """What ``add_machine`` asked for."""
    return Machine(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Machine)})


def conclude(outcome: Outcome, arguments: argparse.Namespace, console: Console, following: str | None = None) -> int:
    """Say what ran, what failed and what to do next; returns the exit code."""
    say, state = speaker(console), outcome.state
    say(outcome.tracking)
    n_failed = len(state.failures)
    say(f"{len(state.done)} steps run, {len(state.cached)} cached, {n_failed} failed; {duration(outcome.seconds)}")
    causes = [failure for failure in state.failures.values() if failure.because is None]
    for failure in causes:
        say(f"failed: {failure.step}: {failure.reason}")
        if failure.traceback:
            say(f"  full traceback: {Layout(arguments.out).failures / failure.step.id}.txt")
    if causes:
        say(f"{n_failed - len(causes)} more steps needed those; rerun the same command to try them again")
        return EXIT_FAILED_STEPS
    if outcome.tracking_behind:
        return EXIT_TRACKING_BEHIND
    say(f"next: {following or f'unlearn ui --out {arguments.out}'}")
    return 0
