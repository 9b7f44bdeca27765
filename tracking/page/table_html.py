"""A table as HTML: sortable by its heads, in a box of its own that scrolls if the screen is narrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracking.html import Html, joined, tag, typeset
from tracking.tables.table import Cell, Column, Group, Row, Table

NO_LINKS: Mapping[tuple[str, str], str] = {}


def table_html(table: Table, links: Mapping[tuple[str, str], str] = NO_LINKS, label: str = "") -> Html:
    """Only the grid. ``links`` goes from the names of a group and of a row in it to the address of the row's link."""
    spreads = [any(row.cells[i].std_text is not None for row in table.rows) for i in range(len(table.columns))]
    named = any(group.name for group in table.groups)
    row_heading = f"{table.group_heading}, {table.row_heading}" if named else table.row_heading
    heads = (head_html(row_heading, prose=True), *(head_html(c.heading, c.prose) for c in table.columns))
    bodies = (_body(group, table.columns, spreads, links) for group in table.groups)
    grid = tag("table", tag("thead", tag("tr", *heads)), Html("\n"), joined(bodies), data_sortable=True)
    return tag("div", grid, class_="scroll", role="region", aria_label=label or table.title or table.name)


def explained(table: Table, caption_folded: bool = False) -> Html:
    """What stands below a table: notes about this one, then what the columns mean."""
    parts = [tag("ul", *(tag("li", typeset(note)) for note in table.notes), class_="notes")] if table.notes else []
    if table.caption:
        caption = tag("p", typeset(f"{sentence(table.caption)}."), class_="caption")
        parts.append(
            tag("details", tag("summary", "What the columns mean"), caption, class_="legend")
            if caption_folded
            else caption
        )
    return joined(parts)


def sentence(text: str) -> str:
    """With a capital, unless it begins with a name such as eta_max or a variant's."""
    return text[:1].upper() + text[1:] if text.split(" ", 1)[0].rstrip(":;,").isalpha() else text


def head_html(heading: str, prose: bool = False) -> Html:
    """A heading that sorts its column: a button for the keyboard, the order as ``aria-sort`` for screen readers."""
    button = tag("button", typeset(heading), type="button")
    return tag("th", button, scope="col", aria_sort="none", class_="prose" if prose else None)


def _body(
    group: Group, columns: Sequence[Column], spreads: Sequence[bool], links: Mapping[tuple[str, str], str]
) -> Html:
    rows = [_row(row, group, columns, spreads, links.get((group.name, row.name))) for row in group.rows]
    if group.name:
        head = tag("th", tag("span", typeset(group.name)), scope="rowgroup", colspan=str(len(columns) + 1))
        rows.insert(0, tag("tr", head, class_="group"))
    return tag("tbody", joined(rows))


def _row(row: Row, group: Group, columns: Sequence[Column], spreads: Sequence[bool], link: str | None) -> Html:
    # seen only while rows of several groups are sorted together
    of = (tag("span", f"{group.name} ", class_="of"),) if group.name else ()
    name = tag("a", row.name, href=link) if link else row.name
    remark = (tag("span", f" {row.remark}", class_="remark"),) if row.remark else ()
    head = tag("th", *of, name, *remark, scope="row")
    cells = (_cell(cell, col.prose, std) for cell, col, std in zip(row.cells, columns, spreads, strict=True))
    return tag("tr", head, *cells)


def _cell(cell: Cell, prose: bool, with_std: bool) -> Html:
    missing = cell.value is None
    text = "\N{EN DASH}" if missing else typeset(cell.text) if prose else cell.text
    parts = [tag("b", text) if cell.bold else text]
    if with_std:  # empty if there is none, so that numbers stand below each other
        parts.append(tag("small", "" if cell.std_text is None else f"±{cell.std_text}"))
    key = "" if missing else None if isinstance(cell.value, str) else repr(cell.value)
    return tag("td", *parts, data_v=key, class_="prose" if prose else None)
