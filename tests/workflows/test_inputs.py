"""Inputs that used to end in a traceback, in all of a machine's memory, or in somebody's files being removed."""

from __future__ import annotations

import resource
import signal
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tasks.step import Kind, Step
from tasks.store import DONE, Store
from unlearn_core.data.npz import read_npz
from unlearn_core.errors import BadInput
from workflows.commands import verify
from workflows.rates import Rates


@pytest.fixture
def small(tmp_path) -> Path:
    """A folder with a data set of 40 rows, a linear head that fits it roughly, and a request."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (rng.normal(size=(60, 4)) + 2 * np.eye(4)[y]).astype(np.float32)
    np.savez(tmp_path / "data.npz", train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:])
    save_file({"layers.0.weight": 2 * torch.eye(4)[:3], "layers.0.bias": torch.zeros(3)}, tmp_path / "w.safetensors")
    (tmp_path / "ids.txt").write_text("0\n3\n")
    return tmp_path


def forget(small: Path, *more: object) -> list[object]:
    files = {"--data": "data.npz", "--ids": "ids.txt", "--out": "out"}
    return ["forget", *(part for option, name in files.items() for part in (option, small / name)), *more]


def head(small: Path) -> tuple[object, ...]:
    return "--model", small / "w.safetensors", "--arch", "linear"


def test_a_bug_is_exit_code_3_with_where_its_traceback_is(unlearn_here, tmp_path, monkeypatch):
    def broken(arguments, console):
        raise KeyError("a bug\nin two lines")

    monkeypatch.setattr(verify, "run", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    answer = unlearn_here("verify", "certificate.json")
    assert answer.code == 3
    assert answer.err.startswith("unlearn: internal error (KeyError:")
    assert len(answer.err.splitlines()) == 1
    (kept,) = tmp_path.glob("unlearn-traceback-*.txt")
    assert str(kept) in answer.err
    assert "in broken" in kept.read_text()


@pytest.mark.parametrize("option", ["--data", "--ids", "--model", "--out", "--sign", "--ledger"])
def test_a_path_that_is_too_long_is_refused(unlearn_here, small, option):
    long = small / ("x" * 300 + ".npz")
    answer = unlearn_here(*forget(small, *head(small)), option, long)
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert not (small / "out").exists()


def test_a_full_disk_is_said_in_a_line_and_leaves_nothing(unlearn_here, small):
    """A limit on the size of files fails each write as a full disk does."""
    torch.save({"layers.0.weight": 2 * torch.eye(4)[:3], "layers.0.bias": torch.zeros(3)}, small / "w.pt")
    before = sorted(small.rglob("*"))
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for weights in ("w.safetensors", "w.pt"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, limit[1]))
            options = (
                "--model",
                small / weights,
                "--arch",
                "linear",
                "--finalizer",
                "mse",
                "--proxy",
                "lda",
                "--force",
            )
            answer = unlearn_here(*forget(small, *options))
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            assert answer.code == 2, answer.err
            assert len(answer.err.splitlines()) == 1, answer.err
            assert sorted(small.rglob("*")) == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)


def test_an_archive_that_inflates_is_refused_before_it_is_read(tmp_path, monkeypatch):
    """300 MB of zeros in 300 kB; a memory of 1 MB for what does not inflate."""
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(3 * 10**8 // 8))
    np.savez(tmp_path / "large.npz", a=np.zeros(3 * 10**5))
    monkeypatch.setattr("numpy.lib.format.read_array", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(BadInput, match="inflate to 300000128"):
        read_npz(tmp_path / "bomb.npz", "file", ["a"])
    monkeypatch.setattr("os.sysconf", lambda name: 1000)
    with pytest.raises(BadInput, match="this machine has a memory of 1000000"):
        read_npz(tmp_path / "large.npz", "file", ["a"])


def test_an_array_that_says_it_is_larger_than_it_is_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.zeros(100))
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        array = archive.read("a.npy")
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("a.npy", array.replace(b"(100,), }         ", b"(10000000000,), } "))
    with pytest.raises(BadInput, match=r"its header says \(10000000000,\) of float64"):
        read_npz(tmp_path / "b.npz", "file", ["a"])
    assert len(read_npz(tmp_path / "a.npz", "file", ["a"])["a"]) == 100


def test_an_encrypted_archive_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.zeros(3))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[6] |= 1  # the flag in the local header, and in the directory
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.npz").write_bytes(bytes(content))
    with pytest.raises(BadInput, match="array 'a' is encrypted"):
        read_npz(tmp_path / "a.npz", "file", ["a"])


def test_a_label_of_200_million_makes_no_200_million_names(unlearn_here, small):
    with np.load(small / "data.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["train_y"] = np.where(np.arange(40) == 7, 200_000_000, arrays["train_y"])
    np.savez(small / "data.npz", **arrays)
    answer = unlearn_here(*forget(small, *head(small)))
    assert answer.code == 2
    assert "200000001 classes and 40 labels" in answer.err


@pytest.mark.parametrize("name", ["certificate.json", "certificate.html", "processor.npz"])
def test_weights_with_the_name_of_an_output_are_refused(unlearn_here, small, name):
    (small / name).write_bytes((small / "w.safetensors").read_bytes())
    answer = unlearn_here(*forget(small, "--model", small / name, "--arch", "linear"))
    assert answer.code == 2
    assert f"{name} is taken" in answer.err


@pytest.mark.parametrize("code", ["import sys\nsys.exit(0)", "def build():\n    raise SystemExit(0)"])
def test_a_builder_that_exits_does_not_end_the_command_as_if_all_were_well(unlearn_here, small, monkeypatch, code):
    module = f"leaves_{abs(hash(code))}"
    (small / f"{module}.py").write_text(code)
    monkeypatch.chdir(small)
    monkeypatch.syspath_prepend(str(small))
    options = ("--model", f"{module}:build", "--weights", small / "w.safetensors")
    answer = unlearn_here(*forget(small, *options))
    assert answer.code == 2
    assert "SystemExit" in answer.err


STEP = Step(Kind.BASE, {"arch": "linear"})


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"identity": {"config": []}, "files": {}, "seconds": 1}'])
def test_a_done_that_cannot_be_read_is_left_out_of_the_rates_and_computed_again(tmp_path, text):
    store = Store(tmp_path)
    store.commit(STEP, lambda directory: None, 1.0)
    done = store.path(STEP) / DONE
    done.write_text(done.read_text()[:50] if text is None else text)
    assert not list(store.records(Kind.BASE))
    assert Rates(store, []).seconds(Step(Kind.IMAGES, {}))[1] is False
    damage = store.verify(STEP)
    assert damage is not None
    assert "DONE.json cannot be read" in damage.reason
    assert not store.has(STEP)


def test_a_grid_without_a_limit_on_eta_is_recorded(unlearn_here, tmp_path):
    """It used to end in a traceback after all the training: JSON has no infinity."""
    command = ("grid", "--dataset", "digits", "--arch", "linear", "--scenario", "class", "--key", 0, "--seeds", 0)
    options = ("--methods", "lda", "--epochs", 1, "--local", "--no-tracking", "--out", tmp_path, "--cap", "inf")
    assert unlearn_here(*command, *options).code == 0
    assert unlearn_here("report", "--results", tmp_path / "results", "--no-illustrations", "--no-tracking").code == 0


def test_a_grid_goes_on_after_a_truncated_done(unlearn_here, tmp_path):
    out = tmp_path / "grid"
    command = ("grid", "--dataset", "digits", "--arch", "linear", "--scenario", "class", "--key", 0, "--seeds", 0)
    options = ("--methods", "lda", "--epochs", 1, "--local", "--no-tracking", "--out", out)
    assert unlearn_here(*command, *options).code == 0
    for done in (out / "store" / "steps").glob(f"*/*/{DONE}"):
        done.write_text(done.read_text()[:100])
        assert unlearn_here("plan", *command[1:], "--methods", "lda", "--epochs", 1, "--out", out).code == 0
        answer = unlearn_here(*command, *options)
        assert answer.code == 0, answer.err
        assert "DONE.json cannot be read; moved to" in answer.out
