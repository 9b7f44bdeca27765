"""Processes that tests start: each ends with its block whatever fails in it, and every wait for one has a deadline.

No other test file starts processes by other means (``test_repository`` holds that).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import pytest

PATIENCE = 240.0  # seconds that a wait may take: many times what an idle machine needs, so that a busy one is only slow
ENDS_WITHIN = 30.0  # seconds between asking a process to end and killing it
MARK = "UNLEARN_TEST_PROCESS"


class Ended(NamedTuple):
    """What became of a command."""

    returncode: int
    stdout: str
    stderr: str


class Running:
    """A process in a session of its own, with its output in files, so that it never waits for a reader."""

    def __init__(
        self, command: Sequence[object], folder: Path, cwd: Path | None, environment: Mapping[str, str]
    ) -> None:
        self._folder: Path = folder
        self._mark: bytes = f"{MARK}={uuid.uuid4().hex}".encode()
        self._command: str = " ".join(map(str, command))[:200]
        name, _, value = self._mark.decode().partition("=")
        with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
            self._process: subprocess.Popen[str] = subprocess.Popen(
                [str(word) for word in command],
                cwd=cwd,
                env={**environment, name: value},
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                text=True,
                start_new_session=True,  # its group has its id, and nothing of ours is in it
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> str:
        return (self._folder / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return (self._folder / "stderr").read_text(errors="replace")

    @property
    def said(self) -> str:
        return self.stdout + self.stderr

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def send_signal(self, number: int) -> None:
        """To this process alone, not to its group."""
        self._process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code, once it has ended by itself."""
        wait_until(lambda: self.ended, f"the end of `{self._command}`", self, seconds)
        return self._process.returncode

    def end(self) -> None:
        """Ask it to end, as it would end what it started; then kill whatever is left of that, in any group."""
        try:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDS_WITHIN)
        finally:  # also if a test's limit strikes in the middle of it
            if not self.ended:  # afterwards its number may be another's
                os.killpg(self.pid, signal.SIGKILL)
            for pid in self.marked():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait(ENDS_WITHIN)
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()

    def started(self, name: str) -> list[int]:
        """What it started, in any group, by a part of the first word of its command."""
        found = []
        for pid in self.marked():
            with contextlib.suppress(OSError):
                if name in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode():
                    found.append(pid)
        return found

    def marked(self) -> list[int]:
        """Servers and Ray put processes into groups of their own; all inherit the environment. Linux only."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return found


@contextlib.contextmanager
def running(
    command: Sequence[object], cwd: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Iterator[Running]:
    """A started process; it and all that it started end with the block."""
    with tempfile.TemporaryDirectory() as folder:
        process = Running(command, Path(folder), cwd, environment)
        try:
            yield process
        finally:
            process.end()


def run(
    command: Sequence[object],
    cwd: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    seconds: float = PATIENCE,
) -> Ended:
    """A command to its end."""
    with running(command, cwd, environment) as process:
        process.stdin.close()
        return Ended(process.wait(seconds), process.stdout, process.stderr)


def wait_until(
    condition: Callable[[], object], what: str, process: Running | None = None, seconds: float = PATIENCE
) -> None:
    """Return once ``condition`` holds; fail at the deadline, or once ``process``, which is to bring it about, has ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        over = process is not None and process.ended
        if over and condition():  # it was brought about just before the end
            return
        if over or time.monotonic() > deadline:
            why = "its process ended" if over else f"{seconds:.0f} s passed"
            said = "" if process is None else f"; the process said:\n{process.said}"
            pytest.fail(f"waited for {what}, but {why}{said}")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
