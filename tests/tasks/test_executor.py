"""Scheduling, on workers that follow a script: order, fusing, failures, deaths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tasks.executor import execute
from tasks.ray_backend import place_workers
from tasks.schedule import MAX_DEATHS
from tasks.state import Finished, JobResult, State
from tasks.step import Kind, Step, closure

DIES = object()


class Scripted:
    """Workers that answer at once; ``answer`` maps a job to a result, or to DIES."""

    on_gpu: bool = False

    def __init__(self, n_workers: int, answer: Callable):
        self.n_workers, self.answer = n_workers, answer
        self.jobs: list[tuple[int, list[Step]]] = []
        self.waiting: dict[int, list[Step]] = {}

    def idle(self):
        return [worker for worker in range(self.n_workers) if worker not in self.waiting]

    def submit(self, worker, steps):
        assert worker not in self.waiting
        self.jobs.append((worker, list(steps)))
        self.waiting[worker] = list(steps)

    def wait(self, seconds):
        finished = [Finished(w, steps, self._result(steps)) for w, steps in self.waiting.items()]
        self.waiting = {}
        return finished

    def _result(self, steps):
        result = self.answer(steps)
        return None if result is DIES else result

    def waiting_for_a_place(self):
        return 0

    def set_aside(self, worker):
        raise AssertionError(f"worker {worker} is not sick")

    def close(self):
        pass


def cell(seed: int, key: int = 0, methods=("a", "b")) -> Step:
    features = Step(Kind.FEATURES, {"dataset": "d"})
    base = Step(Kind.BASE, {"seed": seed}, {"features": features})
    retrain = Step(Kind.RETRAIN, {"seed": seed, "key": key}, {"features": features})
    unlearn = {
        m: Step(Kind.UNLEARN, {"seed": seed, "key": key, "method": m}, {"base": base, "retrain": retrain})
        for m in methods
    }
    return Step(Kind.AUDIT, {"seed": seed, "key": key}, {"base": base, "retrain": retrain, **unlearn})


def run(targets, answer=lambda steps: JobResult(0.1), n_workers=1, cached=()):
    state = State(closure(targets), {step.id for step in cached})
    backend = Scripted(n_workers, answer)
    done: list[Step] = []
    execute(state, backend, done.append, lambda _: None)
    return state, backend, done


def test_everything_runs_once_and_after_its_needs():
    targets = [cell(seed, key) for seed in range(5) for key in range(3)]
    state, backend, done = run(targets, n_workers=2)
    assert Counter(step.id for _, job in backend.jobs for step in job) == Counter(step.id for step in state.steps)
    place = {step.id: i for i, step in enumerate(done)}
    assert all(place[needed.id] < place[step.id] for step in done for needed in step.needs.values())
    assert state.left == 0


def test_seeds_of_one_shape_are_fused():
    _, backend, _ = run([cell(seed) for seed in range(5)])
    sizes = {(str(job[0].kind), job[0].config.get("method")): len(job) for _, job in backend.jobs}
    assert sizes == {
        ("features", None): 1,
        ("base", None): 5,
        ("retrain", None): 5,
        ("unlearn", "a"): 5,
        ("unlearn", "b"): 5,
        ("audit", None): 5,
    }


def test_the_longest_path_and_the_most_shared_go_first():
    deep, shallow = cell(0), Step(Kind.PREPARED, {"space": "fine"})
    _, backend, _ = run([shallow, deep])
    assert [job[0].kind for _, job in backend.jobs][:2] == [Kind.FEATURES, Kind.BASE], "not the lone statistics step"
    many = [cell(0, key) for key in range(4)]
    _, backend, _ = run(many)
    assert backend.jobs[1][1][0].kind is Kind.BASE, "the base serves four keys, a retrain one"


def test_a_cell_ends_as_soon_as_it_can():
    """Results are seen as they come: the first cell's audit does not wait for the second cell's methods."""
    _, backend, _ = run([cell(0, key=0), cell(0, key=1)])
    order = [(job[0].kind, job[0].config.get("key")) for _, job in backend.jobs]
    methods_of_second = [i for i, step in enumerate(order) if step == (Kind.UNLEARN, 1)]
    assert order.index((Kind.AUDIT, 0)) < max(methods_of_second)


def test_a_worker_is_offered_what_needs_what_it_holds():
    """Two data sets, two workers: each stays with the one that it began with."""
    features = [Step(Kind.FEATURES, {"dataset": name}) for name in ("x", "y")]
    targets = [
        Step(Kind.BASE, {"seed": seed, "i": i}, {"features": f})
        for f in features
        for seed in range(4)
        for i in range(4)
    ]
    _, backend, _ = run(targets, n_workers=2)
    served = {
        worker: {s.needs["features"].id for w, job in backend.jobs if w == worker for s in job if s.needs}
        for worker in (0, 1)
    }
    assert all(len(ids) == 1 for ids in served.values())


def test_cached_steps_do_not_run():
    targets = [cell(0)]
    everything = closure(targets)
    _, backend, _ = run(targets, cached=everything)
    assert backend.jobs == []
    _, backend, _ = run(targets, cached=everything[:-1])
    assert [job[0].kind for _, job in backend.jobs] == [Kind.AUDIT]


def fails(method):
    def answer(steps):
        bad = any(s.config.get("method") == method and s.config["seed"] == 1 for s in steps)
        return JobResult(0.1, "ValueError: bad seed", "Traceback ...") if bad else JobResult(0.1)

    return answer


def test_a_failure_takes_its_descendants_only_and_not_its_neighbours_in_the_stack():
    state, backend, done = run([cell(seed) for seed in range(3)], fails("a"))
    failed = {(str(f.step.kind), f.step.config["seed"]) for f in state.failures.values()}
    assert failed == {("unlearn", 1), ("audit", 1)}
    assert {s.config["seed"] for s in done if s.kind is Kind.AUDIT} == {0, 2}
    cause = next(f for f in state.failures.values() if f.because is None)
    assert (cause.reason, cause.traceback) == ("ValueError: bad seed", "Traceback ...")
    attempts = Counter(s.id for _, job in backend.jobs for s in job if s.config.get("method") == "a")
    assert set(attempts.values()) == {2}, "once together, once alone, and an error in the code is not tried again"


@pytest.mark.parametrize("deaths", [1, MAX_DEATHS - 1, MAX_DEATHS])
def test_a_dead_worker_is_retried_but_not_for_ever(deaths):
    left = Counter({"retrain": deaths})

    def answer(steps):
        kind = str(steps[0].kind)
        left[kind] -= 1
        return DIES if left[kind] >= 0 else JobResult(0.1)

    state, _, done = run([cell(0)], answer)
    if deaths < MAX_DEATHS:
        assert not state.failures
        assert any(step.kind is Kind.AUDIT for step in done)
    else:
        reasons = [f.reason for f in state.failures.values() if f.because is None]
        assert reasons == [f"its worker died {MAX_DEATHS} times"]
        assert any(step.kind is Kind.BASE for step in done)


@pytest.mark.parametrize(
    ("cluster", "asked", "expected"),
    [
        ({"CPU": 2.0}, None, (2, 0.0)),
        ({"CPU": 2.0}, 5, (5, 0.0)),
        ({"CPU": 16.0, "GPU": 2.0}, None, (8, 0.25)),
        ({"CPU": 16.0, "GPU": 2.0}, 2, (2, 1.0)),
        ({"CPU": 16.0, "GPU": 2.0}, 5, (5, 1 / 3)),
        ({"CPU": 3.0, "GPU": 2.0}, None, (3, 0.5)),
    ],
)
def test_workers_share_gpus_where_there_are_any_and_never_ask_for_one_where_not(cluster, asked, expected):
    placement = place_workers(cluster, asked)
    assert (placement.workers, placement.gpus) == expected
    gpus = int(cluster.get("GPU", 0))
    if gpus:
        assert placement.workers <= gpus * int(1 / placement.gpus + 1e-9), "all of them find a place"
