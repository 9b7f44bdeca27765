"""Kill whatever can be killed while grids run, resume with the same command, and compare with an undisturbed run.

``make chaos`` runs it (it is slow, and not part of the tests). Every round starts a digits grid on a local Ray of its own,
injects one fault at a random moment (seeded), and reruns the same command until it ends with 0. Then the store, the results
tree and MLflow are compared with a run in one process that nothing disturbed. Prints the table of ``docs/reliability.md``.

    python -m benchmarks.chaos --rounds 20
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

GRID = (
    "grid", "--dataset", "digits", "--arch", "linear", "--scenario", "class", "--key", "0,1,2,3", "--seeds", "0,42",
    "--methods", "lda-2c,ga", "--epochs", "20",
)  # fmt: skip
FAULTS = ("driver", "worker", "raylet", "GCS", "MLflow writer", "worker stopped", "store file")
PROCESS = {"worker": "ray::Worker", "raylet": "/raylet", "GCS": "/gcs_server", "MLflow writer": "ray::MlflowTracker"}
MEASURED = ("seconds", "rte", "cost", "preparation", "proxy_seconds")
STARTS = 5
"""Reruns after one fault before it counts as not survived."""
STEP_SECONDS = 900.0


class Round(NamedTuple):
    """What one fault did. ``lost`` and ``doubled`` count steps and MLflow runs against the undisturbed run."""

    fault: str
    struck: bool
    survived: bool
    starts: int
    lost: int
    doubled: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="unlearn-chaos-") as folder:
        root = Path(folder)
        environment = _environment(root)
        plain = root / "undisturbed"
        started = time.monotonic()
        subprocess.run(
            _command(plain, "--local"), env=environment, check=True, capture_output=True, timeout=STEP_SECONDS
        )
        took = time.monotonic() - started
        wanted, runs = _content(plain), _runs(plain)
        for number in range(arguments.rounds):
            out = root / f"round{number}"
            rounds.append(_round(FAULTS[number % len(FAULTS)], out, environment, moments, took, wanted, runs))
            print(f"{number + 1}: {rounds[-1]}", file=sys.stderr, flush=True)
            shutil.rmtree(out)
    print(_table(rounds))


def _round(
    fault: str,
    out: Path,
    environment: dict[str, str],
    moments: random.Random,
    took: float,
    wanted: dict[str, Any],
    runs: Counter[tuple[str, ...]],
) -> Round:
    mark = f"UNLEARN_CHAOS={out.name}"
    ours = {**environment, "UNLEARN_CHAOS": out.name}
    struck, code, starts = False, 1, 0
    while code and starts < STARTS:
        starts += 1
        log = (out.parent / f"{out.name}.log").open("a")
        driver = subprocess.Popen(_command(out, "--workers", "2"), env=ours, stdout=log, stderr=log)
        if starts == 1:
            _wait_for_a_worker(driver, mark)
            time.sleep(moments.uniform(0.0, took / 2))
            struck = _strike(fault, driver, mark, out, moments)
        try:
            code = driver.wait(STEP_SECONDS)
        except subprocess.TimeoutExpired:
            driver.kill()
            code = -1
        for pid in _marked(mark):  # what is stopped would stay
            if fault == "worker stopped":
                _signal(pid, signal.SIGCONT)
        if fault == "store file" and starts == 1 and struck:
            code = code or 1  # the damage is noticed by the next start
    for pid in _marked(mark):
        _signal(pid, signal.SIGKILL)
    found, tracked = _content(out), _runs(out)
    lost = len(wanted.keys() - found.keys()) + sum((runs - tracked).values())
    changed = sum(found.get(name) != value for name, value in wanted.items())
    doubled = sum((tracked - runs).values())
    return Round(fault, struck, code == 0 and not changed, starts, lost, doubled)


def _strike(fault: str, driver: subprocess.Popen[bytes], mark: str, out: Path, moments: random.Random) -> bool:
    """Whether there was something to strike: a grid may have ended before."""
    if driver.poll() is not None:
        return False
    if fault == "driver":
        return _signal(driver.pid, signal.SIGKILL)
    if fault == "store file":
        stamps = sorted(out.glob("store/steps/*/*/DONE.json"))
        if stamps:
            stamp = moments.choice(stamps)
            os.truncate(stamp, stamp.stat().st_size // 2)
        return bool(stamps)
    name = PROCESS["worker" if fault == "worker stopped" else fault]
    victims = [pid for pid in _marked(mark) if name in _title(pid)]
    if not victims:
        return False
    if fault != "worker stopped":
        return _signal(moments.choice(victims), signal.SIGKILL)
    victim = moments.choice(victims)
    stopped = _signal(victim, signal.SIGSTOP)
    time.sleep(10.0)
    return stopped and _signal(victim, signal.SIGCONT)


def _wait_for_a_worker(driver: subprocess.Popen[bytes], mark: str) -> None:
    deadline = time.monotonic() + STEP_SECONDS
    while driver.poll() is None and time.monotonic() < deadline:
        if any(PROCESS["worker"] in _title(pid) for pid in _marked(mark)):
            return
        time.sleep(0.2)


def _command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "workflows", *GRID, "--out", str(out), *more]


def _environment(root: Path) -> dict[str, str]:
    (root / "home").mkdir()
    source = str(Path(__file__).resolve().parent.parent)
    ours = {"HOME": str(root / "home"), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **ours, "OMP_NUM_THREADS": "1", "PYTHONPATH": source}


def _marked(mark: str) -> list[int]:
    """All processes that a driver of this round started, and those that they started: the environment is inherited."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return ""


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _content(out: Path) -> dict[str, Any]:
    """All that was computed, measured seconds aside."""
    found: dict[str, Any] = {}
    for file in sorted(out.glob("store/steps/*/*/*")):
        name = str(file.relative_to(out))
        if file.suffix != ".json":
            found[name] = file.read_bytes()
        elif file.name != "DONE.json":
            found[name] = _timeless(json.loads(file.read_text()))
    for file in sorted((out / "results").rglob("*_raw.json")):
        found[str(file.relative_to(out))] = _timeless(json.loads(file.read_text()))
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(inner) for name, inner in value.items() if name not in MEASURED}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _runs(out: Path) -> Counter[tuple[str, ...]]:
    """Live MLflow runs by what they are."""
    names = ("kind", "variant", "seed", "method")
    with sqlite3.connect(out / "mlflow.db") as database:
        ids = database.execute("select run_uuid, status from runs where lifecycle_stage = 'active'").fetchall()
        tags: dict[str, dict[str, str]] = {}
        for run, key, value in database.execute("select run_uuid, key, value from tags"):
            tags.setdefault(run, {})[key] = value
    return Counter((*(tags[run].get(name, "") for name in names), status) for run, status in ids)


def _table(rounds: list[Round]) -> str:
    lines = ["| fault | injected | survived | starts at most | lost | doubled |", "|---|---:|---:|---:|---:|---:|"]
    for fault in FAULTS:
        some = [one for one in rounds if one.fault == fault and one.struck]
        if some:
            cells = (len(some), sum(one.survived for one in some), max(one.starts for one in some))
            lost, doubled = sum(one.lost for one in some), sum(one.doubled for one in some)
            lines.append(f"| {fault} | {' | '.join(map(str, cells))} | {lost} | {doubled} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
