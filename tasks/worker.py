"""A worker runs jobs: lists of steps of one shape. The same class serves in this process and as a Ray actor."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from tasks.cache import Cache
from tasks.compute.unlearning import COMPUTE
from tasks.executor import JobResult
from tasks.step import Step
from tasks.store import Store
from unlearn_core.errors import DiskFull


class Worker:
    """Computes one job at a time and keeps what is expensive to load between them."""

    def __init__(self, root: Path, device: str = "cpu", threads: int = 1, deterministic: bool = False) -> None:
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS refuses to be reproducible without
            torch.use_deterministic_algorithms(True)
        self.store: Store = Store(root)
        self.cache: Cache = Cache(device)
        self.threads: int = threads

    def ready(self) -> bool:
        """Answers once the worker exists, which on a cluster is once it has found its place."""
        return True

    def run(self, steps: Sequence[Step]) -> JobResult:
        """Compute and publish those of ``steps`` that the store lacks. An error in the code is a result, not a crash."""
        started = time.perf_counter()
        # set every time: libraries that a step loads may set their own
        torch.set_num_threads(self.threads)
        try:
            with threadpool_limits(self.threads):
                missing = [step for step in steps if not self.store.has(step)]
                if missing:
                    self._compute(missing)
        except DiskFull:
            raise  # no fault of these steps: the run ends, and resumes once there is room
        except Exception as error:  # reported with its traceback, and the steps fail
            first_line = (str(error).splitlines() or [""])[0]
            reason = f"{type(error).__name__}: {first_line}"
            return JobResult(time.perf_counter() - started, reason, traceback.format_exc())
        return JobResult(time.perf_counter() - started)

    def _compute(self, steps: Sequence[Step]) -> None:
        for needed in {needed.id: needed for step in steps for needed in step.needs.values()}.values():
            self.store.await_result(needed)  # another node may have made it a moment ago
        started = time.perf_counter()
        writes = COMPUTE[steps[0].kind](steps, self.store, self.cache)
        seconds = (time.perf_counter() - started) / len(steps)
        for step, write in zip(steps, writes, strict=True):
            self.store.commit(step, write, seconds)
