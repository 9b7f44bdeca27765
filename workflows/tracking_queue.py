"""Variants on their way to the one MLflow writer. Computing never waits for it: it may fall behind, and then says so.

If the writer fails or dies, what it has not confirmed is sent again to a new one, after a while and once more at the end;
the runs that MLflow has by then are found by their tags. What is still missing is for ``unlearn sync``.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tracking.tracked import TrackedVariant, TrackerReport
from unlearn_core.errors import first_line
from unlearn_core.writing import write_atomically

BACKLOG = 16
"""Variants that the writer is given before it has answered."""
RETRY_SECONDS = 60.0
"""Between a failure and the next try."""
ANSWER_SECONDS = 600.0
"""For one variant; MLflow's client itself gives up on a server much sooner."""


class Answer(Protocol):
    def ready(self) -> bool:
        """Whether it is there."""
        ...

    def get(self, seconds: float) -> Any:
        """It, or the error that came instead, after at most so many seconds."""
        ...


class Writer(Protocol):
    def call(self, method: str, *arguments: Any) -> Answer: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Parcel:
    """Some cells of a variant, by step id; ``load`` reads them when they are sent, so that waiting ones take no memory."""

    step_ids: frozenset[str]
    load: Callable[[], TrackedVariant]
    n_runs: int
    """Rows of those cells: each is a run."""


@dataclass(frozen=True)
class Tracked:
    """What became of all parcels. ``trouble`` is None if MLflow has all of them."""

    report: TrackerReport | None
    missing: int
    waited: float
    trouble: str | None = None


@dataclass(frozen=True)
class Standing:
    """What is on its way just now. Moments are of the monotonic clock.

    Attributes:
        n_runs: all that were ever to be written.
        settled_before: those of them that MLflow had when the present writer began.
        asked: since when a writer has had something to do; None if it has nothing.
        blocked: since when the driver itself waits for it; None if it does not.
        trouble: why the last try failed; None if it did not.
        retry_in: seconds until the next one.
    """

    n_runs: int
    settled_before: int
    asked: float | None
    blocked: float | None
    trouble: str | None
    retry_in: float


class TrackingQueue:
    """Parcels in, confirmed step ids out. One thread adds and finishes; another may ask for the standing."""

    def __init__(self, open_writer: Callable[[], Writer], log: Path) -> None:
        self._open: Callable[[], Writer] = open_writer
        self._log: Path = log
        self._writer: Writer | None = None
        self._waiting: list[Parcel] = []
        self._sent: list[tuple[Parcel, Answer]] = []
        self._trouble: str | None = None
        self._retry_at: float = 0.0
        self._announced: int = 0
        self._added: int = 0
        self._settled: int = 0
        self._settled_before: int = 0
        self._asked: float | None = None
        self._blocked: float | None = None
        self._waited: float = 0.0
        self.confirmed: set[str] = set()

    def announce(self, n_runs: int) -> None:
        """So many runs will come, where that is known before they do."""
        self._announced = n_runs

    def add(self, parcel: Parcel) -> None:
        self._waiting.append(parcel)
        self._added += parcel.n_runs
        self.pump()

    def standing(self) -> Standing:
        retry_in = max(0.0, self._retry_at - time.monotonic())
        n_runs = max(self._announced, self._added)
        return Standing(n_runs, self._settled_before, self._asked, self._blocked, self._trouble, retry_in)

    @contextlib.contextmanager
    def blocking(self) -> Iterator[None]:
        """While the driver does nothing but see to MLflow."""
        outer = self._blocked
        self._blocked = outer or time.monotonic()
        self._asked = self._asked or self._blocked
        try:
            yield
        finally:
            if outer is None:
                self._waited += time.monotonic() - self._blocked
                self._asked = self._asked if self._sent else None
            self._blocked = outer

    def pump(self) -> None:
        """Take what answers there are, and send what there is room for; waits for nothing but a writer in this process."""
        if not (self._waiting or self._sent) or (self._trouble is not None and time.monotonic() < self._retry_at):
            return
        with self.blocking():
            try:
                while self._sent and self._sent[0][1].ready():
                    self._confirm()
                self._send(BACKLOG)
            except Exception as error:  # MLflow's trouble, whatever it is, must not stop computing
                self._fall_behind(error)

    def finish(self, last: Mapping[str, Iterable[Any]]) -> Tracked | None:
        """Send all and wait for it; ``last`` are calls for the end. None if there was nothing to send."""
        if not (self._waiting or self._sent or self._writer or self._trouble):
            return None
        with self.blocking():
            return self._finish(last)

    def _finish(self, last: Mapping[str, Iterable[Any]]) -> Tracked:
        tries = 2 if self._trouble is None else 1
        for _ in range(tries):
            try:
                while self._waiting or self._sent:
                    self._send(BACKLOG)
                    self._confirm()
                writer = self._opened()
                for method, arguments in last.items():
                    writer.call(method, *arguments).get(ANSWER_SECONDS)
                report: TrackerReport = writer.call("report").get(ANSWER_SECONDS)
                writer.close()
                self._writer = None
                return Tracked(report, 0, self._waited_so_far())
            except Exception as error:  # as above
                self._fall_behind(error)
        missing = sum(len(parcel.step_ids) for parcel in self._waiting)
        return Tracked(None, missing, self._waited_so_far(), self._trouble)

    def _waited_so_far(self) -> float:
        """By the driver, for a writer in this process also while cells are computed."""
        return self._waited + (0.0 if self._blocked is None else time.monotonic() - self._blocked)

    def _send(self, room: int) -> None:
        while self._waiting and len(self._sent) < room:
            writer, parcel = self._opened(), self._waiting[0]
            self._sent.append((parcel, writer.call("log_variant", parcel.load())))
            self._waiting.pop(0)

    def _opened(self) -> Writer:
        if self._writer is None:
            self._settled_before = self._settled
            self._writer = self._open()
        return self._writer

    def _confirm(self) -> None:
        parcel, answer = self._sent[0]
        answer.get(ANSWER_SECONDS)
        self._sent.pop(0)
        self.confirmed |= parcel.step_ids
        self._settled += parcel.n_runs
        self._trouble = None

    def _fall_behind(self, error: Exception) -> None:
        self._trouble = f"{type(error).__name__}: {first_line(error)}"
        self._retry_at = time.monotonic() + RETRY_SECONDS
        write_atomically(self._log, "".join(traceback.format_exception(error)))
        self._waiting[:0] = [parcel for parcel, _ in self._sent]
        self._sent.clear()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
