"""The tree is written in few writes, and what is written does not depend on when; a kill between loses nothing."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tasks.step import Kind, Step
from tasks.store import Store, write_json
from tests.processes import run
from tracking.tree import tree_path
from tracking.tree_writer import INTERVAL_SECONDS, TreeWriter
from unlearn_core.grid import SEEDS, Scenario, Variant
from workflows.layout import Layout
from workflows.results import Recorder, sync


def variant(scenario: Scenario, key: int) -> Variant:
    return Variant("cifar10", "mlp1", scenario, key)


def entry(key: int, seed: int) -> dict:
    return {"seed": seed, "n_forget": key, "text": 'a "quoted" ü', "list": [1.5, None, True]}


@pytest.mark.parametrize("scenario", list(Scenario))
@pytest.mark.parametrize("interrupted", [False, True])
def test_the_text_is_that_of_the_whole_document_whatever_came_first(tmp_path, scenario, interrupted):
    cells = list(itertools.product((10, 9, 0), SEEDS[:3]))
    random.Random(0).shuffle(cells)
    writer = TreeWriter(tmp_path, clock=lambda: 0.0)
    for key, seed in cells:
        if interrupted:  # what was not written is lost, so that is done first; the next one starts from the file
            writer.write_all()
            writer = TreeWriter(tmp_path, clock=lambda: 0.0)
        writer.add(variant(scenario, key), "dinov2", [entry(key, seed)])
    writer.write_all()
    by_key = {str(key): [entry(key, seed) for seed in SEEDS[:3]] for key in (0, 9, 10)}
    if scenario is Scenario.SUBCLASS:
        meta = {"dataset": "cifar10", "label_space": str(variant(scenario, 0).label_space)}
        document = {"mlp1": {"meta": meta, "results": by_key}}
    else:
        document = {"mlp1": by_key}
    assert tree_path(tmp_path, variant(scenario, 0), "dinov2").read_text() == json.dumps(document)
    assert writer.entries(variant(scenario, 9), "dinov2") == by_key["9"]


class Writes:
    """How often a file was replaced, as a reader sees it."""

    def __init__(self, path: Path) -> None:
        self.path, self.count, self.last = path, 0, None

    def look(self) -> None:
        if self.path.exists():
            stat = self.path.stat()
            now = (stat.st_ino, stat.st_mtime_ns)
            self.count += now != self.last
            self.last = now


@pytest.mark.parametrize(("seconds_per_cell", "expected"), [(0.0, 1), (1.0, 200 / INTERVAL_SECONDS), (60.0, 200)])
def test_a_file_is_written_at_intervals_and_not_for_every_cell(tmp_path, seconds_per_cell, expected):
    now = 0.0
    writer = TreeWriter(tmp_path, clock=lambda: now)
    writes = Writes(tree_path(tmp_path, variant(Scenario.CLASS, 0), "dinov2"))
    for cell in range(200):
        writer.add(variant(Scenario.CLASS, cell), "dinov2", [entry(cell, 0)])
        writer.write_due()
        writes.look()
        now += seconds_per_cell
    assert writes.count == expected
    writer.close(variant(Scenario.CLASS, 0), "dinov2")
    assert len(json.loads(writes.path.read_text())["mlp1"]) == 200


def test_writing_takes_a_small_share_of_the_time_however_slow_it_is(tmp_path):
    """A clock that goes on by 2 s for every look at it: a write takes 2 s, so that 40 s pass until the next."""
    ticks = itertools.count(step=2.0)
    writer = TreeWriter(tmp_path, clock=lambda: next(ticks))
    writes = Writes(tree_path(tmp_path, variant(Scenario.CLASS, 0), "dinov2"))
    for cell in range(200):
        writer.add(variant(Scenario.CLASS, cell), "dinov2", [entry(cell, 0)])
        writer.write_due()
        writes.look()
    passed = next(ticks)
    assert 2.0 * writes.count <= 0.06 * passed


def test_what_is_there_already_is_not_written_again(tmp_path):
    first = TreeWriter(tmp_path)
    first.add(variant(Scenario.CLASS, 3), "dinov2", [entry(3, seed) for seed in SEEDS])
    first.write_all()
    writes = Writes(tree_path(tmp_path, variant(Scenario.CLASS, 3), "dinov2"))
    writes.look()
    again = TreeWriter(tmp_path)
    again.add(variant(Scenario.CLASS, 3), "dinov2", [entry(3, seed) for seed in reversed(SEEDS)])
    again.write_all()
    writes.look()
    assert writes.count == 1


def audits(n_keys: int) -> list[Step]:
    described = {"dataset": "d", "backbone": "pixels", "fingerprint": "f" * 64, "arch": "linear", "scenario": "class"}
    return [
        Step(
            Kind.AUDIT,
            {**described, "key": key, "seed": seed, "settings": {"preset": "paper"}},
            {str(kind): Step(kind, {"key": key, "seed": seed}) for kind in (Kind.BASE, Kind.RETRAIN, Kind.FLOOR)},
        )
        for key in range(n_keys)
        for seed in (0, 42)
    ]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.tracking.test_tree_writer import audits
from workflows.layout import Layout
from workflows.results import Recorder
steps = audits(4)
recorder = Recorder(Layout(Path(sys.argv[1])), None, track=False)
recorder.expect(steps)
for step in steps[:5]:
    recorder.record([step])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_rerun_and_sync_complete_the_tree_of_a_killed_run(tmp_path, made):
    layout, steps = Layout(tmp_path / "grid"), audits(4)
    store = Store(layout.store)
    for step in steps:
        cell = made.cell(step.config["seed"])
        store.commit(step, lambda folder, cell=cell: write_json(folder / "entry.json", cell), 0.0)
    undisturbed = Recorder(Layout(tmp_path / "undisturbed"), None, track=False)
    undisturbed.store = store
    undisturbed.record(steps)
    undisturbed.finish()
    file = "d/pixels/class_linear_raw.json"
    expected = (tmp_path / "undisturbed" / "results" / file).read_bytes()
    ended = run([sys.executable, "-c", KILLED, layout.out])
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    for name, complete in (("rerun", lambda layout: again(layout, steps)), ("sync", lambda layout: sync(layout, None))):
        killed = Layout(tmp_path / name)
        shutil.copytree(layout.out, killed.out)
        assert (killed.results / file).read_bytes() != expected
        complete(killed)
        assert (killed.results / file).read_bytes() == expected


def again(layout: Layout, steps: list[Step]) -> None:
    recorder = Recorder(layout, None, track=False)
    recorder.expect(steps)
    recorder.record(steps)
    recorder.finish()
