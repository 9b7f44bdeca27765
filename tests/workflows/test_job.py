"""A job as a researcher submits it: ``ray start --head`` with a token, ``ray job submit --working-dir``, on loopback."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tasks.store import DONE
from tests.commands import unlearn
from tests.processes import Ended, Running, free_port, listens, run, running, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.slow


class Head(NamedTuple):
    """The dashboard's address, the environment of its users, and the head's process, which runs in the foreground."""

    address: str
    environment: dict[str, str]
    process: Running


@pytest.fixture(scope="module")
def head(ray_environment) -> Iterator[Head]:
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
        yield Head(f"http://127.0.0.1:{dashboard}", environment, process)


def submit(head: Head, *command: object) -> Ended:
    job = [BIN / "ray", "job", "submit", "--address", head.address, "--working-dir", ROOT, "--", *command]
    return run(job, environment=head.environment, seconds=600)


def stamps(out: Path) -> dict[Path, bytes]:
    """When and by whom every finished step was computed."""
    return {path: path.read_bytes() for path in (out / "store" / "steps").glob(f"*/*/{DONE}")}


def test_a_submitted_job_runs_a_grid_to_the_end(tmp_path, head):
    out = tmp_path / "grid"
    command = (
        "python", "-m", "workflows", "grid", "--address", "auto", "--out", out, "--dataset", "digits",
        "--arch", "linear", "--scenario", "class", "--key", "0", "--seeds", "0", "--methods", "lda-2c,ga",
        "--epochs", "3",
    )  # fmt: skip
    job = submit(head, *command)
    assert job.returncode == 0, job.stdout + job.stderr
    assert "digits/linear/class/0: 8 steps, 0 done already, 8 to run" in job.stdout
    assert "8 steps run, 0 cached, 0 failed" in job.stdout
    assert "MLflow: 5 runs written" in job.stdout
    assert "succeeded" in job.stdout
    assert (out / "results" / "digits" / "pixels" / "class_linear_raw.json").exists()
    stranger = head._replace(environment={**head.environment, "RAY_AUTH_TOKEN": secrets.token_hex(16)})
    assert submit(stranger, "true").returncode != 0, "a wrong token is refused"


def test_a_job_stopped_in_the_middle_of_its_steps_says_so_and_submitted_again_runs_nothing_twice(tmp_path, head):
    out = tmp_path / "grid"
    grid = (
        "python", "-m", "workflows", "grid", "--address", "auto", "--out", out, "--dataset", "digits",
        "--arch", "linear", "--scenario", "class", "--key", "0,1,2,3", "--seeds", "0,42", "--methods", "lda-2c,ga",
        "--epochs", "50", "--no-tracking", "--workers", "1",
    )  # fmt: skip
    named = [BIN / "ray", "job", "submit", "--address", head.address, "--submission-id", "first"]
    with running([*named, "--working-dir", ROOT, "--", *grid], environment=head.environment) as first:
        wait_until(lambda: len(stamps(out)) >= 3, "three steps to be done", first)
        workers = head.process.started("ray::Worker")
        for pid in workers:  # asleep, so that their steps are in flight however long the stop takes
            os.kill(pid, signal.SIGSTOP)
        wait_until(
            lambda: "running: " in unlearn("status", "--out", out).stdout, "a status with steps in flight", first
        )
        try:
            stop = run([BIN / "ray", "job", "stop", "--address", head.address, "first"], environment=head.environment)
        finally:
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        assert stop.returncode == 0, stop.stdout + stop.stderr
        first.wait()
        assert "stopped; finished steps are kept: rerun the same command to resume" in first.stdout
        assert "Traceback" not in first.said
    said, before = unlearn("status", "--out", out).stdout, stamps(out)
    assert " steps left; rerun the same command to resume" in said
    assert "running: " not in said
    again = submit(head, *grid)
    assert again.returncode == 0, again.stdout + again.stderr
    left = 44 - len(before)
    assert f"44 steps, {len(before)} done already, {left} to run" in again.stdout
    assert f"{left} steps run, {len(before)} cached, 0 failed" in again.stdout
    assert before.items() <= stamps(out).items(), "nothing that was done ran again"
