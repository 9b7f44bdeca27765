"""The preset ``tuned``: values that ``unlearn tune`` found, kept in ``tuned.json`` with how. Light: imports no torch.

A value belongs to a dotted path into ``WhatIsRun``, such as ``optimization.lr`` or ``recipe.phases.0.epochs``; below
``settings`` lie the fields of ``ProxySettings``.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

TUNED = "tuned"
FILE = Path(__file__).with_name("tuned.json")

T = TypeVar("T")


@dataclass(frozen=True)
class Tuned:
    """Values by path; ``start`` is the preset that they are put into."""

    start: str
    values: Mapping[str, Any]

    def config(self) -> dict[str, Any]:
        """As plain JSON values, in one order."""
        return {"start": self.start, "values": dict(sorted(self.values.items()))}

    def put(self, part: str, whole: T) -> T:
        """``whole``, which is called ``part`` in paths, with the values that lie below it."""
        for path, value in self.values.items():
            at, _, rest = path.partition(".")
            if at == part:
                whole = put_value(whole, rest, value)
        return whole


def get_value(whole: Any, path: str) -> Any:
    """What stands at a path through dataclasses and tuples; a path that leads nowhere is a KeyError."""
    for name in path.split("."):
        if isinstance(whole, tuple) and name.isdecimal() and int(name) < len(whole):
            whole = whole[int(name)]
        elif dataclasses.is_dataclass(whole) and name in {field.name for field in dataclasses.fields(whole)}:
            whole = getattr(whole, name)
        else:
            raise KeyError(f"{path}: there is no {name} in {type(whole).__name__}")
    return whole


def put_value(whole: T, path: str, value: Any) -> T:
    """A copy with another value at a path."""
    name, _, rest = path.partition(".")
    if rest:
        value = put_value(get_value(whole, name), rest, value)
    else:
        get_value(whole, name)
    if isinstance(whole, tuple):
        return type(whole)((*whole[: int(name)], value, *whole[int(name) + 1 :]))  # pyright: ignore[reportReturnType]
    return dataclasses.replace(whole, **{name: value})  # pyright: ignore[reportArgumentType, reportCallIssue]


def read_tuned() -> dict[str, dict[str, Any]]:
    """The file: by method and architecture, start and values, and how they were found."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def find_tuned(method: str, arch: str) -> Tuned | None:
    """The values that a method has on an architecture; None if it was not tuned there."""
    entry = read_tuned().get(method, {}).get(arch)
    return None if entry is None else Tuned(entry["start"], entry["values"])


def save_tuned(method: str, arch: str, tuned: Tuned, how: Mapping[str, Any]) -> None:
    """Put the values of one method into the file, in the place of those it had."""
    known = read_tuned()
    known[method] = dict(sorted((known.get(method, {}) | {arch: {**tuned.config(), "how": dict(how)}}).items()))
    fresh = FILE.with_suffix(".new")
    fresh.write_text(json.dumps(dict(sorted(known.items())), indent=1, allow_nan=False) + "\n")
    os.replace(fresh, FILE)
