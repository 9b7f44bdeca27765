"""A job as a researcher submits it: ``ray start --head`` with a token, ``ray job submit --working-dir``, on loopback."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import Ended, free_port, listens, run, running, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.slow


@pytest.fixture
def head(tmp_path, ray_environment) -> Iterator[tuple[str, dict[str, str]]]:
    """The dashboard's address and the environment of its users; the head runs in the foreground."""
    environment = {**ray_environment, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"  # as in an activated virtual environment
    del environment["PYTHONPATH"]  # the job must live on its working directory
    port, dashboard = free_port(), free_port()
    command = [
        BIN / "ray", "start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port", port,
        "--dashboard-host", "127.0.0.1", "--dashboard-port", dashboard,
        "--ray-client-server-port", free_port(), "--dashboard-agent-listen-port", free_port(),
        "--num-cpus", 2, "--object-store-memory", 200 * 2**20, "--disable-usage-stats",
        "--temp-dir", f"/tmp/ray-job-test-{os.getpid()}",
    ]  # fmt: skip
    with running(command, environment=environment) as process:
        wait_until(lambda: listens(dashboard), "Ray's dashboard", process)
        yield f"http://127.0.0.1:{dashboard}", environment


def submit(address: str, environment: dict[str, str], *command: object) -> Ended:
    job = [BIN / "ray", "job", "submit", "--address", address, "--working-dir", ROOT, "--", *command]
    return run(job, environment=environment, seconds=600)


def test_a_submitted_job_runs_a_grid_to_the_end(tmp_path, head):
    address, environment = head
    out = tmp_path / "grid"
    command = (
        "python", "-m", "workflows", "grid", "--address", "auto", "--out", out, "--dataset", "digits",
        "--arch", "linear", "--scenario", "class", "--key", "0", "--seeds", "0", "--methods", "lda-2c,ga",
        "--epochs", "3",
    )  # fmt: skip
    job = submit(address, environment, *command)
    assert job.returncode == 0, job.stdout + job.stderr
    assert "digits/linear/class/0: 8 steps, 0 done already, 8 to run" in job.stdout
    assert "8 steps run, 0 cached, 0 failed" in job.stdout
    assert "MLflow: 5 runs written" in job.stdout
    assert "succeeded" in job.stdout
    assert (out / "results" / "digits" / "pixels" / "class_linear_raw.json").exists()
    stranger = {**environment, "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    assert submit(address, stranger, "true").returncode != 0, "a wrong token is refused"
