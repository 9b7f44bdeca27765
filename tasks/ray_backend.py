"""Workers and other actors on Ray, and their places. With ``ray_session``, all that talks to Ray."""

from __future__ import annotations

import contextlib
import math
import pkgutil
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import (
    ActorDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tasks.ray_session import UNWIND_SECONDS, Watch, limited, ray_session
from tasks.state import Finished, JobResult
from tasks.step import Step
from unlearn_core.errors import BadInput, DiskFull
from unlearn_core.precision import Precision

MAX_FAILED_STARTS = 3


@dataclass(frozen=True)
class Placement:
    """What each worker asks of the cluster. ``gpus`` is 0 if there are none: asking for one would wait for ever."""

    workers: int
    cpus: float
    gpus: float


def place_workers(
    cluster: Mapping[str, float], workers: int | None, gpus_per_worker: float | None = None, cpus_per_worker: int = 1
) -> Placement:
    """How many workers a cluster takes, and their share of its GPUs.

    Args:
        cluster: ``ray.cluster_resources()``.
        workers: as asked for; None is one per ``cpus_per_worker`` CPUs, or four per GPU if there are any.
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


def check_placement(nodes: Sequence[Mapping[str, float]], placement: Placement, may_grow: bool) -> None:
    """Refuse workers that no node has room for: Ray would wait for ever, and say nothing.

    Args:
        nodes: the resources of every node.
        may_grow: whether an autoscaler may bring GPUs to a cluster that has none.
    """
    asked = placement.gpus
    if not 0 <= asked < math.inf or (asked > 1 and asked != int(asked)):
        raise BadInput(f"--gpus-per-worker {asked:g} cannot be placed; give a share such as 0.25, or a whole number")
    most = max((node.get("GPU", 0.0) for node in nodes), default=0.0)
    if asked > most and (most > 0 or not may_grow):
        has = f"no node has more than {most:g}" if most else "there is no GPU here"
        remedy = f"give at most {most:g}" if most else "leave it out"
        raise BadInput(f"--gpus-per-worker {asked:g} would wait for ever: {has}; {remedy}")


class Worker:
    """``tasks.worker.Worker`` in an actor. It is loaded there: a driver computes nothing, and need not wait for torch."""

    def __init__(self, *arguments: Any) -> None:
        from tasks import worker

        self._worker: worker.Worker = worker.Worker(*arguments)

    def ready(self) -> str | None:
        return self._worker.ready()

    def place(self) -> str:
        return self._worker.place()

    def run(self, steps: Sequence[Step]) -> JobResult:
        return self._worker.run(steps)


class RayBackend:
    """Actors that each hold a ``Worker``; a dead one is replaced, and one is given jobs only once it has a place."""

    def __init__(
        self,
        root: Path,
        placement: Placement,
        watch: Watch,
        deterministic: bool = False,
        precision: Precision = Precision.FLOAT32,
    ) -> None:
        self._root: Path = root
        self.on_gpu: bool = placement.gpus > 0
        self._placement: Placement = placement
        self._numbers: tuple[bool, Precision] = (deterministic, precision)
        self._actors: dict[int, Any] = {}
        self._starting: dict[ObjectRef, int] = {}
        self._jobs: dict[ObjectRef, tuple[int, Sequence[Step]]] = {}
        self._names: dict[int, str] = {}
        self._substitutes: set[int] = set()
        self._next: int = 0
        self._failed_starts: int = 0
        self._watch: Watch = watch
        for _ in range(placement.workers):
            self._start()

    def _start(self) -> int:
        placement = self._placement
        actor = ray.remote(Worker).options(
            num_cpus=placement.cpus, num_gpus=placement.gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        device = "cuda" if placement.gpus > 0 else "cpu"
        worker, self._next = self._next, self._next + 1
        self._actors[worker] = actor.remote(self._root, device, max(1, int(placement.cpus)), *self._numbers)
        self._starting[self._actors[worker].ready.remote()] = worker
        return worker

    def idle(self) -> Sequence[Hashable]:
        occupied = {worker for worker, _ in self._jobs.values()} | set(self._starting.values())
        return [worker for worker in self._actors if worker not in occupied]

    def waiting_for_a_place(self) -> int:
        return len(self._starting)

    def submit(self, worker: Hashable, steps: Sequence[Step]) -> None:
        assert isinstance(worker, int)
        self._jobs[self._actors[worker].run.remote(steps)] = (worker, steps)

    def wait(self, seconds: float) -> Sequence[Finished]:
        self._watch.check()
        refs = [*self._jobs, *self._starting]
        ready, _ = ray.wait(refs, num_returns=1, timeout=seconds)
        if ready:  # take along whatever else ended meanwhile
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
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
            refusal = ray.get(ref)
            self._names[worker] = ray.get(self._actors[worker].place.remote())
            self._failed_starts = 0
        except RayActorError:
            self._failed_starts += 1
            if self._failed_starts > MAX_FAILED_STARTS * self._placement.workers:
                raise  # no worker can be made here at all: the first line of Ray's error says why
            self._replace(worker)
            return
        if refusal is not None:
            raise BadInput(refusal)

    def _collect(self, ref: ObjectRef) -> Finished:
        worker, steps = self._jobs.pop(ref)
        try:
            return Finished(worker, steps, ray.get(ref))
        except (RayActorError, NodeDiedError, ObjectLostError, OutOfMemoryError, WorkerCrashedError):
            self._replace(worker)
            return Finished(worker, steps, None)
        except RayTaskError as error:
            if isinstance(error.cause, DiskFull):
                raise error.cause from None
            raise

    def _replace(self, worker: int) -> None:
        del self._actors[worker]
        substitute = self._start()
        if worker in self._substitutes:
            self._substitutes.add(substitute)

    def name(self, worker: Hashable) -> str:
        """Which process a worker is, for people; known once it has a place."""
        assert isinstance(worker, int)
        return self._names[worker]

    def set_aside(self, worker: Hashable) -> str:
        """A process can be sick by itself, so a new one starts in its place; if that is sick too, the place stays empty."""
        assert isinstance(worker, int)
        ray.kill(self._actors.pop(worker))
        if worker in self._substitutes:
            return f"{self.name(worker)}, which took the place of another one, is set aside"
        self._substitutes.add(self._start())
        return f"{self.name(worker)} is set aside, and a new one starts"

    def close(self) -> None:
        if self._watch.lost is None:  # a lost cluster answers nothing
            with limited(UNWIND_SECONDS, "Ray did not end the workers in time; finished steps are kept"):
                for actor in self._actors.values():
                    ray.kill(actor)
        self._actors.clear()


@contextlib.contextmanager
def ray_workers(
    root: Path,
    address: str | None,
    workers: int | None,
    gpus_per_worker: float | None,
    deterministic: bool,
    precision: Precision = Precision.FLOAT32,
) -> Iterator[RayBackend]:
    """Workers on a cluster, or on a local Ray that is started for them; all of it ends with the context."""
    with ray_session(address) as watch:
        placement = place_workers(ray.cluster_resources(), workers, gpus_per_worker)
        check_placement([node["Resources"] for node in ray.nodes() if node["Alive"]], placement, address is not None)
        backend = RayBackend(root, placement, watch, deterministic, precision)
        try:
            yield backend
        finally:
            backend.close()


class Named:
    """An object of a class that is loaded where the object lives: a driver need not wait for what it never calls."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self._object: Any = pkgutil.resolve_name(name)(*arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._object, method)(*arguments)


class RayActor:
    """An object of any class, by its ``module:name``, in an actor on the driver's own node, where its files are."""

    def __init__(self, name: str, *arguments: Any) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._actor: Any = ray.remote(Named).options(num_cpus=0, scheduling_strategy=here).remote(name, *arguments)

    def call(self, method: str, *arguments: Any) -> RayAnswer:
        """Queue a call and return at once."""
        return RayAnswer(self._actor.call.remote(method, *arguments))

    def close(self) -> None:
        ray.kill(self._actor)


class RayAnswer:
    """What an actor will answer."""

    def __init__(self, ref: ObjectRef) -> None:
        self._ref: ObjectRef = ref

    def ready(self) -> bool:
        return bool(ray.wait([self._ref], timeout=0)[0])

    def get(self, seconds: float) -> Any:
        """Raises the error that the actor's object raised, or what became of the actor."""
        try:
            return ray.get(self._ref, timeout=seconds)
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from error
        except ActorDiedError as error:
            raise (_why_it_never_began(error) or error) from error


def _why_it_never_began(error: ActorDiedError) -> Exception | None:
    """What an actor's constructor raised, if that is why there is none: Ray hands it out as text."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    if "error raised in its creation task" not in said:
        return None
    return RuntimeError(said.splitlines()[-1].strip())
