"""What runs next, and what follows from how a job ended: retries, smaller stacks, sick workers, failures.

Critical path first, shared upstream first; ready steps of one shape make one job. A step counts as failed only after other
workers have tried it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from tasks.graph import Graph
from tasks.health import Health
from tasks.ready import ReadySteps
from tasks.state import Cause, Failure, Finished, JobResult, State
from tasks.step import Step

MAX_FUSED = 8
MAX_FUSED_ON_GPU = 25
"""Five seeds of five keys: five heads alone leave a GPU waiting for its host."""
MAX_DEATHS = 3
WELL_ENOUGH = 2
"""What failed on so many workers that computed something else afterwards is at fault."""
MAX_TRIES = 5
"""What failed on so many workers is at fault, whatever they are: more than the four that share a GPU by default."""
REMEMBERED = 256
"""Of so many results it is remembered that a worker may still hold them."""


@dataclass(frozen=True)
class _Trouble:
    """A step that failed alone: on which workers, how many of them were well afterwards, and what the last one said."""

    failed_on: tuple[Hashable, ...]
    result: JobResult
    n_well: int = 0


class Schedule:
    """Ready steps by priority, what waits for them, and what became of the workers that had them."""

    def __init__(self, state: State, on_gpu: bool = False) -> None:
        """On a GPU requests that forget equally many rows share stacks, and stacks are larger. On a CPU that gains nothing,
        and seeds of one request, which share a proxy's fit, would be torn apart."""
        self.state: State = state
        self._on_gpu: bool = on_gpu
        self._max_fused: int = MAX_FUSED_ON_GPU if on_gpu else MAX_FUSED
        self._graph: Graph = Graph([step for step in state.steps if step.id not in state.cached])
        self._ready: ReadySteps = ReadySteps(self._graph.levels)
        self._trouble: dict[int, _Trouble] = {}
        self._retries: dict[
            tuple[Hashable, ...], deque[int]
        ] = {}  # by where they failed; what is settled stays in there
        self._deaths: Counter[int] = Counter()
        self._fitting: dict[str, int] = {}  # shape -> the largest stack that may fit into memory
        self._health: Health = Health()
        self._sick: dict[Hashable, str] = {}
        self._workers: set[Hashable] = set()
        self._held: dict[Hashable, dict[str, None]] = {}
        for rank in self._graph.startable():
            self._make_ready(rank)

    @property
    def waiting(self) -> bool:
        """Whether there are steps that could run now."""
        return bool(self._ready or self._trouble)

    @property
    def n_workers(self) -> int:
        """Workers that are there, busy or not."""
        return len(self._workers)

    def meet(self, workers: Iterable[Hashable]) -> None:
        self._workers.update(workers)

    def is_sick(self, worker: Hashable) -> bool:
        return worker in self._sick

    def set_aside(self, worker: Hashable, name: str) -> str:
        """It is gone; a line that says so."""
        reason = self._sick.pop(worker)
        self._lose(worker)
        return f"{name}: {reason}"

    def take(self, worker: Hashable) -> list[Step]:
        """The next job of a worker.

        What failed once is tried on another worker at once. What failed on two is tried on a third one only if that has
        nothing else to do: most often the two compute something else meanwhile, and so show that the step is at fault.
        """
        rank = self._retry(worker, first=True)
        if rank is None and (not self._health.on_hold(worker) or not self._others((worker,))):
            job = self._ready_job(worker)
            if job:
                return job
        if rank is None:
            rank = self._retry(worker, first=False)
        return [] if rank is None else [self._graph.steps[rank]]

    def _ready_job(self, worker: Hashable) -> list[Step]:
        held = self._held.setdefault(worker, {})

        def n_held(rank: int) -> int:
            return sum(needed.id in held for needed in self._graph.steps[rank].needs.values())

        ranks = self._ready.take(n_held, lambda shape: self._fitting.get(shape, self._max_fused))
        job = [self._graph.steps[rank] for rank in ranks]
        for step in job:
            for holding in (*(needed.id for needed in step.needs.values()), step.id):
                held.pop(holding, None)
                held[holding] = None
        while len(held) > REMEMBERED:
            del held[next(iter(held))]
        return job

    def _retry(self, worker: Hashable, first: bool) -> int | None:
        """A step that failed on others: trusted workers try it first; if there are none, any worker."""
        trusted = self._health.trusted(worker)
        for failed_on in list(self._retries):
            if worker in failed_on or (len(failed_on) == 1) != first:
                continue
            if not trusted and any(self._health.trusted(other) for other in self._others(failed_on)):
                continue
            ranks = self._retries[failed_on]
            while ranks:
                rank = ranks.popleft()
                if rank in self._trouble:
                    return rank
            del self._retries[failed_on]
        return None

    def _others(self, workers: Iterable[Hashable]) -> set[Hashable]:
        return self._workers.difference(workers, self._sick)

    def settle(self, finished: Finished) -> list[Step]:
        """Take the end of a job into account; gives the steps that are now done."""
        self.state.end(finished.steps)
        ranks = [self._graph.rank(step) for step in finished.steps]
        result = finished.result
        if result is None:
            self._died(finished.worker, ranks)
            return []
        if result.error is not None:
            self._failed(finished.worker, ranks, result)
            return []
        for rank in ranks:
            self._succeeded(rank)
        for rank in self._health.succeed(finished.worker):
            self._failed_where_all_is_well(rank)
        return list(finished.steps)

    def give_up_retries(self) -> None:
        """No other worker came that could try what failed: it fails as it last did."""
        for rank, trouble in list(self._trouble.items()):
            self._settle_failure(rank, trouble)

    def give_up_all(self) -> None:
        self.give_up_retries()
        for rank in self._ready.take_all():
            self._fail(rank, JobResult(0.0, "no worker is left"))

    def _make_ready(self, rank: int, at_most: int | None = None) -> None:
        self._ready.add(rank, self._shape(rank), at_most or self._max_fused)

    def _shape(self, rank: int) -> str:
        step = self._graph.steps[rank]
        return step.wide_shape if self._on_gpu else step.shape

    def _succeeded(self, rank: int) -> None:
        trouble = self._trouble.pop(rank, None)
        if trouble is not None:
            for sick in self._health.blame(trouble.failed_on, rank):
                said = trouble.result.error
                self._sick[sick] = f"steps failed on it that succeeded elsewhere, the last one with {said}"
        self.state.finish(self._graph.steps[rank])
        for dependent in self._graph.complete(rank):
            self._make_ready(dependent)

    def _died(self, worker: Hashable, ranks: Sequence[int]) -> None:
        """Each runs again, in a smaller stack and then alone: who takes a worker down must not take neighbours along."""
        self._lose(worker)
        for rank in ranks:
            self._deaths[rank] += 1
            trouble = self._trouble.get(rank)
            if self._deaths[rank] >= MAX_DEATHS:
                self._trouble.pop(rank, None)
                self._fail(rank, JobResult(0.0, f"its worker died {MAX_DEATHS} times"))
            elif trouble is not None:
                self._retries.setdefault(trouble.failed_on, deque()).append(rank)
            else:
                self._make_ready(rank, max(1, len(ranks) // 2) if self._deaths[rank] == 1 else 1)

    def _failed(self, worker: Hashable, ranks: Sequence[int], result: JobResult) -> None:
        if len(ranks) > 1:
            at_most = 1  # one bad step must not fail its neighbours: each runs again, alone
            if result.cause is Cause.MEMORY:
                at_most = len(ranks) // 2
                self._fitting[self._shape(ranks[0])] = at_most
            for rank in ranks:
                self._make_ready(rank, at_most)
            return
        (rank,) = ranks
        before = self._trouble.get(rank) or _Trouble((), result)
        trouble = _Trouble((*before.failed_on, worker), result, before.n_well)
        self._health.fail(worker, rank)
        untried = self._others(trouble.failed_on) or self.state.workers_waiting
        n_there = len(self._workers.intersection(trouble.failed_on))
        if result.cause is Cause.INPUT or not untried or n_there >= MAX_TRIES or trouble.n_well >= WELL_ENOUGH:
            self._settle_failure(rank, trouble)
        else:
            self._trouble[rank] = trouble
            self._retries.setdefault(trouble.failed_on, deque()).append(rank)

    def _failed_where_all_is_well(self, rank: int) -> None:
        """A worker on which it failed has computed something else."""
        trouble = self._trouble.get(rank)
        if trouble is None:
            return
        self._trouble[rank] = trouble = replace(trouble, n_well=trouble.n_well + 1)
        if trouble.n_well >= WELL_ENOUGH and self._graph.steps[rank].id not in self.state.running:
            self._settle_failure(rank, trouble)

    def _settle_failure(self, rank: int, trouble: _Trouble) -> None:
        self._trouble.pop(rank, None)
        self._health.clear(trouble.failed_on, rank)
        self._fail(rank, trouble.result)

    def _lose(self, worker: Hashable) -> None:
        self._workers.discard(worker)
        self._held.pop(worker, None)
        self._health.forget(worker)

    def _fail(self, rank: int, result: JobResult) -> None:
        step = self._graph.steps[rank]
        self.state.fail(Failure(step, result.error or "", result.traceback))
        for dependent in self._graph.drop_dependents(rank):
            self.state.fail(Failure(dependent, f"needs {step}, which failed", because=step))
