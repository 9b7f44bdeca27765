"""Numbers of seed entries, and their mean and spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracking.tree import REFERENCES, Entry
from unlearn_core.audit.stein import stein_block


@dataclass(frozen=True)
class Spread:
    """Mean and population standard deviation (ddof 0, as in the paper) over seeds."""

    mean: float
    std: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """None where there is no value, or where any seed has no number: a mean over some seeds would not be comparable."""
    known = list(values)
    numbers = [float(value) for value in known if value is not None]
    if not numbers or len(numbers) < len(known):
        return None
    mean = math.fsum(numbers) / len(numbers)
    return Spread(mean, math.sqrt(math.fsum((n - mean) ** 2 for n in numbers) / len(numbers)))


def number(entry: Entry, row: str, block: str, name: str) -> float | None:
    """A number of an entry that has this row; ``block`` is best, last or target.

    References have no epochs: their own numbers stand for ``best``, and nothing for the others.
    """
    record = entry[row]
    if row not in REFERENCES:
        return record.get(block, {}).get(name)
    # the base's own training time is nobody's cost of unlearning
    return record.get(name) if block == "best" and (row, name) != ("base", "rte") else None


def stein_of(entry: Entry, row: str) -> Mapping[str, Any]:
    """How many queries an attacker needs, as recorded; trees of the first version lack it, but it follows from KL."""
    recorded = entry[row].get("stein")
    scores = {name: number(entry, row, "best", name) for name in ("kl_t", "kl_f")}
    return stein_block(scores, entry["n_forget"]) if recorded is None else recorded


def mean_over_seeds(entries: Sequence[Entry], row: str, block: str, name: str) -> float | None:
    """Over all of ``entries``; None where one of them lacks the row or the number."""
    over_seeds = spread(number(entry, row, block, name) if row in entry else None for entry in entries)
    return None if over_seeds is None else over_seeds.mean


CLOCK_TOLERANCE = 0.25
"""Of the floor's run time over the retrain's, which is 1 on a machine that is left alone: both are the same work."""


def floor_over_retrain(entries: Sequence[Entry]) -> float | None:
    """How long the floor took, if all of these seeds say so."""
    return mean_over_seeds(entries, "floor", "best", "rte")


def clock_is_steady(entries: Sequence[Entry]) -> bool:
    """Whether run times over the retrain's mean anything, as far as the floor can tell."""
    seen = floor_over_retrain(entries)
    return seen is None or 1 / (1 + CLOCK_TOLERANCE) <= seen <= 1 + CLOCK_TOLERANCE


def ratio(value: float | None, to: float | None) -> float | None:
    """None where it is not known or has no meaning."""
    return None if value is None or not to else value / to
