"""Which records a deletion request means: it is a CSV, JSON lines or text of record ids or row numbers."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.splits import checked_mask
from unlearn_core.errors import BadInput

ID_COLUMNS = ("id", "row")
SHOWN = 5


@dataclass(frozen=True)
class RecordList:
    """Records as a request names them. ``by_row``: by row number, whatever ids the data has."""

    source: str
    names: tuple[str, ...]
    by_row: bool = False


@dataclass(frozen=True, eq=False)
class Requested:
    """``rows``: the training rows asked for, each once, ascending; ``repeated``: the records that were named twice."""

    rows: NDArray[np.int64]
    repeated: tuple[str, ...]


def read_request(path: Path) -> RecordList:
    """Read a request: ``.csv``, ``.jsonl``, or text with one record per line and # before comments."""
    if not path.is_file():
        raise BadInput(f"no request at {path}; it is a CSV, JSON lines or text of record ids or row numbers")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path} is not UTF-8 text ({error.reason}, byte {error.start}); write the request as text"
        ) from error
    match path.suffix.lower():
        case ".csv":
            request = _read_csv(text, path)
        case ".jsonl" | ".ndjson" | ".json":
            request = _read_json_lines(text, path)
        case _:
            lines = (line.partition("#")[0].strip() for line in text.splitlines())
            request = RecordList(str(path), tuple(line for line in lines if line))
    if not request.names:
        raise BadInput(f"{path} names no record; there is nothing to forget")
    return request


def find_rows(request: RecordList, n_rows: int, ids: NDArray | None) -> Requested:
    """The rows that a request means; without ``ids``, a record's name is its row number."""
    names = list(dict.fromkeys(request.names))
    if not names:
        raise BadInput(f"{request.source} names no record; there is nothing to forget")
    repeated = tuple(name for name, count in Counter(request.names).items() if count > 1)
    if ids is None or request.by_row:
        rows = _row_numbers(names, n_rows, request.source)
    else:
        row_of = {str(record): row for row, record in enumerate(ids)}
        if len(row_of) != n_rows:
            raise BadInput(f"the data has {n_rows} rows and {len(row_of)} different ids; each row needs one of its own")
        if missing := [name for name in names if name not in row_of]:
            raise BadInput(f"{request.source}: ids {_some(missing)} are not in the data; it has {n_rows} records")
        rows = [row_of[name] for name in names]
    mask = np.zeros(n_rows, dtype=bool)
    mask[rows] = True
    return Requested(np.flatnonzero(checked_mask(mask, request.source)), repeated)


@dataclass(frozen=True, eq=False)
class NewRows:
    """The rows of a request, beside those that earlier requests forgot."""

    asked: Requested
    new: NDArray[np.int64]
    already: NDArray[np.int64]
    """Asked for again; they count once."""
    mask: NDArray[np.bool_]
    """(N,) all rows that are forgotten now."""


def new_rows(request: RecordList, n_rows: int, ids: NDArray | None, forgotten: Sequence[int]) -> NewRows:
    """Which rows a request means, and which of them are new."""
    asked = find_rows(request, n_rows, ids)
    mask = np.zeros(n_rows, dtype=bool)
    mask[list(forgotten)] = True
    already = asked.rows[mask[asked.rows]]
    new = asked.rows[~mask[asked.rows]]
    mask[asked.rows] = True
    if mask.all():
        raise BadInput(f"{request.source} and earlier requests forget all {n_rows} rows; delete the model instead")
    return NewRows(asked, new, already, mask)


def _row_numbers(names: Sequence[str], n_rows: int, source: str) -> list[int]:
    wrong = [name for name in names if not name.isdecimal() or int(name) >= n_rows]
    if wrong:
        raise BadInput(
            f"{source}: {_some(wrong)} {'is no row' if len(wrong) == 1 else 'are no rows'} of the data; without an 'ids' "
            f"array records are row numbers, 0..{n_rows - 1}"
        )
    return [int(name) for name in names]


def _read_csv(text: str, path: Path) -> RecordList:
    """The column ``id`` or ``row``; a file of one column needs no header."""
    lines = [[cell.strip() for cell in line] for line in csv.reader(text.splitlines()) if any(line)]
    if not lines:
        return RecordList(str(path), ())
    header = [cell.lower() for cell in lines[0]]
    if column := next((name for name in ID_COLUMNS if name in header), None):
        at = header.index(column)
        if short := next((n for n, line in enumerate(lines[1:], 2) if len(line) <= at or not line[at]), None):
            raise BadInput(f"{path}: record {short - 1} has no {column}; complete or remove it")
        return RecordList(str(path), tuple(line[at] for line in lines[1:]), by_row=column == "row")
    if any(len(line) != 1 for line in lines):
        raise BadInput(f"{path} has the columns {', '.join(header)}; name the one with the records 'id' or 'row'")
    return RecordList(str(path), tuple(line[0] for line in lines))


def _read_json_lines(text: str, path: Path) -> RecordList:
    """Each line is an id, or an object with ``id`` or ``row``."""
    names, columns = [], set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise BadInput(
                f"{path}: line {number} is not JSON ({error.msg}); write one id or one object a line"
            ) from error
        column = "id"
        if isinstance(value, dict):
            column = next((name for name in ID_COLUMNS if name in value), "")
            value = value.get(column)
        names.append(_name(value, f"{path}: line {number}"))
        columns.add(column)
    if len(columns) > 1:
        raise BadInput(f"{path} names some records by id and some by row; use one of the two")
    return RecordList(str(path), tuple(names), by_row=columns == {"row"})


def _name(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise BadInput(
            f"{where} names no record; write an id (a string or a whole number), or an object with 'id' or 'row'"
        )
    return str(value)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} (and {len(names) - SHOWN} more)"
