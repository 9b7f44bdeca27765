"""Which proxy for which scenario and architecture: eta_max, and how often a proxy is admissible.

[tab:reco] and its companions, whose captions give the rule: across scenarios, one architecture at the default keys class 0,
subclass 0 and random 50; across architectures, one scenario and key.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from tracking.entries import Spread, spread
from tracking.tables.table import (
    MISSING,
    Cell,
    Column,
    Group,
    Row,
    Table,
    number_cell,
    spread_cell,
    two_decimals,
    whole,
)
from tracking.tree import Tree, TreeVariant, incomplete_notes, slug
from unlearn_core.grid import Scenario

PROXIES_SHOWN: tuple[str, ...] = ("lda", "lda-mix", "lda-2c", "qda", "qda-mix")
DEFAULT_KEYS: Mapping[Scenario, int] = {Scenario.CLASS: 0, Scenario.SUBCLASS: 0, Scenario.RANDOM: 50}
COLUMNS: tuple[Column, ...] = tuple(
    column
    for proxy in PROXIES_SHOWN
    for column in (Column(f"{proxy}_eta_max", proxy), Column(f"{proxy}_admissible_percent", "%"))
)
CAPTION = "eta_max, mean ± std over seeds, and the percentage of seeds where the proxy is admissible; bold: all of them"


def eta_max(variant: TreeVariant, proxy: str) -> Spread | None:
    """Over the seeds that have the proxy; 0 if it is not admissible."""
    return spread(entry[proxy]["target"]["eta_max"] for entry in variant.entries_with(proxy))


def admissible_percent(variant: TreeVariant, proxy: str) -> float | None:
    """Of the seeds that have the proxy."""
    share = spread(100.0 * entry[proxy]["target"]["admissible"] for entry in variant.entries_with(proxy))
    return None if share is None else share.mean


def across_scenarios(tree: Tree) -> list[Table]:
    """A table for every data set, backbone and architecture."""
    tables = []
    for family in tree.families():
        shown = [v for v in family if DEFAULT_KEYS[v.variant.scenario] == v.variant.key]
        absent = [
            f"{scenario} {key}"
            for scenario, key in DEFAULT_KEYS.items()
            if scenario not in {v.variant.scenario for v in shown}
        ]
        if shown:
            name = family[0].family
            tables.append(
                Table(
                    name=f"recommendations_across_scenarios_{slug(name)}",
                    title=f"{name}: recommendations across scenarios",
                    columns=COLUMNS,
                    groups=(Group(tuple(Row(_forgotten(v), _cells(v)) for v in shown)),),
                    caption=CAPTION,
                    notes=(*incomplete_notes(shown), *(f"not in the results: {which}" for which in absent)),
                    row_heading="scenario",
                )
            )
    return tables


def across_architectures(tree: Tree) -> list[Table]:
    """A table for every data set and scenario, with a group for every key."""

    def table_of(v: TreeVariant) -> tuple[str, int]:
        return v.variant.dataset, list(Scenario).index(v.variant.scenario)

    tables = []
    for _, some in groupby(sorted(tree.variants, key=table_of), table_of):
        shown = sorted(some, key=lambda v: v.variant.key)  # stable: architectures stay in the grid's order
        dataset, scenario = shown[0].variant.dataset, shown[0].variant.scenario
        groups = (
            Group(tuple(Row(f"{v.backbone} {v.variant.arch}", _cells(v)) for v in of_key), f"{scenario} {key}")
            for key, of_key in groupby(shown, lambda v: v.variant.key)
        )
        tables.append(
            Table(
                name=f"recommendations_across_architectures_{dataset}_{scenario}",
                title=f"{dataset}, {scenario}: recommendations across architectures",
                columns=COLUMNS,
                groups=tuple(groups),
                caption=CAPTION,
                notes=incomplete_notes(shown),
                row_heading="architecture",
                group_heading="forgotten",
            )
        )
    return tables


def _forgotten(v: TreeVariant) -> str:
    return f"{v.variant.scenario} {v.variant.key}"


def _cells(variant: TreeVariant) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for proxy in PROXIES_SHOWN:
        percent = admissible_percent(variant, proxy)
        eta = eta_max(variant, proxy)
        cells.append(MISSING if eta is None else spread_cell(eta, two_decimals))
        cells.append(number_cell(percent, whole, bold=percent == 100.0))
    return tuple(cells)
