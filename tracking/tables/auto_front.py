"""What ``auto`` reaches at a share of the retrain's cost, beside a retrain cut short and an oracle."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from tracking.auto_front import AUTO_BUDGETS, AutoPlace, auto_places
from tracking.front import MEASURES, SHORT, percent
from tracking.tables.front import HEADINGS, significant
from tracking.tables.table import MISSING, Cell, Column, Group, Row, Table, number_cell
from tracking.tree import Tree, incomplete_notes
from unlearn_core.grid import ARCHITECTURES, Scenario

COLUMNS: tuple[Column, ...] = tuple(
    column
    for budget in AUTO_BUDGETS
    for column in (
        Column(f"auto_below_at_{budget:g}", percent(budget)),
        Column(f"auto_median_at_{budget:g}", f"x {SHORT}", rf"$\times$ {SHORT}"),
        Column(f"auto_worst_at_{budget:g}", "worst"),
        Column(f"auto_oracle_at_{budget:g}", "x oracle", r"$\times$ oracle"),
    )
)
CAPTION = (
    "auto: the method that the rule chooses for the kind of request and the cost, without a retrain or test labels; "
    f"in how many variants it is at or below a retrain cut short at that cost ({SHORT} or short-small, the closer), the "
    "median and the largest of the ratios, and the median over the closest of all methods, which takes a retrain to know; "
    "what auto chose and nobody ran is not counted"
)


def auto_summary(tree: Tree) -> Table | None:
    """By measure, architecture and scenario, over all variants that have ``short``; None if none has."""
    compared = [(v, auto_places(v)) for v in tree.variants if v.has(SHORT, "retrain")]
    if not compared:
        return None
    groups = []
    for measure in MEASURES:
        rows = []
        for arch in ARCHITECTURES:
            for scenario in Scenario:
                found = [
                    place
                    for v, places in compared
                    if (v.variant.arch, v.variant.scenario) == (arch, scenario)
                    for place in places
                    if place.measure == measure
                ]
                if found:
                    cells = (cell for budget in AUTO_BUDGETS for cell in _cells(found, budget))
                    rows.append(Row(f"{arch} {scenario}", tuple(cells)))
        groups.append(Group(tuple(rows), f"on {HEADINGS[measure]}"))
    return Table(
        name="auto_front",
        title="What auto reaches at a share of the retrain's cost",
        columns=COLUMNS,
        groups=tuple(groups),
        caption=CAPTION,
        notes=tuple(incomplete_notes([v for v, _ in compared])),
        row_heading="requests",
        group_heading="measure",
    )


def _cells(found: Sequence[AutoPlace], budget: float) -> tuple[Cell, ...]:
    here = [place for place in found if place.budget == budget]
    ratios = [place.over_short for place in here if place.over_short is not None]
    oracle = [place.over_oracle for place in here if place.over_oracle is not None]
    if not ratios:
        return (MISSING,) * 4
    below = sum(ratio <= 1 for ratio in ratios)
    return (
        Cell(below / len(ratios), f"{below}/{len(ratios)}"),
        number_cell(median(ratios), significant, bold=median(ratios) < 1),
        number_cell(max(ratios), significant),
        number_cell(median(oracle), significant),
    )
