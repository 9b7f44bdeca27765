"""Real processes on a real Ray: same results anywhere, and nothing lost whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tasks.store import DONE
from tests.commands import unlearn
from tests.processes import Running, running, wait_until
from tests.stored import content

GRID = (
    "--dataset", "digits", "--arch", "mlp1", "--scenario", "class,subclass", "--key", "0,1", "--seeds", "0,42",
    "--methods", "lda-2c,dir,ga", "--epochs", "30",
)  # fmt: skip
N_STEPS = 1 + 2 + 4 + 8 + 8 + 24 + 8
N_RUNS = 8 * 6

pytestmark = pytest.mark.slow

GRID_SECONDS = 600  # for a whole grid, which takes half a minute on an idle machine
Start = Callable[..., Running]


@pytest.fixture
def start(ray_environment) -> Iterator[Start]:
    """Starts a driver; none outlives its test."""
    command = (sys.executable, "-m", "workflows", "grid", *GRID, "--out")
    with ExitStack() as drivers:
        yield lambda *more: drivers.enter_context(running([*command, *more], environment=ray_environment))


def finish(process: Running) -> str:
    assert process.wait(GRID_SECONDS) == 0, process.said
    return process.said


def done_files(out: Path) -> dict[str, bytes]:
    return {file.parent.name: file.read_bytes() for file in (out / "store" / "steps").glob(f"*/*/{DONE}")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The reference: in one process, without Ray."""
    out = tmp_path_factory.mktemp("local") / "grid"
    ended = unlearn("grid", *GRID, "--local", "--no-tracking", "--out", out)
    assert f"{N_STEPS} steps run, 0 cached, 0 failed" in ended.stdout, ended.stderr
    return content(out)


def mlflow_runs(out: Path) -> list[tuple[str, ...]]:
    """(kind, dataset, arch, scenario, key, seed, method, status) of every live run in the grid's database."""
    import sqlite3

    with sqlite3.connect(out / "mlflow.db") as db:
        runs = db.execute("select run_uuid, status from runs where lifecycle_stage = 'active'").fetchall()
        tags = db.execute("select run_uuid, key, value from tags").fetchall()
    by_run: dict[str, dict[str, str]] = {}
    for run_id, key, value in tags:
        by_run.setdefault(run_id, {})[key] = value
    names = ("kind", "dataset", "arch", "scenario", "key", "seed", "method")
    return sorted((*(by_run[run_id].get(name, "") for name in names), status) for run_id, status in runs)


def test_a_worker_of_ray_gives_the_results_of_one_process(tmp_path, cluster, start, undisturbed):
    """That two and three do is shown below, where some of them are killed."""
    out = tmp_path / "grid"
    output = finish(start(out, "--address", cluster, "--workers", "1", "--no-tracking"))
    assert f"{N_STEPS} steps run" in output
    assert content(out) == undisturbed


def worker_pids(environment: dict[str, str]) -> list[int]:
    """The actor processes of the test's own cluster, which has a home of its own; Ray names them after the class."""
    home = f"HOME={environment['HOME']}".encode()
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = home in (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if ours and command.startswith(b"ray::Worker"):
            pids.append(int(process.name))
    return pids


def wait_for_steps(out: Path, process: Running) -> None:
    wait_until(lambda: len(done_files(out)) >= 12, "12 steps to be done", process)


def test_a_killed_worker_costs_nothing_but_its_steps(tmp_path, cluster, start, ray_environment, undisturbed):
    out = tmp_path / "grid"
    process = start(out, "--address", cluster, "--workers", "2", "--no-tracking")
    wait_for_steps(out, process)
    before = done_files(out)
    victims = worker_pids(ray_environment)
    assert victims
    os.kill(victims[0], signal.SIGKILL)
    finish(process)
    after = done_files(out)
    assert all(after[step] == stamp for step, stamp in before.items()), "nothing that was done ran again"
    assert content(out) == undisturbed


def test_a_killed_node_costs_nothing_but_its_steps(tmp_path, cluster, start, undisturbed):
    cluster.ask("add 2")
    out = tmp_path / "grid"
    process = start(out, "--address", cluster, "--workers", "3", "--no-tracking")
    wait_for_steps(out, process)
    before = done_files(out)
    cluster.ask("kill")
    finish(process)
    after = done_files(out)
    assert all(after[step] == stamp for step, stamp in before.items())
    assert content(out) == undisturbed


def test_a_driver_interrupted_and_killed_again_and_again_ends_with_the_same_results(
    tmp_path, cluster, start, undisturbed
):
    """Ctrl-C, then SIGKILL at random moments, each followed by the same command; then MLflow is deleted and made again."""
    out = tmp_path / "grid"
    options = ("--address", cluster, "--workers", "2")
    process = start(out, "--address", cluster, "--workers", "1", "--no-tracking")  # a worker less that loads torch
    wait_for_steps(out, process)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130, process.said
    assert "rerun the same command to resume" in process.said
    assert "Traceback" not in process.said
    moments, stamps = random.Random(0), done_files(out)
    for share in sorted(moments.uniform(0.3, 0.9) for _ in range(2)):
        process = start(out, *options)
        n_done = share * N_STEPS
        wait_until(lambda n_done=n_done: len(done_files(out)) >= n_done, f"{n_done:.0f} steps to be done", process)
        time.sleep(moments.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = done_files(out)
        assert all(now[step] == stamp for step, stamp in stamps.items())
        stamps = now
    assert f"{N_STEPS} steps run" not in finish(start(out, *options))
    after = done_files(out)
    assert all(after[step] == stamp for step, stamp in stamps.items()), "no step ran twice after it was done"
    assert content(out) == undisturbed
    runs = mlflow_runs(out)
    assert len(runs) == len(set(runs)) == 1 + 4 + 4 * 6 + N_RUNS, (
        "the grid, its variants, their rows, and every run once"
    )
    assert {run[-1] for run in runs} == {"FINISHED"}
    (out / "mlflow.db").unlink()
    synced = unlearn("sync", "--out", out)
    assert synced.returncode == 0, synced.stderr
    assert mlflow_runs(out) == runs
