"""Who waits for MLflow is told what for: how many runs are left, and how long it has not answered."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from tasks.state import Finished, JobResult, State
from tasks.step import Kind, Step
from tests.commands import unlearn
from tests.processes import running, wait_until
from tracking.heartbeat import Beat, read_beat
from tracking.tracked import TrackerReport
from unlearn_core.writing import write_atomically
from workflows import tracking_watch
from workflows.display import Display
from workflows.layout import Layout
from workflows.results import Recorder
from workflows.run import Machine, Workers, run_plan
from workflows.tracking_queue import BACKLOG, Parcel, Standing, TrackingQueue
from workflows.tracking_watch import telling, waits_for

GRID = (
    "grid", "--dataset", "digits", "--arch", "linear", "--scenario", "class", "--key", "0", "--seeds", "0",
    "--methods", "lda-2c", "--epochs", "2", "--local",
)  # fmt: skip
SERVER = "http://server:5000"


def standing(
    settled_before: int = 0,
    asked: float | None = 100.0,
    blocked: float | None = 100.0,
    trouble: str | None = None,
    retry_in: float = 0.0,
) -> Standing:
    return Standing(96, settled_before, asked, blocked, trouble, retry_in)


@pytest.mark.parametrize(
    ("stands", "beat", "now", "line"),
    [
        pytest.param(standing(asked=None, blocked=None), None, 900.0, None, id="nothing to do"),
        pytest.param(standing(), None, 102.0, None, id="not waited for long"),
        pytest.param(
            standing(),
            Beat(103.5, 59),
            104.0,
            f"waiting for MLflow: 37 of 96 runs left to write to {SERVER}",
            id="slow",
        ),
        pytest.param(
            standing(settled_before=50),
            Beat(110.0, 9),
            122.0,
            f"waiting for MLflow: 37 of 96 runs left to write, no answer from {SERVER} for 12 s",
            id="silent, and a second writer",
        ),
        pytest.param(
            standing(),
            Beat(90.0, 0),
            107.0,
            f"waiting for MLflow: 96 of 96 runs left to write, no answer from {SERVER} for 7 s",
            id="it was not asked before",
        ),
        pytest.param(
            standing(),
            Beat(104.0, 96),
            105.0,
            f"waiting for MLflow: all 96 runs are in {SERVER}, the summary is left",
            id="the end",
        ),
        pytest.param(standing(blocked=None), Beat(110.0, 9), 115.0, None, id="beside computing"),
        pytest.param(
            standing(blocked=None),
            Beat(110.0, 9),
            140.0,
            f"MLflow is behind: 87 of 96 runs left to write, no answer from {SERVER} for 30 s",
            id="silent beside computing",
        ),
        pytest.param(
            standing(asked=None, blocked=None, trouble="MlflowException: no", retry_in=41.0),
            None,
            140.0,
            f"MLflow is behind: 96 of 96 runs left to write to {SERVER} (MlflowException: no); next try in 41 s",
            id="failed beside computing",
        ),
        pytest.param(
            standing(trouble="MlflowException: no", retry_in=41.0),
            None,
            140.0,
            "waiting for MLflow: 96 of 96 runs left to write, its writer has been starting for 40 s",
            id="failed before, the last try",
        ),
    ],
)
def test_the_line_says_what_is_waited_for(stands, beat, now, line):
    assert waits_for(stands, beat, SERVER, now) == line


class Stuck:
    """A writer that answers when it is let go."""

    def __init__(self) -> None:
        self.go: threading.Event = threading.Event()

    def call(self, method: str, *arguments: object) -> Stuck:
        return self

    def ready(self) -> bool:
        return self.go.is_set()

    def get(self, seconds: float) -> TrackerReport:
        assert self.go.wait(60)
        return TrackerReport(0, 0, 0, 0.0)

    def close(self) -> None:
        pass


def parcel(n_runs: int) -> Parcel:
    return Parcel(frozenset({"a"}), lambda: "a", n_runs)  # pyright: ignore[reportArgumentType]  # the writer above reads none


def test_a_driver_that_waits_at_the_end_says_so_until_the_answer(tmp_path, monkeypatch):
    for name in ("LOOK_SECONDS", "WAIT_SECONDS", "SILENT_SECONDS"):
        monkeypatch.setattr(tracking_watch, name, 0.01)
    writer = Stuck()
    queue = TrackingQueue(lambda: writer, tmp_path / "trouble.txt")
    told: list[str | None] = []

    def tell(line: str | None) -> None:
        told.append(line)
        if line is not None:
            writer.go.set()

    queue.add(parcel(7))
    assert queue.standing().asked is not None
    assert queue.standing().blocked is None, "a writer on Ray is not waited for while steps are computed"
    with telling(queue, tmp_path / "beat.json", SERVER, tell):
        tracked = queue.finish({})  # ends only if the line was told
    assert tracked is not None
    assert tracked.trouble is None
    assert queue.standing().asked is None
    assert "waiting for MLflow: 7 of 7 runs left to write, its writer has been starting for 0 s" in told


class OneLongStep(Workers):
    """A step during which MLflow's writer answers; notes how things stand before the step ends."""

    on_gpu: bool = False

    def __init__(self, writer: Stuck, queue: TrackingQueue) -> None:
        self._writer: Stuck = writer
        self._queue: TrackingQueue = queue
        self._steps: Sequence[Step] = ()
        self._turns: int = 0
        self.noted: Standing | None = None
        self.confirmed: int = 0

    def backend(self) -> OneLongStep:
        return self

    def idle(self) -> Sequence[Hashable]:
        return () if self._steps else ("worker",)

    def submit(self, worker: Hashable, steps: Sequence[Step]) -> None:
        self._steps = steps

    def wait(self, seconds: float) -> Sequence[Finished]:
        self._turns += 1
        self._writer.go.set()
        if self._turns < 4:
            return ()
        self.noted, self.confirmed = self._queue.standing(), len(self._queue.confirmed)
        return (Finished("worker", self._steps, JobResult(0.0)),)

    def waiting_for_a_place(self) -> int:
        return 0

    def set_aside(self, worker: Hashable) -> str:
        raise AssertionError(worker)

    def close(self) -> None:
        pass


def test_mlflow_is_looked_after_while_no_cell_ends(tmp_path, monkeypatch):
    """Its answers are taken, so that it is not called silent, and it is sent what was more than its backlog."""
    writer = Stuck()
    queue = TrackingQueue(lambda: writer, tmp_path / "trouble.txt")
    names = [str(number) for number in range(BACKLOG + 3)]
    for name in names:
        queue.add(Parcel(frozenset({name}), lambda: "a", 1))  # pyright: ignore[reportArgumentType]  # as above
    assert queue.standing().asked is not None
    recorder = Recorder(Layout(tmp_path), None)
    monkeypatch.setattr(recorder, "_queue", queue)
    workers = OneLongStep(writer, queue)
    display = Display(Console(quiet=True), "t", lambda state: 0.0)
    run_plan([Step(Kind.BASE, {"seed": 0})], Layout(tmp_path), Machine(), recorder, display, workers)
    assert workers.confirmed == len(names)
    assert workers.noted is not None
    assert workers.noted.asked is None, "nothing is asked of it"


@pytest.mark.parametrize("terminal", [False, True])
def test_the_line_is_shown_on_a_terminal_and_in_a_log(terminal, tmp_path):
    with (tmp_path / "shown.txt").open("w") as file:
        display = Display(Console(file=file, force_terminal=terminal, width=120), "t", lambda state: 0.0)
        state = State([Step(Kind.BASE, {"seed": 0})])
        display.start(state)
        for _ in range(3):
            display.wait_for(state, "waiting for MLflow: 37 of 96 runs left to write")
        display.stop()
    shown = (tmp_path / "shown.txt").read_text()
    assert "waiting for MLflow: 37 of 96 runs left to write" in shown
    if not terminal:
        assert shown.count("waiting for MLflow") == 1, "a log gets a line now and then, not one every second"


@contextmanager
def never_answers() -> Iterator[str]:
    """A server that takes what it is sent, and says nothing."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            while True:
                try:
                    kept.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for one in kept:
                one.close()


def test_a_server_that_says_nothing_is_named_in_the_log_and_in_status_while_it_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "grid"
    with never_answers() as server:
        command = [sys.executable, "-m", "workflows", *GRID, "--out", out, "--tracking-uri", server]
        with running(command) as grid:
            said = f"waiting for MLflow: 4 of 4 runs left to write, no answer from {server} for "
            wait_until(lambda: said in _waits_for(out), "the line in the status", grid)
            shown = unlearn("status", "--out", out).stdout
            assert said in shown
            assert f"running as process {grid.pid}" in shown
            wait_until(lambda: "waiting for MLflow: 4 of 4 runs left to write" in grid.stdout, "it in the log", grid)
    shown = unlearn("status", "--out", out).stdout
    assert "waiting for MLflow" not in shown, "who waits no longer says so no longer"
    assert f"cells that MLflow lacks: 1; catch up with: unlearn sync --out {out} --tracking-uri {server}" in shown


def test_a_sign_of_life_of_a_stopped_driver_is_none_of_the_next(tmp_path):
    """It would be taken for that of the next one's writer, which has written nothing yet."""
    recorder = Recorder(Layout(tmp_path), None)
    write_atomically(recorder.layout.heartbeat, json.dumps({"answered": 0.0, "settled": 30}))
    with recorder.telling(lambda line: None):
        assert read_beat(recorder.layout.heartbeat) is None


def _waits_for(out: Path) -> str:
    status = Layout(out).status
    return (json.loads(status.read_text())["waits_for"] or "") if status.exists() else ""
