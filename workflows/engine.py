"""Run a plan: cached steps aside, on Ray or in this process, with results tracked as cells finish."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.executor import Backend, State, execute, find_cached
from tasks.step import Kind, Step, closure
from tasks.store import Store
from tracking.files import write_atomically
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


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    state: State
    seconds: float
    tracking: str


def run_plan(
    targets: Sequence[Step], layout: Layout, machine: Machine, recorder: Recorder, display: Display
) -> Outcome:
    """Run every step behind ``targets`` that is not in the store, and record those that are cells.

    Interrupting it loses the steps in flight only.
    """
    started = time.perf_counter()
    store = Store(layout.store)
    store.clean_scratch()
    steps = closure(targets)
    save_plan(layout, steps)
    state = State(steps)
    state.cached, state.damages = find_cached(steps, store)
    display.start(state)
    with contextlib.ExitStack() as stack:
        stack.callback(display.stop)
        stack.callback(lambda: _write_status(layout, state, finished=True))
        if state.left:
            backend = stack.enter_context(_backend(layout, machine))
            recorder.use_ray(not machine.local)
            recorder.record([step for step in targets if step.id in state.cached and step.kind is Kind.AUDIT])
            execute(
                state,
                backend,
                on_done=lambda step: recorder.record([step]) if step.kind is Kind.AUDIT else None,
                on_change=lambda current: _show(layout, current, display),
            )
        else:
            recorder.record([step for step in targets if step.kind is Kind.AUDIT])
        tracking = recorder.finish()
    _write_failures(layout, state)
    return Outcome(state, time.perf_counter() - started, tracking)


@contextlib.contextmanager
def _backend(layout: Layout, machine: Machine) -> Iterator[Backend]:
    from tasks.backends import LocalBackend, RayBackend, place_workers

    if machine.local:
        yield LocalBackend(layout.store, machine.device, deterministic=machine.deterministic)
        return
    import ray

    with ray_session(machine.address):
        backend = RayBackend(
            layout.store,
            place_workers(ray.cluster_resources(), machine.workers, machine.gpus_per_worker),
            machine.deterministic,
        )
        try:
            yield backend
        finally:
            backend.close()


@contextlib.contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start a local one and stop it afterwards."""
    import logging

    import ray

    mine = not ray.is_initialized()
    if mine:
        # the object store carries messages only: results go through the store on disk
        local: Mapping[str, Any] = {
            "include_dashboard": False,
            "object_store_memory": 200 * 2**20,
            "_node_ip_address": "127.0.0.1",
        }
        ray.init(
            address=address or "local",  # None would join whatever cluster happens to run on this machine
            logging_level=logging.ERROR,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": _source_root()}} if address is None else None,
            **({} if address else local),
        )
    try:
        yield
    finally:
        if mine:
            ray.shutdown()


def _source_root() -> str:
    """So that local workers import this checkout wherever the command was started."""
    root = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])


def save_plan(layout: Layout, steps: Sequence[Step]) -> None:
    """Remember what was asked, for ``status`` and ``explain``."""
    lines = (json.dumps({"id": step.id, "name": str(step), **step.identity}) for step in steps)
    write_atomically(layout.plan, "\n".join(lines) + "\n")


_last_status: dict[Path, float] = {}


def _show(layout: Layout, state: State, display: Display) -> None:
    display.update(state)
    now = time.monotonic()
    if now - _last_status.get(layout.status, 0.0) >= 1.0:
        _last_status[layout.status] = now
        _write_status(layout, state, finished=False)


def _write_status(layout: Layout, state: State, finished: bool) -> None:
    status = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": state.started,
        "first_job": state.first_job,
        "updated": time.time(),
        "finished": finished,
        "counts": state.counts(),
        "left": state.left,
        "running": [str(step) for step in state.steps if step.id in state.running],
        "failures": [
            {"step": str(failure.step), "reason": failure.reason}
            for failure in state.failures.values()
            if failure.because is None
        ],
    }
    write_atomically(layout.status, json.dumps(status, indent=1))


def _write_failures(layout: Layout, state: State) -> None:
    for failure in state.failures.values():
        if failure.traceback:
            write_atomically(layout.failures / f"{failure.step.id}.txt", f"{failure.step}\n{failure.traceback}")
