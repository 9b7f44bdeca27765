"""What a killed driver leaves behind, and the next one on the same output folder clears away."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from unlearn_core.writing import UNFINISHED
from workflows.driver_lock import STALE_SECONDS, Holder
from workflows.layout import Layout

ENDS_WITHIN = 3.0
"""Seconds between asking a process to end and killing it."""


def clear_litter(layout: Layout, before: Holder | None, say: Callable[[str], None]) -> None:
    """Remove unfinished files, and end the Ray processes that a killed driver (``before``) started on this machine.

    Call it while holding the folder: what is unfinished and a minute old is then nobody's.
    """
    folders = (layout.out.glob("*"), layout.results.glob("*/*/*"), layout.failures.glob("*"), layout.tuning.glob("*"))
    for file in (file for folder in folders for file in folder):
        if file.name.endswith(UNFINISHED) or file.name.startswith(f"{layout.lock.name}."):
            try:
                if time.time() - file.stat().st_mtime > STALE_SECONDS:
                    file.unlink()
            except FileNotFoundError:
                pass  # a newcomer's, finished meanwhile
    if before is not None and before.is_gone:
        left = ray_processes_of(before)
        if left:
            say(f"ending {len(left)} Ray processes that driver {before.pid} left: {', '.join(map(str, left))}")
            _end(left)


def ray_processes_of(driver: Holder) -> list[int]:
    """Processes of the local Ray that a driver started: they keep logs open in the session that Ray named after it."""
    if Path(f"/proc/{driver.pid}").exists():
        return []  # another process has its number now, and perhaps a Ray of its own
    named = re.compile(rf"/session_(\d{{4}}-\d\d-\d\d_\d\d-\d\d-\d\d)_\d+_{driver.pid}/")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [os.readlink(file) for file in (process / "fd").iterdir()]
        except OSError:
            continue  # ended meanwhile, or another user's
        starts = [match[1] for path in opened if (match := named.search(path))]
        if any(datetime.strptime(start, "%Y-%m-%d_%H-%M-%S").timestamp() >= driver.since - 1 for start in starts):
            found.append(int(process.name))
    return sorted(found)


def _end(pids: list[int]) -> None:
    deadline = time.monotonic() + ENDS_WITHIN
    for ending in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, ending)
            except ProcessLookupError:
                continue
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.1)
