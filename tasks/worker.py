"""A worker runs jobs: lists of steps of one shape. The same class serves in this process and as a Ray actor."""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from tasks.cache import Cache
from tasks.compute.unlearning import COMPUTE
from tasks.state import Cause, JobResult
from tasks.step import Kind, Step, closure
from tasks.store import Store
from unlearn_core.arithmetic import arithmetic, check_precision
from unlearn_core.errors import BadInput, DiskFull, first_line
from unlearn_core.precision import Precision

NO_MEMORY = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
"""What torch, CUDA and cuBLAS say in errors that have no class of their own."""


class Worker:
    """Computes one job at a time and keeps what is expensive to load between them."""

    def __init__(
        self,
        root: Path,
        device: str = "cpu",
        threads: int = 1,
        deterministic: bool = False,
        precision: Precision = Precision.FLOAT32,
    ) -> None:
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS refuses to be reproducible without
            torch.use_deterministic_algorithms(True)
        self.store: Store = Store(root)
        self.cache: Cache = Cache(device)
        self.threads: int = threads
        self.precision: Precision = precision

    def place(self) -> str:
        """Where it runs, for people."""
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "") if self.cache.device.type == "cuda" else ""
        return f"process {os.getpid()} on {socket.gethostname()}" + (f", GPU {gpus}" if gpus else "")

    def ready(self) -> str | None:
        """Why it cannot work here, or None; on a cluster it answers once it has found its place.

        A GPU that Ray counts may be one that torch cannot use.
        """
        device, host = self.cache.device, socket.gethostname()
        try:
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            remedy = "install torch for its CUDA driver there, or run on CPUs with --gpus-per-worker 0"
            return f"torch cannot use {device} on {host} ({first_line(error)}); {remedy}"
        try:
            check_precision(self.precision, device)
        except BadInput as error:
            return f"{error} (on {host})"
        return None

    def run(self, steps: Sequence[Step]) -> JobResult:
        """Compute and publish those of ``steps`` that the store lacks. An error in the code is a result, not a crash."""
        result = self._run(steps)
        if result.error is not None and result.cause is Cause.MEMORY:  # here no frame of the failed step holds arrays
            self.cache.clear()
        return result

    def _run(self, steps: Sequence[Step]) -> JobResult:
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
            reason = self._damaged_input(steps) or f"{type(error).__name__}: {first_line(error)}"
            return JobResult(
                time.perf_counter() - started, reason, traceback.format_exc(), _cause(error, steps[0].kind)
            )
        return JobResult(time.perf_counter() - started)

    def _damaged_input(self, steps: Sequence[Step]) -> str | None:
        """What these steps could not read: a file that was whole when the driver looked, and is not any more."""
        asked = {step.id for step in steps}
        for needed in closure(steps):
            if needed.id not in asked and (damage := self.store.damage(needed)) is not None:
                result = f"{needed.kind} result {needed.id[:12]}"
                return f"{result} was damaged while the grid ran ({damage}); the next start computes it again"
        return None

    def _compute(self, steps: Sequence[Step]) -> None:
        for needed in {needed.id: needed for step in steps for needed in step.needs.values()}.values():
            self.store.await_result(needed)  # another node may have made it a moment ago
        with arithmetic(Precision(steps[0].config.get("precision", Precision.FLOAT32))):
            started = time.perf_counter()
            writes = COMPUTE[steps[0].kind](steps, self.store, self.cache)
            seconds = (time.perf_counter() - started) / len(steps)
            for step, write in zip(steps, writes, strict=True):
                self.store.commit(step, write, seconds)  # some compute what they write


def _cause(error: Exception, kind: Kind) -> Cause:
    if isinstance(error, BadInput) and kind is Kind.REQUEST:  # a file that is missing may be a worker's own trouble
        return Cause.INPUT
    short = isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    )
    return Cause.MEMORY if short else Cause.ERROR
