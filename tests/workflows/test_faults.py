"""Damaged files, no MLflow server, a full disk, a slow file system: the grid goes on, or one line says what to do."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.step import Kind, Step
from tasks.store import DONE, Store
from tests.commands import unlearn
from tests.processes import free_port, run
from unlearn_core.errors import BadInput
from unlearn_core.writing import write_atomically
from workflows.driver_lock import hold
from workflows.layout import Layout

GRID = (
    "grid", "--dataset", "digits", "--arch", "linear", "--scenario", "class", "--key", "0", "--seeds", "0",
    "--methods", "lda-2c", "--epochs", "2", "--local",
)  # fmt: skip
PAGE = 4096


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """A grid of one cell, without MLflow."""
    out = tmp_path_factory.mktemp("faults") / "grid"
    ended = unlearn(*GRID, "--no-tracking", "--out", out)
    assert ended.returncode == 0, ended.stderr
    return out


@pytest.fixture
def out(done, tmp_path) -> Path:
    return Path(shutil.copytree(done, tmp_path / "grid"))


CUT: dict[str, bytes] = {"empty": b"", "cut": b'{"host": "a", "pi', "zeros": bytes(50), "another": b"[]", "bare": b"{}"}


@pytest.mark.parametrize("content", CUT.values(), ids=CUT)
def test_a_damaged_status_or_list_of_tracked_cells_stops_no_grid(out, content):
    layout = Layout(out)
    layout.status.write_bytes(content)
    layout.tracked.write_bytes(content)
    ended = unlearn("status", "--out", out)
    assert ended.returncode == 2
    assert f"{layout.status} is damaged" in ended.stderr
    ended = unlearn(*GRID, "--no-tracking", "--out", out)
    assert ended.returncode == 0, ended.stderr
    assert unlearn("status", "--out", out).returncode == 0


@pytest.mark.parametrize("content", CUT.values(), ids=CUT)
def test_a_damaged_stamp_is_planned_with_and_computed_again(out, content):
    stamp = next((out / "store" / "steps" / "audit").glob(f"*/{DONE}"))
    whole = json.loads(stamp.read_text())
    stamp.write_bytes(content)
    assert unlearn("plan", *GRID[1:-1], "--out", out).returncode == 0
    ended = unlearn(*GRID, "--no-tracking", "--out", out)
    assert ended.returncode == 0, ended.stderr
    assert "audit DONE.json cannot be read; moved to" in ended.stdout
    assert json.loads(stamp.read_text())["files"] == whole["files"], "the same result again"


def test_a_damaged_file_of_the_tree_is_named(out):
    file = next((out / "results").rglob("*.json"))
    for content in (b"[]", b"\xff\xfe\x00"):
        file.write_bytes(content)
        ended = unlearn(*GRID, "--no-tracking", "--out", out)
        assert ended.returncode == 2
        assert f"{file} is not valid JSON" in ended.stderr


def test_a_server_that_does_not_answer_costs_no_result_and_sync_catches_up(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    out, nowhere = tmp_path / "grid", f"http://127.0.0.1:{free_port()}"
    ended = unlearn(*GRID, "--out", out, "--tracking-uri", nowhere)
    assert ended.returncode == 4, ended.stderr
    assert "7 steps run, 0 cached, 0 failed" in ended.stdout
    assert f"MLflow fell behind: 1 cells are not there (MlflowException: API request to {nowhere}" in ended.stdout
    assert f"catch up with: unlearn sync --out {out} --tracking-uri {nowhere}" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    assert "MlflowException" in (out / "failures" / "mlflow.txt").read_text()
    assert json.loads((out / "tracked.json").read_text()) == {nowhere: []}
    assert unlearn("sync", "--out", out, "--tracking-uri", nowhere).returncode == 4
    ended = unlearn("sync", "--out", out)
    assert ended.returncode == 0, ended.stderr
    assert "MLflow: 4 runs written, 0 there already, 0 replaced;" in ended.stdout


def test_sync_removes_runs_that_a_lost_answer_doubled(out):
    """As MLflow's client leaves them: it asks again to create a run that it was not told of, and finishes the second."""
    gone = run([sys.executable, "-c", "import os; print(os.getpid())"]).stdout.strip()
    left = [out / f"mlflow.db.{gone}.new", out / f"mlflow.db.{gone}.new-journal"]
    mine = out / f"mlflow.db.{os.getpid()}.new2"
    for file in (*left, mine):
        file.touch()
    assert unlearn("sync", "--out", out).returncode == 0
    assert not any(file.exists() for file in left), "what a killed start left of a database is removed"
    assert mine.exists(), "its process lives"
    client = MlflowClient(f"sqlite:///{out / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(Layout(out).experiment)
    assert experiment is not None
    before = {run.info.run_id: run.data.tags for run in client.search_runs([experiment.experiment_id])}
    for tags in before.values():
        client.create_run(experiment.experiment_id, tags=tags)
    n_means = sum(tags["kind"] == "mean" for tags in before.values())
    rows = {key for key, tags in before.items() if tags["kind"] in ("method", "reference", "grid")}
    for _ in range(2):
        ended = unlearn("sync", "--out", out)
        assert ended.returncode == 0, ended.stderr
        after = client.search_runs([experiment.experiment_id])
        assert {run.info.status for run in after} == {"FINISHED"}
        of = [tuple(sorted(run.data.tags.items())) for run in after]
        keys = [tuple(run.data.tags.get(name, "") for name in ("kind", "variant", "seed", "method")) for run in after]
        assert len(of) == len(before)
        assert len(set(keys)) == len(keys), "every run once"
        assert rows <= {run.info.run_id for run in after}, "the finished ones stay as they were"
    assert n_means == 4


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 4 MB, to be filled."""
    place = tmp_path / "disk"
    place.mkdir()
    if run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place]).returncode:
        pytest.skip("this user may not mount a small file system to fill")
    try:
        yield place
    finally:
        assert run(["umount", "-l", place]).returncode == 0


def test_a_full_disk_is_one_line_nothing_half_written_and_the_same_command_resumes(small_disk, done):
    out = small_disk / "grid"
    need = sum(-(-file.stat().st_size // PAGE) * PAGE for file in (done / "store").rglob("*") if file.is_file())
    filler = small_disk / "filler"
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    filler.write_bytes(bytes(free - need + 8 * PAGE))
    ended = unlearn(*GRID, "--no-tracking", "--out", out)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stderr.count("\n") == 1
    assert f"mounted at {small_disk}:" in ended.stderr
    assert "make room there, then rerun the same command to resume" in ended.stderr
    kept = {file.parent.name for file in out.glob(f"store/steps/*/*/{DONE}")}
    assert kept
    assert not list((out / "store" / "tmp").glob("*"))
    assert not list(out.rglob("*.tmp"))
    filler.unlink()
    ended = unlearn(*GRID, "--no-tracking", "--out", out)
    assert ended.returncode == 0, ended.stderr
    assert f"{7 - len(kept)} steps run, {len(kept)} cached, 0 failed" in ended.stdout


def test_files_have_the_mode_that_the_umask_gives(tmp_path):
    for mask, mode in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        before = os.umask(mask)
        try:
            write_atomically(tmp_path / "file.json", "{}")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "file.json").stat().st_mode) == mode
    assert [file.name for file in tmp_path.iterdir()] == ["file.json"]


def test_a_result_that_is_seen_late_is_waited_for_and_one_that_never_comes_is_named(tmp_path):
    """As on a network file system that remembers that the file was not there."""
    step, store, elsewhere = Step(Kind.BASE, {"seed": 0}), Store(tmp_path), Store(tmp_path / "elsewhere")
    elsewhere.commit(step, lambda folder: (folder / "a").touch(), 0.0)
    store.path(step).parent.mkdir(parents=True)

    def appear() -> None:
        time.sleep(0.3)
        elsewhere.path(step).rename(store.path(step))

    late = threading.Thread(target=appear)
    late.start()
    store.await_result(step)
    assert store.has(step)
    late.join()
    with pytest.raises(BadInput, match=r"was reported as done, and is not seen on .* lookupcache=positive"):
        store.await_result(Step(Kind.BASE, {"seed": 1}), 0.3)


def test_a_stopped_grid_has_no_running_steps_and_says_how_to_resume(out):
    layout = Layout(out)
    known = json.loads(layout.status.read_text())
    known["left"], known["running"] = 3, ["unlearn ga"]
    for row in known["counts"].values():
        row["running"] = 1
    layout.status.write_text(json.dumps(known))
    said = unlearn("status", "--out", out).stdout
    assert "3 steps left; rerun the same command to resume" in said
    assert "running: unlearn ga" not in said
    assert all(line.split()[3] == "0" for line in said.splitlines() if line.startswith(("audit", "base")))


def test_a_grid_that_renews_its_lock_runs_though_its_step_takes_minutes(out):
    layout = Layout(out)
    known = json.loads(layout.status.read_text())
    now = time.time()
    layout.status.write_text(
        json.dumps(known | {"finished": False, "left": 3, "pid": os.getpid(), "updated": now - 600})
    )
    with hold(layout.lock, print):
        holder = layout.lock.read_bytes()
    layout.lock.write_bytes(holder)
    assert "running as process" in unlearn("status", "--out", out).stdout
    os.utime(layout.lock, (now - 600, now - 600))
    said = unlearn("status", "--out", out).stdout
    assert f"process {os.getpid()} on " in said
    assert "is there, but gave no sign of life for 0:1" in said
    assert "rerun" not in said, "its process lives, and a second one would be refused"
    elsewhere = json.loads(holder) | {"machine": "another boot"}
    layout.lock.write_text(json.dumps(elsewhere))
    os.utime(layout.lock, (now - 600, now - 600))
    said = unlearn("status", "--out", out).stdout
    assert "no sign of life for 0:1" in said
    assert f"if process {os.getpid()} on " in said
    assert "is no more, rerun the same command to resume" in said
