"""How long work takes: what run-time ratios are made of.

On one CPU thread that is the process's own CPU time, so that whatever else a shared machine does is nobody's cost. On a GPU,
or with several threads, it is the time that passes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch

Clock = Callable[[], float]
CPU = torch.device("cpu")


def clock_for(device: torch.device) -> Clock:
    """Seconds from some fixed moment; only differences mean anything."""
    if device.type == "cuda":
        return lambda: _after_cuda(device)
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def _after_cuda(device: torch.device) -> float:
    torch.cuda.synchronize(device)  # kernels are queued: without this only their launch would count
    return time.perf_counter()


class Stopwatch:
    """Adds up the seconds of some blocks, less those of blocks within them that are nobody's cost."""

    def __init__(self, device: torch.device = CPU) -> None:
        self._now: Clock = clock_for(device)
        self._ended: float = 0.0
        self._started: float | None = None

    @property
    def seconds(self) -> float:
        """So far; also while a block runs."""
        return self._ended + (0.0 if self._started is None else self._now() - self._started)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._started = self._now()
        try:
            yield
        finally:
            self._ended, self._started = self.seconds, None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self._ended, self._started = self.seconds, None
        try:
            yield
        finally:
            self._started = self._now()
