"""Ready steps in buckets of one shape: picking a job looks at a few buckets, however many steps are ready.

A step is its *rank* here, a number: its place in the order in which steps should run. Smaller is sooner.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

CONSIDERED = 12
"""How many of the best buckets are looked at for one that needs what the worker already holds."""

Bucket = tuple[str, int]
"""A shape, and how many steps of it may make one job."""


class ReadySteps:
    """What can run now."""

    def __init__(self, levels: Sequence[int]) -> None:
        """``levels[rank]``: steps of one level are equally urgent, so that a worker may choose among them."""
        self._levels: Sequence[int] = levels
        self._buckets: dict[Bucket, list[int]] = {}
        self._firsts: list[
            tuple[int, Bucket]
        ] = []  # a heap; entries whose rank is no longer a bucket's first are stale
        self._count: int = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rank: int, shape: str, at_most: int) -> None:
        """``at_most`` is how many steps may share its job."""
        bucket = (shape, at_most)
        ranks = self._buckets.setdefault(bucket, [])
        heapq.heappush(ranks, rank)
        self._count += 1
        if ranks[0] == rank:
            heapq.heappush(self._firsts, (rank, bucket))

    def take(self, n_held: Callable[[int], int], limit: Callable[[str], int]) -> list[int]:
        """The next job: of the most urgent level the bucket whose first step needs most of what the worker holds.

        Args:
            n_held: how many of a step's needs the worker holds.
            limit: how many steps of a shape fit into one job, whatever their bucket allows.
        """
        considered: list[tuple[int, Bucket]] = []
        while self._firsts and len(considered) < CONSIDERED:
            first = self._firsts[0]
            ranks = self._buckets.get(first[1])
            if ranks is None or ranks[0] != first[0] or first in considered:
                heapq.heappop(self._firsts)
            elif considered and self._levels[first[0]] != self._levels[considered[0][0]]:
                break
            else:
                considered.append(heapq.heappop(self._firsts))
        if not considered:
            return []
        chosen = min(considered, key=lambda first: (-n_held(first[0]), first[0]))
        for first in considered:
            if first is not chosen:
                heapq.heappush(self._firsts, first)
        return self._take_from(chosen[1], limit)

    def take_all(self) -> list[int]:
        """Everything that is left."""
        ranks = [rank for bucket in self._buckets.values() for rank in bucket]
        self._buckets.clear()
        self._firsts.clear()
        self._count = 0
        return ranks

    def _take_from(self, bucket: Bucket, limit: Callable[[str], int]) -> list[int]:
        shape, at_most = bucket
        ranks = self._buckets[bucket]
        job = [heapq.heappop(ranks) for _ in range(min(at_most, limit(shape), len(ranks)))]
        self._count -= len(job)
        if ranks:
            heapq.heappush(self._firsts, (ranks[0], bucket))
        else:
            del self._buckets[bucket]
        return job
