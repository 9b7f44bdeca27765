"""Folders ``.unlearn-*`` in which a request is written before it takes its place, and what dead processes left of them.

Beside each lies a file of its name and ``.lock``, made before it and removed after it. The process that writes holds
it; what nobody holds was left by one that was killed, and the next run removes it.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from unlearn_core.forgetting.locks import FileLock, NoLocks

PREFIX = ".unlearn-"
NAME = re.compile(r"\.unlearn-[0-9a-f]{8}")

Keep = Callable[[Path, str], bool]
"""Whether to keep a folder that is nobody's any more, by its place and its note."""


class Scratch:
    """A folder within ``place``, for its owner alone. ``note`` is kept in its lock, for ``clean_scratch``."""

    def __init__(self, place: Path, note: str = "") -> None:
        self.path: Path = place / f"{PREFIX}{secrets.token_hex(4)}"
        self._lock: FileLock = FileLock(_lock_of(self.path), note)
        with contextlib.suppress(NoLocks):  # it is written all the same; only, if we are killed, nobody cleans up
            if not self._lock.acquire():
                raise FileExistsError(f"{self._lock.path} is somebody else's")
        try:
            self.path.mkdir(mode=0o700)
        except BaseException:
            self._lock.release()
            raise

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()

    def leave(self) -> None:
        """Let go of it as it is, for whoever goes on with it."""
        self._lock.release(remove=False)


def clean_scratch(place: Path, keep: Keep = lambda folder, note: False) -> None:
    """Remove what dead processes left in a folder, unless ``keep`` speaks for it."""
    if not place.is_dir():
        return
    for path in place.glob(f"{PREFIX}*.lock"):
        folder = path.with_suffix("")
        if NAME.fullmatch(folder.name) and path.is_file() and not folder.is_symlink():
            remove_scratch(folder, keep)


def remove_scratch(folder: Path, keep: Keep = lambda folder, note: False) -> None:
    """Remove one of them, unless a living process holds it."""
    note = _note(_lock_of(folder))
    lock = FileLock(_lock_of(folder), note)
    try:
        held = NAME.fullmatch(folder.name) is not None and lock.acquire(create=False)
    except (OSError, NoLocks):  # another user's, or nobody can tell
        return
    if not held:
        return
    kept = keep(folder, note)
    if not kept:
        shutil.rmtree(folder, ignore_errors=True)
    lock.release(remove=not kept)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _note(lock: Path) -> str:
    try:
        note = json.loads(lock.read_bytes())["of"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return note if isinstance(note, str) else ""
