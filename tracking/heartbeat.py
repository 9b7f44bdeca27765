"""A sign of life from the one MLflow writer, for a driver that waits for it: on Ray the writer is another process."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearn_core.writing import write_atomically

BEAT_SECONDS = 1.0
"""Between two signs; a reader knows to this much when MLflow last answered."""


@dataclass(frozen=True)
class Beat:
    """When MLflow last answered, or was first asked, by the monotonic clock of the node of driver and writer."""

    answered: float
    settled: int
    """Runs that it had then."""


class Heartbeat:
    """Notes, now and then, that MLflow has answered. Without a file it notes nothing."""

    def __init__(self, file: Path | None) -> None:
        self._file: Path | None = file
        self._written: float = 0.0
        self.settled: int = 0
        """Runs that MLflow has now, because they were written or were there already."""

    def answered(self, count: bool = False) -> None:
        """``count``: note it whenever the last one was, for there is something new to say."""
        now = time.monotonic()
        if self._file is None or (now - self._written < BEAT_SECONDS and not count):
            return
        self._written = now
        with contextlib.suppress(
            OSError
        ):  # it only informs; what fails here fails where runs are written, and is told there
            write_atomically(self._file, json.dumps({"answered": now, "settled": self.settled}))


def read_beat(file: Path) -> Beat | None:
    """None if there was no sign yet, or none that can be read."""
    try:
        known = json.loads(file.read_text())
        return Beat(float(known["answered"]), int(known["settled"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Answering:
    """Any client, which tells after each of its calls that it was answered."""

    def __init__(self, client: Any, answered: Callable[[], None]) -> None:
        self._client: Any = client
        self._answered: Callable[[], None] = answered

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            answer = found(*arguments, **named)
            self._answered()
            return answer

        return call
