"""Run a plan: every step that is not in the store, on Ray or in this process; cells are recorded as they finish."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.executor import Backend, execute, find_cached
from tasks.state import State
from tasks.step import Kind, Step, closure
from tasks.store import Store
from unlearn_core.precision import Precision
from unlearn_core.writing import write_atomically
from workflows.display import Display
from workflows.layout import Layout
from workflows.results import Recorder


@dataclass(frozen=True)
class Machine:
    """Where to run: ``local`` is this process; otherwise Ray at ``address``, or one started for the purpose."""

    local: bool = False
    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None
    device: str = "cpu"
    deterministic: bool = False
    precision: Precision = Precision.FLOAT32
    """What steps will ask for: refused at once if a worker's device does not have it."""

    @property
    def may_be_local(self) -> bool:
        """Whether nothing that was asked for needs Ray, so that what is faster may be chosen."""
        return not self.local and self.address is None and self.workers is None and self.gpus_per_worker is None


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    state: State
    seconds: float
    tracking: str
    tracking_behind: bool = False


def run_plan(
    targets: Sequence[Step],
    layout: Layout,
    machine: Machine,
    recorder: Recorder,
    display: Display,
    workers: Workers | None = None,
) -> Outcome:
    """Run every step behind ``targets`` that is not in the store, and record those that are cells.

    Interrupting it loses the steps in flight only. ``workers`` are kept for the next plan; otherwise some are started.
    """
    started = time.perf_counter()
    store = Store(layout.store)
    store.clean_scratch()
    steps = closure(targets)
    save_plan(layout, steps)
    state = State(steps, *find_cached(steps, store))
    recorder.expect(step for step in targets if step.kind is Kind.AUDIT)
    display.start(state)
    status = Status(layout, state)

    def tell(waits_for: str | None) -> None:
        display.wait_for(state, waits_for)
        if status.waits_for != waits_for:
            status.waits_for = waits_for
            with contextlib.suppress(OSError):  # a full disk ends the run where results are written, not here
                status.write()

    with contextlib.ExitStack() as stack:
        stack.callback(recorder.write_tree)
        stack.callback(display.stop)
        stack.push(lambda kind, *_: status.write_last(recorder.lacking, failed=kind is not None))
        stack.enter_context(recorder.telling(tell))
        if state.left:
            backend = (workers or stack.enter_context(Workers(layout.store, machine))).backend()
            if not machine.local:
                recorder.use_ray()
            recorder.start_writer()
            recorder.record([step for step in targets if step.id in state.cached and step.kind is Kind.AUDIT])
            execute(
                state,
                backend,
                on_done=lambda step: recorder.record([step]) if step.kind is Kind.AUDIT else None,
                on_change=lambda current: _on_change(status, display, recorder),
            )
        else:
            recorder.record_all([step for step in targets if step.kind is Kind.AUDIT])
        tracking = recorder.finish()
    _write_failures(layout, state)
    return Outcome(state, time.perf_counter() - started, tracking, recorder.behind)


class Workers:
    """The workers of a machine: started when first needed, ended with the block."""

    def __init__(self, store: Path, machine: Machine) -> None:
        self._store: Path = store
        self._machine: Machine = machine
        self._stack: contextlib.ExitStack = contextlib.ExitStack()
        self._backend: Backend | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def backend(self) -> Backend:
        if self._backend is None:
            self._backend = self._stack.enter_context(_backend(self._store, self._machine))
        return self._backend


def _backend(store: Path, machine: Machine) -> AbstractContextManager[Backend]:
    if machine.local:
        from tasks.local_backend import LocalBackend

        local = LocalBackend(store, machine.device, deterministic=machine.deterministic, precision=machine.precision)
        return contextlib.nullcontext(local)
    from tasks.ray_backend import ray_workers

    return ray_workers(
        store, machine.address, machine.workers, machine.gpus_per_worker, machine.deterministic, machine.precision
    )


def save_plan(layout: Layout, steps: Sequence[Step]) -> None:
    """Remember what was asked, for ``explain``."""
    write_atomically(
        layout.plan, (json.dumps({"id": step.id, "name": str(step), **step.identity}) + "\n" for step in steps)
    )


SHOWN = 100
"""Failures that the status names, which is written every second; all of them are in the log and in ``failures``."""


class Status:
    """What ``unlearn status`` shows of a run, in a file. Two threads may write it; each replaces it as a whole."""

    def __init__(self, layout: Layout, state: State) -> None:
        self._file: Path = layout.status
        self.state: State = state
        self._last: float = 0.0
        self.waits_for: str | None = None
        """What MLflow keeps the run waiting for, if it does; once it has ended, what MLflow lacks."""

    def write_due(self) -> None:
        if time.monotonic() - self._last >= 1.0:
            self.write()

    def write_last(self, lacking: str | None, failed: bool) -> None:
        """What ended the run is what is told: if that is a full disk, the status cannot be written either.

        Args:
            lacking: what MLflow lacks, if anything.
        """
        try:
            self.waits_for = lacking
            self.write(finished=True)
        except OSError:
            if not failed:
                raise

    def write(self, finished: bool = False) -> None:
        self._last = time.monotonic()
        state = self.state
        status = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": state.started,
            "first_job": state.first_job,
            "updated": time.time(),
            "finished": finished,
            "counts": state.counts(),
            "left": state.left,
            "running": [] if finished else [str(step) for step in list(state.running.values())],
            "waits_for": self.waits_for,
            "set_aside": state.set_aside,
            "n_failures": len(state.causes),
            "failures": [{"step": str(failure.step), "reason": failure.reason} for failure in state.causes[:SHOWN]],
        }
        write_atomically(self._file, json.dumps(status, indent=1))


def _on_change(status: Status, display: Display, recorder: Recorder) -> None:
    display.update(status.state)
    recorder.look_after_writer()
    recorder.write_due()
    status.write_due()


def _write_failures(layout: Layout, state: State) -> None:
    for failure in state.failures.values():
        if failure.traceback:
            write_atomically(layout.failures / f"{failure.step.id}.txt", f"{failure.step}\n{failure.traceback}")
