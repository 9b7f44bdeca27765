"""A full disk, told in one line: which file system, how much is free, and what to do."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from unlearn_core.errors import DiskFull

FULL: frozenset[int] = frozenset({errno.ENOSPC, errno.EDQUOT})
NEXT_TO_NOTHING = 1 << 20
"""Bytes. With less, a write that failed for no stated reason failed for this one: numpy and safetensors do not say."""


def disk_full(error: BaseException, place: Path, needed: int = 0) -> DiskFull | None:
    """``error`` as a full disk, if that is what it is: by its number, its words, or because nothing is free at ``place``.

    Args:
        needed: bytes that were to be written there, as far as known.
    """
    while not os.path.exists(place):  # False too of a name that is too long, of which Path.exists raises
        place = place.parent
    system = os.statvfs(place)
    free = system.f_bavail * system.f_frsize
    told = isinstance(error, OSError) and error.errno in FULL
    told = told or bool(re.search(r"No space left on device|Disk quota exceeded|disk is full", str(error)))
    if not told and not (isinstance(error, OSError) and free < NEXT_TO_NOTHING):
        return None
    missing = f"; at least {size(needed - free)} are missing" if needed > free else ""
    quota = " (a quota may be used up)" if not missing and free >= NEXT_TO_NOTHING else ""
    return DiskFull(
        f"no room left on the file system of {place}, mounted at {_mount(place)}: {size(free)} free of "
        f"{size(system.f_blocks * system.f_frsize)}{missing}{quota}; make room there, then rerun the same command to resume"
    )


def size(n: float) -> str:
    """In decimal units, as disks are sold."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}"
        n /= 1000
    return f"{n:.0f} TB"


def _mount(place: Path) -> Path:
    place = place.resolve()
    while not place.is_mount():
        place = place.parent
    return place
