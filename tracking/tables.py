"""The benchmark table of one variant, from the seed entries of the results tree.  [tab:hero-benchmark]"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from unlearn_core.spec import BASELINES, PROXIES, Variant

Entry = dict[str, Any]
REFERENCES: tuple[str, ...] = ("base", "retrain", "floor")


@dataclass(frozen=True)
class Spread:
    """Mean and population standard deviation (ddof 0, as in the paper) over seeds."""

    mean: float
    std: float


@dataclass(frozen=True)
class Column:
    """``better`` ranks a cell (smaller is better); ``bold`` is how many of the best are set in bold."""

    name: str
    value: Callable[[Entry, str], float | None]
    better: Callable[[float, float], float]
    bold: int
    text: Callable[[float], str]


@dataclass(frozen=True)
class Row:
    name: str
    cells: tuple[Spread | None, ...]
    bold: tuple[bool, ...]


@dataclass(frozen=True)
class Benchmark:
    """A table as values: rendering is somebody else's."""

    columns: tuple[Column, ...]
    references: tuple[Row, ...]
    methods: tuple[tuple[Row, ...], ...]
    """Proxies, then baselines."""
    notes: tuple[str, ...]


def _least(value: float, _retrain: float) -> float:
    return value


def _greatest(value: float, _retrain: float) -> float:
    return -value


def _closest(value: float, retrain: float) -> float:
    return abs(value - retrain)


def _field(block: str, name: str, scale: float = 1.0) -> Callable[[Entry, str], float | None]:
    """A number of the entry; references have no epochs, so their own block stands for ``best`` and nothing for ``last``."""

    def value(entry: Entry, row: str) -> float | None:
        record = entry[row]
        if row in REFERENCES:
            # the base's own training time is nobody's cost of unlearning
            record = record if block == "best" and (row, name) != ("base", "rte") else {}
        else:
            record = record[block]
        number = record.get(name)
        return None if number is None else scale * number

    return value


def two_digits(value: float) -> str:
    """Two significant digits as the paper prints KL and RTE, never fewer than the integer part."""
    if abs(value) < 1:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"


def one_decimal(value: float) -> str:
    """Accuracies as the paper prints them."""
    return f"{value:.1f}"


COLUMNS: tuple[Column, ...] = (
    Column("KL_t", _field("best", "kl_t"), _least, 3, two_digits),
    Column("KL_last", _field("last", "kl_t"), _least, 3, two_digits),
    Column("KL_f", _field("best", "kl_f"), _least, 3, two_digits),
    Column("Acc_t %", _field("best", "acc_t", 100.0), _greatest, 1, one_decimal),
    Column("Acc_f %", _field("best", "acc_f", 100.0), _closest, 1, one_decimal),
    Column("RTE %", _field("best", "rte", 100.0), _least, 1, two_digits),
)


def benchmark(entries: Sequence[Entry]) -> Benchmark:
    """Mean and spread over the seeds of one variant, best values marked as the paper marks them."""
    proxies = [name for name in PROXIES if all(name in entry for entry in entries)]
    baselines = [name for name in BASELINES if all(name in entry for entry in entries)]
    names = [*REFERENCES, *proxies, *baselines]
    spreads = {
        name: tuple(_spread(column.value(entry, name) for entry in entries) for column in COLUMNS) for name in names
    }
    bold = {name: [False] * len(COLUMNS) for name in names}
    for c, column in enumerate(COLUMNS):
        reference = spreads["retrain"][c]
        ranked = sorted(
            (column.better(cell.mean, reference.mean if reference else math.nan), name)
            for name in (*proxies, *baselines)
            if (cell := spreads[name][c]) is not None
        )
        for score, name in ranked:
            bold[name][c] = bool(ranked) and score <= ranked[min(column.bold, len(ranked)) - 1][0]
    rows = {name: Row(name, spreads[name], tuple(bold[name])) for name in names}
    return Benchmark(
        columns=COLUMNS,
        references=tuple(rows[name] for name in REFERENCES),
        methods=(tuple(rows[name] for name in proxies), tuple(rows[name] for name in baselines)),
        notes=tuple(_notes(entries, proxies)),
    )


def render(table: Benchmark, variant: Variant, n_seeds: int) -> Table:
    """The table for a terminal."""
    rich = Table(
        title=f"{variant}: mean ± std over {n_seeds} seed{'s' if n_seeds > 1 else ''}",
        caption="KL in nats, KL(retrain || model); best epoch by KL_f; floor: a second retrain with another seed",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    rich.add_column("", no_wrap=True)
    for column in table.columns:
        rich.add_column(column.name, justify="right", no_wrap=True)
    for group in (table.references, *table.methods):
        for row in group:
            cells = (
                Text(_cell(column, spread), "bold" if bold else "")
                for column, spread, bold in zip(table.columns, row.cells, row.bold, strict=True)
            )
            rich.add_row(row.name, *cells)
        rich.add_section()
    return rich


def _cell(column: Column, spread: Spread | None) -> str:
    return "--" if spread is None else f"{column.text(spread.mean)}±{column.text(spread.std)}"


def _notes(entries: Sequence[Entry], proxies: Iterable[str]) -> Iterable[str]:
    for name in proxies:
        etas = [entry[name]["target"]["eta_max"] for entry in entries]
        idle = sum(eta == 0 for eta in etas)
        if idle:
            yield f"{name}: not admissible in {idle} of {len(etas)} seeds, where nothing is unlearned and the base counts"


def _spread(values: Iterable[float | None]) -> Spread | None:
    """None where any seed has no number: a mean over some seeds would not be comparable."""
    known = list(values)
    if any(value is None for value in known):
        return None
    numbers = [float(value) for value in known if value is not None]
    mean = math.fsum(numbers) / len(numbers)
    return Spread(mean, math.sqrt(math.fsum((n - mean) ** 2 for n in numbers) / len(numbers)))
