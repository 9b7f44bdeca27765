"""How rules read a tree: means over seeds, and a case for every variant that can be judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tracking.claims.judging import Case
from tracking.spreads import mean_over_seeds, number
from tracking.tables.table import two_digits
from tracking.tree import Tree, TreeVariant
from unlearn_core.spec import Scenario

EVERYWHERE: tuple[Scenario, ...] = tuple(Scenario)
Cases = Callable[[Tree], Iterator[Case]]
Test = Callable[[TreeVariant], Case | None]
"""None where the variant says nothing about the claim."""


def each(scenarios: Sequence[Scenario], rows: Sequence[str], test: Test) -> Cases:
    """A case for every variant of these scenarios in which every seed has these rows."""

    def cases(tree: Tree) -> Iterator[Case]:
        for variant in tree.variants:
            if variant.variant.scenario in scenarios and variant.has(*rows):
                case = test(variant)
                if case is not None:
                    yield case

    return cases


def mean(variant: TreeVariant, row: str, name: str, block: str = "best") -> float:
    """Over all seeds, which all have the row; infinite where it is so in any of them."""
    over_seeds = mean_over_seeds(variant.entries, row, block, name)
    return math.inf if over_seeds is None else over_seeds


def unlearning(variant: TreeVariant, rows: Sequence[str]) -> list[str]:
    """Those of the rows that unlearn in every seed: a proxy that is not admissible is the base."""
    return [row for row in rows if all(number(entry, row, "target", "eta_max") != 0 for entry in variant.entries)]


def said(what: str, numbers: Mapping[str, float]) -> str:
    return f"{what}: {', '.join(f'{name} {two_digits(value)}' for name, value in numbers.items())}"
