"""Make tables, figures and one page from results.

Make tables (Markdown, LaTeX, CSV, Parquet), figures (SVG, PNG), polars frames, a Markdown document and one
self-contained HTML page from a results tree, with the paper's numbers and claims beside yours. It needs the tree
alone, no models. If a part of the tree is damaged, the report names it and shows the rest.

unlearn report --results runs/grid/results --table 'benchmark_*subclass_0'
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from workflows.commands.values import DIR, chosen, names, path, repeated
from workflows.display import speaker
from workflows.layout import Layout, check_folder, read_text

MARKDOWN = path("FILE.md")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--results", default=Path("runs/grid/results"), **DIR, help="read this results tree")
    add("--out", **DIR, help="write the report here (default: 'report' beside --results)")
    add("--table", **repeated(names, "T,T"), help="also print these tables; * stands for anything")
    add(
        "--document",
        **MARKDOWN,
        help="also write the Markdown document, with its figures and numbers, here",
    )
    add("--notes", **MARKDOWN, help="put this text, on how the runs were made, into the document")
    add("--no-illustrations", action="store_true", help="leave out the two figures that need torch to be drawn")
    add("--tracking-uri", metavar="URI", help="log the report to this MLflow (default: the grid's database, if any)")
    add("--no-tracking", action="store_true", help="do not log the report to MLflow")


def run(arguments: argparse.Namespace, console: Console) -> int:
    from tracking.tables.exports import rich_table
    from workflows import results
    from workflows.publishing import check_document, publish
    from workflows.report import named_tables, write_report

    say = speaker(console)
    out = arguments.out or arguments.results.parent / "report"
    for folder in (out / "tables", out / "figures"):
        check_folder(folder)
    notes = "" if arguments.notes is None else read_text(arguments.notes)
    if arguments.document is not None:
        check_document(arguments.document)
    wanted = chosen(arguments.table, ())
    with console.status("report") as status:
        done = write_report(
            arguments.results,
            out,
            notes,
            not arguments.no_illustrations,
            lambda what: status.update(f"report: {what}"),
            wanted,
        )
    for table in named_tables(done.tables, wanted):
        console.print(rich_table(table))
        for note in table.notes:
            say(note)
    for sentence in done.sentences:
        say(sentence)
    for problem in done.tree.problems:
        say(f"problem in the tree: {problem}")
    for problem in done.unread:
        say(f"audit left out: {problem}")
    if arguments.document is not None:
        quoting = publish(done, arguments.document)
        say(f"document: {arguments.document}")
        for path in quoting:
            say(f"its headline, quoted in: {path}")
    say(f"tables, figures, frames: {out}")
    say(f"page: {done.page}")
    if not arguments.no_tracking:
        say(results.log_report(Layout(arguments.results.parent), arguments.tracking_uri, out))
    return 0
