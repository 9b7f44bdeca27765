"""Real processes on a real Ray: same results anywhere, and nothing lost whatever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.store import DONE

GRID = (
    "--dataset", "digits", "--arch", "linear,mlp1", "--scenario", "class,subclass", "--key", "0,1", "--seeds", "0,42",
    "--methods", "lda-2c,dir,ga", "--epochs", "30",
)  # fmt: skip
N_STEPS = 1 + 2 + 8 + 16 + 16 + 48 + 16
N_RUNS = 16 * 6

pytestmark = pytest.mark.slow


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def no_driver_outlives_its_test():
    """A failing test must not leave its driver behind; each is ended by its own pid."""
    yield
    for process in STARTED:
        if process.poll() is None:
            process.kill()
            process.communicate()
    STARTED.clear()


def start(out: Path, environment, *extra: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "workflows", "grid", *GRID, "--out", str(out), *extra],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    STARTED.append(process)
    return process


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def done_files(out: Path) -> dict[str, bytes]:
    return {file.parent.name: file.read_bytes() for file in (out / "store" / "steps").glob(f"*/*/{DONE}")}


def without_seconds(value):
    if isinstance(value, dict):
        return {k: without_seconds(v) for k, v in value.items() if k not in ("seconds", "rte", "proxy_seconds")}
    return [without_seconds(item) for item in value] if isinstance(value, list) else value


def content(out: Path) -> dict[str, object]:
    """Everything that a run computed, measured seconds aside: weights and arrays as bytes, records as values."""
    found: dict[str, object] = {}
    for file in sorted((out / "store" / "steps").glob("*/*/*")):
        name = str(file.relative_to(out / "store"))
        if file.suffix == ".json" and file.name != DONE:
            found[name] = without_seconds(json.loads(file.read_text()))
        elif file.suffix != ".json":
            found[name] = file.read_bytes()
    for file in sorted((out / "results").rglob("*.json")):
        found[str(file.relative_to(out))] = without_seconds(json.loads(file.read_text()))
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, ray_environment):
    """The reference: in one process, without Ray."""
    out = tmp_path_factory.mktemp("local") / "grid"
    output = finish(start(out, ray_environment, "--local", "--no-tracking"))
    assert f"{N_STEPS} steps run, 0 cached, 0 failed" in output
    return content(out)


def mlflow_runs(out: Path) -> list[tuple[str, ...]]:
    """(kind, dataset, arch, scenario, key, seed, method, status) of every live run in the grid's database."""
    import sqlite3

    with sqlite3.connect(out / "mlflow.db") as db:
        runs = db.execute("select run_uuid, status from runs where lifecycle_stage = 'active'").fetchall()
        tags = db.execute("select run_uuid, key, value from tags").fetchall()
    by_run: dict[str, dict[str, str]] = {}
    for run, key, value in tags:
        by_run.setdefault(run, {})[key] = value
    names = ("kind", "dataset", "arch", "scenario", "key", "seed", "method")
    return sorted((*(by_run[run].get(name, "") for name in names), status) for run, status in runs)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ray_gives_the_results_of_one_process(tmp_path, cluster, ray_environment, undisturbed, workers):
    out = tmp_path / "grid"
    output = finish(start(out, ray_environment, "--address", cluster, "--workers", workers, "--no-tracking"))
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


def wait_for(condition, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_a_killed_worker_costs_nothing_but_its_steps(tmp_path, cluster, ray_environment, undisturbed):
    out = tmp_path / "grid"
    process = start(out, ray_environment, "--address", cluster, "--workers", "2", "--no-tracking")
    wait_for(lambda: len(done_files(out)) >= 12)
    before = done_files(out)
    victims = worker_pids(ray_environment)
    assert victims
    os.kill(victims[0], signal.SIGKILL)
    finish(process)
    after = done_files(out)
    assert all(after[step] == stamp for step, stamp in before.items()), "nothing that was done ran again"
    assert content(out) == undisturbed


def test_a_killed_node_costs_nothing_but_its_steps(tmp_path, cluster, ray_environment, undisturbed):
    cluster.ask("add 2")
    out = tmp_path / "grid"
    process = start(out, ray_environment, "--address", cluster, "--workers", "3", "--no-tracking")
    wait_for(lambda: len(done_files(out)) >= 12)
    before = done_files(out)
    cluster.ask("kill")
    finish(process)
    after = done_files(out)
    assert all(after[step] == stamp for step, stamp in before.items())
    assert content(out) == undisturbed


def test_a_driver_killed_again_and_again_ends_with_the_same_results(tmp_path, cluster, ray_environment, undisturbed):
    """SIGKILL at random moments, each followed by the same command; then MLflow is deleted and made again."""
    out = tmp_path / "grid"
    options = ("--address", cluster, "--workers", "2")
    moments = random.Random(0)
    stamps: dict[str, bytes] = {}
    for share in sorted(moments.uniform(0.0, 0.9) for _ in range(3)):
        process = start(out, ray_environment, *options)
        wait_for(
            lambda share=share, process=process: len(done_files(out)) >= share * N_STEPS or process.poll() is not None
        )
        time.sleep(moments.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        now = done_files(out)
        assert all(now[step] == stamp for step, stamp in stamps.items())
        stamps = now
    finish(start(out, ray_environment, *options))
    after = done_files(out)
    assert all(after[step] == stamp for step, stamp in stamps.items()), "no step ran twice after it was done"
    assert content(out) == undisturbed
    runs = mlflow_runs(out)
    assert len(runs) == len(set(runs)) == 8 + N_RUNS, "a parent per variant and every run once"
    assert {run[-1] for run in runs} == {"FINISHED"}
    (out / "mlflow.db").unlink()
    synced = subprocess.run(
        [sys.executable, "-m", "workflows", "sync", "--out", str(out)],
        env=ray_environment,
        capture_output=True,
        text=True,
    )
    assert synced.returncode == 0, synced.stderr
    assert mlflow_runs(out) == runs


def test_ctrl_c_stops_cleanly_says_how_to_go_on_and_the_same_command_does(
    tmp_path, cluster, ray_environment, undisturbed
):
    out = tmp_path / "grid"
    options = ("--address", cluster, "--workers", "2", "--no-tracking")
    process = start(out, ray_environment, *options)
    wait_for(lambda: len(done_files(out)) >= 12)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "the same command goes on from here" in output
    assert "Traceback" not in output
    output = finish(start(out, ray_environment, *options))
    assert f"{N_STEPS} steps run" not in output
    assert content(out) == undisturbed


def test_gpus_are_shared_in_fractions_where_a_cluster_has_them(ray_environment):
    """Fake GPUs: Ray places the actors; a cluster without any never waits for one."""
    script = (
        "import ray, sys\n"
        "from tasks.backends import place_workers\n"
        "gpus = int(sys.argv[1])\n"
        "ray.init(address='local', _node_ip_address='127.0.0.1', num_cpus=4, num_gpus=gpus,"
        " include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)\n"
        "p = place_workers(ray.cluster_resources(), 4)\n"
        "class Probe:\n"
        "    def gpu(self): return ray.get_runtime_context().get_accelerator_ids()['GPU']\n"
        "actors = [ray.remote(Probe).options(num_cpus=p.cpus, num_gpus=p.gpus).remote() for _ in range(p.workers)]\n"
        "print(sorted(ray.get([a.gpu.remote() for a in actors], timeout=60)))\n"
    )
    for gpus, expected in (("2", "[['0'], ['0'], ['1'], ['1']]"), ("0", "[[], [], [], []]")):
        result = subprocess.run(
            [sys.executable, "-c", script, gpus], env=ray_environment, capture_output=True, text=True, timeout=120
        )
        assert result.stdout.strip() == expected, result.stderr
