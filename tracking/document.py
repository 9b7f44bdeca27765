"""A report as one Markdown document: for a repository, or to read in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracking.figures.style import FigureFile, first_figure
from tracking.summary import headline
from tracking.tables.exports import markdown
from tracking.tables.table import Table
from tracking.tree import Tree
from unlearn_core.writing import write_atomically

MADE = "Made by `unlearn report` from a results tree; not written by hand."
PART, END_OF_PART = "<!-- part: headline -->", "<!-- /part -->"
"""Between them: what a README may quote."""
SHOWN_OPEN = 3
"""Benchmarks that are shown at once; the others are folded, for a grid has many."""


def write_document(
    path: Path,
    tree: Tree,
    sentences: Sequence[str],
    tables: Sequence[Table],
    figures: Sequence[FigureFile],
    notes: str = "",
    audit: Sequence[str] = (),
) -> Path:
    """The front, the summary, how it was made, the attacker's audit, figures, tables; figures are linked below ``figures/``.

    ``audit`` has the lines of its section, if there is one.
    """
    first = [table for table in tables if table.name in ("headline", "front_summary")]
    benchmarks = [table for table in tables if table.name.startswith("benchmark_")]
    told_elsewhere = [*first, *benchmarks, *(table for table in tables if table.name.startswith("audit_"))]
    overview = [table for table in tables if table not in told_elsewhere]
    first_seen = first_figure(figures)
    parts = ["# Results", "", MADE, ""]
    told = headline(tree)
    parts += [PART, "", *(f"{sentence}\n" for sentence in told)]
    if first_seen:
        parts += [*_linked(first_seen), ""]
    parts += [markdown(table) for table in first if table.name == "headline"]
    parts += [END_OF_PART, "", *(markdown(table) for table in first if table.name != "headline")]
    parts += [f"- {sentence}" for sentence in sentences if sentence not in told]
    if notes:
        parts += ["", notes.strip()]
    if tree.problems:
        parts += ["", "## What is wrong with the tree", "", *(f"- `{problem}`" for problem in tree.problems)]
    if audit:
        parts += ["", "## The attacker's audit", "", *audit]
    parts += ["", "## Figures"]
    for figure in figures:
        if figure is not first_seen:
            parts += ["", f"### {figure.title}", "", *_linked(figure)]
    parts += ["", "## Tables"]
    for table in overview:
        parts += ["", *_folded(table)]
    parts += ["", "## Variants"]
    for i, table in enumerate(benchmarks):
        parts += ["", *(_folded(table) if i >= SHOWN_OPEN else [markdown(table)])]
    write_atomically(path, "\n".join(parts).rstrip() + "\n")
    return path


def _linked(figure: FigureFile) -> list[str]:
    return [f"![{figure.title}](figures/{figure.svg.name})", "", figure.caption]


def _folded(table: Table) -> list[str]:
    """GitHub shows Markdown inside details, given the empty lines."""
    return [f"<details><summary>{table.title or table.name}</summary>", "", markdown(table), "</details>"]
