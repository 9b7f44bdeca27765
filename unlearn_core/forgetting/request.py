"""Which records a deletion request means: it is a CSV, JSON lines or text of record ids or row numbers.

Ids are taken literally, spaces, ``#`` and all: whoever asks for ``acct#1`` must not lose ``acct``.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.splits import checked_mask
from unlearn_core.errors import BadInput, first_line

ID_COLUMNS = ("id", "row")
SHOWN = 5
SHOWN_CHARACTERS = 80
ROW = re.compile("0|[1-9][0-9]{0,17}")


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
    """Read a request: ``.csv``, ``.jsonl``, or text with one record per line."""
    if not path.is_file():
        raise BadInput(f"no request at {path}; it is a CSV, JSON lines or text of record ids or row numbers")
    try:
        text = path.read_bytes().decode("utf-8-sig")  # with its line ends as they are
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
            request = RecordList(str(path), tuple(line for line in _lines(text) if line))
    if not request.names:
        raise BadInput(f"{path} names no record; there is nothing to forget")
    return request


def find_rows(
    request: RecordList, n_rows: int, ids: NDArray | None, order: NDArray[np.int64] | None = None
) -> Requested:
    """The rows that a request means; without ``ids``, a record's name is its row number.

    Args:
        order: rows in the order of their ids, if it is known and they are known to be unique: then not all are read.
    """
    names = list(dict.fromkeys(request.names))
    if not names:
        raise BadInput(f"{request.source} names no record; there is nothing to forget")
    repeated = tuple(name for name, count in Counter(request.names).items() if count > 1)
    if ids is None or request.by_row:
        rows = _row_numbers(names, n_rows, request.source)
    elif order is not None:
        rows = _found_in_order(names, ids, order, request.source)
    else:
        row_of = {str(record): row for row, record in enumerate(ids)}
        if len(row_of) != n_rows:
            raise BadInput(f"the data has {n_rows} rows and {len(row_of)} different ids; each row needs one of its own")
        if missing := [name for name in names if name not in row_of]:
            near = [name for name in missing if name.partition("#")[0].strip() in row_of]
            literally = f"; ids are taken literally, as {_quoted(near[0])} was" if near else ""
            raise BadInput(
                f"{request.source}: ids {_some(missing)} are not in the data; it has {n_rows} records{literally}"
            )
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


def new_rows(
    request: RecordList,
    n_rows: int,
    ids: NDArray | None,
    forgotten: Sequence[int],
    order: NDArray[np.int64] | None = None,
) -> NewRows:
    """Which rows a request means, and which of them are new; ``order`` as in ``find_rows``."""
    asked = find_rows(request, n_rows, ids, order)
    mask = np.zeros(n_rows, dtype=bool)
    if forgotten and max(forgotten) >= n_rows:
        raise BadInput(
            f"the ledger forgot row {max(forgotten)} and the data has {n_rows} rows; give the ledger's own data"
        )
    mask[list(forgotten)] = True
    already = asked.rows[mask[asked.rows]]
    new = asked.rows[~mask[asked.rows]]
    mask[asked.rows] = True
    if mask.all():
        raise BadInput(f"{request.source} and earlier requests forget all {n_rows} rows; delete the model instead")
    return NewRows(asked, new, already, mask)


def _found_in_order(names: Sequence[str], ids: NDArray, order: NDArray[np.int64], source: str) -> list[int]:
    """By bisection, of all names at once."""
    ids = np.asarray(ids)
    whole = [int(name) if name.removeprefix("-").isdecimal() else 0 for name in names]
    wanted = np.array(names) if ids.dtype.kind == "U" else np.array(whole, dtype=object)  # of any size
    low, high = np.zeros(len(names), dtype=np.int64), np.full(len(names), len(order) - 1)
    while (low < high).any():
        middle = (low + high) // 2
        before = (ids[order[middle]] < wanted).astype(bool)
        low, high = np.where(before, np.minimum(middle + 1, high), low), np.where(before, high, middle)
    rows = order[low]
    if missing := [name for name, found in zip(names, ids[rows], strict=True) if str(found) != name]:
        raise BadInput(f"{source}: ids {_some(missing)} are not in the data; it has {len(ids)} records")
    return rows.tolist()


def _row_numbers(names: Sequence[str], n_rows: int, source: str) -> list[int]:
    wrong = [name for name in names if not ROW.fullmatch(name) or int(name) >= n_rows]
    if wrong:
        raise BadInput(
            f"{source}: {_some(wrong)} {'is no row' if len(wrong) == 1 else 'are no rows'} of the data; without an 'ids' "
            f"array records are row numbers, 0..{n_rows - 1}"
        )
    return [int(name) for name in names]


def _lines(text: str) -> list[str]:
    """Lines as files have them; ``splitlines`` would also break at characters that may be part of an id."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def _read_csv(text: str, path: Path) -> RecordList:
    """The column ``id`` or ``row``; a file of one column needs no header."""
    try:
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line]
    except csv.Error as error:
        raise BadInput(f"{path} is no CSV that can be read ({first_line(error)}); write it again") from error
    if not lines:
        return RecordList(str(path), ())
    header = [cell.strip().lower() for cell in lines[0]]
    if column := next((name for name in ID_COLUMNS if name in header), None):
        if header.count(column) > 1:
            raise BadInput(f"{path} has {header.count(column)} columns {column!r}; leave one")
        at = header.index(column)
        if short := next((n for n, line in enumerate(lines[1:], 1) if len(line) <= at or not line[at].strip()), None):
            raise BadInput(f"{path}: record {short} has no {column}; complete or remove it")
        return RecordList(str(path), tuple(line[at] for line in lines[1:]), by_row=column == "row")
    if any(len(line) != 1 for line in lines):
        raise BadInput(f"{path} has the columns {_some(header)}; name the one with the records 'id' or 'row'")
    if not all(line[0].strip() for line in lines):
        raise BadInput(f"{path} has a record without an id; complete or remove it")
    return RecordList(str(path), tuple(line[0] for line in lines))


def _read_json_lines(text: str, path: Path) -> RecordList:
    """Each line is an id, or an object with ``id`` or ``row``."""
    names, columns = [], set()
    for number, line in enumerate(_lines(text), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            said = error.msg if isinstance(error, json.JSONDecodeError) else first_line(error)
            raise BadInput(f"{path}: line {number} is not JSON ({said}); write one id or one object a line") from error
        column = "id"
        if isinstance(value, dict):
            column = next((name for name in ID_COLUMNS if name in value), "")
            value = value.get(column)
        names.append(_name(value, f"{path}: line {number}"))
        columns.add(column)
    if len(columns) > 1:
        raise BadInput(f"{path} names some records by id and some by row; use one of the two")
    return RecordList(str(path), tuple(names), by_row=columns == {"row"})


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Python would take the last of two values of one name."""
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name is there twice")
    return dict(pairs)


def _name(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise BadInput(
            f"{where} names no record; write an id (a string or a whole number), or an object with 'id' or 'row'"
        )
    return str(value)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(_quoted(name) for name in names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} (and {len(names) - SHOWN} more)"


def _quoted(name: str) -> str:
    """A name, cut if it is long, and in quotes if one could not see where it begins and ends."""
    cut = name if len(name) <= SHOWN_CHARACTERS else f"{name[:SHOWN_CHARACTERS]}..."
    return cut if re.fullmatch(r"[\w.:/-]+", cut) else repr(cut)
