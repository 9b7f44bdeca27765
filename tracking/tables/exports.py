"""Tables in the forms that people and programs read: terminal, Markdown, LaTeX, CSV, Parquet."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from tracking.tables.table import Cell, Row, Table

LATEX_ESCAPES: Mapping[int, str] = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
        "|": "$|$",
        "±": r"$\pm$",
    }
)
PROSE_WIDTH = "p{3cm}"


def rich_table(table: Table) -> RichTable:
    """For a terminal; the notes are left to the caller, who knows its width."""
    shown = [i for i, column in enumerate(table.columns) if not column.aside]
    aside = dict.fromkeys(column.heading for column in table.columns if column.aside)
    caption = table.caption + (f"; in the files also: {', '.join(aside)}" if aside else "")
    rich = RichTable(
        title=Text(table.title) if table.title else None,  # Text: a plain string's [brackets] would be read as markup
        caption=Text(caption) if caption else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,  # with it, the benchmark would not fit 80 columns
    )
    rich.add_column("", no_wrap=True)
    for column in (table.columns[i] for i in shown):
        if column.prose:
            rich.add_column(Text(column.heading), overflow="fold")
        else:
            heading = re.sub(r" (?!%)", "\n", column.heading)
            rich.add_column(Text(heading), justify="right", no_wrap=True, vertical="bottom")
    for group in table.groups:
        if group.name:
            rich.add_row(Text(group.name, "italic"))
        for row in group.rows:
            cells = [row.cells[i] for i in shown]
            rich.add_row(
                Text(_row_name(row)), *(Text(_joined(cell, "±"), "bold" if cell.bold else "") for cell in cells)
            )
        rich.add_section()
    return rich


def markdown(table: Table) -> str:
    """A table in GitHub's dialect, its title before and its notes after it."""

    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def escaped(text: str) -> str:
        return text.replace("|", r"\|").replace("<", "&lt;")

    lines = [f"**{escaped(table.title)}**", ""] if table.title else []
    lines.append(line([table.row_heading, *(escaped(column.heading) for column in table.columns)]))
    lines.append(line([":--", *(":--" if column.prose else "--:" for column in table.columns)]))
    for group in table.groups:
        if group.name:
            lines.append(line([f"*{escaped(group.name)}*", *("" for _ in table.columns)]))
        for row in group.rows:
            cells = (_joined(cell, " ± ") for cell in row.cells)
            marked = (f"**{text}**" if cell.bold else text for text, cell in zip(cells, row.cells, strict=True))
            lines.append(line([escaped(_row_name(row)), *(escaped(text) for text in marked)]))
    if table.caption:
        lines += ["", f"{escaped(table.caption)}."]
    if table.notes:
        lines += ["", *(f"- {escaped(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    r"""A floating table; it needs ``\usepackage{booktabs}``."""

    def cell_text(cell: Cell) -> str:
        text = _joined(cell, " ± ").translate(LATEX_ESCAPES)
        return rf"\textbf{{{text}}}" if cell.bold else text

    lines = [r"    \toprule"]
    headings = (column.latex or column.heading.translate(LATEX_ESCAPES) for column in table.columns)
    lines.append(rf"    {' & '.join(('', *headings))} \\")
    for group in table.groups:
        lines.append(r"    \midrule")
        if group.name:
            name = group.name.translate(LATEX_ESCAPES)
            lines.append(rf"    \multicolumn{{{len(table.columns) + 1}}}{{l}}{{\textit{{{name}}}}} \\")
        for row in group.rows:
            cells = (_row_name(row).translate(LATEX_ESCAPES), *map(cell_text, row.cells))
            lines.append(rf"    {' & '.join(cells)} \\")
    lines.append(r"    \bottomrule")
    alignment = "".join(PROSE_WIDTH if column.prose else "r" for column in table.columns)
    sentences = ". ".join(part for part in (table.title, table.caption, *table.notes) if part)
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"  \centering",
            r"  \small",
            rf"  \caption{{{sentences.translate(LATEX_ESCAPES)}.}}",
            rf"  \label{{tab:{table.name}}}",
            rf"  \begin{{tabular}}{{l{alignment}}}",
            *lines,
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def frame(table: Table) -> pl.DataFrame:
    """All digits: a column for the groups if they have names, one for the rows, then each value with its std, if any."""
    columns: dict[str, list[object]] = {}
    if any(group.name for group in table.groups):
        columns[table.group_heading] = [group.name for group in table.groups for _ in group.rows]
    columns[table.row_heading] = [row.name for row in table.rows]
    if any(row.remark for row in table.rows):
        columns["remark"] = [row.remark for row in table.rows]
    for i, column in enumerate(table.columns):
        cells = [row.cells[i] for row in table.rows]
        columns[column.name] = [cell.value for cell in cells]
        if any(cell.std is not None for cell in cells):
            columns[f"{column.name}_std"] = [cell.std for cell in cells]
    data = pl.DataFrame([pl.Series(name, values) for name, values in columns.items()])
    return data.with_columns(pl.col(pl.Null).cast(pl.Float64))  # a column without any number is still one of numbers


WRITERS: Mapping[str, Callable[[Table, Path], object]] = {
    "md": lambda table, path: path.write_text(markdown(table)),
    "tex": lambda table, path: path.write_text(latex(table)),
    "csv": lambda table, path: frame(table).write_csv(path),
    "parquet": lambda table, path: frame(table).write_parquet(path),
}


def write_table(table: Table, directory: Path) -> list[Path]:
    """One file for each format, named after the table."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, write in WRITERS.items():
        paths.append(directory / f"{table.name}.{suffix}")
        write(table, paths[-1])
    return paths


def _row_name(row: Row) -> str:
    return f"{row.name} ({row.remark})" if row.remark else row.name


def _joined(cell: Cell, plus_minus: str) -> str:
    return cell.text if cell.std_text is None else f"{cell.text}{plus_minus}{cell.std_text}"
