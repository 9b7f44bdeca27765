"""One driver at a time on an output folder, on network file systems too.

The lock is a file that says who holds it: host, process, since when. It appears whole by ``link``, which NFS does in one
step whoever else tries, and no lock of a file system is relied on. A holder renews its file's time every ``RENEW_SECONDS``.
It is taken over

- at once, if its process was of this boot of this machine and is no more (or its number is another's by now);
- otherwise, if it was not renewed for ``STALE_SECONDS`` by the file server's own clock: no two machines' clocks are
  compared. A newcomer watches that long, and refuses as soon as it sees a renewal. A lock from the future is watched so long
  too.

A holder that was asleep while its lock was taken over notices at its next renewal, and stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from unlearn_core.errors import BadInput
from unlearn_core.writing import write_atomically

RENEW_SECONDS = 10.0
STALE_SECONDS = 60.0
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Holder:
    """Who drives an output folder. ``machine`` is one boot of one machine, seen from one namespace of process numbers."""

    host: str
    pid: int
    process_start: str
    machine: str
    since: float
    command: str
    token: str

    @staticmethod
    def me() -> Holder:
        return Holder(
            host=socket.gethostname(),
            pid=os.getpid(),
            process_start=_process_start(os.getpid()),
            machine=_machine(),
            since=time.time(),
            command=f"unlearn {sys.argv[1]}" if len(sys.argv) > 1 else "unlearn",  # its options may hold a password
            token=uuid.uuid4().hex,
        )

    @property
    def lives(self) -> bool | None:
        """Whether its process is there; None if it is of another machine, where it cannot be asked after."""
        if not self.machine or self.machine != _machine():
            return None
        return _process_start(self.pid) == self.process_start

    @property
    def is_gone(self) -> bool:
        """Whether its process has provably ended."""
        return self.lives is False

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since).isoformat(" ", "seconds")
        return f"process {self.pid} on {self.host}, since {since}"


def read_holder(lock: Path) -> Holder | None:
    """Who holds a lock; None if nobody does. A file that does not say so was not made by a driver."""
    try:
        return Holder(**json.loads(lock.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput(f"{lock} is damaged; if no other driver runs on {lock.parent}, remove it") from error


@contextlib.contextmanager
def hold(lock: Path, say: Callable[[str], None]) -> Iterator[Holder | None]:
    """Hold an output folder; gives the holder that was taken over, if there was one.

    Args:
        say: told if another's lock must be watched for a while, and if one was taken over.
    """
    me = Holder.me()
    before = _acquire(lock, me, say)
    renewal = _Renewal(lock, me)
    renewal.start()
    try:
        yield before
    except KeyboardInterrupt:
        if renewal.lost:
            raise BadInput(
                f"{lock.parent} was taken over by {read_holder(lock) or 'another driver'} while this one did not answer; "
                "let that one finish"
            ) from None
        raise
    finally:
        renewal.stop()
        if not renewal.lost and (now := read_holder(lock)) is not None and now.token == me.token:
            lock.unlink(missing_ok=True)


class _Renewal(threading.Thread):
    """Shows others that this driver lives, and notices if another took over."""

    def __init__(self, lock: Path, me: Holder) -> None:
        super().__init__(daemon=True, name="driver-lock")
        self._lock: Path = lock
        self._me: Holder = me
        self._over: threading.Event = threading.Event()
        self.lost: bool = False

    def run(self) -> None:
        while not self._over.wait(RENEW_SECONDS):
            try:
                holder = read_holder(self._lock)
                if holder is not None and holder.token == self._me.token:
                    os.utime(self._lock)
                    continue
            except (OSError, BadInput):
                continue  # the file system does not answer now; it is asked again
            self.lost = True
            _interrupt_main()
            return

    def stop(self) -> None:
        self._over.set()


def _interrupt_main() -> None:
    """As Ctrl-C does, also if the main thread waits for the system."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def _acquire(lock: Path, me: Holder, say: Callable[[str], None]) -> Holder | None:
    lock.parent.mkdir(parents=True, exist_ok=True)
    before: Holder | None = None
    while not _link(lock, me):
        held = read_holder(lock)
        if held is None:
            continue  # released meanwhile
        if not held.is_gone:
            _watch(lock, held, say)
        if _remove(lock, held):
            before = held
            say(f"{lock.parent} was held by {held}, which is no more; taken over")
    return before


def _link(lock: Path, me: Holder) -> bool:
    """Make the lock, whole, unless there is one. A lost answer of a file server is told by the number of links."""
    mine = lock.with_name(f"{lock.name}.{me.token}")
    write_atomically(mine, json.dumps(asdict(me)))
    try:
        os.link(mine, lock)
    except FileExistsError:  # also if it was released since
        return mine.stat().st_nlink == 2
    except OSError:
        if mine.stat().st_nlink != 2:
            raise
    finally:
        mine.unlink(missing_ok=True)
    return True


def _watch(lock: Path, held: Holder, say: Callable[[str], None]) -> None:
    """Return if the holder does not renew its lock; refuse once it does, or if it lives here for certain."""
    refusal = BadInput(
        f"{lock.parent} is in use: {held} ({held.command}); wait for it, stop it, or name another --out "
        f"('unlearn status --out {lock.parent}' shows how far it is)"
    )
    if held.machine and held.machine == _machine():
        raise refusal
    seen, now = _age(lock)
    if now - seen < STALE_SECONDS:
        say(f"{lock.parent} is held by {held}; watching for up to {STALE_SECONDS:.0f} s whether that still runs")
    begun = time.monotonic()  # a clock that was set back must not make the watch endless
    while True:
        renewed, now = _age(lock)
        if renewed not in (0, seen):
            raise refusal
        if renewed == 0 or max(now - seen, time.monotonic() - begun) >= STALE_SECONDS:
            return
        time.sleep(LOOK_SECONDS)


def _age(lock: Path) -> tuple[float, float]:
    """When a lock was renewed (0 if it is gone), and now: both by the clock of its file system."""
    probe = lock.with_name(f"{lock.name}.{uuid.uuid4().hex}")
    try:
        probe.touch()
        now = probe.stat().st_mtime
        with lock.open() as file:  # opening it makes NFS ask the server
            return os.fstat(file.fileno()).st_mtime, now
    except FileNotFoundError:
        return 0.0, time.time()
    finally:
        probe.unlink(missing_ok=True)


def _remove(lock: Path, held: Holder) -> bool:
    """Remove the lock of a holder that is no more; of several newcomers one does."""
    claim = lock.with_name(f"{lock.name}.{held.token}.claim")
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        made, seen_at = _age(claim)
        if made and abs(seen_at - made) > STALE_SECONDS:  # its maker was killed, too
            claim.unlink(missing_ok=True)
        time.sleep(LOOK_SECONDS)
        return False
    try:
        now = read_holder(lock)
        if now is None or now.token != held.token:
            return False
        lock.unlink()
        return True
    finally:
        claim.unlink(missing_ok=True)


def _process_start(pid: int) -> str:
    """When a process started, in ticks since boot; empty if there is none. With it, a number names one process only."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def _machine() -> str:
    """This boot of this machine, and the namespace of its process numbers; empty where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""
