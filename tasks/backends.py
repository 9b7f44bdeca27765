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

    def __init__(self, root: Path, device: str = "cpu", threads: int = 1, deterministic: bool = False) -> None:
        from tasks.workers import Worker

        self._worker: Worker = Worker(root, device, threads, deterministic)
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

    def waiting_for_a_place(self) -> int:
        return 0

    def close(self) -> None:
        pass


MAX_FAILED_STARTS = 3


@dataclass(frozen=True)
class Placement:
    """What each worker asks of the cluster. ``gpus`` is 0 where there are none: asking for one would wait for ever."""

    workers: int
    cpus: float
    gpus: float


def place_workers(
    cluster: Mapping[str, float], workers: int | None, gpus_per_worker: float | None = None, cpus_per_worker: int = 1
) -> Placement:
    """How many workers a cluster takes, and their share of its GPUs.

    Args:
        cluster: ``ray.cluster_resources()``.
        workers: as asked for; None is one per ``cpus_per_worker`` CPUs, or four per GPU where there are any.
        gpus_per_worker: as asked for, also of GPUs that an autoscaler has yet to bring; None shares out those there are.
    """
    n_gpus = int(cluster.get("GPU", 0))
    fitting = max(1, int(cluster.get("CPU", 1)) // cpus_per_worker)
    if workers is None:
        workers = min(fitting, 4 * n_gpus) if n_gpus else fitting
    if gpus_per_worker is not None:
        return Placement(workers, cpus_per_worker, gpus_per_worker)
    if not n_gpus:
        return Placement(workers, cpus_per_worker, 0.0)
    per_gpu = -(-workers // n_gpus)  # a fraction that divides a GPU evenly, so that every worker finds its place
    return Placement(workers, cpus_per_worker, 1.0 / per_gpu)


class RayBackend:
    """Actors that each hold a ``Worker``; a dead one is replaced, and one is given jobs only once it has a place."""

    def __init__(self, root: Path, placement: Placement, deterministic: bool = False) -> None:
        import ray

        self._ray: Any = ray
        self._root: Path = root
        self._placement: Placement = placement
        self._deterministic: bool = deterministic
        self._actors: dict[int, Any] = {}
        self._starting: dict[ObjectRef, int] = {}
        self._jobs: dict[ObjectRef, tuple[int, Sequence[Step]]] = {}
        self._next: int = 0
        self._failed_starts: int = 0
        for _ in range(placement.workers):
            self._start()

    def _start(self) -> None:
        from tasks.workers import Worker

        placement = self._placement
        actor = self._ray.remote(Worker).options(
            num_cpus=placement.cpus, num_gpus=placement.gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        device = "cuda" if placement.gpus > 0 else "cpu"
        worker, self._next = self._next, self._next + 1
        self._actors[worker] = actor.remote(self._root, device, max(1, int(placement.cpus)), self._deterministic)
        self._starting[self._actors[worker].ready.remote()] = worker

    def idle(self) -> Sequence[Hashable]:
        occupied = {worker for worker, _ in self._jobs.values()} | set(self._starting.values())
        return [worker for worker in self._actors if worker not in occupied]

    def waiting_for_a_place(self) -> int:
        return len(self._starting)

    def submit(self, worker: Hashable, steps: Sequence[Step]) -> None:
        assert isinstance(worker, int)
        self._jobs[self._actors[worker].run.remote(steps)] = (worker, steps)

    def wait(self, seconds: float) -> Sequence[Finished]:
        refs = [*self._jobs, *self._starting]
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=seconds)
        if ready:  # take along whatever else ended meanwhile
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        finished = []
        for ref in ready:
            if ref in self._starting:
                self._collect_start(ref)
            else:
                finished.append(self._collect(ref))
        return finished

    def _collect_start(self, ref: ObjectRef) -> None:
        worker = self._starting.pop(ref)
        try:
            self._ray.get(ref)
            self._failed_starts = 0
        except self._ray.exceptions.RayActorError:
            self._failed_starts += 1
            if self._failed_starts > MAX_FAILED_STARTS * self._placement.workers:
                raise  # no worker can be made here at all: the first line of Ray's error says why
            self._replace(worker)

    def _collect(self, ref: ObjectRef) -> Finished:
        errors = self._ray.exceptions
        worker, steps = self._jobs.pop(ref)
        try:
            return Finished(worker, steps, self._ray.get(ref))
        except (errors.RayActorError, errors.NodeDiedError, errors.ObjectLostError, errors.WorkerCrashedError):
            self._replace(worker)
            return Finished(worker, steps, None)

    def _replace(self, worker: int) -> None:
        del self._actors[worker]
        self._start()

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
