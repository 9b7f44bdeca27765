"""``unlearn report``: everything that people look at, from a results tree alone."""

from __future__ import annotations

import fnmatch
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tracking.audit_document import audit_section
from tracking.audits import read_audits
from tracking.claims import Claim, judge_all
from tracking.document import write_document
from tracking.figures import write_figures
from tracking.figures.illustrations import write_regions, write_weights
from tracking.figures.roc import write_rocs
from tracking.figures.style import FigureFile
from tracking.frames import frames
from tracking.page import write_page
from tracking.summary import summary
from tracking.tables.exports import write_table
from tracking.tables.report import report_tables
from tracking.tables.shadows import audit_tables
from tracking.tables.table import Table
from tracking.tree import Tree, read_tree
from unlearn_core.errors import BadInput

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Report:
    """What was written, and what it says."""

    tree: Tree
    sentences: tuple[str, ...]
    claims: tuple[Claim, ...]
    tables: tuple[Table, ...]
    files: tuple[Path, ...]
    page: Path
    unread: tuple[str, ...] = ()
    """What is wrong with audits that were left out."""


def write_report(
    results: Path, out: Path, notes: str, illustrations: bool, progress: Progress, wanted: Sequence[str] = ()
) -> Report:
    """Tables, figures, frames, a document and a page below ``out``.

    Args:
        notes: Markdown on how the runs were made, put into the document and the page as it is.
        illustrations: also draw the two figures that come from small computations of their own.
        wanted: patterns of tables that must be there; nothing is written otherwise.
    """
    progress(f"reading {results}")
    tree = read_tree(results)
    if not tree.variants:
        raise BadInput(f"{results} holds no variant that can be read: {tree.problems[0] if tree.problems else 'empty'}")
    claims = judge_all(tree)
    sentences = summary(tree, claims)
    audits, unread = read_audits(results.parent / "audit")
    tables = (*report_tables(tree, claims), *audit_tables(audits))
    named_tables(tables, wanted)
    progress(f"{len(tree.variants)} variants, {len(tables)} tables")
    files = [file for table in tables for file in write_table(table, out / "tables")]
    kept = frames(tree)
    for name, frame in (("rows", kept.rows), ("epochs", kept.epochs)):
        frame.write_parquet(out / f"{name}.parquet")
        files.append(out / f"{name}.parquet")
    progress("figures")
    figures = write_figures(out / "figures", tree.variants)
    curves = write_rocs(out / "figures", audits)
    if illustrations:
        figures += _illustrations(out / "figures")
    files += [file for figure in (*figures, *curves) for file in (figure.svg, figure.png)]
    progress("the page")
    made_by = _made_by(results)
    section = audit_section(audits, curves)
    files.append(write_document(out / "report.md", tree, sentences, tables, figures, notes, section))
    page = write_page(out / "report.html", tree, tables, [*figures, *curves], claims, made_by, notes)
    return Report(tree, sentences, claims, tables, (*files, page), page, tuple(unread))


def _illustrations(directory: Path) -> list[FigureFile]:
    # torch, which reading a tree does without
    import torch
    from threadpoolctl import threadpool_limits

    from unlearn_core.illustration import digit_weights, plane_regions

    # Tiny networks: threads that wait for each other would take most of the time, and on a busy machine minutes
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            weights, plane = digit_weights(), plane_regions()
    finally:
        torch.set_num_threads(threads)
    return [*write_weights(directory, weights), *write_regions(directory, plane)]


def _made_by(results: Path) -> Mapping[str, str]:
    packages = {name: version(name) for name in ("unlearn-grid", "polars", "matplotlib", "numpy")}
    return {"results": str(results), "python": platform.python_version(), **packages}


def named_tables(tables: Sequence[Table], patterns: Sequence[str]) -> list[Table]:
    """The tables whose names match; a pattern that matches none is refused with what there is."""
    for pattern in patterns:
        if not fnmatch.filter([table.name for table in tables], pattern):
            known = ", ".join(table.name for table in tables[:8])
            raise BadInput(f"no table is called {pattern!r}; there are {known} and {max(0, len(tables) - 8)} more")
    return [table for table in tables if any(fnmatch.fnmatch(table.name, pattern) for pattern in patterns)]
