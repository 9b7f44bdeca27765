"""Files, ledger and registration are one transaction: the same command, given again, finishes it or undoes it."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from safetensors.torch import save_file

from tests.processes import run
from unlearn_core.forgetting.ledger import Ledger, hold_ledger
from unlearn_core.forgetting.scratch import Scratch
from workflows.output_folder import hold_output

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder with a linear head, its data and three requests."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (rng.normal(size=(120, 4)) + 2 * np.eye(4)[y]).astype(np.float32)
    np.savez(tmp_path / "data.npz", train_x=x[:80], train_y=y[:80], test_x=x[80:], test_y=y[80:])
    save_file({"layers.0.weight": 2 * torch.eye(4)[:3], "layers.0.bias": torch.zeros(3)}, tmp_path / "w.safetensors")
    (tmp_path / "requests").mkdir()
    for n, name in enumerate("abc"):
        (tmp_path / "requests" / f"{name}.txt").write_text("\n".join(str(row) for row in range(12 * n, 12 * n + 12, 2)))
    return tmp_path


def asked(place: Path, name: str, *more: object) -> list[object]:
    """With a logit processor, which is unlearned by construction."""
    files = (
        "--model",
        place / "w.safetensors",
        "--data",
        place / "data.npz",
        "--ids",
        place / "requests" / f"{name}.txt",
    )
    how = ("--arch", "linear", "--method", "lda", "--finalizer", "none")
    return ["forget", *files, *how, "--ledger", place / "ledger", "--out", place / f"out-{name}", *more]


def left_behind(place: Path) -> list[str]:
    """What is neither a ledger's, nor a request's, nor was there."""
    found = [path.name for path in place.rglob(".*")]
    return found + [path.name for path in place.rglob("delivery-*")] + [path.name for path in place.rglob("*.new")]


def check_all(unlearn_here, place: Path, *names: str) -> None:
    """Every request is in the ledger once, its certificate verifies, and nothing else is there."""
    shown = [word for name in names for word in ("--certificate", place / f"out-{name}" / "certificate.json")]
    verified = unlearn_here("ledger", "verify", place / "ledger", *shown)
    assert verified.code == 0, verified.out
    assert len(Ledger.read(place / "ledger").entries) == len(names)
    for name in names:
        assert unlearn_here("verify", place / f"out-{name}" / "certificate.json").code == 0
    assert not left_behind(place)


def failing(call, fails, times: int = 1):
    """A call of the system's that fails some times, when ``fails`` says so of its arguments."""
    left = [times]

    def wrapped(*arguments, **options):
        if left[0] and fails(*arguments):
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[-1]))
        return call(*arguments, **options)

    return wrapped


def test_a_ledger_that_cannot_be_written_takes_nothing_and_the_next_run_begins_it(unlearn_here, place, monkeypatch):
    """The disk fills up with the first write; later runs used to say that it is no ledger and not empty."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing(os.replace, lambda _, to: Path(to).name == "ledger.json"))
        refused = unlearn_here(*asked(place, "a"))
    assert refused.code == 2
    assert "no room left on the file system of" in refused.err
    assert not (place / "out-a").exists(), "no certificate that the ledger does not know"
    assert not (place / "ledger").exists()
    assert not left_behind(place)
    again = unlearn_here(*asked(place, "a"))
    assert again.code == 0, again.err
    check_all(unlearn_here, place, "a")


def test_files_that_could_not_take_their_places_do_so_when_the_command_is_given_again(unlearn_here, place, monkeypatch):
    """After the ledger has the request; another request in between neither waits for it nor takes it."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing(Path.replace, lambda _, to: Path(to).name == "certificate.json"))
        refused = unlearn_here(*asked(place, "a"))
    assert refused.code == 2
    assert len(Ledger.read(place / "ledger").entries) == 1
    assert not (place / "out-a" / "certificate.json").exists()
    between = unlearn_here(*asked(place, "b"))
    assert between.code == 0, between.err
    assert "request 2" in between.out
    assert (place / "ledger" / "delivery-0001.json").exists()
    again = unlearn_here(*asked(place, "a"))
    assert again.code == 0, again.err
    assert "this is request 1 of" in again.out
    check_all(unlearn_here, place, "a", "b")


def test_given_again_a_request_is_not_done_again_and_force_does_not_write_over_it(unlearn_here, place):
    assert unlearn_here(*asked(place, "a")).code == 0
    certificate = place / "out-a" / "certificate.json"
    before = certificate.read_bytes()
    for more in ((), ("--force",)):
        again = unlearn_here(*asked(place, "a", *more))
        assert again.code == 0, again.err
        assert certificate.read_bytes() == before, "not one that says: nothing to unlearn"
    other = unlearn_here(*asked(place, "b", "--force", "--out", place / "out-a"))
    assert other.code == 2
    assert "holds the certificate of request 1" in other.err
    assert certificate.read_bytes() == before
    check_all(unlearn_here, place, "a")


def test_a_request_waits_for_the_ledger_no_longer_than_it_is_told_to(unlearn_here, place):
    with hold_ledger(place / "ledger"):
        refused = unlearn_here(*asked(place, "a", "--wait", 1))
    assert refused.code == 2
    assert f"is in use by process {os.getpid()} on " in refused.out
    assert "waiting for up to 1 s" in refused.out
    assert re.search(r"still in use after 1 s, by process \d+ on .*--wait SECONDS", refused.err)
    assert not (place / "out-a").exists()
    assert unlearn_here(*asked(place, "a", "--wait", 0)).code == 0


def without_a_ledger(place: Path) -> list[object]:
    return [word for word in asked(place, "a") if word not in ("--ledger", place / "ledger")]


def test_what_a_killed_request_left_is_removed_by_the_next(unlearn_here, place):
    (place / "out-a").mkdir()
    living, *dead = (Scratch(folder) for folder in (place, place, place / "out-a"))
    for left in dead:
        (left.path / "w.safetensors").write_text("half of it")
        left.leave()
    answer = unlearn_here(*without_a_ledger(place))
    assert answer.code == 0, answer.err
    assert not any(left.path.exists() for left in dead)
    assert living.path.is_dir(), "another request is writing there"
    living.remove()
    assert not left_behind(place)


def test_one_request_at_a_time_writes_into_a_folder(unlearn_here, place):
    """Two at once, without a ledger, used to end with the files of both in one folder."""
    alone = without_a_ledger(place)
    with hold_output(place / "out-a"):
        for command in (alone, [*alone, "--force"], asked(place, "a")):
            refused = unlearn_here(*command)
            assert refused.code == 2
            assert re.fullmatch(rf"unlearn: .*out-a is being written by process {os.getpid()} on .*\n", refused.err)
            assert [path.name for path in (place / "out-a").iterdir()] == [".lock"]
    assert not (place / "out-a").exists()
    assert not (place / "ledger").exists()
    answer = unlearn_here(*alone)
    assert answer.code == 0, answer.err
    assert not left_behind(place)


def test_a_signed_ledger_is_gone_on_with_by_its_signer_alone(unlearn_here, place):
    for name in ("mine", "theirs"):
        key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (place / f"{name}.pem").write_bytes(key)
    assert unlearn_here(*asked(place, "a", "--sign", place / "mine.pem")).code == 0
    for more, message in (((), "sign this one too"), (("--sign", place / "theirs.pem"), "is not signed by")):
        refused = unlearn_here(*asked(place, "b", *more))
        assert (refused.code, message in refused.err) == (2, True), refused.err
        assert not (place / "out-b").exists()
    assert len(Ledger.read(place / "ledger").entries) == 1


def test_a_note_of_somebody_elses_moves_and_removes_nothing(unlearn_here, place):
    """Whoever can write into the ledger's folder cannot reach others through it."""
    assert unlearn_here(*asked(place, "a")).code == 0
    digest = Ledger.read(place / "ledger").entries[0].certificate
    theirs = place / ".unlearn-0123abcd"
    theirs.mkdir()
    (theirs / "certificate.json").write_bytes((place / "out-a" / "certificate.json").read_bytes())
    (theirs / ".profile").write_text("evil")
    out = place / "out-b"
    for number, certificate in enumerate((digest, "0" * 64), start=7):
        note = {"certificate": certificate, "scratch": str(theirs), "out": str(out)}
        (place / "ledger" / f"delivery-{number:04d}.json").write_text(json.dumps(note))
        refused = unlearn_here(*asked(place, "b"))
        assert (theirs / ".profile").exists(), "it is no folder of ours"
        assert not (out / ".profile").exists()
        if certificate == digest:
            assert refused.code == 2
            assert "has .profile, which is not part of what" in refused.err
            (place / "ledger" / "delivery-0007.json").unlink()
        else:
            assert refused.code == 0, refused.err


def test_several_requests_in_one_run_each_have_their_entry(unlearn_here, place):
    """Repeated or as a folder; a bad one is refused before the first is carried out."""
    common = [word for word in asked(place, "a") if word not in ("--ids", place / "requests" / "a.txt")]
    requests = [place / "requests" / f"{name}.txt" for name in "abc"]
    repeated = [word for path in requests for word in ("--ids", path)]
    (place / "bad.txt").write_text("")
    refused = unlearn_here(*common, *repeated, "--ids", place / "bad.txt")
    assert refused.code == 2
    assert "names no record" in refused.err
    assert not (place / "ledger").exists()
    answer = unlearn_here(*common, *repeated, "--out", place / "all")
    assert answer.code == 0, answer.err
    ledger = Ledger.read(place / "ledger")
    assert [entry.n_forget for entry in ledger.entries] == [6, 12, 18]
    again = unlearn_here(*common, "--ids", place / "requests", "--out", place / "all")
    assert again.code == 0, again.err
    assert [f"this is request {n} of" in again.out for n in (1, 2, 3)] == [True] * 3
    for name, entry in zip("abc", ledger.entries, strict=True):
        written = json.loads((place / "all" / name / "certificate.json").read_text())
        assert written["digest"]["value"] == entry.certificate
        assert written["certificate"]["request"]["n_forget"] == entry.n_forget
    without = unlearn_here(*(word for word in common if word not in ("--ledger", place / "ledger")), *repeated)
    assert (without.code, "--ledger DIR" in without.err) == (2, True)


@pytest.mark.slow
def test_killed_at_random_moments_every_request_is_there_once(tmp_path):
    """Alone and two at once; ``benchmarks/kill_forget.py`` says what is checked after each round."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    ended = run([sys.executable, "-m", "benchmarks.kill_forget", "--kills", 6, "--seed", 3], ROOT, environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = json.loads(ended.stdout.splitlines()[-1])
    assert counts["wrong"] == []
    assert counts["killed"] >= 6
    assert counts["rounds with two at once"] >= 1


@pytest.mark.filterwarnings("ignore")  # MLflow warns of models of its own
def test_a_failed_registration_names_the_command_that_does_it_later_once(unlearn_here, place):
    wrong, uri = "nowhere://x", f"sqlite:///{place / 'mlflow.db'}"
    refused = unlearn_here(*asked(place, "a", "--register", "mine", "--tracking-uri", wrong))
    assert refused.code == 2, refused.out
    line = refused.err.splitlines()[-1]
    certificate = place / "out-a" / "certificate.json"
    before = certificate.read_bytes()
    named = line.partition("mend that, then: unlearn ")[2]
    assert shlex.split(named) == ["register", str(certificate), "--name", "mine", "--tracking-uri", wrong]
    mended = shlex.split(named.replace(wrong, uri))
    for already in ("", " already"):
        registered = unlearn_here(*mended)
        assert f"registered{already}: models:/mine/1 in {uri}" in registered.out, registered.err
    assert certificate.read_bytes() == before
