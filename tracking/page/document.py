"""The page: its parts in their order, and the one file that holds them all."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from tracking.claims import Claim, Kind, Verdict, can_fail, claims_table, identities, identities_table
from tracking.figures.style import FigureFile, first_figure
from tracking.html import VIEWPORT, Html, asset, document, joined, tag, typeset
from tracking.page.explorer import explorer
from tracking.page.layout import Layout, lay_out
from tracking.page.page_tables import INCOMPLETE, index_table, problems_table, provenance_tables, recipe_table
from tracking.page.table_html import explained, head_html, sentence, table_html
from tracking.summary import headline, summary
from tracking.tables.table import Table, counted
from tracking.tree import Tree, TreeVariant, name_within
from unlearn_core.writing import write_atomically

SVG_BYTES = 400_000
"""Of a larger SVG the PNG is taken, unless that is larger still."""
FOLDED_ROWS = 20
"""An overview table with more is folded."""
OPEN_VARIANTS = 3
"""With more variants, all of them are folded."""

SECTIONS: Mapping[str, str] = {
    "front": "How close, at what cost",
    "explore": "Compare methods",
    "variants": "Results by scenario",
    "summary": "Summary",
    "claims": "Claims",
    "figures": "Figures",
    "tables": "Tables",
    "computed": "How it was computed",
}
MARKS: Mapping[Verdict, tuple[str, str]] = {
    Verdict.HOLDS: ("holds", "\N{CHECK MARK}"),
    Verdict.FAILS: ("fails", "\N{MULTIPLICATION X}"),
    Verdict.OPEN: ("open", "?"),
}
"""A class and a sign: verdicts are told apart without colour too."""


def write_page(
    path: Path,
    tree: Tree,
    tables: Sequence[Table],
    figures: Sequence[FigureFile],
    claims: Sequence[Claim],
    made_by: Mapping[str, str],
    notes: str = "",
) -> Path:
    """One HTML file that opens from disk and asks the network for nothing.

    Args:
        tables: of ``report_tables``, in any order.
        made_by: what made the page, by name.
        notes: on how the runs were made; paragraphs of plain text.
    """
    title = f"Unlearning results: {', '.join(dict.fromkeys(v.variant.dataset for v in tree.variants)) or 'none'}"
    layout = lay_out(tree, tables)
    headline_figure = first_figure(figures)
    others = [figure for figure in figures if figure is not headline_figure]
    sections = (
        _section("front", *_front(tree, tables, headline_figure)),
        _section("explore", *explorer(tree)),
        _section("variants", *_variants(tree, layout)),
        _section("summary", *_summary(tree, claims)),
        _section("claims", *_claims(claims)),
        _section("figures", *map(_figure, others)),
        _section("tables", *map(_overview_table, layout.overview)),
        _section("computed", *_computed(tree, made_by, notes)),
    )
    write_atomically(path, _document(title, _navigation(tree), joined((*_warning(tree), *sections))))
    return path


def _document(title: str, navigation: Html, sections: Html) -> str:
    style, script = asset("page.css"), joined((asset("page.js"), asset("explorer.js")))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_sha256(style)}'; script-src '{_sha256(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = (
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        VIEWPORT,
        tag("meta", name="color-scheme", content="light dark"),
    )
    main = tag("main", tag("h1", title), sections)
    return document(title, style, (navigation, main, tag("script", script)), head)


def _sha256(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _section(name: str, *parts: Html) -> Html:
    return tag("section", tag("h2", SECTIONS[name]), *(parts or (tag("p", "None."),)), id=name)


def _anchor(variant: TreeVariant) -> str:
    """The same in an id and after a #, whatever a folder was called."""
    return quote(variant.name)


def _navigation(tree: Tree) -> Html:
    links = (tag("a", title, href=f"#{name}") for name, title in SECTIONS.items())
    parts = [tag("optgroup", *(tag("option", t, value=name) for name, t in SECTIONS.items()), label="Sections")]
    for family in tree.families():
        options = (
            tag("option", name_within(v, family) + ("" if v.complete else f" ({INCOMPLETE})"), value=_anchor(v))
            for v in family
        )
        parts.append(tag("optgroup", *options, label=family[0].family))
    jump = tag(
        "select", tag("option", "Jump to\N{HORIZONTAL ELLIPSIS}", value=""), *parts, id="jump", aria_label="Jump to"
    )
    return tag("nav", tag("div", *links, class_="links"), jump, aria_label="Page")


def _warning(tree: Tree) -> Iterator[Html]:
    if tree.problems:
        found = tag("a", counted(len(tree.problems), "problem"), href="#problems")
        yield tag("p", tag("span", INCOMPLETE, class_="remark"), " The tree has ", found, ".", class_="warning")


def _front(tree: Tree, tables: Sequence[Table], figure: FigureFile | None) -> Iterator[Html]:
    """What a reader should see first: in words, in a picture, in numbers."""
    if said := headline(tree):
        yield tag("ul", *(tag("li", typeset(sentence)) for sentence in said), class_="sentences headline")
    by_name = {table.name: table for table in tables}
    for name in ("headline", "front_summary"):
        if (table := by_name.get(name)) is not None:
            yield tag("h3", typeset(table.title), id=f"table-{name}")
            yield joined((table_html(table), explained(table, caption_folded=name != "headline")))
        if name == "headline" and figure is not None:
            yield _figure(figure)


def _summary(tree: Tree, claims: Sequence[Claim]) -> Iterator[Html]:
    first = headline(tree)
    said = (sentence for sentence in summary(tree, claims) if sentence not in first)
    yield tag("ul", *(tag("li", typeset(sentence)) for sentence in said), class_="sentences")


def _claims(claims: Sequence[Claim]) -> Iterator[Html]:
    if some := can_fail(claims):
        yield _verdicts([*_of_kind(some, Kind.OWN), *_of_kind(some, Kind.PAPER)], "Claims")
        yield explained(claims_table(claims))
    if some := identities(claims):
        table = identities_table(claims)
        yield tag("h3", table.title)
        yield _verdicts(some, table.title)
        yield explained(table)


def _of_kind(claims: Sequence[Claim], kind: Kind) -> list[Claim]:
    return [claim for claim in claims if claim.kind is kind]


def _verdicts(claims: Sequence[Claim], label: str) -> Html:
    heads = (head_html("verdict", prose=True), head_html("claim", prose=True), head_html("printed", prose=True))
    body = tag("tbody", joined(map(_claim, claims)))
    grid = tag("table", tag("thead", tag("tr", *heads)), body, data_sortable=True)
    return tag("div", grid, class_="scroll claims", role="region", aria_label=label)


def _claim(claim: Claim) -> Html:
    name, sign = MARKS[claim.verdict]
    mark = tag("span", tag("span", sign, aria_hidden="true"), f" {claim.said}", class_=f"mark {name}")
    said = (
        tag("div", typeset(claim.statement), class_="statement"),
        tag("div", f"{claim.name} · {claim.label}", class_="source"),
        tag(
            "details",
            tag("summary", tag("span", typeset(sentence(claim.evidence)))),
            tag("p", tag("b", "Rule: "), typeset(claim.rule), "."),
        ),
    )
    order = str(list(MARKS).index(claim.verdict))
    return tag("tr", tag("td", mark, data_v=order), tag("th", *said, scope="row"), tag("td", claim.in_paper))


def _figure(figure: FigureFile) -> Html:
    size = figure.svg.stat().st_size
    kind, file = ("png", figure.png) if size > max(SVG_BYTES, figure.png.stat().st_size) else ("svg+xml", figure.svg)
    source = f"data:image/{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
    card = tag("div", tag("img", src=source, alt=figure.caption), class_="card", tabindex="0", role="group")
    about = tag("figcaption", tag("b", typeset(f"{figure.title}. ")), typeset(figure.caption))
    return tag("figure", card, about, id=f"figure-{quote(figure.name)}")


def _overview_table(table: Table) -> Html:
    shown = joined((table_html(table), explained(table)))
    title = typeset(sentence(table.title or table.name))
    place = f"table-{quote(table.name)}"
    if len(table.rows) > FOLDED_ROWS:
        rows = tag("span", counted(len(table.rows), "row"), class_="aside")
        return tag("details", tag("summary", tag("h3", title), rows), shown, class_="fold", id=place)
    return tag("section", tag("h3", title), shown, id=place)


def _variants(tree: Tree, layout: Layout) -> Iterator[Html]:
    index = index_table(tree)
    links = {
        (group.name, row.name): f"#{_anchor(variant)}"
        for group, family in zip(index.groups, tree.families(), strict=True)
        for row, variant in zip(group.rows, family, strict=True)
    }
    yield tag("div", table_html(index, links), explained(index), class_="index")
    buttons = (tag("button", f"{word} all", type="button", data_fold=word.lower()) for word in ("Open", "Close"))
    yield tag("p", *buttons, class_="folds")
    many = len(tree.variants) > OPEN_VARIANTS
    for variant, tables in layout.by_variant:
        yield _variant(variant, tables, many)


def _variant(variant: TreeVariant, tables: Sequence[Table], folded: bool) -> Html:
    mark = () if variant.complete else (tag("span", INCOMPLETE, class_="remark"),)
    seeds = tag("span", counted(len(variant.entries), "seed"), class_="aside")
    parts = (
        tag(
            "section",
            tag("h4", typeset(table.title)),
            table_html(table, label=f"{variant.name}: {table.title}"),
            explained(table, caption_folded=True),
        )
        for table in tables
    )
    head = tag("summary", tag("h3", variant.name), seeds, *mark)
    return tag("details", head, joined(parts), class_="fold variant", id=_anchor(variant), open=not folded)


def _computed(tree: Tree, made_by: Mapping[str, str], notes: str) -> Iterator[Html]:
    for paragraph in notes.split("\n\n"):
        if paragraph.strip():
            yield tag("p", paragraph.strip())
    for table in (*provenance_tables(tree), recipe_table(tree)):
        yield tag("section", tag("h3", table.title), table_html(table), explained(table))
    makers = (tag("div", tag("dt", name), tag("dd", value)) for name, value in made_by.items())
    yield tag("section", tag("h3", "This page was made by"), tag("dl", *makers))
    problems = problems_table(tree)
    yield tag("h3", problems.title, id="problems")
    if tree.problems:
        yield tag("div", table_html(problems), explained(problems), class_="problems")
    else:
        yield tag("p", "None was found.")
