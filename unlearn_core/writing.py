"""Write files so that a reader, a crash and a full disk never leave half of one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from pathlib import Path

UNFINISHED = ".tmp"


def give_usual_mode(path: Path) -> None:
    """The mode that the umask gives, for a file that a library made for its owner alone."""
    # only a new file tells the umask without changing it for every thread
    sample = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{UNFINISHED}")
    sample.touch()
    try:
        path.chmod(sample.stat().st_mode & 0o777)
    finally:
        sample.unlink()


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Replace a file's content in one step: a reader sees the old or the new, and any failure leaves the old.

    Its mode is what the umask gives: on a shared folder colleagues can read it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{UNFINISHED}")
    try:
        with fresh.open("x") as handle:
            handle.writelines([text] if isinstance(text, str) else text)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(fresh, path)
    except BaseException as error:
        fresh.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # a full disk is noticed by a write, which does not say where
        raise
