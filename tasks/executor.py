"""The executor: a loop over a heap of ready steps, whatever runs them.

Critical path first, shared upstream first. Ready steps of one shape are fused into one job. A failing step fails its
descendants only. Worker death is retried; an error in the code is not.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tasks.step import Step
from tasks.store import Damage, Store

MAX_FUSED = 8
MAX_DEATHS = 3
CONSIDERED = 12
"""How many of the best ready jobs are looked at for one that needs what the worker already holds."""


@dataclass(frozen=True)
class JobResult:
    """``error`` is None if all steps of the job are now in the store; otherwise its first line, and the traceback."""

    seconds: float
    error: str | None = None
    traceback: str = ""


@dataclass(frozen=True)
class Finished:
    """A job that ended. ``result`` is None where the worker died."""

    worker: Hashable
    steps: Sequence[Step]
    result: JobResult | None


class Backend(Protocol):
    """Something that runs jobs on workers."""

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

    def close(self) -> None: ...


@dataclass(frozen=True)
class Failure:
    """``reason`` is one line; ``traceback`` the rest. ``because`` names the failed step that this one needed."""

    step: Step
    reason: str
    traceback: str = ""
    because: Step | None = None


@dataclass
class State:
    """Where a run stands; written by the loop, read by displays."""

    steps: Sequence[Step]
    cached: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    running: dict[str, float] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)
    workers_waiting: int = 0
    first_job: float | None = None
    started: float = field(default_factory=time.time)

    def counts(self) -> dict[str, dict[str, int]]:
        """Kind -> total, cached, done, running, failed."""
        table: dict[str, Counter[str]] = {}
        for step in self.steps:
            row = table.setdefault(str(step.kind), Counter(total=0, cached=0, done=0, running=0, failed=0))
            row["total"] += 1
            for name, ids in (
                ("cached", self.cached),
                ("done", self.done),
                ("running", self.running),
                ("failed", self.failures),
            ):
                row[name] += step.id in ids
        return {kind: dict(row) for kind, row in table.items()}

    @property
    def left(self) -> int:
        return len(self.steps) - len(self.cached) - len(self.done) - len(self.failures)


def find_cached(steps: Sequence[Step], store: Store) -> tuple[set[str], list[Damage]]:
    """Which steps need not run, and which stored results were damaged and moved aside."""
    damages = [damage for step in steps if (damage := store.verify(step)) is not None]
    return {step.id for step in steps if store.has(step)}, damages


def execute(
    state: State,
    backend: Backend,
    on_done: Callable[[Step], None],
    on_change: Callable[[State], None],
    poll_seconds: float = 0.5,
) -> None:
    """Run every step of ``state`` that is not cached; its outcome is in ``state`` afterwards.

    Args:
        on_done: called for every step that finished now.
        on_change: called at least every ``poll_seconds`` while jobs run.
    """
    schedule = _Schedule(state)
    while schedule.ready or state.running:
        for worker in backend.idle():
            job = schedule.take(worker)
            if not job:
                break
            now = time.time()
            state.first_job = state.first_job or now
            state.running.update({step.id: now for step in job})
            backend.submit(worker, job)
        for finished in backend.wait(poll_seconds):
            for step in schedule.settle(finished):
                on_done(step)
        state.workers_waiting = backend.waiting_for_a_place()
        on_change(state)


Priority = tuple[int, int, int]
"""Smaller is sooner."""


class _Schedule:
    """Ready steps by priority, and what waits for them."""

    def __init__(self, state: State) -> None:
        self.state: State = state
        self.dependents: dict[str, list[Step]] = defaultdict(list)
        self.missing: dict[str, int] = {}
        self.alone: set[str] = set()
        self.deaths: Counter[str] = Counter()
        self.held: dict[Hashable, set[str]] = defaultdict(set)
        self.ready: dict[str, Step] = {}
        self._heap: list[tuple[Priority, int, Step]] = []
        self._order: itertools.count[int] = itertools.count()
        pending = [step for step in state.steps if step.id not in state.cached]
        for step in pending:
            open_needs = {needed.id for needed in step.needs.values()} - state.cached
            self.missing[step.id] = len(open_needs)
            for needed in open_needs:
                self.dependents[needed].append(step)
        self.priority: dict[str, Priority] = self._priorities(pending)
        for step in pending:
            if self.missing[step.id] == 0:
                self._make_ready(step)

    def _priorities(self, pending: Sequence[Step]) -> dict[str, Priority]:
        """Longest path below a step, then the number of steps that wait for it, then its place in the plan.

        A step that only needs others ends a cell: it goes first, so that results are seen, and recorded, as they come.
        """
        depth: dict[str, int] = {}
        for step in reversed(pending):
            depth[step.id] = 1 + max((depth[d.id] for d in self.dependents[step.id]), default=0)
        longest = max(depth.values(), default=0)
        ends_a_cell = {step.id for step in pending if step.needs and not self.dependents[step.id]}
        return {
            step.id: (-longest if step.id in ends_a_cell else -depth[step.id], -len(self.dependents[step.id]), place)
            for place, step in enumerate(pending)
        }

    def _make_ready(self, step: Step) -> None:
        self.ready[step.id] = step
        heapq.heappush(self._heap, (self.priority[step.id], next(self._order), step))

    def take(self, worker: Hashable) -> list[Step]:
        """The next job for a worker: among the best ready steps one that needs what it holds, with all of its shape."""
        considered: list[tuple[Priority, int, Step]] = []
        shapes: set[str] = set()
        while self._heap and len(shapes) < CONSIDERED:
            item = heapq.heappop(self._heap)
            if item[2].id in self.ready:
                considered.append(item)
                shapes.add(item[2].shape)
        if not considered:
            return []
        best = considered[0][0][0]
        held = self.held[worker]
        chosen = min(
            (item for item in considered if item[0][0] == best),
            key=lambda item: (-len(held & {n.id for n in item[2].needs.values()}), item[:2]),
        )[2]
        for item in considered:
            heapq.heappush(self._heap, item)
        job = [chosen]
        if chosen.id not in self.alone:
            alike = (s for s in self.ready.values() if s.shape == chosen.shape and s.id not in self.alone)
            job = [*itertools.islice(alike, MAX_FUSED)]
        for step in job:
            del self.ready[step.id]
            held.add(step.id)
            held.update(needed.id for needed in step.needs.values())
        return job

    def settle(self, finished: Finished) -> list[Step]:
        """Take the end of a job into account; gives the steps that are now done."""
        for step in finished.steps:
            self.state.running.pop(step.id, None)
        result = finished.result
        if result is None:
            self.held.pop(finished.worker, None)
            for step in finished.steps:
                self.deaths[step.id] += 1
                if self.deaths[step.id] >= MAX_DEATHS:
                    self._fail(Failure(step, f"its worker died {MAX_DEATHS} times"))
                else:
                    self._make_ready(step)
            return []
        if result.error is not None:
            if len(finished.steps) > 1:  # one bad step must not fail its neighbours: each runs again, alone
                for step in finished.steps:
                    self.alone.add(step.id)
                    self._make_ready(step)
            else:
                self._fail(Failure(finished.steps[0], result.error, result.traceback))
            return []
        for step in finished.steps:
            self.state.done.add(step.id)
            for dependent in self.dependents[step.id]:
                self.missing[dependent.id] -= 1
                if self.missing[dependent.id] == 0 and dependent.id not in self.state.failures:
                    self._make_ready(dependent)
        return list(finished.steps)

    def _fail(self, failure: Failure) -> None:
        self.state.failures[failure.step.id] = failure
        stack = list(self.dependents[failure.step.id])
        while stack:
            step = stack.pop()
            if step.id not in self.state.failures:
                because = Failure(step, f"needs {failure.step}, which failed", because=failure.step)
                self.state.failures[step.id] = because
                stack += self.dependents[step.id]
