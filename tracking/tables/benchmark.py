"""The benchmark table of one variant, from the seed entries of the results tree.  [tab:hero-benchmark]"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tracking.entries import (
    REFERENCES,
    Entry,
    Spread,
    clock_is_steady,
    floor_over_retrain,
    number,
    preset_of,
    ratio,
    spread,
    unlearned_nothing,
)
from tracking.tables.table import (
    Column,
    Group,
    Row,
    Table,
    counted,
    least,
    number_cell,
    one_decimal,
    spread_cell,
    two_digits,
)
from tracking.tree import TreeVariant, incomplete_notes, slug
from unlearn_core import methods

KL_DEFINED = "KL in nats, KL(retrain || model); _t on the test set, _f on the forgotten training rows"
COST_DEFINED = (
    "cost: processor time spent after the request was known, prep.: before any request came (whoever shares it), both over "
    "the retrain's; paper's RTE: run time over the retrain's as the paper has it, which is the cost, and nothing of prep."
)
ORACLE_DEFINED = "oracle's epoch: the one with the least KL_f, which only the retrain can tell"
CAPTION = (
    f"{KL_DEFINED}; all at the last epoch, but for the columns of the oracle's epoch; {ORACLE_DEFINED}; x floor: mean KL_f "
    f"over the floor's; floor: a second retrain with another seed; {COST_DEFINED}; bold: the best three on KL, the best "
    "elsewhere (Acc_f: closest to the retrain)"
)


def _least(value: float, _retrain: float) -> float:
    return value


def _greatest(value: float, _retrain: float) -> float:
    return -value


def _closest(value: float, retrain: float) -> float:
    return abs(value - retrain)


@dataclass(frozen=True)
class Measure:
    """A column of the benchmark. ``better`` ranks a mean (smaller is better) beside the retrain's."""

    column: Column
    block: str
    field: str
    better: Callable[[float, float], float]
    bold: int
    """How many of the best are set in bold."""
    text: Callable[[float], str]
    scale: float = 1.0
    with_std: bool = True
    """Not of times: seeds trained in one stack share a clock."""

    def spread(self, entries: Sequence[Entry], row: str) -> Spread | None:
        """Over entries that all have this row."""
        values = [number(entry, row, self.block, self.field) for entry in entries]
        over_seeds = spread(None if value is None else self.scale * value for value in values)
        return over_seeds if self.with_std or over_seeds is None else replace(over_seeds, std=None)


def oracle_column(name: str, heading: str, latex: str) -> Column:
    """The column of a measure at the oracle's epoch."""
    return Column(f"oracle_{name}", f"{heading} oracle's epoch", f"{latex} oracle's epoch", aside=True)


KL_T = Measure(Column("kl_t", "KL_t", r"$\mathrm{KL}_t$"), "last", "kl_t", _least, 3, two_digits)
KL_F = Measure(Column("kl_f", "KL_f", r"$\mathrm{KL}_f$"), "last", "kl_f", _least, 3, two_digits)
ACC_T = Measure(
    Column("acc_t_percent", "Acc_t %", r"$\mathrm{Acc}_t$ (\%)"), "last", "acc_t", _greatest, 1, one_decimal, 100.0
)
ACC_F = Measure(
    Column("acc_f_percent", "Acc_f %", r"$\mathrm{Acc}_f$ (\%)"), "last", "acc_f", _closest, 1, one_decimal, 100.0
)
COST = Measure(Column("cost_percent", "cost %", r"cost (\%)"), "last", "cost", _least, 1, two_digits, 100.0, False)
PREPARATION = Measure(
    Column("preparation_percent", "prep. %", r"prep. (\%)"), "last", "preparation", _least, 0, two_digits, 100.0, False
)
RTE = Measure(
    Column("rte_percent", "paper's RTE %", r"paper's RTE (\%)", aside=True),
    "last",
    "rte",
    _least,
    1,
    two_digits,
    100.0,
    False,
)
ORACLE_KL_T, ORACLE_KL_F = (
    replace(m, column=oracle_column(m.column.name, m.column.heading, m.column.latex or ""), block="best")
    for m in (KL_T, KL_F)
)
MEASURES: tuple[Measure, ...] = (KL_T, KL_F, ACC_T, ACC_F, COST, PREPARATION, RTE, ORACLE_KL_T, ORACLE_KL_F)
OVER_FLOOR = Column("kl_f_over_floor", "x floor", r"$\times$ floor")


def benchmark_table(variant: TreeVariant) -> Table:
    """The table of one variant of a tree."""
    table = benchmark(variant.entries)
    return replace(
        table,
        name=f"benchmark_{slug(variant.name)}",
        title=f"{variant.name}: mean ± std over {counted(len(variant.entries), 'seed')}",
        notes=(*incomplete_notes([variant]), *table.notes),
    )


def benchmark(entries: Sequence[Entry]) -> Table:
    """Mean and spread over seeds, best values marked as the paper marks them.

    Not ranked: a method that only some of the seeds have, which is shown with those, and one that unlearned nothing in
    any seed, which is the base under another name and would win on Acc_t and cost.
    """
    families = (REFERENCES, methods.proxies(), methods.edits(), methods.baselines())
    all_having = {name: [entry for entry in entries if name in entry] for names in families for name in names}
    having = {name: some for name, some in all_having.items() if some}
    spreads = {name: [measure.spread(some, name) for measure in MEASURES] for name, some in having.items()}
    ranked = [
        name
        for name, some in having.items()
        if name not in REFERENCES and len(some) == len(entries) and _idle(some, name) < len(some)
    ]
    bold = [_best(measure, i, spreads, ranked) for i, measure in enumerate(MEASURES)]
    floor = spreads["floor"][MEASURES.index(KL_F)] if "floor" in spreads else None

    def row(name: str) -> Row:
        cells = [
            spread_cell(cell, measure.text, name in bold[i])
            for i, (measure, cell) in enumerate(zip(MEASURES, spreads[name], strict=True))
        ]
        kl_f = spreads[name][MEASURES.index(KL_F)]
        over_floor = ratio(kl_f.mean if kl_f else None, floor.mean if floor else None)
        cells.insert(MEASURES.index(KL_F) + 1, number_cell(over_floor))
        some = len(having[name])
        return Row(name, tuple(cells), "" if some == len(entries) else f"{some}/{len(entries)}")

    columns = [measure.column for measure in MEASURES]
    columns.insert(MEASURES.index(KL_F) + 1, OVER_FLOOR)
    groups = (tuple(row(name) for name in names if name in having) for names in families)
    return Table(
        name="benchmark",
        title="",
        columns=tuple(columns),
        groups=tuple(Group(rows) for rows in groups if rows),
        caption=CAPTION,
        notes=tuple(_notes(entries, having)),
    )


def _best(measure: Measure, i: int, spreads: Mapping[str, Sequence[Spread | None]], names: Sequence[str]) -> set[str]:
    retrain = spreads["retrain"][i] if "retrain" in spreads else None
    if measure.better is _closest and retrain is None:
        return set()
    cells = [spreads[name][i] for name in names]
    scores = [None if cell is None else measure.better(cell.mean, retrain.mean if retrain else 0.0) for cell in cells]
    return {name for name, best in zip(names, least(scores, measure.bold), strict=True) if best}


def _notes(entries: Sequence[Entry], having: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    took = floor_over_retrain(entries)
    if took is not None and not clock_is_steady(entries):
        yield (
            f"cost and RTE are not to be relied on: the floor, the same work as the retrain, took {100 * took:.0f} % of its "
            "time; the machine was shared"
        )
    for name, some in having.items():
        if len(some) < len(entries):
            seeds = ", ".join(str(entry["seed"]) for entry in some)
            yield f"{name}: only in seeds {seeds}; its mean is over those and it is not ranked"
        infinite = sum(number(entry, name, "last", "kl_f") is None for entry in some)
        if infinite:
            yield f"{name}: KL_f is infinite in {infinite} of {len(some)} seeds, and so is its mean"
        if idle := _idle(some, name):
            yield (
                f"{name}: not admissible in {idle} of {len(some)} seeds, where nothing is unlearned and the base counts"
                + ("; it is not ranked" if idle == len(some) else "")
            )
        if name not in REFERENCES:
            for preset in dict.fromkeys(map(preset_of, some)):
                if note := methods.note_on(name, preset):
                    yield f"{name}, preset {preset}: {note}"


def _idle(entries: Sequence[Entry], row: str) -> int:
    """In how many seeds a proxy had nothing to unlearn."""
    return sum(unlearned_nothing(entry, row) for entry in entries)
