"""The first table of a report: by what is forgotten, how far from a retrain one ends, in words and in one unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from tracking.auto_front import AutoPlace, auto_places
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
        title=f"How far from a retrain at {percent(budget)} of its cost",
        columns=(
            Column("variants", "variants"),
            Column("auto", "auto"),
            Column("short", "a retrain cut short"),
            Column("base", "doing nothing"),
            Column("distance", "the closest of all"),
            Column("method", "which is", prose=True),
        ),
        groups=(Group(tuple(rows)),),
        caption="distance from a retrained network on the forgotten rows (KL_f), median over variants; 1 is the distance "
        f"between two retrains; auto: chosen without a retrain; a retrain cut short ({SHORT}): at the same cost; bold if "
        "auto is closer than that; the closest of all takes a retrain to know; -- if nothing is known at that cost",
        row_heading="what is forgotten",
    )


def _cells(there: Sequence[tuple[TreeVariant, Place]]) -> tuple[Cell, ...]:
    name, count = Counter(place.method for _, place in there).most_common(1)[0]
    chosen = [_chosen(v, place.budget) for v, place in there]
    floors = [mean_over_seeds(v.entries, "floor", "last", KL_F) for v, _ in there]
    bases = [mean_over_seeds(v.entries, "base", "last", KL_F) for v, _ in there]
    of_all = _over(floors, [place.kl for _, place in there])
    auto = _over(floors, [None if one is None else one.kl for one in chosen])
    short = _over(
        floors, [place.short if one is None else one.short for one, (_, place) in zip(chosen, there, strict=True)]
    )
    said = str(name) if count == len(there) else f"{name} in {count} of {len(there)}"
    return (
        Cell(len(there), str(len(there))),
        number_cell(auto, bold=auto is not None and short is not None and auto < short),
        number_cell(short),
        number_cell(_over(floors, bases)),
        number_cell(of_all),
        text_cell(said),
    )


def _chosen(variant: TreeVariant, budget: float) -> AutoPlace | None:
    """What ``auto`` reaches where a retrain cut short can be compared with it."""
    if not variant.has(SHORT, "retrain"):
        return None
    return next((place for place in auto_places(variant, (budget,)) if place.measure == KL_F), None)


def _over(floors: Sequence[float | None], kls: Sequence[float | None]) -> float | None:
    """The median over variants, in units of the floor."""
    known = [over for kl, floor in zip(kls, floors, strict=True) if (over := ratio(kl, floor)) is not None]
    return median(known) if known else None
