"""Show how far a running or finished grid is.

Show from another terminal how far a grid is: steps by kind, what runs now, what failed.

unlearn status --out runs/grid
"""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from typing import Any

from rich.console import Console

from unlearn_core.errors import BadInput
from workflows.commands import options
from workflows.display import counts_table, duration, speaker
from workflows.driver_lock import read_holder
from workflows.layout import Layout, read_json

SILENT_SECONDS = 30.0
"""After this long without a new status or a renewed lock a grid of another machine is taken for dead. Both, because a single
process writes its status between steps only, and a step may take minutes. Here, the process itself is asked after."""


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_out(parser, "runs/grid")


def run(arguments: argparse.Namespace, console: Console) -> int:
    layout = Layout(arguments.out)
    known = read_json(layout.status, None)
    if known is None:
        raise BadInput(f"{layout.out} holds no grid; give the --out of a run")
    try:
        _show(layout, known, console)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"{layout.status} is damaged ({error!r}); remove it, a run makes it again") from error
    return 0


def _show(layout: Layout, known: dict[str, Any], console: Console) -> None:
    say = speaker(console)
    when = datetime.fromtimestamp(known["updated"]).isoformat(" ", "seconds")
    silent = time.time() - max(known["updated"], _renewed(layout))
    process = f"process {known['pid']} on {known['host']}"
    holder = read_holder(layout.lock)
    lives = holder.lives if holder is not None and holder.pid == known["pid"] else None
    killed = not known["finished"] and lives is False
    runs = not (known["finished"] or killed or (silent > SILENT_SECONDS and not lives))
    counts = known["counts"] if runs else {kind: row | {"running": 0} for kind, row in known["counts"].items()}
    console.print(counts_table(counts, str(layout.out)))
    resume = "; rerun the same command to resume" if known["left"] else ""
    if known["finished"]:
        say(f"ended {when}; {known['left']} steps left{resume}")
    elif killed:
        say(f"killed after {when} ({process}); {known['left']} steps left; rerun the same command to resume")
    elif not runs:
        say(f"no sign of life for {duration(silent)}; if {process} is no more, rerun the same command to resume")
    elif silent > SILENT_SECONDS:
        say(f"{process} is there, but gave no sign of life for {duration(silent)}; {known['left']} steps left")
    else:
        say(f"running as {process}, {known['left']} steps left, last seen {when}")
    if (runs or known["finished"]) and known.get("waits_for"):
        say(known["waits_for"])
    for step in known["running"] if runs else ():
        say(f"running: {step}")
    for line in known.get("set_aside", ()):
        say(f"sick worker: {line}")
    for failure in known["failures"]:
        say(f"failed: {failure['step']}: {failure['reason']}")
    if (more := known.get("n_failures", 0) - len(known["failures"])) > 0:
        say(f"failed: {more} more; see {layout.failures}")


def _renewed(layout: Layout) -> float:
    """When the driver last renewed its lock; 0 if there is none."""
    try:
        return layout.lock.stat().st_mtime
    except FileNotFoundError:
        return 0.0
