"""Pages for tests: written from hand-made trees, and read by a parser."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from tracking.claims import judge_all
from tracking.figures.style import FigureFile
from tracking.page import write_page
from tracking.tables.report import report_tables
from tracking.tree import Tree
from unlearn_core.grid import SEEDS

MADE_BY = {"unlearn-grid": "0.1.0"}
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")


@dataclass
class Seen:
    """What a parser finds on the page: the text of every row, by cell, and every element with its attributes."""

    rows: list[list[str]] = field(default_factory=list)
    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    text: str = ""

    def all(self, element: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == element]


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()
        self.in_cell = False
        self.in_group_name = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag == "tr":
            self.seen.rows.append([])
        if tag in ("td", "th"):
            self.in_cell = True
            self.seen.rows[-1].append("")
        if tag == "span":  # the group of a row, seen while rows are sorted
            self.in_group_name = ("class", "of") in attrs

    def handle_endtag(self, tag: str) -> None:
        self.in_cell = self.in_cell and tag not in ("td", "th")
        self.in_group_name = self.in_group_name and tag != "span"

    def handle_data(self, data: str) -> None:
        self.seen.text += data
        if self.in_cell and not self.in_group_name:
            self.seen.rows[-1][-1] += data


def read(path: Path) -> Seen:
    reader = Reader()
    reader.feed(path.read_text())
    reader.close()
    return reader.seen


def figure(directory: Path, name: str = "figure", caption: str = "A caption", svg_bytes: int = 0) -> FigureFile:
    drawn = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="10"><rect width="9" height="9"/></svg>'
    svg, png = directory / f"{name}.svg", directory / f"{name}.png"
    svg.write_text(drawn + " " * max(0, svg_bytes - len(drawn)))
    png.write_bytes(PIXEL)
    return FigureFile(name, "A title", caption, svg, png)


def written(path: Path, tree: Tree, figures=(), claims=None, made_by=None, notes: str = "") -> Path:
    claims = judge_all(tree) if claims is None else claims
    return write_page(path, tree, report_tables(tree, claims), figures, claims, made_by or MADE_BY, notes)


def some_variants(made, n_seeds: int = 2):
    places = (("class", 0), ("subclass", 0), ("subclass", 2), ("random", 50))
    return [
        made.variant(*(made.cell(seed, **made.every_method()) for seed in SEEDS[:n_seeds]), scenario=s, key=k)
        for s, k in places
    ]
