"""How long work takes: what run-time ratios are made of.

On one CPU thread that is the process's own CPU time, so that whatever else a shared machine does is nobody's cost. On a GPU,
or with several threads, it is the time that passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

Clock = Callable[[], float]


def clock_for(device: torch.device) -> Clock:
    """Seconds from some fixed moment; only differences mean anything."""
    if device.type == "cuda":
        return lambda: _after_cuda(device)
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def _after_cuda(device: torch.device) -> float:
    torch.cuda.synchronize(device)  # kernels are queued: without this only their launch would count
    return time.perf_counter()
