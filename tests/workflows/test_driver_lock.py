"""One driver on an output folder; whoever died, the next one gets it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.processes import running, wait_until
from unlearn_core.errors import BadInput
from workflows import driver_lock
from workflows.driver_lock import Holder, hold, read_holder
from workflows.layout import Layout
from workflows.litter import clear_litter, ray_processes_of

ROOT = Path(__file__).resolve().parent.parent.parent
HOLD = """
import sys, time
from pathlib import Path
from workflows.driver_lock import hold
with hold(Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(600)
"""


def holding(lock: Path):
    return running([sys.executable, "-c", HOLD, lock], cwd=ROOT, environment={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.fixture
def lock(tmp_path) -> Path:
    return tmp_path / "grid" / "driver.lock"


def test_a_second_driver_is_told_who_holds_the_folder_and_a_killed_ones_lock_is_taken_over(lock):
    with holding(lock) as first:
        wait_until(lambda: "held" in first.stdout, "the lock", first)
        with pytest.raises(BadInput, match=rf"in use: process {first.pid} on \S+, since \d{{4}}-"), hold(lock, print):
            pass
        assert read_holder(lock) is not None, "the refused one leaves the holder's lock alone"
        first.send_signal(signal.SIGKILL)
        first.wait()
        said: list[str] = []
        with hold(lock, said.append) as before:
            assert before is not None
            assert before.pid == first.pid
        assert "which is no more" in said[0]
    assert list(lock.parent.iterdir()) == [], "released, and nothing is left beside it"


def test_many_at_once_and_one_holds_it(lock):
    """Whatever the order, never two holders: each writes down how many it sees inside."""
    inside, most, refused = 0, 0, 0
    count = threading.Lock()

    def drive() -> None:
        nonlocal inside, most, refused
        for _ in range(20):
            try:
                with hold(lock, lambda _: None):
                    with count:
                        inside += 1
                        most = max(most, inside)
                    with count:
                        inside -= 1
            except BadInput:
                with count:
                    refused += 1

    threads = [threading.Thread(target=drive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert refused < 80


def elsewhere(lock: Path) -> None:
    """A lock of another machine."""
    lock.parent.mkdir(parents=True)
    holder = dataclasses.replace(Holder.me(), host="far-away", machine="another boot", pid=1)
    lock.write_text(json.dumps(dataclasses.asdict(holder)))


def test_another_machines_lock_counts_while_it_is_renewed(lock, monkeypatch):
    monkeypatch.setattr(driver_lock, "LOOK_SECONDS", 0.01)
    elsewhere(lock)
    renewals = threading.Timer(0.3, lambda: os.utime(lock))
    renewals.start()
    with pytest.raises(BadInput, match="in use: process 1 on far-away"), hold(lock, lambda _: None):
        pass
    renewals.join()
    os.utime(lock, (1, 1))
    with hold(lock, lambda _: None) as before:
        assert before is not None
        assert before.host == "far-away"


def test_a_lock_from_the_future_is_watched_for_a_while_and_not_for_ever(lock, monkeypatch):
    """The file server's clock was set back, or the lock's own was ahead."""
    monkeypatch.setattr(driver_lock, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(driver_lock, "STALE_SECONDS", 0.1)
    elsewhere(lock)
    os.utime(lock, (2**32, 2**32))
    with hold(lock, lambda _: None) as before:
        assert before is not None
        assert before.host == "far-away"


def test_a_holder_whose_lock_was_taken_over_stops(lock, monkeypatch):
    monkeypatch.setattr(driver_lock, "RENEW_SECONDS", 0.05)
    other = dataclasses.replace(Holder.me(), host="far-away", pid=1)

    def drive() -> None:
        with hold(lock, lambda _: None):
            lock.write_text(json.dumps(dataclasses.asdict(other)))
            signal.sigtimedwait([], 30)

    ending = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us with it ignored
    try:
        with pytest.raises(BadInput, match="was taken over by process 1 on far-away"):
            drive()
    finally:
        signal.signal(signal.SIGINT, ending)
    assert read_holder(lock) is not None, "it is the other's now"


def test_a_process_number_that_another_has_by_now_is_no_holder(lock):
    lock.parent.mkdir(parents=True)
    old = dataclasses.replace(Holder.me(), process_start="1")
    lock.write_text(json.dumps(dataclasses.asdict(old)))
    with hold(lock, lambda _: None) as before:
        assert before == old


def test_a_damaged_lock_is_named(lock):
    lock.parent.mkdir(parents=True)
    lock.write_text("{")
    with pytest.raises(BadInput, match=r"driver\.lock is damaged; if no other driver runs"), hold(lock, print):
        pass


def test_what_a_killed_drivers_ray_left_is_found_by_its_session_and_ended(tmp_path):
    """A process with a log open in the session that Ray names after the driver; another's session is left alone."""
    driver = running([sys.executable, "-c", "pass"])
    with driver as ended:
        ended.wait()
        holder = dataclasses.replace(Holder.me(), pid=ended.pid, process_start="1", since=0.0)
    script = "import sys, time; f = open(sys.argv[1], 'w'); print('open', flush=True); time.sleep(600)"
    logs = []
    for pid in (ended.pid, ended.pid + 1):
        folder = tmp_path / f"session_2026-01-02_03-04-05_678901_{pid}" / "logs"
        folder.mkdir(parents=True)
        logs.append(folder / "agent.log")
    with (
        running([sys.executable, "-c", script, logs[0]]) as ours,
        running([sys.executable, "-c", script, logs[1]]) as not_ours,
    ):
        for process in (ours, not_ours):
            wait_until(lambda process=process: "open" in process.stdout, "a log", process)
        assert ray_processes_of(holder) == [ours.pid]
        said: list[str] = []
        clear_litter(Layout(tmp_path / "grid"), holder, said.append)
        assert ours.wait() != 0
        assert not not_ours.ended
        assert said == [f"ending 1 Ray processes that driver {ended.pid} left: {ours.pid}"]


def test_unfinished_files_go_and_young_ones_stay(tmp_path):
    layout = Layout(tmp_path)
    old, young = tmp_path / "status.json.1234abcd.tmp", tmp_path / "plan.jsonl.1234abcd.tmp"
    for file in (old, young):
        file.touch()
    os.utime(old, (1, 1))
    clear_litter(layout, None, print)
    assert not old.exists()
    assert young.exists()
