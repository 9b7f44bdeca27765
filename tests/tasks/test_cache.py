"""Workers load once: what a job needs and the worker has already is not read from disk again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tasks.cache import Cache
from tasks.step import Kind, closure
from tasks.store import Store
from tasks.worker import Worker
from unlearn_core.grid import Scenario, Variant
from unlearn_core.run_settings import RunSettings
from workflows.grid import cell_step
from workflows.sources import feature_source


def test_load_is_called_only_if_there_is_no_entry():
    cache = Cache("cpu", limit=2)
    for name in ("a", "b", "a", "c", "a"):
        assert cache.get(name, lambda name=name: [name]) == [name]
    assert cache.get("a", lambda: pytest.fail("a was used last, so b went")) == ["a"]
    assert cache.get("b", lambda: ["again"]) == ["again"]


def test_moments_and_the_probe_are_read_once_for_many_jobs(tmp_path, monkeypatch):
    """With 100 classes the probe is 118 MB: reading it for every job was most of a small job's time."""
    source = feature_source("digits")
    cells = [
        cell_step(source, Variant("digits", "linear", Scenario.CLASS, key), 0, ["lda", "qda", "probe"], RunSettings(1))
        for key in (0, 1)
    ]
    steps = closure(cells)
    read: Counter[str] = Counter()
    load = np.load

    def counting(file, *arguments, **options):
        path = Path(file)
        if path.parent.parent.name == Kind.PREPARED:
            read[path.name] += 1
        return load(file, *arguments, **options)

    monkeypatch.setattr(np, "load", counting)
    worker = Worker(tmp_path)
    for step in steps:
        result = worker.run([step])
        assert result.error is None, result.traceback
    assert sum(step.kind is Kind.UNLEARN for step in steps) == 6
    assert set(read) == {
        "reference.npy", "counts.npy", "sums.npy", "squares.npy", "outer.npy",
        "centre.npy", "scale.npy", "weights.npy", "gradient.npy", "factors.npy",
    }  # fmt: skip
    assert set(read.values()) == {1}
    assert all(Store(tmp_path).has(step) for step in steps)


def test_a_worker_refuses_to_run_other_code_than_the_plan_names(tmp_path, monkeypatch):
    """A node that was not updated must not publish its result under the id of another recipe."""
    from unlearn_core import recipes

    source = feature_source("digits")
    cell = cell_step(source, Variant("digits", "linear", Scenario.CLASS, 0), 0, ["ga"], RunSettings(1))
    worker = Worker(tmp_path)
    monkeypatch.setattr(recipes, "HEAD_UNLEARNING", recipes.Optimization(lr=1e-2, batch_size=512))
    results = [worker.run([step]) for step in closure([cell]) if step.kind is not Kind.AUDIT]
    failed = [result.error for result in results if result.error]
    assert len(failed) == 1
    assert "this worker's code has another optimization for unlearn ga" in str(failed[0])
