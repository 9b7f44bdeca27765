"""A results tree as values: variants with their seed entries, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from unlearn_core.spec import METHODS, Variant

Entry = dict[str, Any]
"""The JSON of one seed; see ``records.cell_entry``."""

REFERENCES: tuple[str, ...] = ("base", "retrain", "floor")


@dataclass(frozen=True)
class TreeProblem:
    """Something in the tree that cannot be used, or cannot be true."""

    file: Path
    """Below the root."""
    key: str
    """From the top of the file, such as ``mlp1.results.0[2].ft.best.kl_f``; empty for the file as a whole."""
    what: str

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.file), self.key, self.what) if part)


@dataclass(frozen=True)
class TreeVariant:
    """One variant. Every row that is in an entry is whole: what was not has been taken out and is in ``problems``."""

    variant: Variant
    backbone: str
    entries: tuple[Entry, ...]
    problems: tuple[TreeProblem, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.problems

    @property
    def family(self) -> str:
        """What differs from it only in the forget set."""
        return f"{self.variant.dataset}/{self.backbone}/{self.variant.arch}"

    @property
    def name(self) -> str:
        return f"{self.family}/{self.variant.scenario}/{self.variant.key}"

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(entry["seed"] for entry in self.entries)

    @property
    def methods(self) -> tuple[str, ...]:
        """Those of any seed."""
        return tuple(name for name in METHODS if any(name in entry for entry in self.entries))

    def has(self, *rows: str) -> bool:
        """Whether every seed has all of them."""
        return all(row in entry for row in rows for entry in self.entries)

    def entries_with(self, *rows: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if all(row in entry for row in rows))


@dataclass(frozen=True)
class Tree:
    """Variants in the grid's order; problems of files and of variants alike."""

    variants: tuple[TreeVariant, ...]
    problems: tuple[TreeProblem, ...] = field(default=())

    def families(self) -> list[list[TreeVariant]]:
        """The variants by data set, backbone and architecture."""
        return [list(group) for _, group in groupby(self.variants, lambda variant: variant.family)]


def shared_name(variants: Sequence[TreeVariant]) -> str:
    """The name that some variants have in common: their own for one, their family's, or ``all``."""
    for names in ({v.name for v in variants}, {v.family for v in variants}):
        if len(names) == 1:
            return names.pop()
    return "all"


def name_within(variant: TreeVariant, variants: Sequence[TreeVariant]) -> str:
    """What tells a variant from the others: without the family's name where that is the same for all."""
    same_family = {v.family for v in variants} == {variant.family}
    return f"{variant.variant.scenario}/{variant.variant.key}" if same_family else variant.name


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return name.replace("/", "_")


def incomplete_notes(variants: Sequence[TreeVariant]) -> tuple[str, ...]:
    """A line for every variant whose numbers are not all there, for the table that shows it."""
    return tuple(
        f"{v.name} is incomplete: {v.problems[0]}" + (f" (and {len(v.problems) - 1} more)" if v.problems[1:] else "")
        for v in variants
        if not v.complete
    )
