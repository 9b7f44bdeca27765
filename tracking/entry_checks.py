"""Is a seed entry what ``records`` writes? Rows that are not are taken out and reported by their key.

Read by people and by other programs, a tree may be cut off, edited or from another version: nothing here raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tracking.tree import REFERENCES, Entry
from unlearn_core.audit.bounds import Bound
from unlearn_core.audit.stein import ALPHAS, UNBOUNDED
from unlearn_core.records import Scores
from unlearn_core.spec import AUTO_CANDIDATES, EMPIRICAL_PROXIES, METHODS, PROXIES

Report = Callable[[str, str], None]
"""Takes a key and what is wrong there."""
Found = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class _Kind:
    name: str
    fits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    # type() and not isinstance(): true and false are ints; the range leaves out NaN, infinity and ints beyond floats
    return type(value) in (float, int) and -1e308 < value < 1e308


NUMBER = _Kind("a finite number", _is_number)
NUMBER_OR_NULL = _Kind("a finite number or null", lambda value: value is None or _is_number(value))
COUNT = _Kind("a whole number of at least 0", lambda value: type(value) is int and 0 <= value <= UNBOUNDED)
COUNT_OR_NULL = _Kind("a whole number of at least 0, or null", lambda value: value is None or COUNT.fits(value))
FLAG = _Kind("true or false", lambda value: type(value) is bool)
FLAG_OR_NULL = _Kind("true, false or null", lambda value: value is None or type(value) is bool)
NULL = _Kind("null", lambda value: value is None)
TEXT = _Kind("a text", lambda value: type(value) is str)

Fields = Mapping[str, _Kind]
SCORES: Fields = {score.name: NUMBER_OR_NULL for score in fields(Scores)}
COST: Fields = {"seconds": NUMBER, "rte": NUMBER}
REFERENCE: Fields = {**SCORES, **COST}
EPOCH: Fields = {"epoch": COUNT, "seconds": NUMBER, **SCORES}
TARGET: Fields = {
    **SCORES,
    **dict.fromkeys(("kl_net_proxy_before", "kl_net_proxy_after"), NUMBER_OR_NULL),
    **dict.fromkeys(("proxy_seconds", "ridge", "cap"), NUMBER),
    **dict.fromkeys(("reason", "shrinkage", "finalizer", "dir_on_test"), TEXT),
}
BOUND: Fields = {term.name: NUMBER_OR_NULL for term in fields(Bound)} | {"measured": NUMBER_OR_NULL}
STEIN: Fields = {f"n_{where}_at_{alpha:g}": COUNT_OR_NULL for alpha in ALPHAS for where in "tf"} | {
    f"indistinguishable_at_{alpha:g}": FLAG_OR_NULL for alpha in ALPHAS
}
ETA: Mapping[str, Fields] = {
    **{name: {"eta_max": NUMBER, "admissible": FLAG} for name in AUTO_CANDIDATES},
    **{name: {"eta_max": NULL, "admissible": NULL} for name in EMPIRICAL_PROXIES},
}
COUNTS: Fields = {"seed": COUNT, "n_forget": COUNT, "n_retain": COUNT}


def sound_entry(entry: Any, at: str, report: Report) -> Entry | None:
    """The entry with whole rows only; None where it is not clear which seed or how many rows were forgotten."""
    if not isinstance(entry, dict):
        report(at, f"{_short(entry)} is not a seed entry")
        return None
    wrong = list(_wrong_fields(entry, COUNTS, at))
    for key, what in wrong:
        report(key, what)
    if wrong:
        return None
    sound = {name: entry[name] for name in COUNTS}
    for name in REFERENCES:
        if name not in entry:
            report(f"{at}.{name}", "missing")
    for name, value in entry.items():
        if name in COUNTS:
            continue
        problems = list(_wrong_parts(name, value, f"{at}.{name}"))
        if problems:
            key, what = problems[0]
            report(key, what + (f" (and {len(problems) - 1} more in this row)" if problems[1:] else ""))
        else:
            sound[name] = value
    return sound


def _wrong_parts(name: str, value: Any, at: str) -> Found:
    if name == "provenance":
        yield from _wrong_block(value, {}, at)
    elif name in REFERENCES:
        yield from _wrong_block(value, REFERENCE, at)
        yield from _wrong_stein(value, at)
    elif name in METHODS:
        yield from _wrong_method(name, value, at)
        yield from _wrong_stein(value, at)
    else:
        yield at, f"unknown method; there are {', '.join(METHODS)}"


def _wrong_method(name: str, row: Any, at: str) -> Found:
    yield from _wrong_block(row, COST, at)
    if not isinstance(row, dict):
        return
    yield from _wrong_block(row.get("best"), {**EPOCH, "rte": NUMBER}, f"{at}.best")
    yield from _wrong_block(row.get("last"), EPOCH, f"{at}.last")
    epochs = row.get("epochs")
    if not isinstance(epochs, list) or not epochs:
        yield f"{at}.epochs", "missing; it should be a list of epochs"
    else:
        for i, epoch in enumerate(epochs):
            yield from _wrong_block(epoch, EPOCH, f"{at}.epochs[{i}]")
    if name in PROXIES:
        yield from _wrong_target(name, row.get("target"), f"{at}.target")


def _wrong_target(name: str, target: Any, at: str) -> Found:
    yield from _wrong_block(target, {**TARGET, **ETA[name]}, at)
    if not isinstance(target, dict):
        return
    if "bound" not in target:
        yield f"{at}.bound", "missing; it should be the terms of the bound, or null"
    elif target["bound"] is not None:
        yield from _wrong_block(target["bound"], BOUND, f"{at}.bound")
    curve = target.get("h_curve")
    if not isinstance(curve, list):
        yield f"{at}.h_curve", "missing; it should be a list of [eta, h]"
        return
    for i, point in enumerate(curve):
        if not (isinstance(point, list) and len(point) == 2 and _is_number(point[0]) and NUMBER_OR_NULL.fits(point[1])):
            yield f"{at}.h_curve[{i}]", f"{_short(point)} is not [eta, h]"


def _wrong_stein(row: Any, at: str) -> Found:
    """Trees of the first version have none; it follows from KL and |D_f|."""
    if isinstance(row, dict) and "stein" in row:
        yield from _wrong_block(row["stein"], STEIN, f"{at}.stein")


def _wrong_block(block: Any, wanted: Fields, at: str) -> Found:
    if block is None:
        yield at, "missing"
    elif not isinstance(block, dict):
        yield at, f"{_short(block)} is not an object with names and values"
    else:
        yield from _wrong_fields(block, wanted, at)


def _wrong_fields(block: dict[str, Any], wanted: Fields, at: str) -> Found:
    for name, kind in wanted.items():
        if name not in block:
            yield f"{at}.{name}", f"missing; it should be {kind.name}"
        elif not kind.fits(block[name]):
            yield f"{at}.{name}", f"{_short(block[name])} is not {kind.name}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
