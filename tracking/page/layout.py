"""Where on the page a table belongs: to the overview, or to the variant that it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracking.tables.table import Group, Table
from tracking.tree import Tree, TreeVariant, incomplete_notes, name_within, slug

BY_VARIANT: Mapping[str, str] = {
    "front": "Front",
    "benchmark": "Benchmark",
    "distillation": "Distillation",
    "queries": "Audit",
    "bounds": "Audit",
}
"""The tables that are shown variant by variant, by the first word of their name; and what they are called there."""
ELSEWHERE = ("claims", "identities", "headline", "front_summary")
"""The tables that have a section of their own."""


@dataclass(frozen=True)
class Layout:
    overview: tuple[Table, ...]
    by_variant: tuple[tuple[TreeVariant, tuple[Table, ...]], ...]


def lay_out(tree: Tree, tables: Sequence[Table]) -> Layout:
    """Every row of every table has one place; what is about no variant of the tree stays in the overview."""
    by_name = {table.name: table for table in tables if table.name not in ELSEWHERE}
    left = {name: table.groups for name, table in by_name.items()}
    by_variant = []
    for family in tree.families():
        for variant in family:
            own = []
            for kind, title in BY_VARIANT.items():
                for name in (f"{kind}_{slug(variant.name)}", f"{kind}_{slug(variant.family)}"):
                    groups = _groups_about(variant, family, name, left.get(name, ()))
                    if groups:
                        own.append(_part(by_name[name], groups, variant, family, title))
                        left[name] = tuple(group for group in left[name] if group not in groups)
            by_variant.append((variant, tuple(own)))
    overview = (replace(table, groups=left[name]) for name, table in by_name.items())
    return Layout(tuple(table for table in overview if table.groups), tuple(by_variant))


def _groups_about(
    variant: TreeVariant, family: Sequence[TreeVariant], table: str, groups: Sequence[Group]
) -> tuple[Group, ...]:
    """All groups of a table of its own, and its group in the family's."""
    if table.endswith(slug(variant.name)):
        return tuple(groups)
    return tuple(group for group in groups if group.name == name_within(variant, family))


def _part(
    table: Table, groups: Sequence[Group], variant: TreeVariant, family: Sequence[TreeVariant], title: str
) -> Table:
    """Under the variant's heading its name need not be said again."""
    said = name_within(variant, family)
    about_others = {note for other in family if other is not variant for note in incomplete_notes([other])}
    rest = table.title.removeprefix(f"{variant.name}: ").removeprefix(f"{variant.family}: ")
    return replace(
        table,
        title=f"{title}: {rest}",
        groups=tuple(replace(group, name="") if group.name == said else group for group in groups),
        notes=tuple(note for note in table.notes if note not in about_others),
    )
