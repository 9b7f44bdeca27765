"""The first table of a report: by what is forgotten, how far from a retrain one ends up, in words and in one unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from tracking.entries import mean_over_seeds, ratio
from tracking.front import KL_F, SHORT, Place, headline_budget, percent, places
from tracking.tables.table import Cell, Column, Group, Row, Table, number_cell, text_cell
from tracking.tree import Tree, TreeVariant
from unlearn_core.grid import Scenario

WORDS: Mapping[Scenario, str] = {
    Scenario.CLASS: "a whole class",
    Scenario.SUBCLASS: "a part of a class",
    Scenario.RANDOM: "random rows",
}


def headline_table(tree: Tree) -> Table | None:
    """None if no method is done at any of the budgets."""
    found = {v.name: places(v) for v in tree.variants}
    budget = headline_budget([place for some in found.values() for place in some])
    if budget is None:
        return None
    rows = []
    for scenario, words in WORDS.items():
        there = [
            (v, place)
            for v in tree.variants
            if v.variant.scenario is scenario
            for place in found[v.name]
            if (place.budget, place.measure) == (budget, KL_F) and place.method
        ]
        if there:
            rows.append(Row(words, _cells(there)))
    return Table(
        name="headline",
        title=f"Closest to a retrain at {percent(budget)} of its cost",
        columns=(
            Column("variants", "variants"),
            Column("method", "closest method", prose=True),
            Column("distance", "its distance"),
            Column("short", "a retrain cut short"),
            Column("base", "doing nothing"),
        ),
        groups=(Group(tuple(rows)),),
        caption="distance from a retrained network on the forgotten rows (KL_f), median over variants; 1 is the distance "
        f"between two retrains; a retrain cut short ({SHORT}) costs as much as the method; bold if the method is closer "
        f"than that; -- if {SHORT} has no record there",
        row_heading="what is forgotten",
    )


def _cells(there: Sequence[tuple[TreeVariant, Place]]) -> tuple[Cell, ...]:
    name, count = Counter(place.method for _, place in there).most_common(1)[0]
    floors = [mean_over_seeds(v.entries, "floor", "last", KL_F) for v, _ in there]
    bases = [mean_over_seeds(v.entries, "base", "last", KL_F) for v, _ in there]
    own = _median(ratio(place.kl, floor) for (_, place), floor in zip(there, floors, strict=True))
    short = _median(ratio(place.short, floor) for (_, place), floor in zip(there, floors, strict=True))
    base = _median(ratio(kl, floor) for kl, floor in zip(bases, floors, strict=True))
    said = str(name) if count == len(there) else f"{name} (in {count} of {len(there)})"
    return (
        Cell(len(there), str(len(there))),
        text_cell(said),
        number_cell(own, bold=own is not None and short is not None and own < short),
        number_cell(short),
        number_cell(base),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
