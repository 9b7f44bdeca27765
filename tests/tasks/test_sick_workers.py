"""Who is at fault, the step or the worker? On a cluster of a few lines, whose sick workers and broken steps are known.

The oracle is the rule itself: exactly the broken steps and what needs them fail, however many workers are sick.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tasks.executor import execute
from tasks.health import SICK_AFTER
from tasks.ray_backend import Placement, check_placement
from tasks.schedule import MAX_FUSED
from tasks.state import Cause, Finished, JobResult, State
from tasks.step import Kind, Step, closure
from tasks.worker import Worker
from unlearn_core.errors import BadInput
from unlearn_core.grid import Scenario, Variant
from unlearn_core.run_settings import RunSettings
from workflows.grid import cell_step
from workflows.sources import feature_source


class Cluster:
    """Workers with a clock. A sick one fails all that it starts from some time on, in no time at all.

    Attributes:
        sick_from: worker -> when it falls ill; one that takes its place is as sick.
        broken: ids of steps that fail wherever they run.
        fits: how many steps of a job fit into memory.
    """

    on_gpu: bool = False

    def __init__(self, n_workers, sick_from=(), broken=(), fits=MAX_FUSED, seconds=lambda steps: 1.0):
        self.place = {worker: worker for worker in range(n_workers)}
        self.workers = set(self.place)
        self.sick_from, self.broken, self.fits, self.seconds = dict(sick_from), set(broken), fits, seconds
        self.now, self.next = 0.0, n_workers
        self.busy: dict[int, tuple[float, list[Step], JobResult]] = {}
        self.tries: list[tuple[int, list[Step], Cause | None]] = []
        self.substitutes: set[int] = set()
        self.set_asides: list[int] = []

    def idle(self):
        return sorted(self.workers - self.busy.keys())

    def submit(self, worker, steps):
        sick = self.now >= self.sick_from.get(self.place[worker], float("inf"))
        result = JobResult(0.0)
        if sick or any(step.id in self.broken for step in steps):
            result = JobResult(0.0, "RuntimeError: CUDA error" if sick else "ValueError: broken", "Traceback ...")
        elif len(steps) > self.fits:
            result = JobResult(0.0, "OutOfMemoryError: CUDA out of memory", "Traceback ...", Cause.MEMORY)
        self.tries.append((worker, list(steps), result.cause if result.error else None))
        self.busy[worker] = (self.now + (0.001 if sick else self.seconds(steps)), list(steps), result)

    def wait(self, seconds):
        if not self.busy:
            return []
        worker = min(self.busy, key=lambda w: self.busy[w][0])
        self.now, steps, result = self.busy.pop(worker)
        return [Finished(worker, steps, result)]

    def waiting_for_a_place(self):
        return 0

    def set_aside(self, worker):
        self.set_asides.append(worker)
        self.workers.remove(worker)
        if worker not in self.substitutes:
            self.workers.add(self.next)
            self.place[self.next] = self.place[worker]
            self.substitutes.add(self.next)
            self.next += 1
        return f"worker {worker}"

    def close(self):
        pass


def grid(n_seeds=5, n_keys=6, methods=("a", "b", "c")) -> list[Step]:
    features = Step(Kind.FEATURES, {"dataset": "d"})
    cells = []
    for seed in range(n_seeds):
        base = Step(Kind.BASE, {"seed": seed}, {"features": features})
        for key in range(n_keys):
            config = {"seed": seed, "key": key}
            done = {m: Step(Kind.UNLEARN, config | {"method": m}, {"base": base}) for m in methods}
            cells.append(Step(Kind.AUDIT, config, {"base": base, **done}))
    return closure(cells)


def run(cluster: Cluster, steps: list[Step]) -> State:
    state = State(steps)
    execute(state, cluster, lambda step: None, lambda state: None)
    assert state.left == 0
    assert not state.running
    return state


def with_descendants(steps: list[Step], broken: set[str]) -> set[str]:
    lost = set(broken)
    for step in steps:
        if any(needed.id in lost for needed in step.needs.values()):
            lost.add(step.id)
    return lost


def test_one_sick_worker_beside_three_fails_nothing_and_is_named():
    cluster, steps = Cluster(4, sick_from={2: 0.0}), grid()
    state = run(cluster, steps)
    assert not state.failures
    assert cluster.set_asides == [2, 4], "it and the one that took its place"
    assert [line.split(":")[0] for line in state.set_aside] == ["worker 2", "worker 4"]
    assert all("RuntimeError: CUDA error" in line for line in state.set_aside)
    eaten = Counter(worker for worker, _, _ in cluster.tries)
    # at most one stack, then single steps until it is on hold, each time that others' successes let it go on
    assert eaten[2] + eaten[4] <= 4 * (SICK_AFTER + 1)


def test_broken_steps_fail_on_two_workers_and_nobody_is_set_aside():
    steps = grid()
    broken = {step.id for step in steps if step.config.get("method") == "b"}
    cluster = Cluster(4, broken=broken)
    state = run(cluster, steps)
    assert set(state.failures) == with_descendants(steps, broken)
    assert {failure.step.id for failure in state.causes} == broken
    assert not cluster.set_asides
    alone = [(steps[0].id, worker) for worker, steps, _ in cluster.tries if len(steps) == 1 and steps[0].id in broken]
    assert len(set(alone)) == len(alone), "never twice on one worker"
    assert min(Counter(step for step, _ in alone).values()) >= 2


@pytest.mark.parametrize("trial", range(20))
def test_exactly_the_broken_steps_fail_whoever_is_sick(trial):
    """Up to four workers, as many as share a GPU, fall ill at any time, at once or not, beside as many that do not."""
    rng = random.Random(trial)
    n_workers = rng.randint(2, 10)
    sick = rng.sample(range(n_workers), rng.randint(0, min(4, n_workers // 2)))
    at_once = rng.random() < 0.5
    when = rng.choice([0.0, rng.uniform(0, 40)])
    sick_from = {worker: when if at_once else rng.uniform(0, 40) for worker in sick}
    steps = grid(n_seeds=rng.randint(1, 6), n_keys=rng.randint(1, 8))
    broken = {step.id for step in steps if rng.random() < rng.choice([0.0, 0.02, 0.3])}
    cluster = Cluster(n_workers, sick_from, broken, rng.randint(1, MAX_FUSED), lambda _: rng.uniform(0.1, 3))
    state = run(cluster, steps)
    expected = with_descendants(steps, broken)
    assert set(state.failures) == expected
    assert state.done == {step.id for step in steps} - expected
    assert {cluster.place[worker] for worker in cluster.set_asides} <= {*sick}
    counts = state.counts()
    assert sum(row["failed"] for row in counts.values()) == len(expected)
    assert sum(row["done"] for row in counts.values()) == len(state.done)
    assert sum(row["running"] for row in counts.values()) == 0


def test_what_does_not_fit_is_halved_until_it_does_and_that_is_remembered():
    steps = closure(Step(Kind.BASE, {"seed": seed}) for seed in range(20))
    cluster = Cluster(2, fits=2)
    state = run(cluster, steps)
    assert not state.failures
    assert not cluster.set_asides
    refused = [len(job) for _, job, cause in cluster.tries if cause is Cause.MEMORY]
    assert max(refused) == MAX_FUSED
    assert len(refused) <= 2 * 2, "8 and 4, on each of the two workers that were busy with it"
    assert {len(job) for _, job, cause in cluster.tries if cause is None} == {2}


def test_what_does_not_fit_even_alone_fails_after_another_worker_tried_it():
    steps = closure([Step(Kind.BASE, {"seed": 0}), Step(Kind.BASE, {"seed": 1})])
    cluster = Cluster(2, fits=0)
    state = run(cluster, steps)
    assert {failure.reason for failure in state.causes} == {"OutOfMemoryError: CUDA out of memory"}
    tried = {step.id: {worker for worker, job, _ in cluster.tries if job == [step]} for step in steps}
    assert all(workers == {0, 1} for workers in tried.values())


def test_bad_input_is_bad_everywhere():
    step = Step(Kind.REQUEST, {"method": "m"}, alone=True)

    class Refuses(Cluster):
        def submit(self, worker, steps):
            self.tries.append((worker, list(steps), Cause.INPUT))
            self.busy[worker] = (1.0, list(steps), JobResult(0.0, "BadInput: no such id", "", Cause.INPUT))

    cluster = Refuses(3)
    state = run(cluster, [step])
    assert [failure.reason for failure in state.causes] == ["BadInput: no such id"]
    assert len(cluster.tries) == 1


def test_a_step_that_takes_workers_down_takes_no_neighbours_along():
    steps = closure(Step(Kind.BASE, {"seed": seed}) for seed in range(MAX_FUSED))

    class Deadly(Cluster):
        def wait(self, seconds):
            return [
                Finished(f.worker, f.steps, None if steps[3] in f.steps else f.result) for f in super().wait(seconds)
            ]

    state = run(Deadly(1), steps)
    assert set(state.failures) == {steps[3].id}


def test_a_worker_says_whether_the_request_was_at_fault(tmp_path):
    hints = {"arguments": [], "folder": str(tmp_path), "out": str(tmp_path / "out")}
    refused = Step(Kind.REQUEST, {"method": "m", "files": {}}, hints=hints)
    without_features = Step(Kind.BASE, {"seed": 0})
    worker = Worker(tmp_path / "store")
    assert [worker.run([step]).cause for step in (refused, without_features)] == [Cause.INPUT, Cause.ERROR]


def test_a_file_that_is_damaged_while_the_grid_runs_is_named(tmp_path):
    """The driver found it whole: the step that reads it fails, and says whose file it was."""
    variant = Variant("digits", "linear", Scenario.CLASS, 0)
    cell = cell_step(feature_source("digits"), variant, 0, ["truncate"], RunSettings(1))
    worker = Worker(tmp_path)
    steps = closure([cell])
    for step in steps[:-1]:
        assert worker.run([step]).error is None
    retrain = next(step for step in steps if step.kind is Kind.RETRAIN)
    file = worker.store.path(retrain) / "weights.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    said = Worker(tmp_path).run([cell]).error or ""
    assert f"retrain result {retrain.id[:12]} was damaged while the grid ran" in said
    assert "weights.safetensors does not match its checksum" in said
    assert worker.store.path(retrain).exists(), "the next start moves it aside"


NOT_PLACED = "cannot be placed; give a share such as 0.25, or a whole number"
ONE_EACH = [{"CPU": 8.0}, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 1.0}]


@pytest.mark.parametrize(
    ("nodes", "gpus", "may_grow", "said"),
    [
        (ONE_EACH, 2.0, True, "--gpus-per-worker 2 would wait for ever: no node has more than 1; give at most 1"),
        ([{"CPU": 2.0}], 0.5, False, "--gpus-per-worker 0.5 would wait for ever: there is no GPU here; leave it out"),
        (ONE_EACH, 1.5, True, f"--gpus-per-worker 1.5 {NOT_PLACED}"),
        (ONE_EACH, float("nan"), True, f"--gpus-per-worker nan {NOT_PLACED}"),
        (ONE_EACH, -1.0, True, f"--gpus-per-worker -1 {NOT_PLACED}"),
        ([{"CPU": 2.0}], 0.5, True, None),
        (ONE_EACH, 1.0, False, None),
        ([{"CPU": 8.0, "GPU": 4.0}], 2.0, False, None),
        ([{"CPU": 2.0}], 0.0, False, None),
    ],
)  # fmt: skip
def test_a_worker_that_no_node_has_room_for_is_refused(nodes, gpus, may_grow, said):
    placement = Placement(workers=1, cpus=1, gpus=gpus)
    if said is None:
        check_placement(nodes, placement, may_grow)
    else:
        with pytest.raises(BadInput) as error:
            check_placement(nodes, placement, may_grow)
        assert str(error.value) == said
