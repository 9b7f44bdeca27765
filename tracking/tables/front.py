"""The front: the closest method at a share of the retrain's cost, beside a retrain cut short at the same cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from tracking.entries import clock_is_steady, mean_over_seeds
from tracking.front import BUDGETS, HELD, KL_F, KL_T, MEASURES, SHORT, Place, percent, places, trajectories
from tracking.tables.benchmark import KL_DEFINED
from tracking.tables.table import (
    MISSING,
    Cell,
    Column,
    Group,
    Row,
    Table,
    counted,
    grouped,
    listed,
    number_cell,
    text_cell,
)
from tracking.tree import Tree, TreeVariant, incomplete_notes, name_within
from unlearn_core.grid import Scenario

HEADINGS = {KL_F: "KL_f", KL_T: "KL_t"}
COLUMNS: tuple[Column, ...] = tuple(
    column
    for measure, kl in HEADINGS.items()
    for column in (
        Column(f"{measure}_closest", f"closest on {kl}"),
        Column(measure, kl, rf"$\mathrm{{KL}}_{kl[-1]}$"),
        Column(f"{measure}_cost_percent", "cost %", aside=True),
        Column(f"{measure}_preparation_percent", "prep. %"),
        Column(f"{measure}_short", f"{SHORT} {kl}", aside=True),
        Column(f"{measure}_over_short", f"x {SHORT}", rf"$\times$ {SHORT}"),
    )
)
CAPTION = (
    "closest: the method with the least KL after spending at most this share of a retrain's cost, each with its last record "
    "within it, or where it ends for what trains for as long as it may, means over seeds; cost: what that took, prep.: what "
    "was computed before any request came; "
    f"{SHORT}: a retrain cut short at exactly this cost, interpolated between its records on two log axes, -- before the "
    f"first, where there is no competitor, and beyond {HELD:g} times the last; x {SHORT}: ratio of the two, "
    f"bold below 1: closer than plain training for as long; base and floor for reference; {KL_DEFINED}"
)
SUMMARY_COLUMNS: tuple[Column, ...] = tuple(
    column
    for budget in BUDGETS
    for column in (
        Column(f"below_at_{budget:g}", percent(budget)),
        Column(f"median_at_{budget:g}", f"x {SHORT}", rf"$\times$ {SHORT}"),
    )
)
SUMMARY_CAPTION = (
    f"columns: share of a retrain's cost; in how many variants some method is closer to the retrain than {SHORT}, a retrain "
    f"cut short at the same cost, and the median over variants of the closest method's KL over {SHORT}'s, bold below 1; -- "
    f"if {SHORT} has no record near that cost, or no method is so cheap"
)


def front(variants: Sequence[TreeVariant]) -> Table:
    """A group for every variant: its five costs, then base and floor."""
    title = "closest at a share of the retrain's cost"
    table = grouped("front", title, variants, COLUMNS, _rows, CAPTION, "cost")
    return replace(table, notes=(*table.notes, *_unrivalled_notes(variants), *_clock_notes(variants)))


def _unrivalled_notes(variants: Sequence[TreeVariant]) -> Iterator[str]:
    """At which costs nothing can be compared: a retrain that is cut shorter than its first record was never measured."""
    firsts = [t.points[0].cost for v in variants for t in trajectories(v) if t.method == SHORT]
    for budget in BUDGETS:
        before = [cost for cost in firsts if budget < cost]
        if before:
            yield (
                f"at {percent(budget)} of a retrain's cost there is no competitor in {len(before)} of "
                f"{counted(len(firsts), 'variant')}: {SHORT}'s first record costs {100 * min(before):.2g} % or more there"
            )


def _clock_notes(variants: Sequence[TreeVariant]) -> tuple[str, ...]:
    shared = [name_within(v, variants) for v in variants if not clock_is_steady(v.entries)]
    said = "costs are not to be relied on where the floor, the same work as the retrain, did not take its time"
    return (f"{said}: {listed(shared)}",) if shared else ()


def _rows(variant: TreeVariant) -> tuple[Row, ...]:
    found = places(variant)
    if not found:
        return ()
    rows = [
        Row(percent(budget), tuple(cell for place in found if place.budget == budget for cell in _cells(place)))
        for budget in BUDGETS
    ]
    return (*rows, *(_reference(variant, name) for name in ("base", "floor") if variant.has(name)))


def _cells(place: Place) -> tuple[Cell, ...]:
    closer = place.ratio is not None and place.ratio < 1
    return (
        MISSING if place.method is None else text_cell(place.method),
        number_cell(place.kl, significant),
        _percent_cell(place.cost),
        _percent_cell(place.preparation),
        number_cell(place.short, significant),
        number_cell(place.ratio, significant, bold=closer),
    )


def significant(value: float) -> str:
    """Two digits that count: next to the floor, two decimals would say nothing."""
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _percent_cell(share: float | None) -> Cell:
    return number_cell(None if share is None else 100 * share)


def _reference(variant: TreeVariant, name: str) -> Row:
    cells: list[Cell] = []
    for measure in MEASURES:
        kl = mean_over_seeds(variant.entries, name, "last", measure)
        cells += (MISSING, number_cell(kl, significant), *(MISSING for _ in range(4)))
    return Row(name, tuple(cells))


def front_summary(tree: Tree) -> Table | None:
    """By measure and scenario, over all variants that have ``short``; None if none has."""
    compared = [(v, found) for v in tree.variants if SHORT in v.methods and (found := places(v))]
    if not compared:
        return None
    groups = []
    for measure in MEASURES:
        rows = []
        for scenario in Scenario:
            of_scenario = [found for v, found in compared if v.variant.scenario is scenario]
            if of_scenario:
                cells = (cell for budget in BUDGETS for cell in _shares(of_scenario, budget, measure))
                rows.append(Row(str(scenario), tuple(cells)))
        groups.append(Group(tuple(rows), f"on {HEADINGS[measure]}"))
    shown = [v for v, _ in compared]
    return Table(
        name="front_summary",
        title=f"Closer than a retrain cut short ({SHORT}) at the same cost?",
        columns=SUMMARY_COLUMNS,
        groups=tuple(groups),
        caption=f"{SUMMARY_CAPTION}; {KL_DEFINED}",
        notes=(*incomplete_notes(shown), *_unrivalled_notes(shown), *_base_note(compared), *_clock_notes(shown)),
        row_heading="scenario",
        group_heading="measure",
    )


def _shares(of_variants: Sequence[Sequence[Place]], budget: float, measure: str) -> tuple[Cell, Cell]:
    found = [place for places in of_variants for place in places if (place.budget, place.measure) == (budget, measure)]
    ratios = [place.ratio for place in found if place.ratio is not None]
    if not ratios:
        return MISSING, MISSING
    below, middle = sum(ratio < 1 for ratio in ratios), median(ratios)
    return Cell(below / len(ratios), f"{below}/{len(ratios)}"), number_cell(middle, significant, bold=middle < 1)


def _base_note(compared: Sequence[tuple[TreeVariant, Sequence[Place]]]) -> Iterator[str]:
    """Who does nothing may beat a short retrain: on requests that hardly change the network."""
    for measure in MEASURES:
        beaten = []
        for variant, found in compared:
            base = mean_over_seeds(variant.entries, "base", "last", measure)
            known = [place.short for place in found if place.measure == measure and place.short is not None]
            if base is not None and known and base < min(known):
                beaten.append(variant)
        if beaten:
            yield (
                f"in {len(beaten)} of {counted(len(compared), 'variant')} the base itself, which unlearns nothing, is "
                f"closer on {HEADINGS[measure]} than {SHORT} at any of these costs"
            )
