"""Progress for people: a live table on a terminal, periodic lines in a log."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tasks.state import State
from unlearn_core.errors import printable

LINE_SECONDS = 10.0
TABLE_SECONDS = 0.25
Item = TypeVar("Item")
EstimateLeft = Callable[[State], float]


def speaker(console: Console) -> Callable[[str], None]:
    """Print lines as they are: paths and ids are neither coloured nor broken, and what a terminal would obey is escaped."""

    def say(text: str) -> None:
        for line in text.split("\n"):
            console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    return say


class Periodically:
    """Says what it is told, at most every ``LINE_SECONDS``; nothing is said of None."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say: Callable[[str], None] = say
        self._last: float = -LINE_SECONDS

    def __call__(self, line: str | None) -> None:
        now = time.monotonic()
        if line is not None and now - self._last >= LINE_SECONDS:
            self._last = now
            self._say(line)


class Display:
    """Shows a ``State`` as it changes. Two threads may show: the one that runs it and the one that looks after MLflow."""

    def __init__(self, console: Console, title: str, estimate: EstimateLeft) -> None:
        self.console: Console = console
        self.title: str = title
        self.estimate: EstimateLeft = estimate
        self._say: Callable[[str], None] = speaker(console)
        self._live: Live | None = None
        self._last_line: float = 0.0
        self._last_table: float = 0.0
        self._said: Counter[str] = Counter()
        self._waits_for: str | None = None
        self._waits: Periodically = Periodically(self._say)
        self._lock: threading.RLock = threading.RLock()

    def start(self, state: State) -> None:
        for damage in state.damages:
            self._say(f"damaged result {damage}")
        self._say(f"{self.title}: {len(state.steps)} steps, {len(state.cached)} done already, {state.left} to run")
        if state.left and self.console.is_terminal:
            self._live = Live(self._table(state), console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        self._last_line = time.monotonic()

    def wait_for(self, state: State, line: str | None) -> None:
        """Show what is waited for beside the steps; None ends that."""
        with self._lock:
            self._waits_for = line
            if self._live is None:
                self._waits(line)
            elif line is not None:
                self.update(state)

    def update(self, state: State) -> None:
        with self._lock:
            self._update(state)

    def _update(self, state: State) -> None:
        for line in self._new("set aside", state.set_aside):
            self._say(f"sick worker: {line}")
        for failure in self._new("failed", state.causes):
            self._say(f"failed: {failure.step}: {failure.reason}")
        now = time.monotonic()
        if self._live is not None:
            if now - self._last_table >= TABLE_SECONDS:
                self._last_table = now
                self._live.update(self._table(state))
        elif now - self._last_line >= LINE_SECONDS and state.left:
            self._last_line = now
            self._say(self._line(state))

    def _new(self, what: str, items: Sequence[Item]) -> Sequence[Item]:
        """Those that came since the last time; most often there are none, so that an update costs nothing."""
        new = items[self._said[what] :]
        self._said[what] = len(items)
        return new

    def stop(self) -> None:
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _line(self, state: State) -> str:
        finished = len(state.cached) + len(state.done)
        waiting = f", {state.workers_waiting} workers wait for a place" if state.workers_waiting else ""
        return (
            f"{finished}/{len(state.steps)} steps done, {len(state.running)} running, {len(state.failures)} failed, "
            f"about {duration(self.estimate(state))} left{waiting}"
        )

    def _table(self, state: State) -> Group:
        waits_for = [] if self._waits_for is None else [Text(printable(self._waits_for))]
        return Group(counts_table(state.counts(), self.title), Text(self._line(state)), *waits_for)


def counts_table(counts: dict[str, dict[str, int]], title: str) -> Table:
    """Steps by kind."""
    table = Table(title=title, box=None, pad_edge=False)
    columns = ("cached", "done", "running", "failed", "total")
    table.add_column("steps")
    for column in columns:
        table.add_column(column, justify="right")
    for kind, row in counts.items():
        table.add_row(kind, *(str(row[column]) for column in columns))
    return table


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))
