"""A job as a researcher submits it: ``ray start --head`` with a token, ``ray job submit --working-dir``, on loopback."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def head(tmp_path, ray_environment) -> Iterator[tuple[str, dict[str, str]]]:
    """The dashboard's address and the environment of its users; the head runs in the foreground and is ended by its pid."""
    environment = {**ray_environment, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"  # as in an activated virtual environment
    del environment["PYTHONPATH"]  # the job must live on its working directory
    port, dashboard = free_port(), free_port()
    process = subprocess.Popen(
        [
            BIN / "ray", "start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port", str(port),
            "--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard),
            "--ray-client-server-port", str(free_port()), "--dashboard-agent-listen-port", str(free_port()),
            "--num-cpus", "2", "--object-store-memory", str(200 * 2**20), "--disable-usage-stats",
            "--temp-dir", f"/tmp/ray-job-test-{os.getpid()}",
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    yield f"http://127.0.0.1:{dashboard}", environment
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)


def submit(address: str, environment, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "ray", "job", "submit", "--address", address, "--working-dir", str(ROOT), "--", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def wait_until_up(address: str) -> None:
    port = int(address.rsplit(":", 1)[1])
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"no dashboard at {address}")


def test_a_submitted_job_runs_a_grid_to_the_end(tmp_path, head):
    address, environment = head
    wait_until_up(address)
    out = tmp_path / "grid"
    command = (
        "python", "-m", "workflows", "grid", "--address", "auto", "--out", str(out), "--dataset", "digits",
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
