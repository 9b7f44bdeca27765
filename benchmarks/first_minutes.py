"""How long does a newcomer wait for the first table, the first figures and the first certificate?

Clones this repository into a temporary folder and does there what ``make demo`` and the tutorial of a deletion request do,
with this interpreter's packages. With --install it makes the clone's own environment first, as ``make`` does (a download of
torch). Wall and processor seconds; on a machine that has much else to do only the second say something.

    python -m benchmarks.first_minutes [--install] [--save docs/data/first_minutes.csv]
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.saving import ROOT, save, show

DEMO = ("unlearn run --methods all --out runs/demo", "unlearn report --results runs/demo/results")
TUTORIAL = ROOT / "docs" / "tutorials" / "request.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="make the clone's own environment, and time that too")
    parser.add_argument("--save", type=Path, help="file to keep the table in, such as docs/data/first_minutes.csv")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        clone, home = Path(folder) / "clone", Path(folder) / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        commands = clone / ".venv" / "bin"
        if arguments.install:
            rows.append(timed("installation", ["make .venv/.ready"], clone, dict(os.environ)))
        else:
            stand_in(commands)
        environment = {
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(clone),
            "HOME": str(home),
        }
        for what, lines in (("the first table", DEMO[:1]), ("figures and the page", DEMO[1:])):
            rows.append(timed(what, lines, clone, environment))
        work = Path(folder) / "work"
        work.mkdir()
        text = TUTORIAL.read_text()
        for name, body in re.findall(r'^```\{\.python title="([\w.]+)"\}\n(.*?)^```$', text, re.M | re.S):
            (work / name).write_text(body)
        lines = re.findall(r"^\$ (.*)$", text, re.M)
        rows.append(timed("the first certificate", lines, work, environment))
    show(rows)
    if arguments.save is not None:
        command = "python -m benchmarks.first_minutes --save docs/data/first_minutes.csv"
        save(arguments.save, rows, command.replace(" --save", " --install --save") if arguments.install else command)


def timed(what: str, lines: Sequence[str], folder: Path, environment: dict[str, str]) -> dict[str, object]:
    before, started = processor_seconds(), time.monotonic()
    for line in lines:
        subprocess.run(["sh", "-c", line], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall = time.monotonic() - started
    load = f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    return {"": what, "wall s": f"{wall:.0f}", "processor s": f"{processor_seconds() - before:.0f}", "load": load}


def processor_seconds() -> float:
    """Of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def stand_in(commands: Path) -> None:
    """The names that an installation would bring, for this interpreter."""
    commands.mkdir(parents=True)
    for name, module in (("unlearn", "-m workflows"), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (commands / name).chmod(0o755)


if __name__ == "__main__":
    main()
