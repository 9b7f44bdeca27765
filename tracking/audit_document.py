"""Audits as Markdown: a section of a report's document, or a document of their own."""

from __future__ import annotations

from collections.abc import Sequence

from tracking.audits import Audit, all_sentences
from tracking.figures.style import FigureFile
from tracking.tables.exports import markdown
from tracking.tables.shadows import audit_table

MADE = "Made by `unlearn audit` from its shadows' answers; not written by hand."


def audit_section(audits: Sequence[Audit], figures: Sequence[FigureFile]) -> list[str]:
    """Lines: what the audits say, then each table with its ROC curves, linked below ``figures/``."""
    lines = [f"- {said}" for said in all_sentences(audits)]
    for audit, figure in zip(audits, figures, strict=True):
        lines += ["", markdown(audit_table(audit)), f"![{figure.title}](figures/{figure.svg.name})", "", figure.caption]
    return lines


def audit_document(audits: Sequence[Audit], figures: Sequence[FigureFile], notes: str = "") -> str:
    """Everything about some audits; ``notes`` is Markdown on how they were run."""
    lines = ["# The attacker's audit: results", "", MADE, ""]
    if notes:
        lines += [notes.strip(), ""]
    return "\n".join([*lines, *audit_section(audits, figures)]).rstrip() + "\n"
