"""How a claim is judged: by the share of cases in which its rule finds it true, and how rules find their cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tracking.entries import mean_over_seeds, unlearned_nothing
from tracking.tables.table import Column, Group, Row, Table, text_cell, two_digits
from tracking.tree import Tree, TreeVariant
from unlearn_core.grid import Scenario

EVERY = 1.0
MOST = 0.75
SHARES = {EVERY: "all", MOST: "at least three quarters"}
SHOWN = 3  # exceptions that are named; how many there are is always said
EVERYWHERE: tuple[Scenario, ...] = tuple(Scenario)


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "cannot be judged"


class Kind(StrEnum):
    PAPER = "claim of the paper"
    OWN = "claim of this project"
    IDENTITY = "checked identity"
    """True by algebra: a case against it is a bug, and a case for it is no finding."""


CHECKED: Mapping[Verdict, str] = {
    Verdict.HOLDS: "no violation",
    Verdict.FAILS: "violated",
    Verdict.OPEN: "nothing to check",
}
"""A verdict on an identity, in words that claim nothing."""


@dataclass(frozen=True)
class Case:
    """One variant (or one proxy of it) in which a claim can be seen to be true or not."""

    variant: TreeVariant
    true: bool
    numbers: str
    about: str = ""

    def __str__(self) -> str:
        return f"{' '.join(filter(None, (self.variant.name, self.about)))} ({self.numbers})"


Cases = Callable[[Tree], Iterable[Case]]
Test = Callable[[TreeVariant], Case | None]
"""None if the variant says nothing about the claim."""


@dataclass(frozen=True)
class ClaimRule:
    """``cases`` yields what can be judged; the claim holds if at least ``share`` of it is true."""

    name: str
    label: str
    """Where the paper says so."""
    statement: str
    rule: str
    """When a case is true."""
    share: float
    cases: Cases
    needs: str
    """What a tree must have for it to be judged at all."""
    in_paper: tuple[int, int] | None
    """In how many of how many cases the paper's own printed tables make it true; None if they do not show it."""
    kind: Kind = Kind.PAPER


@dataclass(frozen=True)
class Claim:
    name: str
    label: str
    statement: str
    rule: str
    verdict: Verdict
    evidence: str
    in_paper: str
    """The same rule on the paper's own printed numbers: is it the data that differ, or the claim that is wide?"""
    kind: Kind = Kind.PAPER

    @property
    def said(self) -> str:
        """The verdict in words."""
        return CHECKED[self.verdict] if self.kind is Kind.IDENTITY else str(self.verdict)


def judge(tree: Tree, rules: Iterable[ClaimRule]) -> tuple[Claim, ...]:
    """Every claim with its verdict and the numbers behind it."""
    return tuple(_judge_one(tree, rule) for rule in rules)


def can_fail(claims: Iterable[Claim]) -> list[Claim]:
    """The claims proper: those that results may go against."""
    return [claim for claim in claims if claim.kind is not Kind.IDENTITY]


def identities(claims: Iterable[Claim]) -> list[Claim]:
    """What is true by algebra, and checked all the same."""
    return [claim for claim in claims if claim.kind is Kind.IDENTITY]


def claims_table(claims: Sequence[Claim]) -> Table:
    """The claims that can fail, ours and then the paper's."""
    groups = ((kind, [claim for claim in claims if claim.kind is kind]) for kind in (Kind.OWN, Kind.PAPER))
    return _table(
        "claims",
        "Claims on these results",
        tuple(Group(_claim_rows(some), f"{kind}") for kind, some in groups if some),
        "means over seeds, at the paper's epoch (the least KL_f) unless the rule says another; a verdict is about the "
        "variants in these results, and its rule is ours; printed: the same rule on the numbers that the paper prints",
    )


def identities_table(claims: Sequence[Claim]) -> Table:
    return _table(
        "identities",
        "Checked identities",
        (Group(_claim_rows(identities(claims))),),
        "true by algebra: that there is no violation says that the code computes what it should, and nothing about a method",
    )


def _table(name: str, title: str, groups: tuple[Group, ...], caption: str) -> Table:
    columns = ("verdict", "statement", "label", "rule", "evidence", "printed")
    return Table(
        name=name,
        title=title,
        columns=tuple(Column(column, column, prose=True) for column in columns),
        groups=groups,
        caption=caption,
        row_heading="claim",
        group_heading="claims",
    )


def _claim_rows(claims: Iterable[Claim]) -> tuple[Row, ...]:
    return tuple(
        Row(c.name, tuple(map(text_cell, (c.said, c.statement, c.label, c.rule, c.evidence, c.in_paper))))
        for c in claims
    )


def _judge_one(tree: Tree, rule: ClaimRule) -> Claim:
    cases = list(rule.cases(tree))
    true = [case for case in cases if case.true]
    if not cases:
        verdict, evidence = Verdict.OPEN, f"no {rule.needs} in these results"
    else:
        verdict = Verdict.HOLDS if len(true) >= rule.share * len(cases) else Verdict.FAILS
        evidence = _evidence(cases, true)
    how = f"{rule.rule}; to hold, in {SHARES[rule.share]} of the cases"
    printed = "not shown" if rule.in_paper is None else f"true in {rule.in_paper[0]} of {rule.in_paper[1]} cases"
    return Claim(rule.name, rule.label, rule.statement, how, verdict, evidence, printed, rule.kind)


def _evidence(cases: Sequence[Case], true: Sequence[Case]) -> str:
    text = f"true in {len(true)} of {len(cases)} cases"
    if true:
        text += f", such as {true[0]}"
    if others := [case for case in cases if not case.true]:
        named = "; ".join(map(str, others[:SHOWN]))
        more = f"; and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        text += f"; not in {named}{more}"
    incomplete = len({case.variant.name for case in cases if not case.variant.complete})
    return text + (f"; {incomplete} of the variants incomplete" if incomplete else "")


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
    """Over all seeds, which all have the row; infinite if it is so in any of them."""
    over_seeds = mean_over_seeds(variant.entries, row, block, name)
    return math.inf if over_seeds is None else over_seeds


def unlearning(variant: TreeVariant, rows: Sequence[str]) -> list[str]:
    """Those of the rows that unlearn in every seed: a proxy that is not admissible is the base."""
    return [row for row in rows if not any(unlearned_nothing(entry, row) for entry in variant.entries)]


def said(what: str, numbers: Mapping[str, float]) -> str:
    return f"{what}: {', '.join(f'{name} {two_digits(value)}' for name, value in numbers.items())}"
