"""Files that are on the disk once a function returns, and readable to their owner alone."""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE = 0o600


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_private(path: Path) -> Path:
    """An empty file for its owner alone, before anything is written into it."""
    path.unlink(missing_ok=True)  # it may be somebody else's to read
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
    return path


def replace_text(path: Path, text: str) -> None:
    """Put a private file in place in one step: it is there whole, or as it was before."""
    unfinished = path.with_name(f"{path.name}.new")
    try:
        make_private(unfinished).write_text(text, encoding="utf-8")
        sync(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync(path.parent)
