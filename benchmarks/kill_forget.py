"""Does ``unlearn forget`` with a ledger survive SIGKILL at any moment, alone and with another request beside it?

Trains nothing: a linear head on 80 rows, requests of a few rows each, a ledger per round. A request is started and
killed at a random moment, by turns at a time drawn from its usual length, and right before one of the calls that
change the file system (opened for writing, renamed, removed: Python's audit events, so that the product knows nothing
of it). Then the same command is given again, until it ends by itself. In rounds with two requests both are started at
once, one of the two is killed, and both are given again.

After each round: every request is in the ledger exactly once, its certificate verifies and is known to the ledger,
the ledger verifies, and nothing else is left behind. Prints one line of JSON; the exit code is 1 if any of it failed.

    python -m benchmarks.kill_forget [--kills 100] [--seed 0] [--requests 3]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from unlearn_core.forgetting.certificate import read_certificate, verify_certificate
from unlearn_core.forgetting.ledger import Ledger
from unlearn_core.forgetting.ledger_check import verify_ledger
from workflows import cli, deletion  # loaded once, here: requests are forks of this process

CHANGES = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"})
"""Audit events before which a process may be killed."""
N_ROWS, N_CLASSES, WIDTH = 80, 3, 4
PATIENCE = 120.0
"""Seconds that a request may take."""

Prepare = Callable[[], object]
"""Done in a request's process before it begins."""


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=3, help="of one ledger, one after the other")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    assert deletion.__name__ in sys.modules
    draw, counts, wrong = random.Random(arguments.seed), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        write_inputs(place, arguments.requests)
        usual, changes = rehearse(place / "rehearsal", place)
        for n in itertools.count():
            if counts["killed"] >= arguments.kills or wrong:
                break
            two = n % 2 == 1
            round_ = place / f"round-{n}"
            round_.mkdir()
            for requests in _in_groups(range(arguments.requests), 2 if two else 1):
                disturb(round_, place, list(requests), usual, changes, draw, counts)
            wrong = faults(round_, arguments.requests)
            counts["rounds with two at once" if two else "rounds"] += 1
    print(json.dumps({**counts, "usual seconds": round(usual, 2), "changes": changes, "wrong": wrong}))
    return int(bool(wrong))


def write_inputs(place: Path, n_requests: int) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(N_ROWS + 40) % N_CLASSES
    x = (rng.normal(size=(len(y), WIDTH)) + 2 * np.eye(WIDTH)[y]).astype(np.float32)
    np.savez(place / "data.npz", train_x=x[:N_ROWS], train_y=y[:N_ROWS], test_x=x[N_ROWS:], test_y=y[N_ROWS:])
    state = {"layers.0.weight": 2 * torch.eye(WIDTH)[:N_CLASSES], "layers.0.bias": torch.zeros(N_CLASSES)}
    save_file(state, place / "w.safetensors")
    for n in range(n_requests):
        (place / f"{n}.txt").write_text("\n".join(str(row) for row in range(12 * n, 12 * (n + 1), 2)))


def command(round_: Path, place: Path, request: int) -> list[str]:
    """With a logit processor, which is unlearned by construction: a ledger takes nothing else."""
    files = ("--model", place / "w.safetensors", "--data", place / "data.npz", "--ids", place / f"{request}.txt")
    how = ("--arch", "linear", "--method", "lda", "--finalizer", "none")
    where = ("--ledger", round_ / "ledger", "--out", round_ / f"out-{request}")
    return ["forget", *map(str, (*files, *how, *where))]


def start(words: list[str], said: Path, first: Prepare = lambda: None) -> int:
    """The command in a fork of this process, which has loaded torch; returns its number."""
    if pid := os.fork():
        return pid
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    code = 3
    try:
        first()
        cli.main(words)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 3
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


def ended(pid: int, said: Path) -> int:
    """Its exit code, negative if a signal ended it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"a request took more than {PATIENCE:g} s: {said.read_text()}")


def rehearse(round_: Path, place: Path) -> tuple[float, int]:
    """How long a request usually takes, and how often it changes the file system. Nothing is killed."""
    round_.mkdir()
    counted = round_ / "counted"
    begun = time.monotonic()
    said = round_ / "said"
    code = ended(start(command(round_, place, 0), said, lambda: count_changes(counted)), said)
    assert code == 0, said.read_text()
    return time.monotonic() - begun, len(counted.read_bytes())


def count_changes(counted: Path) -> None:
    handle = os.open(counted, os.O_WRONLY | os.O_CREAT)
    sys.addaudithook(lambda event, details: os.write(handle, b".") and None if _changes(event, details) else None)


def kill_before(n: int) -> None:
    """SIGKILL this process before its n-th change of the file system."""
    left = itertools.count(1)

    def hook(event: str, details: tuple) -> None:
        if _changes(event, details) and next(left) == n:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _changes(event: str, details: tuple) -> bool:
    if event == "open":
        return isinstance(details[2], int) and bool(details[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return event in CHANGES


def disturb(
    round_: Path,
    place: Path,
    requests: list[int],
    usual: float,
    changes: int,
    draw: random.Random,
    counts: Counter[str],
) -> None:
    """Start requests at once and kill one of them; then give all of them again until each has ended by itself."""
    victim, by_time = draw.choice(requests), draw.random() < 0.5
    at = draw.randint(1, changes + 2)
    pids = {}
    for request in requests:
        first = (lambda: kill_before(at)) if request == victim and not by_time else (lambda: None)
        pids[request] = start(command(round_, place, request), round_ / f"said-{request}", first)
    if by_time:
        time.sleep(draw.uniform(0, 1.1 * usual * len(requests)))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[victim], signal.SIGKILL)
    for request, pid in pids.items():
        code = ended(pid, round_ / f"said-{request}")
        counts["killed"] += code == -signal.SIGKILL
        counts[f"killed {'at a random time' if by_time else 'before a change'}"] += code == -signal.SIGKILL
        _refuse(code not in (0, -signal.SIGKILL), round_ / f"said-{request}")
    if len(Ledger.read(round_ / "ledger").entries) and any((round_ / "ledger").glob("delivery-*.json")):
        counts["left to be finished or undone"] += 1
    again = {request: start(command(round_, place, request), round_ / f"said-{request}") for request in requests}
    for request, pid in again.items():
        _refuse(ended(pid, round_ / f"said-{request}") != 0, round_ / f"said-{request}")


def _refuse(failed: bool, said: Path) -> None:
    if failed:
        raise RuntimeError(f"a request failed: {said.read_text()}")


def faults(round_: Path, n_requests: int) -> list[str]:
    """What is not as it should be after a round."""
    found: list[str] = []
    outs = [round_ / f"out-{request}" / "certificate.json" for request in range(n_requests)]
    for out in outs:
        found += [f"{out}: {check.what}: {check.detail}" for check in verify_certificate(out) if check.failed]
    found += [check.detail for check in verify_ledger(round_ / "ledger", certificates=outs) if check.failed]
    ledger = Ledger.read(round_ / "ledger")
    known, wanted = Counter(entry.certificate for entry in ledger.entries), Counter(map(_digest, outs))
    if known != wanted or set(known.values()) != {1}:
        found.append(f"{round_}: the ledger has {len(ledger.entries)} requests, not each of {n_requests} once")
    if len(ledger.forgotten) != 6 * n_requests:
        found.append(f"{round_}: {len(ledger.forgotten)} rows are forgotten, not {6 * n_requests}")
    return found + [f"{path} is left behind" for path in _left(round_)]


def _left(round_: Path) -> Iterator[Path]:
    ours = {"ledger.json", *(Ledger.read(round_ / "ledger").files or {}).values()}
    yield from (path for path in (round_ / "ledger").iterdir() if path.name not in ours)
    yield from (path for name in (".unlearn-*", ".lock") for path in round_.glob(f"**/{name}"))


def _digest(certificate: Path) -> str:
    return read_certificate(certificate).digest


def _in_groups(values: range, size: int) -> Iterator[tuple[int, ...]]:
    yield from (tuple(values[at : at + size]) for at in range(0, len(values), size))


if __name__ == "__main__":
    sys.exit(main())
