"""Real workers on two Ray nodes that say they have a GPU each: placed by fractions, and refused if torch finds none."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import unlearn
from tests.processes import Running, run, running, wait_until
from tests.stored import content

pytestmark = pytest.mark.slow

GRID_SECONDS = 600  # for a whole grid, which takes half a minute on an idle machine

NODES = """
import signal, sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": 100 * 2**20, "include_log_monitor": False}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False, "no_monitor": True})
signal.signal(signal.SIGTERM, lambda *_: (cluster.shutdown(), sys.exit()))
cluster.add_node(**node)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""

PRETENDING = """
import json, ray, sys
import tasks.ray_backend
from tasks.worker import Worker
from tests.pretended_cuda import pretended_cuda
from workflows.cli import main

class Pretending(Worker):
    '''A worker for which there is a CUDA device, and which notes where it was placed.'''
    def ready(self):
        here = ray.get_runtime_context()
        with open(self.store.root.parent / "places.jsonl", "a") as file:
            place = [here.get_node_id(), *here.get_accelerator_ids()["GPU"], str(self.cache.device)]
            file.write(json.dumps(place) + chr(10))
        with pretended_cuda():
            return super().ready()
    def run(self, steps):
        with pretended_cuda():
            return super().run(steps)

tasks.ray_backend.Worker = Pretending
main(sys.argv[1:])
"""

GRID = (
    "grid", "--dataset", "digits", "--arch", "linear", "--scenario", "class", "--key", "0,1", "--seeds", "0,42",
    "--methods", "lda-2c,ga", "--epochs", "5", "--no-tracking",
)  # fmt: skip


@pytest.fixture(scope="module")
def gpu_cluster(ray_environment) -> Iterator[str]:
    patient = {**ray_environment, "RAY_raylet_start_wait_time_s": str(GRID_SECONDS)}  # for a busy machine
    with running([sys.executable, "-c", NODES], environment=patient) as process:
        yield _address(process)
        process.stdin.close()
        process.wait()


def _address(process: Running) -> str:
    wait_until(lambda: "\n" in process.stdout, "a Ray cluster", process, GRID_SECONDS)
    return process.stdout.splitlines()[0]


def test_workers_share_gpus_in_fractions_and_give_the_cpus_results(tmp_path, gpu_cluster, ray_environment):
    """Three workers on two GPUs take a half each: two of them share one."""
    there, here = tmp_path / "there", tmp_path / "here"
    command = [sys.executable, "-c", PRETENDING, *GRID, "--address", gpu_cluster, "--workers", "3", "--out", there]
    ended = run(command, environment=ray_environment, seconds=GRID_SECONDS)
    assert ended.returncode == 0, ended
    places = [json.loads(line) for line in (there / "places.jsonl").read_text().splitlines()]
    assert {tuple(rest) for _, *rest in places} == {("0", "cuda")}
    assert sorted(Counter(node for node, *_ in places).values()) == [1, 2]
    local = unlearn(*GRID, "--local", "--out", here)
    assert local.returncode == 0, local
    assert content(there) == content(here)


def test_a_gpu_that_torch_cannot_use_is_one_clear_line(tmp_path, gpu_cluster, ray_environment):
    out = tmp_path / "out"
    where = ("--address", gpu_cluster, "--workers", "1", "--out", out)
    command = [sys.executable, "-m", "workflows", *GRID, *where]
    ended = run(command, environment=ray_environment, seconds=GRID_SECONDS)
    assert ended.returncode == 2, ended
    assert "Traceback" not in ended.stdout + ended.stderr
    [line] = ended.stderr.splitlines()
    assert line.startswith("unlearn: torch cannot use cuda on ")
    assert line.endswith("install torch for its CUDA driver there, or run on CPUs with --gpus-per-worker 0")
    assert not list(Path(out).rglob("DONE.json"))
