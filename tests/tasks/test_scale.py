"""What a step costs the driver does not depend on how many there are: operations are counted, not seconds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tasks.executor import execute, find_cached
from tasks.ready import CONSIDERED
from tasks.state import Finished, JobResult, State
from tasks.step import Kind, Step, closure
from tasks.store import Store, write_json
from workflows.commands.running import SecondsLeft
from workflows.display import Display
from workflows.rates import Rates

N_WORKERS = 3


LOOKS: Counter[str] = Counter()


class Looked(dict):
    """The needs of a step; counts how often somebody looks at them."""

    def values(self):
        LOOKS["values"] += 1
        return super().values()


class AtOnce:
    """Workers that answer at once, and count their jobs."""

    on_gpu: bool = False

    def __init__(self):
        self.jobs, self.n_jobs = {}, 0

    def idle(self):
        return [worker for worker in range(N_WORKERS) if worker not in self.jobs]

    def submit(self, worker, steps):
        self.jobs[worker] = steps
        self.n_jobs += 1

    def wait(self, seconds):
        jobs, self.jobs = self.jobs, {}
        return [Finished(worker, steps, JobResult(0.0)) for worker, steps in jobs.items()]

    def waiting_for_a_place(self):
        return 0

    def set_aside(self, worker):
        raise AssertionError(worker)

    def close(self):
        pass


def plan(n_keys: int, one_shape: bool) -> list[Step]:
    """Steps that are all ready once a few bases are there: of one shape, or of one for every eight steps."""
    features = Step(Kind.FEATURES, {"dataset": "d"})
    bases = [Step(Kind.BASE, {"seed": seed}, Looked(features=features)) for seed in range(8)]
    return closure(
        Step(Kind.UNLEARN, {"seed": seed * n_keys + key if one_shape else seed, "key": 0 if one_shape else key},
             Looked(base=base))
        for key in range(n_keys)
        for seed, base in enumerate(bases)
    )  # fmt: skip


def lines_run(function: Callable[[], object]) -> int:
    """Lines of Python that a call runs, every turn of a loop or comprehension among them."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("one_shape", [True, False])
def test_picking_a_job_looks_at_a_few_steps_however_many_are_ready(one_shape):
    for n_keys in (20, 200):
        steps, backend = plan(n_keys, one_shape), AtOnce()
        state = State(steps)
        LOOKS.clear()
        execute(state, backend, lambda step: None, lambda state: None)
        assert len(state.done) == len(steps)
        # once to build the graph, once when it is taken, and those that were considered for a job
        assert LOOKS["values"] <= 2 * len(steps) + CONSIDERED * (backend.n_jobs + N_WORKERS)


class NoData(Rates):
    """Steps of these tests have no data; a step lasts a second."""

    def __init__(self):
        self._known = {}

    def _estimate(self, step):
        return 1.0, True


def drive(steps: list[Step]) -> None:
    state = State(steps)
    display = Display(Console(quiet=True, force_terminal=True), "t", SecondsLeft(NoData(), 1))

    def update(state: State) -> None:
        display.estimate(state)  # a refresh, at every turn of the loop
        state.counts()
        display.update(state)

    execute(state, AtOnce(), lambda step: None, update)
    assert len(state.done) == len(steps)


@pytest.mark.parametrize("one_shape", [True, False])
def test_the_drivers_work_per_step_does_not_grow_with_the_plan(one_shape):
    few, many = (plan(n_keys, one_shape) for n_keys in (30, 300))
    costs = [lines_run(lambda steps=steps: drive(steps)) / len(steps) for steps in (few, many)]
    assert costs[1] <= 1.2 * costs[0], "the logarithm of a heap runs in C; the rest is constant"


def test_looking_into_the_store_opens_every_file_once(tmp_path):
    steps, store = plan(4, one_shape=False), Store(tmp_path)
    stored = steps[::2]
    for step in stored:
        store.commit(step, lambda folder: write_json(folder / "record.json", {}), 0.0)
    opened: Counter[Path] = Counter()

    def count(event: str, arguments: tuple) -> None:
        if counting and event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(str(tmp_path)):
            opened[Path(arguments[0])] += 1

    counting = False
    sys.addaudithook(count)  # stays for this process: it does nothing once counting has ended
    counting = True
    cached, damages = find_cached(steps, store)
    counting = False
    assert cached == {step.id for step in stored}
    assert not damages
    assert opened == Counter(file for step in stored for file in store.path(step).iterdir())


def test_counts_are_those_of_counting_again():
    steps = plan(5, one_shape=False)
    cached = {step.id for step in steps[:7]}
    broken = {step.id for step in steps[7::5] if step.kind is Kind.UNLEARN}
    seen = []

    class Some(AtOnce):
        def wait(self, seconds):
            ended = super().wait(seconds)
            wrong = JobResult(0.0, "ValueError: x")
            return [Finished(e.worker, e.steps, wrong if {s.id for s in e.steps} & broken else e.result) for e in ended]

    def compare(state: State) -> None:
        recounted: dict[str, Counter[str]] = {}
        for step in steps:
            row = recounted.setdefault(str(step.kind), Counter(total=0, cached=0, done=0, running=0, failed=0))
            row["total"] += 1
            row["cached"] += step.id in state.cached
            row["done"] += step.id in state.done
            row["running"] += step.id in state.running
            row["failed"] += step.id in state.failures
        assert state.counts() == {kind: dict(row) for kind, row in recounted.items()}
        seen.append(state.left)

    state = State(steps, cached)
    execute(state, Some(), lambda step: None, compare)
    assert set(state.failures) == broken
    assert seen[-1] == 0
    assert len(seen) > 3
