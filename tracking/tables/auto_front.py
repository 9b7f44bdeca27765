"""What ``auto`` reaches at a share of the retrain's cost, beside a retrain cut short, an oracle and a second retrain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from tracking.auto_front import AUTO_BUDGETS, FLOOR_BUDGETS, AutoPlace, assessment_cost, auto_places, kinds_found
from tracking.front import CUT_SHORT, MEASURES, SHORT, percent
from tracking.tables.front import HEADINGS, significant
from tracking.tables.table import MISSING, Cell, Column, Group, Row, Table, listed, number_cell
from tracking.tree import Tree, TreeVariant, incomplete_notes
from unlearn_core.grid import ARCHITECTURES, Scenario

COLUMNS: tuple[Column, ...] = tuple(
    column
    for budget in AUTO_BUDGETS
    for column in (
        Column(f"auto_below_at_{budget:g}", percent(budget)),
        Column(f"auto_median_at_{budget:g}", "median"),
        Column(f"auto_worst_at_{budget:g}", "worst"),
        Column(f"auto_oracle_at_{budget:g}", "x oracle", r"$\times$ oracle"),
    )
)
RIVALS: tuple[tuple[str, Callable[[AutoPlace], float | None]], ...] = (
    (SHORT, lambda place: place.over_short),
    (f"the closer of {listed(CUT_SHORT)}", lambda place: place.over_closer),
)
CAPTION = (
    "auto: the method that the rule chooses for the kind of request and the cost, without a retrain or test labels; what it "
    "takes to assess the request is part of its cost; "
    "in how many variants it is at or below a retrain cut short at that cost, the median and the largest of its KL over "
    f"that one's, bold below 1, and the median over the closest of all methods; which of {listed(CUT_SHORT)} is closer, and "
    "which of all methods is, takes a retrain to know; what auto chose and nobody ran is not counted"
)
FLOOR_COLUMNS: tuple[Column, ...] = tuple(
    column
    for budget in FLOOR_BUDGETS
    for column in (
        Column(f"auto_floor_below_at_{budget:g}", percent(budget)),
        Column(f"auto_floor_median_at_{budget:g}", "median"),
        Column(f"auto_floor_worst_at_{budget:g}", "worst"),
    )
)
FLOOR_CAPTION = (
    "in how many variants what auto chooses at that cost is at most as far from the retrain as the floor, a second retrain "
    "from other initial weights, and the median and the largest of its KL over the floor's"
)
Compared = Sequence[tuple[TreeVariant, Sequence[AutoPlace]]]


def auto_summary(tree: Tree) -> Table | None:
    """By measure and rival, architecture and scenario, over all variants that have ``short``; None if none has."""
    compared = [(v, auto_places(v)) for v in tree.variants if v.has(SHORT, "retrain")]
    if not compared:
        return None
    groups = []
    for measure in MEASURES:
        for name, over in RIVALS:

            def cells(found: Sequence[AutoPlace], over: Callable[[AutoPlace], float | None] = over) -> Iterator[Cell]:
                for budget in AUTO_BUDGETS:
                    here = [place for place in found if place.budget == budget]
                    oracle = [r for place in here if over(place) is not None and (r := place.over_oracle) is not None]
                    yield from _share_median_worst([over(place) for place in here])
                    yield number_cell(median(oracle), significant) if oracle else MISSING

            groups.append(Group(_rows(compared, measure, cells), f"{HEADINGS[measure]} over {name}"))
    return Table(
        name="auto_front",
        title="What auto reaches at a share of the retrain's cost",
        columns=COLUMNS,
        groups=tuple(groups),
        caption=CAPTION,
        notes=(
            *incomplete_notes([v for v, _ in compared]),
            *_notes_on_short(compared),
            *_assessment_notes([v for v, _ in compared]),
        ),
        row_heading="requests",
        group_heading="measure",
    )


def _notes_on_short(compared: Compared) -> Iterator[str]:
    """Where the two cannot be compared, and where ``auto`` is a retrain cut short itself; alike on both measures."""
    for budget in AUTO_BUDGETS:
        here = [p for _, places in compared for p in places if (p.budget, p.measure) == (budget, MEASURES[0])]
        dear = sum(place.kl is None and place.short is not None for place in here)
        unknown = sum(place.short is None for place in here)
        if dear or unknown:
            yield (
                f"at {percent(budget)} {dear + unknown} of {len(here)} variants are not compared: in {dear} what auto chose "
                "takes more than that when the request has been assessed, or was not run, in "
                f"{unknown} {SHORT} has no record"
            )
        same = [r for place in here if place.choice.method == SHORT and (r := place.over_short) is not None]
        if same:
            yield (
                f"at {percent(budget)} auto hands out {SHORT} itself in {len(same)} of {len(here)} variants, at most "
                f"{max(same):.3g} times as far: that is what assessing the request takes"
            )


def _assessment_notes(variants: Sequence[TreeVariant]) -> Iterator[str]:
    """How the tests of a request did, and what they took."""
    right, tested = kinds_found(variants)
    if tested:
        costs = sorted(cost for v in variants if (cost := assessment_cost(v)) > 0)
        yield (
            f"assessing a request takes {percent_of(costs[0])} to {percent_of(costs[-1])} of a retrain, "
            f"{percent_of(median(costs))} in the median; its tests, against retained rows, find the kind that was drawn in "
            f"{right} of {tested} cells"
        )
        for measure in MEASURES:
            where = f"{SHORT} on {HEADINGS[measure]}"
            yield f"if that took nothing, auto would be at or below {where} in {_free(variants, measure)}"
    else:
        yield "what it takes to assess a request is not in these costs: the tree does not say"


def _free(variants: Sequence[TreeVariant], measure: str) -> str:
    """By cost, in how many variants ``auto`` would be at or below ``short`` if assessing a request took nothing."""
    parts = []
    for budget in AUTO_BUDGETS:
        found = [place for v in variants for place in auto_places(v, (budget,), assessed=False)]
        ratios = [r for place in found if place.measure == measure and (r := place.over_short) is not None]
        parts.append(f"{sum(r <= 1 for r in ratios)} of {len(ratios)} at {percent(budget)}")
    return listed(parts)


def percent_of(share: float) -> str:
    return f"{100 * share:.2g} %"


def auto_floor(tree: Tree) -> Table | None:
    """The same over the floor; None if nobody has one."""
    compared = [(v, auto_places(v, FLOOR_BUDGETS)) for v in tree.variants if v.has("floor", "retrain")]
    if not any(place.over_floor is not None for _, places in compared for place in places):
        return None

    def cells(found: Sequence[AutoPlace]) -> Iterator[Cell]:
        for budget in FLOOR_BUDGETS:
            yield from _share_median_worst([place.over_floor for place in found if place.budget == budget])

    return Table(
        name="auto_floor",
        title="What auto reaches, over the floor",
        columns=FLOOR_COLUMNS,
        groups=tuple(
            Group(_rows(compared, measure, cells), f"{HEADINGS[measure]} over the floor") for measure in MEASURES
        ),
        caption=FLOOR_CAPTION,
        notes=tuple(incomplete_notes([v for v, _ in compared])),
        row_heading="requests",
        group_heading="measure",
    )


def _rows(compared: Compared, measure: str, cells: Callable[[Sequence[AutoPlace]], Iterator[Cell]]) -> tuple[Row, ...]:
    """One for every architecture and scenario, and one for all."""
    of = [(v.variant, place) for v, places in compared for place in places if place.measure == measure]
    kinds = [(arch, scenario) for arch in ARCHITECTURES for scenario in Scenario]
    rows = [
        Row(f"{arch} {scenario}", tuple(cells(found)))
        for arch, scenario in kinds
        if (found := [place for variant, place in of if (variant.arch, variant.scenario) == (arch, scenario)])
    ]
    if len(rows) > 1:
        rows.append(Row("all", tuple(cells([place for _, place in of]))))
    return tuple(rows)


def _share_median_worst(found: Sequence[float | None]) -> tuple[Cell, ...]:
    ratios = [ratio for ratio in found if ratio is not None]
    if not ratios:
        return (MISSING,) * 3
    below = sum(ratio <= 1 for ratio in ratios)
    return (
        Cell(below / len(ratios), f"{below}/{len(ratios)}"),
        number_cell(median(ratios), significant, bold=median(ratios) < 1),
        number_cell(max(ratios), significant),
    )
