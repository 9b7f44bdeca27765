"""Every table of a report on a results tree."""

from __future__ import annotations

from collections.abc import Sequence

from tracking.claims import Claim, claims_table, identities_table
from tracking.paper import read_paper
from tracking.tables.audit import bounds, queries
from tracking.tables.auto_front import auto_floor, auto_summary
from tracking.tables.benchmark import benchmark_table
from tracking.tables.beyond import auto_beside_the_oracle, beyond_the_paper
from tracking.tables.comparison import comparisons
from tracking.tables.distillation import distillation
from tracking.tables.front import front, front_summary
from tracking.tables.headline import headline_table
from tracking.tables.recommendations import across_architectures, across_scenarios
from tracking.tables.table import Table
from tracking.tree import Tree, TreeVariant


def _beyond(family: Sequence[TreeVariant]) -> list[Table]:
    return [table for table in (beyond_the_paper(family), auto_beside_the_oracle(family)) if table is not None]


def report_tables(tree: Tree, claims: Sequence[Claim]) -> tuple[Table, ...]:
    """The front, claims, the paper's numbers beside ours, recommendations, then by architecture, then by variant."""
    families = tree.families()
    overview = (headline_table(tree), front_summary(tree), auto_summary(tree), auto_floor(tree))
    return (
        *(table for table in overview if table is not None),
        *(table for family in families if (table := front(family)).groups),
        claims_table(claims),
        identities_table(claims),
        *comparisons(tree, read_paper()),
        *across_scenarios(tree),
        *across_architectures(tree),
        *(table for family in families for table in _beyond(family)),
        *(distillation(family) for family in families),
        *(queries(family) for family in families),
        *(bounds(family) for family in families),
        *(benchmark_table(variant) for variant in tree.variants),
    )
