"""Which worker is sick: steps fail on it that succeed on others.

A failure alone blames nobody, since the step may be at fault. It is held against the worker until it is settled: the worker
succeeds with another step, so that it is well; or the step is found to be at fault; or another worker computes the step,
which is then the fault of the first one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable

SICK_AFTER = 3
"""So many different steps in a row failed on a worker and succeeded on others."""


class Health:
    """What is known of the workers; steps are numbers."""

    def __init__(self) -> None:
        self._succeeded: set[Hashable] = set()
        self._open: defaultdict[Hashable, set[int]] = defaultdict(set)
        self._blamed: defaultdict[Hashable, set[int]] = defaultdict(set)

    def trusted(self, worker: Hashable) -> bool:
        """Whether it computed something, and nothing is held against it since."""
        return worker in self._succeeded and not self._held_against(worker)

    def on_hold(self, worker: Hashable) -> bool:
        """Whether it gets no new steps until others have tried those that failed on it."""
        return self._held_against(worker) >= SICK_AFTER

    def succeed(self, worker: Hashable) -> set[int]:
        """It is well; gives the steps that failed on it since it last was."""
        self._succeeded.add(worker)
        self._blamed.pop(worker, None)
        return self._open.pop(worker, set())

    def fail(self, worker: Hashable, step: int) -> None:
        self._open[worker].add(step)

    def blame(self, workers: Iterable[Hashable], step: int) -> list[Hashable]:
        """A step that failed on these succeeded on another; gives those of them that are now sick."""
        sick = []
        for worker in workers:
            if step in self._open[worker]:
                self._open[worker].discard(step)
                self._blamed[worker].add(step)
                if len(self._blamed[worker]) >= SICK_AFTER:
                    sick.append(worker)
        return sick

    def clear(self, workers: Iterable[Hashable], step: int) -> None:
        """The step itself is at fault."""
        for worker in workers:
            self._open[worker].discard(step)

    def forget(self, worker: Hashable) -> None:
        """It is gone."""
        self._succeeded.discard(worker)
        self._open.pop(worker, None)
        self._blamed.pop(worker, None)

    def _held_against(self, worker: Hashable) -> int:
        return len(self._open.get(worker, ())) + len(self._blamed.get(worker, ()))
