"""The paper's numbers beside ours, wherever both have the same data set, architecture, scenario and key.

Backbones may differ (the paper's heads see DINOv2 features): every title says which ours is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracking.entries import REFERENCES, Spread, number, ratio, spread
from tracking.paper import Paper, PaperBenchmark, PaperVariant
from tracking.tables.benchmark import ACC_F, ACC_T, KL_F, KL_T, RTE, Measure
from tracking.tables.recommendations import PROXIES_SHOWN, admissible_percent, eta_max
from tracking.tables.table import Cell, Column, Group, Row, Table, number_cell, spread_cell, two_decimals, whole
from tracking.tree import Tree, TreeVariant, incomplete_notes, slug
from unlearn_core import methods


def _papers(measure: Measure) -> Measure:
    """At the epoch with the least KL_f, where the paper has all but its KL_last."""
    return replace(measure, block="best")


PAPER_NAMES: Mapping[str, Measure] = {
    "kl_test": _papers(KL_T),
    "kl_last": replace(KL_T, column=Column("kl_last", "KL_last", r"$\mathrm{KL}_\mathrm{last}$")),
    "kl_forget": _papers(KL_F),
    "acc_test": _papers(ACC_T),
    "acc_forget": _papers(ACC_F),
    "rte_percent": replace(RTE, column=Column("rte_percent", "RTE %", r"RTE (\%)"), with_std=True),
}
SIDE_BY_SIDE: tuple[Column, ...] = (Column("paper", "paper"), Column("ours", "ours"), Column("ratio", "ours/paper"))
CAPTION = (
    "mean ± std over seeds; networks at the epoch with the least KL_f, as the paper has it, which takes the retrain to "
    "find (KL_last: KL_t at the last epoch); ours/paper: ratio of the means, from the paper's printed digits, -- if those "
    "are 0; run times are over each one's own retrain, on other machines"
)


def comparisons(tree: Tree, paper: Paper) -> list[Table]:
    """A table for every benchmark that both have, then one for eta_max and one for the distillation, if there is any."""
    tables = [
        _benchmark(benchmark, variant)
        for benchmark in paper.benchmarks
        for variant in tree.variants
        if benchmark.variant.matches(variant)
    ]
    others = (_recommendations(tree, paper), _distillation(tree, paper))
    return [*tables, *(table for table in others if table.groups)]


def _benchmark(benchmark: PaperBenchmark, variant: TreeVariant) -> Table:
    rows = [name for name in (*REFERENCES, *methods.names()) if name in benchmark.rows and variant.entries_with(name)]
    return Table(
        name=f"paper_{slug(variant.name)}",
        title=f"{variant.name}: the paper's {benchmark.label} ({benchmark.backbone}) and ours ({variant.backbone})",
        columns=SIDE_BY_SIDE,
        groups=tuple(
            Group(tuple(_row(benchmark, variant, name, printed_as) for name in rows), measure.column.heading)
            for printed_as, measure in PAPER_NAMES.items()
        ),
        caption=CAPTION,
        notes=incomplete_notes([variant]),
        group_heading="measure",
    )


def _row(benchmark: PaperBenchmark, variant: TreeVariant, name: str, printed_as: str) -> Row:
    measure = PAPER_NAMES[printed_as]
    ours = measure.spread(variant.entries_with(name), name)
    printed = benchmark.rows[name][printed_as]
    cells = (spread_cell(printed, measure.text), spread_cell(ours, measure.text), _ratio_cell(ours, printed))
    return Row(name, cells)


def _recommendations(tree: Tree, paper: Paper) -> Table:
    def row(variant: TreeVariant, proxy: str, published: PaperVariant) -> Row:
        printed = paper.recommendations[published][proxy]
        eta = eta_max(variant, proxy)
        return Row(
            proxy,
            (
                spread_cell(printed.eta_max, two_decimals),
                spread_cell(eta, two_decimals),
                _ratio_cell(eta, printed.eta_max),
                number_cell(float(printed.admissible_percent), whole),
                number_cell(admissible_percent(variant, proxy), whole),
            ),
        )

    both = _both(tree, paper.recommendations)
    return Table(
        name="paper_recommendations",
        title="eta_max and admissible seeds: the paper's (heads on DINOv2) and ours (backbone in the name)",
        columns=(
            *SIDE_BY_SIDE,
            Column("paper_admissible_percent", "paper %"),
            Column("ours_admissible_percent", "ours %"),
        ),
        groups=tuple(
            Group(tuple(row(v, p, published) for p in PROXIES_SHOWN if p in v.methods), v.name) for v, published in both
        ),
        caption=CAPTION,
        notes=incomplete_notes([v for v, _ in both]),
        row_heading="proxy",
    )


def _distillation(tree: Tree, paper: Paper) -> Table:
    def cells(variant: TreeVariant, proxy: str, printed: Mapping[str, Spread] | None, block: str) -> tuple[Cell, ...]:
        found: list[Cell] = []
        for printed_as, name in (("kl_test", "kl_t"), ("kl_forget", "kl_f")):
            ours = spread(number(entry, proxy, block, name) for entry in variant.entries_with(proxy))
            number_printed = None if printed is None else printed[printed_as]
            found += [spread_cell(number_printed), spread_cell(ours)]
            found.append(_ratio_cell(ours, number_printed))
        return tuple(found)

    both = _both(tree, paper.distillation)
    groups = []
    for variant, published in both:
        rows = []
        for proxy, printed in paper.distillation[published].items():
            if proxy in variant.methods:
                rows.append(Row(f"{proxy} target", cells(variant, proxy, printed.target, "target")))
                rows.append(Row(f"{proxy} network", cells(variant, proxy, printed.distilled, "best")))
        groups.append(Group(tuple(rows), variant.name))
    columns = [
        Column(f"{measure.column.name}_{column.name}", f"{measure.column.heading} {column.heading}")
        for measure in (KL_T, KL_F)
        for column in SIDE_BY_SIDE
    ]
    return Table(
        name="paper_distillation",
        title="Target and unlearned network: the paper's (heads on DINOv2) and ours (backbone in the name)",
        columns=tuple(columns),
        groups=tuple(groups),
        caption=CAPTION,
        notes=incomplete_notes([v for v, _ in both]),
        row_heading="proxy",
    )


def _both(tree: Tree, published: Mapping[PaperVariant, object]) -> Sequence[tuple[TreeVariant, PaperVariant]]:
    return [(variant, known) for variant in tree.variants for known in published if known.matches(variant)]


def _ratio_cell(ours: Spread | None, printed: Spread | None) -> Cell:
    return number_cell(ratio(ours.mean if ours else None, printed.mean if printed else None))
