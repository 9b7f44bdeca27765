"""No process outlives the test that started it, and no wait is for ever."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.processes import run, running, wait_until

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
detached = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10**6)"], start_new_session=True)
print(detached.pid, flush=True)
time.sleep(10**6)
"""


def alive(pid: int) -> bool:
    """Zombies, which wait for their parent to notice, are not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def start_and_fail(pids: list[int]) -> None:
    with running([sys.executable, "-c", STUBBORN]) as process:
        wait_until(lambda: process.stdout, "the process id", process)
        pids += [process.pid, int(process.stdout)]
        assert all(map(alive, pids))
        raise ZeroDivisionError


def test_a_failure_in_the_block_ends_the_process_and_what_it_detached():
    pids: list[int] = []
    with pytest.raises(ZeroDivisionError):
        start_and_fail(pids)
    assert len(pids) == 2
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid), f"the end of process {pid}")


def test_a_process_that_ignores_requests_is_killed(monkeypatch):
    monkeypatch.setattr("tests.processes.ENDS_WITHIN", 1.0)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(10**6)"
    with running([sys.executable, "-c", deaf]) as process:
        wait_until(lambda: process.stdout, "it to be up", process)
    assert process.wait() == -9


def test_a_wait_says_what_it_waited_for_and_what_the_process_said():
    with (
        running([sys.executable, "-c", "print('no room'); raise SystemExit(1)"]) as process,
        pytest.raises(pytest.fail.Exception, match=r"waited for a miracle, but its process ended.*said:\nno room"),
    ):
        wait_until(lambda: False, "a miracle", process)
    with pytest.raises(pytest.fail.Exception, match="waited for Godot, but 0 s passed"):
        wait_until(lambda: False, "Godot", seconds=0.0)


def test_a_command_runs_to_its_end_with_closed_input_and_more_output_than_a_pipe_holds(tmp_path):
    code = (
        "import os, sys; sys.stdin.read(); print('x' * 200_000); print(os.environ['A'], file=sys.stderr); sys.exit(4)"
    )
    ended = run([sys.executable, "-c", code], tmp_path, {**os.environ, "A": "b"})
    assert (ended.returncode, len(ended.stdout), ended.stderr) == (4, 200_001, "b\n")
