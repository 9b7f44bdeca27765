"""A file that one process holds at a time, and that the system lets go of if its holder dies, also by SIGKILL.

``flock`` is the lock; what the file says (host, process, since when) is for people. It is removed when the lock is
released, so that nothing is left behind; whoever waited for a file that is gone by then looks again.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from unlearn_core.errors import BadInput

LOCK_NAME = ".lock"
POLL = 0.1
"""Seconds between two tries."""


class NoLocks(BadInput):
    """The file system knows no locks."""


class FileLock:
    """Held from ``acquire`` to ``release``. ``note``: what else the file is to say."""

    def __init__(self, path: Path, note: str = "") -> None:
        self.path: Path = path
        self._note: str = note
        self._handle: int | None = None

    @property
    def held(self) -> bool:
        return self._handle is not None

    def acquire(self, create: bool = True) -> bool:
        """Whether it is ours now; at once. ``create`` False: only if the file is there."""
        while True:
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
            except FileNotFoundError:
                if create:
                    raise
                return False
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return False
            except OSError as error:
                os.close(handle)
                self.path.unlink(missing_ok=True)  # it keeps nobody out
                raise NoLocks(
                    f"{self.path.parent} lies on a file system without locks ({error.strerror}); name another folder"
                ) from error
            if self._is_at_its_place(handle):
                self._handle = handle
                self._sign(handle)
                return True
            os.close(handle)  # its last holder removed it while we opened it

    def release(self, remove: bool = True) -> None:
        if self._handle is not None:
            if remove:
                with contextlib.suppress(OSError):  # a folder that is gone has no lock either
                    self.path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None

    def holder(self) -> str:
        """Who holds it, for people."""
        try:
            known = json.loads(self.path.read_bytes())
            return f"process {known['pid']} on {known['host']}, since {known['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def _is_at_its_place(self, handle: int) -> bool:
        try:
            there = os.stat(self.path)
        except OSError:
            return False
        ours = os.fstat(handle)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def _sign(self, handle: int) -> None:
        who = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({**who, "of": self._note}).encode(), 0)


def wait_for(lock: FileLock, what: str, seconds: float, waiting: Callable[[str], None]) -> None:
    """Acquire a lock. Tells ``waiting`` once that somebody else has it; refuses after some seconds."""
    deadline, told = time.monotonic() + seconds, False
    while not lock.acquire():
        if time.monotonic() >= deadline:
            raise BadInput(
                f"{what} is still in use after {seconds:g} s, by {lock.holder()}; try again later, or wait longer with "
                "--wait SECONDS"
            )
        if not told:
            waiting(f"{what} is in use by {lock.holder()}; waiting for up to {seconds:g} s")
            told = True
        time.sleep(min(POLL, max(0.0, deadline - time.monotonic())))


@contextlib.contextmanager
def hold_folder(folder: Path, what: str, take: Callable[[FileLock], None], mode: int = 0o777) -> Iterator[None]:
    """Hold the lock in a folder, which is made if it is missing, and removed if it stays empty.

    Args:
        what: is written there, for messages.
        take: acquires the lock, or refuses.
        mode: of a folder that is made.
    """
    lock, made = FileLock(folder / LOCK_NAME), list[Path]()
    try:
        while True:
            made += _make_folders(folder, what, mode)
            with contextlib.suppress(FileNotFoundError):  # another request made the folder, wrote nothing, removed it
                take(lock)
                break
        yield
    finally:
        lock.release()
        for empty in reversed(made):
            with contextlib.suppress(OSError):  # not empty, or somebody else's by now
                empty.rmdir()


def _make_folders(folder: Path, what: str, mode: int) -> list[Path]:
    """Returns which were missing, the outermost first."""
    missing = list(itertools.takewhile(lambda place: not place.exists(), (folder, *folder.parents)))[::-1]
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write {what} ({error.strerror or error}); name another folder") from error
    return missing
