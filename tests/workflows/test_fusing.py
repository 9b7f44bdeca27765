"""Networks of several requests in one stack, as on a GPU: each has the bits that it has alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tasks.executor import execute
from tasks.local_backend import LocalBackend
from tasks.schedule import MAX_FUSED_ON_GPU
from tasks.state import State
from tasks.step import Kind, Step, closure
from tests.stored import content
from unlearn_core.data import load_dataset, save_feature_set
from unlearn_core.grid import Scenario, Variant
from unlearn_core.run_settings import RunSettings
from workflows.grid import cell_step
from workflows.sources import feature_source

ROWS, CLASSES = 30, 4
METHODS = ("lda-2c", "probe", "newton", "ft", "ga-ft", "rl-ft", "scrub", "salun", "bad-teacher", "short")


class Noting(LocalBackend):
    """Notes its jobs; plans for stacks as if it had a GPU, or runs every step alone."""

    def __init__(self, root: Path, wide: bool) -> None:
        super().__init__(root)
        self.on_gpu: bool = wide
        self.wide: bool = wide
        self.jobs: list[Sequence[Step]] = []

    def submit(self, worker, steps):
        self.jobs.append(steps)
        super().submit(worker, steps)


def test_requests_that_forget_equally_many_rows_share_stacks_and_have_the_bits_that_they_have_alone(tmp_path):
    digits = load_dataset("digits")
    rows = np.concatenate([np.flatnonzero(digits.train_y == label)[:ROWS] for label in range(CLASSES)])
    kept = digits.test_y < CLASSES
    few = replace(
        digits,
        train_x=digits.train_x[rows],
        train_y=digits.train_y[rows],
        test_x=digits.test_x[kept],
        test_y=digits.test_y[kept],
        class_names=digits.class_names[:CLASSES],
        superclass=None,
    )
    save_feature_set(tmp_path / "few.npz", few)
    source = feature_source(str(tmp_path / "few.npz"))
    requests = [(Scenario.CLASS, 0), (Scenario.CLASS, 1), (Scenario.RANDOM, ROWS), (Scenario.RANDOM, 1)]
    cells = [
        cell_step(source, Variant(source.name, "linear", *request), seed, METHODS, RunSettings(training_epochs=2))
        for request in requests
        for seed in (0, 42)
    ]
    jobs = {}
    for wide in (True, False):
        out = tmp_path / f"wide-{wide}"
        backend = Noting(out / "store", wide)
        steps = closure(cells)
        for part in [steps] if wide else [[step] for step in steps]:
            state = State(part, set(), [])
            execute(state, backend, lambda step: None, lambda state: None)
            assert not state.failures, [failure.reason for failure in state.failures.values()]
        jobs[wide] = backend.jobs
    assert content(tmp_path / "wide-True") == content(tmp_path / "wide-False")
    assert all(len(job) == 1 for job in jobs[False])
    sizes = {kind: sorted(len(job) for job in jobs[True] if job[0].kind is kind) for kind in Kind}
    assert sizes[Kind.RETRAIN] == sizes[Kind.FLOOR] == [2, 6], "30 rows of any request, and the one row apart"
    assert sizes[Kind.UNLEARN] == sorted([2, 6] * len(METHODS))
    assert max(map(len, jobs[True])) <= MAX_FUSED_ON_GPU
