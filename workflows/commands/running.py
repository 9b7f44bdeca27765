"""What ``run``, ``grid``, ``tune`` and ``features`` share: check the device, run with progress shown, say how it ended."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence

from rich.console import Console

from tasks.state import State
from tasks.step import Step, closure
from tasks.store import Store
from unlearn_core.errors import BadInput
from unlearn_core.precision import Precision
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
RAY_START_SECONDS = 12.0
"""Of a local Ray and its workers, on two cores; ``benchmarks/workflow.py --where`` measures it."""
EXIT_TRACKING_BEHIND = 4


def check_device(arguments: argparse.Namespace) -> None:
    """Refuse a --device that this machine lacks before anything is written."""
    if not arguments.local:
        return
    import torch

    from unlearn_core.arithmetic import check_precision

    try:
        torch.zeros(1, device=arguments.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"--device {arguments.device} cannot be used here ({reason}); cpu always can") from error
    check_precision(machine_of(arguments).precision, arguments.device)


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
    layout, machine = recorder.layout, machine_of(arguments)
    store = Store(layout.store)
    rates = Rates(store, sources)
    if kept is None and machine.may_be_local and not _has_gpu():
        left = store.missing(closure(targets))
        if left and not ray_pays(seconds := rates.total(left), os.cpu_count() or 1):
            machine = dataclasses.replace(machine, local=True)
            speaker(console)(
                f"running in this process: about {duration(seconds)} of work, and starting Ray takes "
                f"{duration(RAY_START_SECONDS)} (--workers N starts it all the same)"
            )
    workers = 1 if machine.local else arguments.workers or os.cpu_count() or 1

    display = Display(console, title, SecondsLeft(rates, workers))
    return run_plan(targets, layout, machine, recorder, display, kept)


def ray_pays(seconds: float, n_workers: int) -> bool:
    """Whether so much work is done sooner by so many workers on a local Ray, which must be started, than in this process."""
    return RAY_START_SECONDS + seconds / n_workers < seconds


def _has_gpu() -> bool:
    """Without loading torch; this process would not use it, workers on Ray do."""
    return shutil.which("nvidia-smi") is not None


class SecondsLeft:
    """Estimates the time left by taking off what was settled since it was last asked."""

    def __init__(self, rates: Rates, workers: int) -> None:
        self._rates: Rates = rates
        self._workers: int = workers
        self._left: float | None = None
        self._seen: int = 0

    def __call__(self, state: State) -> float:
        if self._left is None:
            self._left = self._rates.total([step for step in state.steps if step.id not in state.cached])
        self._left -= self._rates.total(state.settled[self._seen :])
        self._seen = len(state.settled)
        return max(0.0, self._left) / self._workers


def machine_of(arguments: argparse.Namespace) -> Machine:
    """What ``add_machine`` asked for."""
    given = vars(arguments)
    asked = {field.name: given[field.name] for field in dataclasses.fields(Machine) if field.name in given}
    return dataclasses.replace(Machine(**asked), precision=Precision(given.get("precision", Precision.FLOAT32)))


def conclude(outcome: Outcome, arguments: argparse.Namespace, console: Console, following: str | None = None) -> int:
    """Say what ran, what failed and what to do next; returns the exit code."""
    say, state = speaker(console), outcome.state
    say(outcome.tracking)
    n_failed = len(state.failures)
    say(f"{len(state.done)} steps run, {len(state.cached)} cached, {n_failed} failed; {duration(outcome.seconds)}")
    for line in state.set_aside:
        say(f"sick worker: {line}")
    causes = state.causes
    for failure in causes:
        say(f"failed: {failure.step}: {failure.reason}")
        if failure.traceback:
            say(f"  full traceback: {Layout(arguments.out).failures / failure.step.id}.txt")
    if causes:
        say(f"{n_failed - len(causes)} more steps needed those; rerun the same command to try them again")
        return EXIT_FAILED_STEPS
    if outcome.tracking_behind:
        return EXIT_TRACKING_BEHIND
    on_server = (getattr(arguments, "tracking_uri", None) or "").startswith(("http://", "https://"))
    look = "open the --tracking-uri in a browser" if on_server else f"unlearn ui --out {arguments.out}"
    say(f"next: {following or look}")
    return 0
