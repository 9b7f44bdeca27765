"""Steps in the order in which they should run, and who waits for whom; a few numbers per step and per edge."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from tasks.step import Step


class Graph:
    """The steps that are to be computed. A step's *rank* is its place in ``steps``: smaller is sooner.

    Longest path below a step first, then the number of steps that wait for it, then its place in the plan. A step that only
    needs others ends a cell: it goes first, so that results are seen, and recorded, as they come.

    Attributes:
        levels: by rank; steps of one level are equally urgent.
    """

    def __init__(self, plan: Sequence[Step]) -> None:
        """``plan`` has what is needed before what needs it; what it does not have is there already."""
        n = len(plan)
        number = {step.id: place for place, step in enumerate(plan)}
        edges, ends = array("l"), array("l", [0])  # what the steps need, by place, side by side
        for step in plan:
            edges.extend(sorted({number[needed.id] for needed in step.needs.values() if needed.id in number}))
            ends.append(len(edges))
        waiting, depth = array("l", [0]) * n, array("l", [1]) * n
        for place in reversed(range(n)):
            for needed in edges[ends[place] : ends[place + 1]]:
                waiting[needed] += 1
                depth[needed] = max(depth[needed], 1 + depth[place])
        longest = max(depth, default=0)
        level = array("l", (-d for d in depth))
        for place, step in enumerate(plan):
            if step.needs and not waiting[place]:
                level[place] = -longest
        order = sorted(range(n), key=lambda place: (level[place], -waiting[place], place))
        rank_of = array("l", [0]) * n
        for rank, place in enumerate(order):
            rank_of[place] = rank
        for step_id, place in number.items():
            number[step_id] = rank_of[place]
        self.steps: list[Step] = [plan[place] for place in order]
        self.levels: array[int] = array("l", (level[place] for place in order))
        self._ranks: dict[str, int] = number
        self._missing: array[int] = array("l", (ends[place + 1] - ends[place] for place in order))
        self._start: array[int] = array("l", [0])  # the dependents of a rank, side by side too, in the plan's order
        for place in order:
            self._start.append(self._start[-1] + waiting[place])
        self._dependents: array[int] = array("l", [0]) * len(edges)
        filled = self._start[:-1]
        for place in range(n):
            for needed in edges[ends[place] : ends[place + 1]]:
                self._dependents[filled[rank_of[needed]]] = rank_of[place]
                filled[rank_of[needed]] += 1
        self._dropped: bytearray = bytearray(n)

    def rank(self, step: Step) -> int:
        return self._ranks[step.id]

    def startable(self) -> Iterator[int]:
        """What needs nothing that is not there."""
        return (rank for rank, missing in enumerate(self._missing) if not missing)

    def complete(self, rank: int) -> list[int]:
        """The steps that can run now that this one is done."""
        able = []
        for dependent in self._of(rank):
            self._missing[dependent] -= 1
            if not self._missing[dependent] and not self._dropped[dependent]:
                able.append(dependent)
        return able

    def drop_dependents(self, rank: int) -> list[Step]:
        """All steps that can no longer run because this one failed, each named once."""
        dropped = []
        stack = list(self._of(rank))
        while stack:
            dependent = stack.pop()
            if not self._dropped[dependent]:
                self._dropped[dependent] = True
                dropped.append(self.steps[dependent])
                stack += self._of(dependent)
        return dropped

    def _of(self, rank: int) -> array[int]:
        return self._dependents[self._start[rank] : self._start[rank + 1]]
