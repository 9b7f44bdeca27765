"""A ledger is checked, not trusted: changes are noticed, one request holds it at a time, forgotten rows are not in it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.processes import running, wait_until
from unlearn_core import forget
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.ledger import Entry, Identity, Ledger, hold_ledger
from unlearn_core.forgetting.ledger_check import summarise_ledger, verify_ledger
from unlearn_core.forgetting.locks import FileLock, wait_for
from unlearn_core.forgetting.scratch import Scratch, clean_scratch
from unlearn_core.proxies.statistics import Moments, compute_moments

N, D, C = 60, 5, 3
Y = np.arange(N) % C
X = np.random.default_rng(0).normal(size=(N, D)) + 2 * np.eye(D)[Y]
LOGITS = 2 * X[:, :C]
ASKED = [[0, 3, 6], [1], [2, 7]]
"""Three requests; the second is for a single record."""


@pytest.fixture
def key(tmp_path) -> Path:
    return write_key(tmp_path / "key.pem")


def write_key(path: Path) -> Path:
    private = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private)
    return path


def three_requests(folder: Path, key: Path | None = None) -> Path:
    """A black box's ledger, written as requests write it."""
    ledger, identity, total = Ledger(folder), Identity("b" * 64, "d" * 64, "given"), compute_moments(X, Y, C)
    gone: list[int] = []
    for number, rows in enumerate(ASKED, start=1):
        gone = sorted([*gone, *rows])
        left = total - compute_moments(X[gone], Y[gone], C, total.reference)
        entry = Entry(
            number,
            "2026-01-01",
            "unlearned",
            len(rows),
            len(rows),
            len(gone),
            "lda",
            0.5,
            "none",
            None,
            str(number) * 64,
        )
        ledger = ledger.append(identity, entry, gone, left, None, None, key)
    return folder


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def head_of(before: str, entry: dict[str, Any]) -> str:
    """As the format has it, written out here."""
    content = {name: value for name, value in entry.items() if value is not None and name != "signature"}
    return hashlib.sha256(canonical({"before": before, "entry": content})).hexdigest()


def document(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "ledger.json").read_text())


def test_every_entry_has_the_digest_of_all_before_it(tmp_path):
    known = document(three_requests(tmp_path / "ledger"))
    head = hashlib.sha256(canonical(known["identity"])).hexdigest()
    for entry in known["entries"]:
        assert entry["previous"] == head
        head = head_of(head, entry)
    assert known["head"] == head
    assert known["entries"][-1]["forgotten_sha256"] == hashlib.sha256(canonical(known["forgotten"])).hexdigest()
    statistics = (tmp_path / "ledger" / known["files"]["statistics"]).read_bytes()
    assert known["entries"][-1]["files_sha256"] == {"statistics": hashlib.sha256(statistics).hexdigest()}


def changes() -> dict[str, Callable[[dict[str, Any]], object]]:
    """What somebody might do to ``ledger.json``, all of it with types that it has."""
    field = {
        "number": 9,
        "time": "2020-01-01",
        "outcome": "nothing to unlearn",
        "n_asked": 99,
        "n_new": 0,
        "n_forget": 5,
    }
    field |= {"proxy": None, "eta_max": 1.0, "finalizer": "kl", "model_sha256": "0" * 64, "certificate": "0" * 64}
    field |= {"forgotten_sha256": "0" * 64, "files_sha256": {"statistics": "0" * 64}, "previous": "0" * 64}
    edits: dict[str, Callable[[dict[str, Any]], object]] = {
        f"{name} of entry {n + 1}": lambda known, n=n, name=name, value=value: known["entries"][n].update({name: value})
        for n in range(3)
        for name, value in field.items()
    }
    return edits | {
        "emptied": lambda known: known["entries"].clear(),
        "last dropped": lambda known: known["entries"].pop(),
        "first dropped": lambda known: known["entries"].pop(0),
        "invented": lambda known: known["entries"].append({**known["entries"][-1], "number": 4, "n_new": 0}),
        "swapped": lambda known: known["entries"].reverse(),
        "another row": lambda known: known["forgotten"].__setitem__(0, 5) or known["forgotten"].sort(),
        "a row less": lambda known: known["forgotten"].pop(),
        "another base": lambda known: known["identity"].update(base="0" * 64),
        "another head": lambda known: known.update(head="0" * 64),
        "said to be of version 1": lambda known: known.update(version=1),
        "no longer chained": lambda known: [
            entry.update(previous=None, forgotten_sha256=None, files_sha256=None) for entry in known["entries"]
        ],
    }


@pytest.mark.parametrize("change", changes())
def test_a_change_is_noticed_before_anything_is_done_with_it(tmp_path, change):
    folder = three_requests(tmp_path / "ledger")
    known = document(folder)
    changes()[change](known)
    (folder / "ledger.json").write_text(json.dumps(known))
    with pytest.raises(BadInput, match="is damaged"):
        Ledger.open(folder)
    assert [check.failed for check in verify_ledger(folder)] == [True]


def test_changed_statistics_are_noticed(tmp_path):
    folder = three_requests(tmp_path / "ledger")
    ledger = Ledger.open(folder)
    retained = ledger.retained()
    assert retained is not None
    assert not any(check.failed for check in verify_ledger(folder))
    arrays = {f"retained_{name}": value for name, value in vars(retained).items()}
    arrays["retained_sums"] = retained.sums + 1e-9
    np.savez(folder / "statistics-0003.npz", **arrays)
    with pytest.raises(BadInput, match=r"statistics-0003\.npz is damaged"):
        ledger.retained()
    assert [check.what for check in verify_ledger(folder) if check.failed] == ["statistics"]


def test_a_ledger_names_only_files_of_its_own_and_removes_no_others(tmp_path):
    """One that named another's file had it removed by the next request."""
    folder, mine = three_requests(tmp_path / "ledger"), tmp_path / "mine"
    mine.write_text("")
    for files in (
        {"x": str(mine)},
        {"statistics": "../mine"},
        {"statistics": "statistics-0003.npz", "last": str(mine)},
    ):
        known = document(folder)
        known["files"] = files
        (folder / "ledger.json").write_text(json.dumps(known))
        with pytest.raises(BadInput, match="its files are not"):
            Ledger.open(folder)
    assert mine.exists()


def rewritten(folder: Path) -> None:
    """All of a history that says something else, with digests that fit, by somebody without the key."""
    known = document(folder)
    known["entries"][0]["n_asked"] = 77
    head = hashlib.sha256(canonical(known["identity"])).hexdigest()
    for entry in known["entries"]:
        entry.update(previous=head, signature=None)
        head = head_of(head, entry)
    known["head"] = head
    (folder / "ledger.json").write_text(json.dumps(known))


def test_a_history_rewritten_as_a_whole_is_noticed_if_it_was_signed(tmp_path, key):
    plain, signed = three_requests(tmp_path / "plain"), three_requests(tmp_path / "signed", key)
    assert [check.found for check in verify_ledger(signed, key) if check.what == "signature"] == ["ok"]
    assert "verified: all 3 checks" in summarise_ledger(verify_ledger(signed, key))
    assert "that nobody vouched for" in summarise_ledger(verify_ledger(signed))
    for folder in (plain, signed):
        rewritten(folder)
        assert "intact but unsigned" in summarise_ledger(verify_ledger(folder)), "which is all that can be told"
        for checks in (verify_ledger(folder, key), verify_ledger(folder, require_signature=True)):
            assert [check.what for check in checks if check.failed] == ["signature"]
        with pytest.raises(BadInput, match=r"request 3 of .* is not signed by .*vouch for all"):
            Ledger.open(folder).check_signer(key, trust=False)
        Ledger.open(folder).check_signer(key, trust=True)


def test_who_signed_goes_on_signing(tmp_path, key):
    folder, other = three_requests(tmp_path / "ledger", key), write_key(tmp_path / "other.pem")
    ledger = Ledger.open(folder)
    ledger.check_signer(key, trust=False)
    with pytest.raises(BadInput, match="sign this one too"):
        ledger.check_signer(None, trust=False)
    with pytest.raises(BadInput, match="is not signed by"):
        ledger.check_signer(other, trust=False)
    assert [check.what for check in verify_ledger(folder, other) if check.failed] == ["signature"]
    known = document(folder)
    known["entries"][1]["signature"]["value"] = known["entries"][0]["signature"]["value"]
    (folder / "ledger.json").write_text(json.dumps(known))
    with pytest.raises(BadInput, match="the signature of entry 2 does not hold"):
        Ledger.open(folder)


def ask(rows, folder: Path, x: np.ndarray = X):
    return forget(LOGITS, x, Y, rows, "lda", "none", ledger=folder)


def stored(folder: Path) -> dict[str, np.ndarray]:
    (statistics,) = folder.glob("statistics-*.npz")
    with np.load(statistics) as archive:
        return {name: archive[name] for name in archive.files}


def test_what_is_kept_does_not_depend_on_what_a_forgotten_record_was(tmp_path):
    """Two data sets that differ in one record, which is forgotten: the ledgers' statistics are the same, up to rounding."""
    other = X.copy()
    other[1] = 40.0
    for name, x in (("one", X), ("other", other)):
        ask([4, 9], tmp_path / name, x)
        ask([1], tmp_path / name, x)
    one, two = stored(tmp_path / "one"), stored(tmp_path / "other")
    assert one.keys() == two.keys()
    left = np.delete(np.arange(N), [1, 4, 9])
    direct = compute_moments(X[left], Y[left], C)
    for name in one:
        np.testing.assert_allclose(two[name], one[name], atol=1e-10)
        np.testing.assert_allclose(one[name], getattr(direct, name.removeprefix("retained_")), atol=1e-10)
    apart = np.abs(other[1] - X[1]).min()
    assert apart > 30, "which the old statistics would have shown"


def test_files_are_for_their_owner_alone(tmp_path):
    ask([4, 9], tmp_path / "new" / "ledger")
    for path in (tmp_path / "new" / "ledger").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert (tmp_path / "new" / "ledger").stat().st_mode & 0o777 == 0o700


def as_version_1(folder: Path, total: Moments, rows: list[int]) -> None:
    """The ledger as it was written before entries were chained."""
    known = document(folder)
    for entry in known["entries"]:
        for name in ("forgotten_sha256", "files_sha256", "previous", "signature"):
            del entry[name]
    del known["head"]
    (folder / "ledger.json").write_text(json.dumps({**known, "version": 1}))
    gone = compute_moments(X[rows], Y[rows], C, total.reference)
    parts = {"total": total, "forgotten": gone}
    arrays = {f"{part}_{name}": value for part, moments in parts.items() for name, value in vars(moments).items()}
    np.savez(folder / known["files"]["statistics"], **arrays)


def test_a_ledger_of_version_1_goes_on_and_is_chained_from_then_on(tmp_path, key):
    ask([4, 9], tmp_path / "new")
    ask([4, 9], tmp_path / "old")
    as_version_1(tmp_path / "old", compute_moments(X, Y, C), [4, 9])
    checks = verify_ledger(tmp_path / "old")
    assert [(check.what, check.found) for check in checks] == [
        ("entries", "UNKNOWN"),
        ("signature", "UNSIGNED"),
        ("statistics", "UNKNOWN"),
    ]
    assert "made before entries were chained, and nobody can tell" in checks[0].detail
    for folder in ("new", "old"):
        ask([1], tmp_path / folder)
    for name, value in stored(tmp_path / "new").items():
        np.testing.assert_allclose(stored(tmp_path / "old")[name], value, atol=1e-10)
    known = document(tmp_path / "old")
    start = hashlib.sha256(canonical(known["identity"])).hexdigest()
    assert known["entries"][1]["previous"] == head_of(start, known["entries"][0])
    known["entries"][0]["n_asked"] = 3
    (tmp_path / "old" / "ledger.json").write_text(json.dumps(known))
    with pytest.raises(BadInput, match="what comes before entry 2 was changed"):
        Ledger.open(tmp_path / "old")


def test_one_process_holds_a_lock_and_says_who_it_is(tmp_path):
    mine, other = FileLock(tmp_path / ".lock"), FileLock(tmp_path / ".lock")
    assert mine.acquire()
    assert not other.acquire()
    told: list[str] = []
    with pytest.raises(
        BadInput, match=rf"in use after 0\.3 s, by process {os.getpid()} on {socket.gethostname()}, since 20"
    ):
        wait_for(other, "it", 0.3, told.append)
    assert len(told) == 1
    assert "waiting for up to 0.3 s" in told[0]
    mine.release()
    assert not list(tmp_path.iterdir()), "nothing is left"
    assert other.acquire()
    other.release()


HOLD = """
import sys, time
from pathlib import Path
from unlearn_core.forgetting.ledger import hold_ledger
from unlearn_core.forgetting.scratch import Scratch
with hold_ledger(Path(sys.argv[1])):
    scratch = Scratch(Path(sys.argv[1]))
    print(scratch.path, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_held_is_taken_over_and_cleaned(tmp_path):
    folder = tmp_path / "ledger"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with running([sys.executable, "-c", HOLD, folder], environment=environment) as process:
        wait_until(lambda: "\n" in process.stdout, "the lock", process)
        with pytest.raises(BadInput, match=f"by process {process.pid} on"), hold_ledger(folder, wait=0):
            pass
        clean_scratch(folder)
        left = Path(process.stdout.strip())
        assert left.is_dir(), "its owner lives"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert left.is_dir()
        assert (folder / ".lock").exists()
        with hold_ledger(folder, wait=0):
            assert [path.name for path in folder.iterdir()] == [".lock"]
    assert not list(folder.iterdir())


def test_without_locks_files_are_written_and_a_ledger_is_refused(tmp_path, monkeypatch):
    def unsupported(handle, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    scratch = Scratch(tmp_path)
    assert scratch.path.is_dir()
    scratch.remove()
    with pytest.raises(BadInput, match="lies on a file system without locks"), hold_ledger(tmp_path / "ledger"):
        pass
    assert not list(tmp_path.iterdir())


def test_only_what_we_made_is_cleaned(tmp_path):
    others = [tmp_path / ".unlearn-notes", tmp_path / ".unlearn-0123abcd", tmp_path / ".unlearn-x.lock"]
    for path in others:
        path.mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / ".unlearn-89abcdef").symlink_to(tmp_path / "target")
    (tmp_path / ".unlearn-89abcdef.lock").write_text("")
    alive, dead = Scratch(tmp_path), Scratch(tmp_path, "a note")
    dead.leave()
    clean_scratch(tmp_path, keep=lambda folder, note: note == "a note")
    assert dead.path.is_dir()
    clean_scratch(tmp_path)
    assert not dead.path.exists()
    assert alive.path.is_dir()
    assert all(path.is_dir() for path in others)
    assert (tmp_path / "target").is_dir()
    alive.remove()
    assert not alive.path.exists()
