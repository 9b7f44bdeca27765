"""Show why a step is, or is not, cached.

Compare a step of the last plan with the nearest one in the store, value by value.

unlearn explain 3f2a --out runs/grid
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from tasks.store import DONE, Store
from unlearn_core.errors import BadInput
from workflows.commands import options
from workflows.display import speaker
from workflows.layout import Layout


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "unlearn explain STEP [options]"
    parser.add_argument("step", metavar="STEP", help="the beginning of a step's id; 'unlearn plan --steps' lists them")
    options.add_out(parser, "runs/grid")


def run(arguments: argparse.Namespace, console: Console) -> int:
    say = speaker(console)
    for line in _explain(Layout(arguments.out), arguments.step):
        say(line)
    return 0


def _explain(layout: Layout, prefix: str) -> Iterator[str]:
    planned = _planned(layout)
    matches = [step for step in planned.values() if step["id"].startswith(prefix)]
    if len(matches) != 1:
        what = "no step" if not matches else f"{len(matches)} steps"
        raise BadInput(
            f"{what} of the last plan in {layout.out} begin with {prefix!r}; 'unlearn plan --steps' lists ids"
        )
    step = matches[0]
    store = Store(layout.store)

    def place(step: dict[str, Any]) -> Path:
        return store.root / "steps" / step["kind"] / step["id"]

    yield step["name"]
    if (place(step) / DONE).exists():
        done = json.loads((place(step) / DONE).read_text())
        when = datetime.fromtimestamp(done["finished"]).isoformat(" ", "seconds")
        yield f"cached: finished {when} in {done['seconds']:.2f} s, {place(step)}"
        return
    yield f"not cached: nothing at {place(step)}"
    for role, needed in step["needs"].items():
        if not (place(planned[needed]) / DONE).exists():
            yield f"  it needs {role} ({needed[:12]}), which is not there either"
    stored = {folder.name: differences(done["identity"], step) for folder, done in store.records(step["kind"])}
    if not stored:
        yield f"no {step['kind']} step was ever stored here"
        return
    nearest = min(stored, key=lambda other: len(stored[other]))
    yield f"the nearest stored {step['kind']} step is {nearest[:12]}; it differs in"
    yield from stored[nearest]


def _planned(layout: Layout) -> dict[str, dict[str, Any]]:
    """The steps of the last plan by id."""
    if not layout.plan.exists():
        raise BadInput(f"{layout.out} has no plan yet; run 'unlearn plan' or 'unlearn grid' with the same --out first")
    steps = [json.loads(line) for line in layout.plan.read_text().splitlines()]
    return {step["id"]: step for step in steps}


def differences(stored: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """A line for every value, however deep, in which two identities differ."""
    had, wants = (
        {name: text for part in ("version", "config", "needs") for name, text in _leaves(part, identity[part])}
        for identity in (stored, wanted)
    )
    return [
        f"  {name}: {_short(had.get(name, 'absent'))} stored, {_short(wants.get(name, 'absent'))} wanted"
        for name in dict.fromkeys([*had, *wants])
        if had.get(name) != wants.get(name)
    ]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every value that holds no others, as JSON, by its path: ``config.recipe.phases.0.epochs``."""
    if value and isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(f"{name}.{key}", part)
    else:
        yield name, json.dumps(value)


def _short(text: str) -> str:
    """Without quotes; of a step's id, its beginning."""
    text = text.strip('"')
    return text[:12] if len(text) == 32 else text
