"""How a claim is judged: by the share of cases in which its rule finds it true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tracking.tables.table import Column, Group, Row, Table, text_cell
from tracking.tree import Tree, TreeVariant

EVERY = 1.0
MOST = 0.75
SHARES = {EVERY: "all", MOST: "at least three quarters"}
SHOWN = 3  # exceptions that are named; how many there are is always said


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "cannot be judged"


@dataclass(frozen=True)
class Case:
    """One variant (or one proxy of it) in which a claim can be seen to be true or not."""

    variant: TreeVariant
    true: bool
    numbers: str
    about: str = ""

    def __str__(self) -> str:
        return f"{' '.join(filter(None, (self.variant.name, self.about)))} ({self.numbers})"


@dataclass(frozen=True)
class ClaimRule:
    """``cases`` yields what can be judged; the claim holds where at least ``share`` of it is true."""

    name: str
    label: str
    """Where the paper says so."""
    statement: str
    rule: str
    """When a case is true."""
    share: float
    cases: Callable[[Tree], Iterable[Case]]
    needs: str
    """What a tree must have for it to be judged at all."""
    in_paper: tuple[int, int] | None
    """In how many of how many cases the paper's own printed tables make it true; None where they do not show it."""


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


def judge(tree: Tree, rules: Iterable[ClaimRule]) -> tuple[Claim, ...]:
    """Every claim with its verdict and the numbers behind it."""
    return tuple(_judge_one(tree, rule) for rule in rules)


def claims_table(claims: Sequence[Claim]) -> Table:
    columns = ("verdict", "statement", "label", "rule", "evidence", "printed")
    return Table(
        name="claims",
        title="The paper's claims on these results",
        columns=tuple(Column(name, name, prose=True) for name in columns),
        groups=(
            Group(
                tuple(
                    Row(
                        c.name, tuple(map(text_cell, (c.verdict, c.statement, c.label, c.rule, c.evidence, c.in_paper)))
                    )
                    for c in claims
                )
            ),
        ),
        caption="means over seeds; a verdict is about the variants in these results, and its rule is ours; "
        "printed: the same rule on the numbers that the paper prints",
        row_heading="claim",
    )


def _judge_one(tree: Tree, rule: ClaimRule) -> Claim:
    cases = list(rule.cases(tree))
    true = [case for case in cases if case.true]
    if not cases:
        verdict, evidence = Verdict.OPEN, f"no {rule.needs} in these results"
    else:
        verdict = Verdict.HOLDS if len(true) >= rule.share * len(cases) else Verdict.FAILS
        evidence = _evidence(cases, true)
    said = f"{rule.rule}; to hold, in {SHARES[rule.share]} of the cases"
    printed = "not shown" if rule.in_paper is None else f"true in {rule.in_paper[0]} of {rule.in_paper[1]} cases"
    return Claim(rule.name, rule.label, rule.statement, said, verdict, evidence, printed)


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
