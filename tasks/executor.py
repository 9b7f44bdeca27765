"""The executor: a loop that gives ready steps to workers, whatever runs them, until none is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from tasks.schedule import Schedule
from tasks.state import Finished, State
from tasks.step import Step
from tasks.store import Damage, Store

PATIENCE_SECONDS = 60.0
"""How long a step that failed waits for another worker if nothing else is left to do."""


class Backend(Protocol):
    """Something that runs jobs on workers."""

    on_gpu: bool
    """Whether its workers compute on GPUs, which want larger stacks."""

    def idle(self) -> Sequence[Hashable]:
        """Workers that can take a job now."""
        ...

    def submit(self, worker: Hashable, steps: Sequence[Step]) -> None: ...

    def wait(self, seconds: float) -> Sequence[Finished]:
        """Jobs that ended, after at most about so many seconds."""
        ...

    def waiting_for_a_place(self) -> int:
        """Workers that the cluster has no room for yet."""
        ...

    def set_aside(self, worker: Hashable) -> str:
        """End an idle worker that is sick; says which one it was, for people, and whether another one takes its place."""
        ...

    def close(self) -> None: ...


def find_cached(steps: Sequence[Step], store: Store) -> tuple[set[str], list[Damage]]:
    """Which steps need not run, and which stored results were damaged and moved aside; reads every file once."""
    there = {kind: store.ids(kind) for kind in {step.kind for step in steps}}
    cached, damages = set[str](), list[Damage]()
    for step in steps:
        if step.id in there[step.kind]:
            damage = store.verify(step)
            if damage is None:
                cached.add(step.id)
            else:
                damages.append(damage)
    return cached, damages


def execute(
    state: State,
    backend: Backend,
    on_done: Callable[[Step], None],
    on_change: Callable[[State], None],
    poll_seconds: float = 0.5,
    patience_seconds: float = PATIENCE_SECONDS,
) -> None:
    """Run every step of ``state`` that is not cached; its outcome is in ``state`` afterwards.

    Args:
        on_done: called for every step that finished now.
        on_change: called at least every ``poll_seconds`` while jobs run.
        patience_seconds: how long steps wait for a worker that may take them if no job runs.
    """
    schedule = Schedule(state, backend.on_gpu)
    last_job = time.monotonic()
    while schedule.waiting or state.running:
        idle = backend.idle()
        schedule.meet(idle)
        for worker in idle:
            if schedule.is_sick(worker):
                state.set_aside.append(schedule.set_aside(worker, backend.set_aside(worker)))
            elif job := schedule.take(worker):
                state.begin(job)
                backend.submit(worker, job)
        state.workers_waiting = backend.waiting_for_a_place()
        if state.running:
            last_job = time.monotonic()
        elif schedule.n_workers == 0 and not state.workers_waiting:
            schedule.give_up_all()
        elif schedule.n_workers and (not state.workers_waiting or time.monotonic() - last_job >= patience_seconds):
            schedule.give_up_retries()
        for finished in backend.wait(poll_seconds):
            for step in schedule.settle(finished):
                on_done(step)
        on_change(state)
