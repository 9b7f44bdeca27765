"""A table as values. What is in it is decided elsewhere, and how it looks too: see ``exports``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracking.spreads import Spread

Value = float | int | str | None


@dataclass(frozen=True)
class Column:
    """``name`` is unique and for programs, ``heading`` for people, ``latex`` for where escaping the heading won't do."""

    name: str
    heading: str
    latex: str | None = None
    prose: bool = False
    """Sentences: to the left, and broken into lines."""


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


def spread_cell(spread: Spread | None, text: Callable[[float], str], bold: bool = False) -> Cell:
    if spread is None:
        return MISSING
    return Cell(spread.mean, text(spread.mean), spread.std, text(spread.std), bold)


def number_cell(value: float | None, text: Callable[[float], str], bold: bool = False) -> Cell:
    return MISSING if value is None else Cell(value, text(value), bold=bold)


def text_cell(text: str) -> Cell:
    return Cell(text, text)


def least(values: Sequence[float | None], n: int) -> list[bool]:
    """Which of them are among the ``n`` least; ties with the last of those are among them too."""
    known = sorted(value for value in values if value is not None)
    return [value is not None and value <= known[:n][-1] for value in values]


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
