"""``unlearn report``: everything that people look at, from a results tree alone."""

from __future__ import annotations

import fnmatch
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tracking.claims import Claim, judge_all
from tracking.document import MADE, write_document
from tracking.figures import write_figures
from tracking.figures.illustrations import write_regions, write_weights
from tracking.figures.style import FigureFile
from tracking.frames import frames
from tracking.page import write_page
from tracking.summary import summary
from tracking.tables.exports import write_table
from tracking.tables.report import report_tables
from tracking.tables.table import Table
from tracking.tree import Tree, read_tree
from unlearn_core.errors import BadInput
from workflows.layout import check_folder

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
    tables = report_tables(tree, claims)
    named_tables(tables, wanted)
    progress(f"{len(tree.variants)} variants, {len(tables)} tables")
    files = [file for table in tables for file in write_table(table, out / "tables")]
    kept = frames(tree)
    for name, frame in (("rows", kept.rows), ("epochs", kept.epochs)):
        frame.write_parquet(out / f"{name}.parquet")
        files.append(out / f"{name}.parquet")
    progress("figures")
    figures = write_figures(out / "figures", tree.variants)
    if illustrations:
        figures += _illustrations(out / "figures")
    files += [file for figure in figures for file in (figure.svg, figure.png)]
    progress("the page")
    made_by = _made_by(results)
    files.append(write_document(out / "report.md", tree, sentences, tables, figures, notes))
    page = write_page(out / "report.html", tree, tables, figures, claims, made_by, notes)
    return Report(tree, sentences, claims, tables, (*files, page), page)


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


def check_document(document: Path) -> None:
    """Refuse, before any work is done, a place whose file was not made by a report."""
    if document.suffix != ".md" or document.is_dir():
        raise BadInput(f"--document {document} names no Markdown file; it is such as docs/results.md")
    check_folder(document.parent / "figures" / document.stem, "--document")
    if document.exists() and not _made_here(document):
        raise BadInput(
            f"{document} was not made by 'unlearn report', so it is not written over; name another --document"
        )


def publish(report: Report, document: Path) -> None:
    """The document at a place of its own, such as docs/results.md, with the figures that it shows beside it.

    The figures of an earlier document there are replaced: those that it links, and nothing else.
    """
    check_document(document)
    source = report.page.parent / "report.md"
    figures = document.parent / "figures" / document.stem
    text = source.read_text()
    shown = {path.name: path for path in report.files if path.suffix == ".svg" and f"(figures/{path.name})" in text}
    for name in shown:
        text = text.replace(f"(figures/{name})", f"({_link(document, name)})")
    ours = _linked_figures(document) if document.exists() else set()
    if foreign := sorted(name for name in shown if name not in ours and (figures / name).exists()):
        raise BadInput(f"{figures / foreign[0]} is not of an earlier report, so it is not written over; move it away")
    figures.mkdir(parents=True, exist_ok=True)
    for name, path in shown.items():
        shutil.copy(path, figures / name)
    document.write_text(text)
    for name in ours - set(shown):
        (figures / name).unlink(missing_ok=True)


def _made_here(document: Path) -> bool:
    return MADE in document.read_bytes().decode(errors="replace")


def _linked_figures(document: Path) -> set[str]:
    """The figures that an earlier document shows: it was made here, so they were."""
    prefix = re.escape(_link(document, ""))
    return set(re.findall(rf"^!\[.*\]\({prefix}([^/()]+\.svg)\)$", document.read_text(), re.MULTILINE))


def _link(document: Path, figure: str) -> str:
    return f"figures/{document.stem}/{figure}"


def named_tables(tables: Sequence[Table], patterns: Sequence[str]) -> list[Table]:
    """The tables whose names match; a pattern that matches none is refused with what there is."""
    for pattern in patterns:
        if not fnmatch.filter([table.name for table in tables], pattern):
            known = ", ".join(table.name for table in tables[:8])
            raise BadInput(f"no table is called {pattern!r}; there are {known} and {max(0, len(tables) - 8)} more")
    return [table for table in tables if any(fnmatch.fnmatch(table.name, pattern) for pattern in patterns)]
