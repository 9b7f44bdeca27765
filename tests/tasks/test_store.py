"""A result appears whole or not at all, and a damaged one is noticed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket

import pytest

from tasks.step import Kind, Step
from tasks.store import DONE, Store
from tests.processes import PATIENCE

STEP = Step(Kind.BASE, {"seed": 0})


def write_two(directory):
    (directory / "a.json").write_text("{}")
    (directory / "b.bin").write_bytes(bytes(range(256)) * 100)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path)


def test_commit_publishes_files_and_identity(store):
    assert not store.has(STEP)
    store.commit(STEP, write_two, seconds=1.5)
    assert store.has(STEP)
    done = store.done(STEP)
    assert done["identity"] == STEP.identity
    assert set(done["files"]) == {"a.json", "b.bin"}
    assert done["seconds"] == 1.5
    assert store.read_json(STEP, "a.json") == {}
    assert store.verify(STEP) is None
    assert [directory.name for directory, _ in store.records(Kind.BASE)] == [STEP.id]


def test_a_failing_writer_publishes_nothing(store):
    def fail(directory):
        (directory / "a.json").write_text("{}")
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        store.commit(STEP, fail, 0.0)
    assert not store.has(STEP)
    assert not store.path(STEP).exists()


def _killed_while_writing(root):
    def write(directory):
        (directory / "a.json").write_text("{}")
        os.kill(os.getpid(), signal.SIGKILL)

    Store(root).commit(STEP, write, 0.0)


def test_a_killed_writer_publishes_nothing_and_its_scratch_is_cleaned(store):
    process = multiprocessing.get_context("fork").Process(target=_killed_while_writing, args=(store.root,))
    process.start()
    process.join(PATIENCE)
    exit_code = process.exitcode
    process.kill()  # it may be waiting for something
    assert exit_code == -signal.SIGKILL
    assert not store.has(STEP)
    mine = store.root / "tmp" / f"x.{socket.gethostname()}.{os.getpid()}.y"
    elsewhere = store.root / "tmp" / "x.another-host.1.y"
    mine.mkdir()
    elsewhere.mkdir()
    assert store.clean_scratch() == 1
    assert mine.exists()
    assert elsewhere.exists(), "another machine's scratch is not ours to remove"


def test_the_first_of_two_writers_wins(store):
    def slow(directory):
        store.commit(STEP, write_two, seconds=1.0)
        write_two(directory)

    store.commit(STEP, slow, seconds=2.0)
    assert store.done(STEP)["seconds"] == 1.0
    assert not list((store.root / "tmp").iterdir())


def flip_a_byte(directory):
    file = directory / "b.bin"
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(bytes(content))


def truncate(directory):
    os.truncate(directory / "b.bin", 100)


def remove(directory):
    (directory / "b.bin").unlink()


def spoil_done(directory):
    (directory / DONE).write_text('{"files": ')


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (flip_a_byte, "b.bin does not match its checksum"),
        (truncate, "b.bin does not match its checksum"),
        (remove, "b.bin is missing"),
        (spoil_done, "DONE.json cannot be read"),
    ],
)
def test_damage_is_noticed_and_moved_aside(store, spoil, reason):
    store.commit(STEP, write_two, 0.0)
    spoil(store.path(STEP))
    damage = store.verify(STEP)
    assert damage is not None
    assert reason in str(damage)
    assert damage.moved_to.exists()
    assert not store.has(STEP)
    store.commit(STEP, write_two, 0.0)
    assert store.verify(STEP) is None


def test_done_is_plain_json(store):
    store.commit(STEP, write_two, 0.0)
    assert json.loads((store.path(STEP) / DONE).read_text())["identity"]["kind"] == "base"
