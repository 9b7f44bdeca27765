"""Where jobs run: in this process, or on Ray actors. Results are the same."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.executor import Finished
from tasks.step import Step

if TYPE_CHECKING:
    from ray import ObjectRef

    from tasks.workers import Worker


class LocalBackend:
    """One worker, in this process: for debugging, and for machines without Ray."""

    def __init__(self, root: Path, device: str = "cpu", threads: int = 1) -> None:
        from tasks.workers import Worker

        self._worker: Worker = Worker(root, device, threads)
        self._job: Sequence[Step] | None = None

    def idle(self) -> Sequence[Hashable]:
        return [] if self._job else [0]

    def submit(self, worker: Hashable, steps: Sequence[Step]) -> None:
        self._job = steps

    def wait(self, seconds: float) -> Sequence[Finished]:
        if self._job is None:
            return []
        job, self._job = self._job, None
        return [Finished(0, job, self._worker.run(job))]

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Placement:
    """What each worker asks of the cluster. ``gpus`` is 0 where there are none: asking for one would wait for ever."""

    workers: int
    cpus: float
    gpus: float


def place_workers(cluster: Mapping[str, float], workers: int | None, cpus_per_worker: int = 1) -> Placement:
    """How many workers a cluster takes, and their share of its GPUs.

    Args:
        cluster: ``ray.cluster_resources()``.
        workers: as asked for; None is one per ``cpus_per_worker`` CPUs, or four per GPU where there are any.
    """
    n_gpus = int(cluster.get("GPU", 0))
    fitting = max(1, int(cluster.get("CPU", 1)) // cpus_per_worker)
    if workers is None:
        workers = min(fitting, 4 * n_gpus) if n_gpus else fitting
    if not n_gpus:
        return Placement(workers, cpus_per_worker, 0.0)
    per_gpu = -(-workers // n_gpus)  # a fraction that divides a GPU evenly, so that every worker finds its place
    return Placement(workers, cpus_per_worker, 1.0 / per_gpu)


class RayBackend:
    """Actors that each hold a ``Worker``; a dead one is replaced."""

    def __init__(self, root: Path, placement: Placement) -> None:
        import ray

        self._ray: Any = ray
        self._root: Path = root
        self._placement: Placement = placement
        self._actors: dict[int, Any] = {}
        self._jobs: dict[ObjectRef, tuple[int, Sequence[Step]]] = {}
        self._next: int = 0
        for _ in range(placement.workers):
            self._start()

    def _start(self) -> None:
        from tasks.workers import Worker

        placement = self._placement
        actor = self._ray.remote(Worker).options(
            num_cpus=placement.cpus, num_gpus=placement.gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        device = "cuda" if placement.gpus > 0 else "cpu"
        self._actors[self._next] = actor.remote(self._root, device, max(1, int(placement.cpus)))
        self._next += 1

    def idle(self) -> Sequence[Hashable]:
        busy = {worker for worker, _ in self._jobs.values()}
        return [worker for worker in self._actors if worker not in busy]

    def submit(self, worker: Hashable, steps: Sequence[Step]) -> None:
        self._jobs[self._actors[worker].run.remote(steps)] = (worker, steps)  # pyright: ignore[reportArgumentType]

    def wait(self, seconds: float) -> Sequence[Finished]:
        if not self._jobs:
            return []
        ready, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=seconds)
        if ready:  # take along whatever else ended meanwhile
            ready, _ = self._ray.wait(list(self._jobs), num_returns=len(self._jobs), timeout=0)
        return [self._collect(ref) for ref in ready]

    def _collect(self, ref: ObjectRef) -> Finished:
        from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError

        worker, steps = self._jobs.pop(ref)
        try:
            return Finished(worker, steps, self._ray.get(ref))
        except (RayActorError, NodeDiedError, ObjectLostError, WorkerCrashedError):
            del self._actors[worker]
            self._start()
            return Finished(worker, steps, None)

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
