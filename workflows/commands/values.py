"""What the values of options may be; a wrong one is refused with what was meant."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def one_of(known: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            near = ", ".join(difflib.get_close_matches(text, known, n=3) or known)
            raise argparse.ArgumentTypeError(f"{text!r} does not exist; did you mean {near}?")
        return text

    return parse


def list_of(
    known: Sequence[str], groups: Mapping[str, Sequence[str]] | None = None
) -> Callable[[str], tuple[str, ...]]:
    """Values separated by commas; the name of a group stands for all of its own."""
    groups = groups or {}
    one = one_of((*known, *groups))
    return lambda text: tuple(value for name in names(text) for value in groups.get(name) or [one(name)])


def names(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError("names nothing")
    return found


def integers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 42,0,1")
    return tuple(int(part) for part in parts)


def colour(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not three numbers such as 0.485,0.456,0.406")
    return values


def at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least {least}")
        return int(text)

    return parse


def share(text: str) -> float:
    """A share such as 0.05 or 5%."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 1, such as 0.05 or 5%")
    return value


def path(metavar: str) -> dict[str, Any]:
    return {"type": Path, "metavar": metavar}


def role_and_path(text: str) -> tuple[str, Path]:
    role, equals, path = text.partition("=")
    if not equals or not role or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROLE=PATH, such as data=features.npz")
    return role, Path(path)


FILE, DIR = path("FILE"), path("DIR")
COUNT: dict[str, Any] = {"type": at_least(1), "metavar": "N"}
PIXELS: dict[str, Any] = {"type": at_least(1), "metavar": "PX"}


def repeated(parse: Callable[[str], Any], metavar: str) -> dict[str, Any]:
    """An option that may be given more than once; ``chosen`` reads it."""
    return {"action": "append", "type": parse, "metavar": metavar}


def chosen(values: Sequence[Sequence] | None, default: Sequence) -> tuple:
    """The values of an option that may be repeated, each once; ``default`` if it was not given."""
    return tuple(default) if values is None else tuple(dict.fromkeys(value for part in values for value in part))
