"""A writer to MLflow that fails or dies stops nothing: what it has not confirmed goes to the next one, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from workflows import tracking_queue
from workflows.tracking_queue import BACKLOG, Parcel, TrackingQueue


class Died(Exception):
    """What Ray raises for an actor that was killed."""


class Later:
    """An answer that is there when it is asked for."""

    def __init__(self, value: Callable[[], Any]) -> None:
        self._value: Callable[[], Any] = value

    def ready(self) -> bool:
        return True

    def get(self, seconds: float) -> Any:
        return self._value()


class Writer:
    """Writes into a database that outlives it; dies at its ``dies_at``-th variant, before or after having written it."""

    def __init__(self, database: list[str], dies_at: int | None = None, after: bool = False) -> None:
        self._database: list[str] = database
        self._dies_at: int | None = dies_at
        self._after: bool = after
        self._calls: int = 0
        self._dead: bool = False

    def call(self, method: str, *arguments: Any) -> Later:
        if method != "log_variant":
            return Later(self._report)
        (name,) = arguments
        return Later(lambda: self._write(name))

    def _write(self, name: str) -> None:
        self._report()
        self._calls += 1
        dies = self._calls == self._dies_at
        if (not dies or self._after) and name not in self._database:  # as the true one finds runs by their tags
            self._database.append(name)
        if dies:
            self._dead = True
            raise Died(name)

    def _report(self) -> str:
        if self._dead:
            raise Died("already")
        return "report"

    def close(self) -> None:
        self._dead = True


def parcels(n: int) -> list[Parcel]:
    def parcel(name: str) -> Parcel:
        return Parcel(frozenset({name}), lambda: name, 1)  # pyright: ignore[reportArgumentType]  # the writer above takes names

    return [parcel(f"variant {number}") for number in range(n)]


def queue(folder: Path, writers: Sequence[Writer]) -> TrackingQueue:
    following = iter(writers)
    return TrackingQueue(lambda: next(following), folder / "trouble.txt")


@pytest.mark.parametrize("retry_seconds", [0.0, 600.0])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dies_at", [1, 5, 2 * BACKLOG])
def test_a_killed_writers_variants_go_to_the_next_one(tmp_path, monkeypatch, dies_at, after, retry_seconds):
    """While computing goes on, or at the end, if the time of the next try has not come before."""
    monkeypatch.setattr(tracking_queue, "RETRY_SECONDS", retry_seconds)
    database: list[str] = []
    to_mlflow = queue(tmp_path, [Writer(database, dies_at, after), Writer(database)])
    sent = parcels(3 * BACKLOG)
    for parcel in sent:
        to_mlflow.add(parcel)  # raises nothing
    tracked = to_mlflow.finish({})
    assert tracked is not None
    assert (tracked.report, tracked.missing, tracked.trouble) == ("report", 0, None)
    assert sorted(database) == sorted(next(iter(parcel.step_ids)) for parcel in sent), "each is there once"
    assert to_mlflow.confirmed == {name for parcel in sent for name in parcel.step_ids}
    assert "Died" in (tmp_path / "trouble.txt").read_text()


def test_what_no_writer_takes_is_counted_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking_queue, "RETRY_SECONDS", 0.0)
    database: list[str] = []
    to_mlflow = queue(tmp_path, [Writer(database, 3), *(Writer(database, 1) for _ in range(40))])
    for parcel in parcels(10):
        to_mlflow.add(parcel)
    tracked = to_mlflow.finish({})
    assert tracked is not None
    assert tracked.report is None
    assert tracked.missing == 8
    assert tracked.trouble is not None
    assert tracked.trouble.startswith("Died: ")
    assert len(database) == len(to_mlflow.confirmed) == 2, "those that the first one confirmed"


def test_all_that_the_driver_waited_is_told_also_for_a_writer_in_its_own_process(tmp_path, monkeypatch):
    """Ten seconds a variant, by a clock that nothing else moves: when they are added, not at the end."""
    clock = [0.0]
    monkeypatch.setattr(tracking_queue.time, "monotonic", lambda: clock[0])

    class Slow(Writer):
        def call(self, method: str, *arguments: Any) -> Later:
            clock[0] += 10.0 if method == "log_variant" else 0.0
            return super().call(method, *arguments)

    to_mlflow = queue(tmp_path, [Slow([])])
    for parcel in parcels(3):
        to_mlflow.add(parcel)
    assert clock == [30.0], "they are written as they come"
    tracked = to_mlflow.finish({})
    assert tracked is not None
    assert tracked.waited == 30.0
