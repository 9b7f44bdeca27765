"""A table as values, and numbers and names as text. ``exports`` and ``page`` decide how a table looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tracking.entries import Spread
from tracking.tree import TreeVariant, incomplete_notes, name_within, shared_name, slug

Value = float | int | str | None


@dataclass(frozen=True)
class Column:
    """``name`` is unique and for programs, ``heading`` for people, ``latex`` if escaping the heading won't do."""

    name: str
    heading: str
    latex: str | None = None
    prose: bool = False
    """Sentences: to the left, and broken into lines."""
    aside: bool = False
    """In files and on the page, but not in a terminal, which is narrow."""


@dataclass(frozen=True)
class Cell:
    """``value`` and ``std`` have all digits, ``text`` and ``std_text`` those that are printed."""

    value: Value
    text: str
    std: float | None = None
    std_text: str | None = None
    bold: bool = False


MISSING = Cell(None, "--")


@dataclass(frozen=True)
class Row:
    name: str
    cells: tuple[Cell, ...]
    remark: str = ""
    """Shown beside the name, such as how many of the seeds it has."""


@dataclass(frozen=True)
class Group:
    """Rows that belong together. A group without a name is only set apart."""

    rows: tuple[Row, ...]
    name: str = ""


@dataclass(frozen=True)
class Table:
    name: str
    """For file names and LaTeX labels."""
    title: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    caption: str = ""
    """What the columns mean: the same for all tables of a kind."""
    notes: tuple[str, ...] = ()
    """What a reader of this one must know."""
    row_heading: str = "method"
    group_heading: str = "variant"

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for group in self.groups for row in group.rows)


def only_columns(table: Table, shown: Callable[[Column], bool]) -> Table:
    places = [i for i, column in enumerate(table.columns) if shown(column)]

    def cut(row: Row) -> Row:
        return replace(row, cells=tuple(row.cells[i] for i in places))

    groups = tuple(replace(group, rows=tuple(map(cut, group.rows))) for group in table.groups)
    return replace(table, columns=tuple(table.columns[i] for i in places), groups=groups)


def listed(names: Sequence[object]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    first, last = ", ".join(map(str, names[:-1])), "".join(map(str, names[-1:]))
    return f"{first} and {last}" if first else last


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 seed``, ``5 seeds``."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def two_digits(value: float) -> str:
    """Two significant digits as the paper prints KL and RTE, never fewer than the integer part."""
    if abs(value) < 1:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"


def one_decimal(value: float) -> str:
    """Accuracies as the paper prints them."""
    return f"{value:.1f}"


def two_decimals(value: float) -> str:
    """eta_max as the paper prints it."""
    return f"{value:.2f}"


def whole(value: float) -> str:
    """Percentages of seeds as the paper prints them."""
    return f"{value:.0f}"


def spread_cell(spread: Spread | None, text: Callable[[float], str] = two_digits, bold: bool = False) -> Cell:
    if spread is None:
        return MISSING
    return Cell(spread.mean, text(spread.mean), spread.std, None if spread.std is None else text(spread.std), bold)


def number_cell(value: float | None, text: Callable[[float], str] = two_digits, bold: bool = False) -> Cell:
    return MISSING if value is None else Cell(value, text(value), bold=bold)


def text_cell(text: str) -> Cell:
    return Cell(text, text)


def least(values: Sequence[float | None], n: int) -> list[bool]:
    """Which of them are among the ``n`` least; ties with the last of those are among them too."""
    known = sorted(value for value in values if value is not None)[:n]
    return [value is not None and bool(known) and value <= known[-1] for value in values]


def grouped(
    kind: str,
    title: str,
    variants: Sequence[TreeVariant],
    columns: tuple[Column, ...],
    rows_of: Callable[[TreeVariant], tuple[Row, ...]],
    caption: str,
    row_heading: str = "method",
) -> Table:
    """A table with a group for every variant that has rows, named after what the variants share."""
    name = shared_name(variants)
    return Table(
        name=f"{kind}_{slug(name)}",
        title=f"{name}: {title}",
        columns=columns,
        groups=tuple(Group(rows, name_within(v, variants)) for v in variants if (rows := rows_of(v))),
        caption=caption,
        notes=incomplete_notes(variants),
        row_heading=row_heading,
    )
