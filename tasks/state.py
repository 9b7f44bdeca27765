"""What a job came to, and where a run stands."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tasks.step import Step
from tasks.store import Damage


class Cause(StrEnum):
    """Why a job failed, as far as it matters for what is done next."""

    ERROR = "error"
    """The step's code, or the worker's machine."""
    INPUT = "input"
    """What was asked for: no other worker can do better."""
    MEMORY = "memory"
    """A smaller stack may fit."""


@dataclass(frozen=True)
class JobResult:
    """``error`` is None if all steps of the job are now in the store; otherwise its first line, and the traceback."""

    seconds: float
    error: str | None = None
    traceback: str = ""
    cause: Cause = Cause.ERROR


@dataclass(frozen=True)
class Finished:
    """A job that ended. ``result`` is None where the worker died."""

    worker: Hashable
    steps: Sequence[Step]
    result: JobResult | None


@dataclass(frozen=True)
class Failure:
    """``reason`` is one line; ``traceback`` the rest. ``because`` names the failed step that this one needed."""

    step: Step
    reason: str
    traceback: str = ""
    because: Step | None = None


@dataclass
class State:
    """Where a run stands; written by the loop, read by displays, which need not look at every step for that.

    Attributes:
        settled: the steps that were computed or failed, in that order.
        causes: the failures that are not because of another one, in their order.
        set_aside: a line for every worker that was found sick.
    """

    steps: Sequence[Step]
    cached: set[str] = field(default_factory=set)
    damages: list[Damage] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    running: dict[str, Step] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    settled: list[Step] = field(default_factory=list)
    causes: list[Failure] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    workers_waiting: int = 0
    first_job: float | None = None
    started: float = field(default_factory=time.time)
    _counts: dict[str, dict[str, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        totals, cached = Counter[str](), Counter[str]()
        for step in self.steps:
            totals[step.kind] += 1
            cached[step.kind] += step.id in self.cached
        self._counts = {
            str(kind): {"total": total, "cached": cached[kind], "done": 0, "running": 0, "failed": 0}
            for kind, total in totals.items()
        }

    def counts(self) -> dict[str, dict[str, int]]:
        """Kind -> total, cached, done, running, failed."""
        return {kind: dict(row) for kind, row in self._counts.items()}

    @property
    def left(self) -> int:
        return len(self.steps) - len(self.cached) - len(self.done) - len(self.failures)

    def begin(self, job: Iterable[Step]) -> None:
        self.first_job = self.first_job or time.time()
        for step in job:
            self.running[step.id] = step
            self._counts[step.kind]["running"] += 1

    def end(self, job: Iterable[Step]) -> None:
        """They run no longer, however that ended."""
        for step in job:
            if self.running.pop(step.id, None) is not None:
                self._counts[step.kind]["running"] -= 1

    def finish(self, step: Step) -> None:
        self.done.add(step.id)
        self.settled.append(step)
        self._counts[step.kind]["done"] += 1

    def fail(self, failure: Failure) -> None:
        self.failures[failure.step.id] = failure
        self.settled.append(failure.step)
        self._counts[failure.step.kind]["failed"] += 1
        if failure.because is None:
            self.causes.append(failure)
