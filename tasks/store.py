"""The step store: a step's directory appears complete or not at all.

``root/steps/KIND/ID/`` holds the result files and ``DONE.json`` (identity, checksums, seconds, versions). A step writes into
``root/tmp``, ``DONE.json`` last, and one atomic rename publishes it: what exists is complete, what is missing is recomputed.
Works on any filesystem with atomic directory renames, shared ones included.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.step import Step
from unlearn_core.errors import BadInput
from unlearn_core.room import disk_full

DONE = "DONE.json"
VISIBLE_SECONDS = 90.0
"""NFS keeps what it knows of a folder for at most a minute (acdirmax)."""


@dataclass(frozen=True)
class Damage:
    """A stored result that does not match its checksums, now moved aside."""

    step_id: str
    reason: str
    moved_to: Path

    def __str__(self) -> str:
        return f"{self.step_id[:12]}: {self.reason}; moved to {self.moved_to} and computed again"


class Store:
    """Results of steps by id."""

    def __init__(self, root: Path) -> None:
        self.root: Path = root.resolve()

    def path(self, step: Step) -> Path:
        return self.root / "steps" / step.kind / step.id

    def has(self, step: Step) -> bool:
        return (self.path(step) / DONE).is_file()

    def ids(self, kind: str) -> frozenset[str]:
        """The steps of a kind that are there, whole or damaged: one look at a folder, however many there are."""
        folder = self.root / "steps" / kind
        return frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()

    def missing(self, steps: Iterable[Step]) -> list[Step]:
        """Those of ``steps`` that are not there."""
        ids = functools.cache(self.ids)
        return [step for step in steps if step.id not in ids(step.kind)]

    def await_result(self, step: Step, seconds: float = VISIBLE_SECONDS) -> None:
        """Return once a result that another machine published is seen here.

        A network file system may remember for a while that a file was not there. Looking into its folder makes it ask again.
        """
        deadline = time.monotonic() + seconds
        while not self.has(step):
            if time.monotonic() > deadline:
                raise BadInput(
                    f"{self.path(step)} was reported as done, and is not seen on {socket.gethostname()} after "
                    f"{seconds:.0f} s; mount the file system of --out at the same path on every node, with "
                    "lookupcache=positive if it is NFS (docs/cluster.md)"
                )
            time.sleep(min(0.2, seconds))
            with contextlib.suppress(FileNotFoundError):
                os.listdir(self.path(step).parent)

    def done(self, step: Step) -> dict[str, Any]:
        """What ``DONE.json`` says: ``identity``, ``files``, ``seconds``."""
        return json.loads((self.path(step) / DONE).read_text())

    def read_json(self, step: Step, name: str) -> Any:
        return json.loads((self.path(step) / name).read_text())

    def commit(self, step: Step, write: Callable[[Path], None], seconds: float) -> None:
        """Let ``write`` fill a directory and publish it. A result that somebody else published meanwhile stays."""
        scratch = self.root / "tmp" / f"{step.id}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
        try:
            scratch.mkdir(parents=True)
            write(scratch)
            self._publish(step, scratch, seconds)
        except Exception as error:
            written = sum(file.stat().st_size for file in scratch.glob("*"))
            full = disk_full(error, self.root, written)  # asked while what was written is still there
            shutil.rmtree(scratch, ignore_errors=True)
            if full is not None:
                raise full from error
            raise

    def _publish(self, step: Step, scratch: Path, seconds: float) -> None:
        files = {file.name: checksum(file) for file in sorted(scratch.iterdir())}
        record = {
            "identity": step.identity,
            "files": files,
            "seconds": seconds,
            "finished": time.time(),
            "versions": dict(versions()),
        }
        _write_synced(scratch / DONE, json.dumps(record, indent=1))
        final = self.path(step)
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(scratch, final)
        except OSError:
            if not self.has(step):
                raise
            shutil.rmtree(scratch)

    def verify(self, step: Step) -> Damage | None:
        """Check a stored result against its checksums; a damaged one is moved aside, so that ``has`` is then false."""
        reason = self.damage(step)
        if reason is None:
            return None
        aside = self.root / "damaged" / f"{step.id}.{uuid.uuid4().hex[:8]}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.path(step), aside)
        return Damage(step.id, f"{step.kind} {reason}", aside)

    def damage(self, step: Step) -> str | None:
        """What is wrong with a stored result, which is left where it is."""
        directory = self.path(step)
        if not directory.exists():
            return None
        record = _read_record(directory / DONE)
        if record is None:
            return f"{DONE} cannot be read"
        files = record["files"]
        for name, expected in files.items():
            file = directory / name
            if not file.is_file():
                return f"{name} is missing"
            if checksum(file) != expected:
                return f"{name} does not match its checksum"
        return None

    def records(self, kind: str, at_most: int | None = None) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Every complete step of a kind, or the first so many: its directory and its ``DONE.json``.

        A damaged one is left to ``verify``.
        """
        for name in sorted(self.ids(kind))[:at_most]:
            directory = self.root / "steps" / kind / name
            if (done := _read_record(directory / DONE)) is not None:
                yield directory, done

    def clean_scratch(self) -> int:
        """Remove what dead processes of this machine left unpublished; gives their number."""
        removed = 0
        for directory in (self.root / "tmp").glob("*"):
            _, _, rest = directory.name.partition(".")
            host, _, tail = rest.rpartition(".")[0].rpartition(".")
            if host == socket.gethostname() and tail.isdecimal() and not _alive(int(tail)):
                shutil.rmtree(directory, ignore_errors=True)
                removed += 1
        return removed


def _read_record(file: Path) -> dict[str, Any] | None:
    """What a ``DONE.json`` says, or None if it does not say what one does."""
    try:
        record = json.loads(file.read_bytes())
        config, files, seconds = record["identity"]["config"], record["files"], record["seconds"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    whole = isinstance(config, dict) and isinstance(files, dict) and isinstance(record.get("finished"), int | float)
    return record if whole and isinstance(seconds, int | float) else None


@functools.cache
def versions() -> tuple[tuple[str, str], ...]:
    """What computed a result: kept beside it, and no part of its identity."""
    from importlib.metadata import version  # slow to load, and only a worker asks

    packages = ("numpy", "scipy", "torch", "torchvision", "timm", "ray")
    return (("python", platform.python_version()), *((name, version(name)) for name in packages))


def checksum(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, allow_nan=False))


def _write_synced(file: Path, text: str) -> None:
    with file.open("w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
