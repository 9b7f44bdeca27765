"""Kill whatever can be killed while grids run, resume with the same command, and compare with an undisturbed run.

``make chaos`` runs it (it is slow, and not part of the tests). A round is one output folder: its digits grid starts, some
faults strike at random moments (seeded), and the same command is started again, and struck again, until it ends with 0. Then
store, results tree and MLflow are compared with a run in one process that nothing disturbed. Every other round runs on a
local Ray, the others in one process; every other one of those writes to an MLflow server.

    python -m benchmarks.chaos --kills 100 --log chaos.csv --save docs/data/chaos.csv
    python -m benchmarks.chaos --sum-up chaos.csv --save docs/data/chaos.csv
    python -m benchmarks.chaos --faults 20 --kinds "worker stopped" --places Ray --save docs/data/chaos_stopped.csv

Rounds follow each other until so many *processes* were killed; two faults in three are such kills, the others do not count.
With ``--faults`` they follow until so many faults have struck, of whichever kinds were chosen.
``--log`` adds a line for every fault as soon as its round has ended; ``--save`` writes the counts that
``docs/reliability.md`` quotes. Drivers are forked from a process that has loaded all code, which takes longer than the
grid. A clock jumps for the driver alone. A full disk needs root, for a small tmpfs; otherwise it is left out, and named.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import shlex
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.chaos_faults import FAULTS, KILLS, MlflowServer, Scene, draw, small_disk, surroundings
from benchmarks.saving import save, show

GRID = (
    "grid", "--dataset", "digits", "--arch", "linear", "--scenario", "class", "--key", "0,1", "--seeds", "0,42",
    "--methods", "lda-2c,ga", "--epochs", "20",
)  # fmt: skip
AT_MOST = 10
"""Faults of one round."""
QUIET_STARTS = 6
"""Starts without a new fault, after which a grid that still does not end with 0 counts as not survived."""
START_SECONDS = 900.0
PLACES = ("Ray", "one process", "Ray", "one process, MLflow server")
ENDS_IN_ORDER = (0, 2, 4)
"""Exit codes that ``docs/reliability.md`` has for what is done here; a killed driver has none."""
MEASURED = ("seconds", "rte", "cost", "preparation", "proxy_seconds")


@dataclass(frozen=True)
class Struck:
    """A fault, and what became of its round: files and runs ``lost`` and ``doubled`` are in the first line of a round.

    ``code`` is how the start that it struck ended; ``unclear`` is 1 if that was no end that the documents know, or came with
    a traceback.
    """

    round: int
    where: str
    start: int
    seconds: float
    fault: str
    code: int
    unclear: int
    survived: bool
    lost: int
    doubled: int


@dataclass(frozen=True)
class Undisturbed:
    """What every round must come to."""

    content: dict[str, Any]
    runs: Counter[tuple[str, ...]]


@dataclass(frozen=True)
class End:
    """Rounds follow until so many of these faults have struck."""

    n: int
    of: Sequence[str]

    def reached(self, found: Sequence[Struck]) -> bool:
        return sum(one.fault in self.of for one in found) >= self.n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="processes to kill; other faults come on top")
    parser.add_argument("--faults", type=int, help="end after so many faults of any kind, not after --kills")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=PLACES, help="run only there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=FAULTS, default=tuple(FAULTS), help="strike only so")
    parser.add_argument("--log", type=Path, help="a CSV file to which a line for every fault is added")
    parser.add_argument("--keep", type=Path, help="an empty folder for what is written, logs of failed rounds included")
    parser.add_argument("--sum-up", type=Path, metavar="LOG", help="count what such a file says, and run nothing")
    parser.add_argument("--save", type=Path, help="the counts as a CSV file that documents quote")
    arguments = parser.parse_args()
    # elsewhere than on Ray there may be nothing else to strike, and without kills to count it would not end
    if "driver" not in arguments.kinds and not (arguments.faults and set(arguments.places) == {"Ray"}):
        parser.error("--kinds needs driver, which is everywhere; without it give --faults and --places Ray")
    if arguments.sum_up:
        command = "python -m benchmarks.chaos --sum-up LOG --save docs/data/chaos.csv"
        found = read(arguments.sum_up)
    else:
        command = f"python -m benchmarks.chaos {shlex.join(sys.argv[1:])}"
        end = End(arguments.faults, tuple(FAULTS)) if arguments.faults else End(arguments.kills, KILLS)
        with tempfile.TemporaryDirectory(prefix="unlearn-chaos-") as folder:
            root = arguments.keep or Path(folder)
            found = _play(root, end, arguments.seed, arguments.kinds, arguments.places, arguments.log)
    rows = table(found)
    show(rows)
    if arguments.save:
        save(arguments.save, rows, command)


def _play(
    root: Path, end: End, seed: int, kinds: Sequence[str], places: Sequence[str], log: Path | None
) -> list[Struck]:
    moments = random.Random(seed)
    environment = surroundings(root)
    plain = Scene(root, "undisturbed", environment, "one process")
    plain.start(_arguments(plain))
    if plain.wait(START_SECONDS) != 0:
        raise RuntimeError(f"the undisturbed run failed: see {plain.log}")
    wanted = Undisturbed(_content(plain.out), _runs(plain))
    found: list[Struck] = []
    with MlflowServer(root, environment) as server:
        number = 0
        while not end.reached(found):
            number += 1
            where = places[(number + seed) % len(places)]
            scene = Scene(root, f"round{seed}-{number}", environment, where, server if "server" in where else None)
            with small_disk(scene.out) as disk:
                scene.small_disk, scene.kinds = disk, kinds
                some = _round(scene, number, moments, wanted)
                found += some
                if all(one.survived and not one.unclear for one in some):
                    scene.log.unlink()
                if log:
                    _add(log, some)
            shutil.rmtree(scene.out, ignore_errors=True)
    return found


def _round(scene: Scene, number: int, moments: random.Random, wanted: Undisturbed) -> list[Struck]:
    struck: list[tuple[int, float, str]] = []
    ends: dict[int, tuple[int, int]] = {}
    code, starts, quiet = 1, 0, 0
    while code and quiet <= QUIET_STARTS:
        starts += 1
        before = len(struck)
        written = scene.log.stat().st_size if scene.log.exists() else 0
        code = _start(scene, starts, moments, struck)
        ends[starts] = (code, _is_unclear(scene, code, [one[2] for one in struck[before:]], written))
        quiet = 0 if len(struck) > before else quiet + 1
        if any(one[2] == "store file" for one in struck[before:]):
            code = code or 1  # a file may be damaged after its last use: the next start notices it
    scene.end()
    found, tracked = _content(scene.out), _runs(scene)
    changed = sum(found.get(name) != value for name, value in wanted.content.items())
    lost = len(wanted.content.keys() - found.keys()) + sum((wanted.runs - tracked).values())
    doubled = sum((tracked - wanted.runs).values())
    survived = code == 0 and not (changed or lost or doubled)
    said = "survived" if survived else f"NOT SURVIVED: exit code {code}, {changed} changed, see {scene.log}"
    n_kills, n_unclear = sum(one[2] in KILLS for one in struck), sum(unclear for _, unclear in ends.values())
    counts = f"{starts} starts, {len(struck)} faults, {n_kills} kills, {n_unclear} unclear ends"
    print(f"{time.strftime('%H:%M:%S')} {scene.name} ({scene.where}), {counts}: {said}", file=sys.stderr, flush=True)
    return [
        Struck(number, scene.where, *one, *ends[one[0]], survived, *((0, 0) if i else (lost, doubled)))
        for i, one in enumerate(struck)
    ]


def _is_unclear(scene: Scene, code: int, faults: Sequence[str], written: int) -> int:
    """Whether a start, which wrote the log from ``written`` on, did not end with a documented exit code and line."""
    killed = code == -signal.SIGKILL and "driver" in faults
    with scene.log.open("rb") as log:
        log.seek(written)
        traceback = b"Traceback (most recent call last)" in log.read()
    return int(traceback or not (killed or code in ENDS_IN_ORDER))


def _start(scene: Scene, start: int, moments: random.Random, struck: list[tuple[int, float, str]]) -> int:
    """Start the command and strike until it ends; its exit code."""
    scene.repair()
    scene.say(f"start {start}")
    begun = time.monotonic()
    scene.start(_arguments(scene))
    while len(struck) < AT_MOST and scene.runs:
        fault = draw(scene, moments)
        if scene.wait_for(fault, START_SECONDS) and scene.pause(moments.uniform(0.0, 6.0)):
            at = time.monotonic() - begun
            if FAULTS[fault].strike(scene, moments):
                struck.append((start, round(at, 1), fault))
                scene.say(f"{fault} at {at:.1f} s")
    return scene.wait(START_SECONDS)


def _arguments(scene: Scene) -> list[str]:
    more = ["--workers", "2"] if scene.where == "Ray" else ["--local"]
    if scene.server:
        more += ["--tracking-uri", scene.server.uri]
    return [*GRID, "--out", str(scene.out), *more]


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


def _runs(scene: Scene) -> Counter[tuple[str, ...]]:
    """Live MLflow runs by what they are."""
    names = ("kind", "variant", "seed", "method")
    with sqlite3.connect(scene.server.database if scene.server else scene.out / "mlflow.db") as database:
        ids = database.execute(
            "select run_uuid, status from runs join experiments using (experiment_id) "
            "where runs.lifecycle_stage = 'active' and experiments.name like ?",
            (f"%{scene.name}",),
        ).fetchall()
        tags: dict[str, dict[str, str]] = {}
        for run, key, value in database.execute("select run_uuid, key, value from tags"):
            tags.setdefault(run, {})[key] = value
    return Counter((*(tags.get(run, {}).get(name, "") for name in names), status) for run, status in ids)


def _add(file: Path, some: list[Struck]) -> None:
    new = not file.exists()
    with file.open("a", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        if new:
            writer.writerow(field.name for field in fields(Struck))
        writer.writerows(astuple(one) for one in some)


def read(file: Path) -> list[Struck]:
    with file.open(newline="") as opened:
        rows = list(csv.reader(opened))[1:]
    return [
        Struck(
            int(number), where, int(start), float(at), fault, int(code), int(unclear), end == "True", *map(int, counts)
        )
        for number, where, start, at, fault, code, unclear, end, *counts in rows
    ]


def table(found: list[Struck]) -> list[dict[str, object]]:
    """By fault; a round's losses would be in its first fault's row."""
    rows = list[dict[str, object]]()
    groups = {fault: (fault,) for fault in FAULTS} | {"all kills": KILLS, "all": tuple(FAULTS)}
    for fault, members in groups.items():
        some = [one for one in found if one.fault in members]
        if some:
            counts = {"injected": len(some), "on Ray": sum(one.where == "Ray" for one in some)}
            ends = {
                what: sum(getattr(one, what) for one in some) for what in ("survived", "lost", "doubled", "unclear")
            }
            rows.append({"fault": fault, **counts, **ends})
    return rows


if __name__ == "__main__":
    main()
