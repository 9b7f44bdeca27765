"""Say what is waited for while MLflow is slow or away: how many runs are left, and how long it has not answered."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tracking.heartbeat import Beat, read_beat
from workflows.tracking_queue import Standing, TrackingQueue

LOOK_SECONDS = 1.0
WAIT_SECONDS = 3.0
"""A driver that waits longer than this says so."""
SILENT_SECONDS = 5.0
"""Without an answer, after which that is said, too."""
BEHIND_SECONDS = 15.0
"""The same while computing goes on: a writer on Ray takes some seconds to load MLflow."""

Tell = Callable[[str | None], None]
"""Called about every second with what is waited for now, or None; from another thread."""


def waits_for(standing: Standing, beat: Beat | None, place: str, now: float) -> str | None:
    """A line for people; None if there is nothing to say. ``now`` is of the monotonic clock."""
    settled = standing.settled_before + (beat.settled if beat else 0)
    left = max(0, standing.n_runs - settled)
    runs = f"{left} of {standing.n_runs} runs left to write"
    if standing.asked is None or (standing.trouble and not standing.blocked and standing.retry_in):
        if standing.trouble is None:
            return None
        return f"MLflow is behind: {runs} to {place} ({standing.trouble}); next try in {standing.retry_in:.0f} s"
    silent = now - max(standing.asked, beat.answered if beat else 0.0)
    why = f"no answer from {place} for" if beat else "its writer has been starting for"
    no_answer = f"{runs}, {why} {silent:.0f} s"
    if standing.blocked is None:
        return f"MLflow is behind: {no_answer}" if silent >= BEHIND_SECONDS else None
    if now - standing.blocked < WAIT_SECONDS:
        return None
    if silent >= SILENT_SECONDS:
        return f"waiting for MLflow: {no_answer}"
    what = f"{runs} to {place}" if left else f"all {standing.n_runs} runs are in {place}, the summary is left"
    return f"waiting for MLflow: {what}"


@contextlib.contextmanager
def telling(queue: TrackingQueue, heartbeat: Path, place: str, tell: Tell) -> Iterator[None]:
    """Look once a second what is waited for, from a thread of its own: the driver's may be the one that waits."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            tell(waits_for(queue.standing(), read_beat(heartbeat), place, time.monotonic()))

    watch = threading.Thread(target=look, daemon=True, name="mlflow-watch")
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()
