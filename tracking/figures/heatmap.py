"""The grid at a glance: KL_f over the floor's, variants by methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tracking.entries import mean_over_seeds, ratio, unlearned_nothing
from tracking.figures.style import FigureFile, new_figure, save, styled
from tracking.tables.table import counted
from tracking.tree import TreeVariant
from unlearn_core import methods

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection

NAME = "heat_map"
COLOURS = "YlGnBu"  # its lightness falls all the way: it prints in grey

# inches
ROW, COLUMN = 0.2, 0.56
LEFT, RIGHT, TOP, BOTTOM = 1.55, 0.25, 0.75, 0.75
LEAST_WIDTH = 4.2  # of the title
LINE = 0.13  # of a column's name
NAME_WIDTH = 8  # in letters, of such a line
HEADING, GAP = 1.25, 0.3  # in rows: above a family, between its scenarios


@dataclass(frozen=True)
class HeatCell:
    """``ratio`` is None if the KL of some seed is not finite; ``idle``: the proxy was admissible in no seed."""

    ratio: float | None
    idle: bool

    @property
    def text(self) -> str:
        if self.ratio is None:
            return "--"
        return f"({_short(self.ratio)})" if self.idle else _short(self.ratio)


@dataclass(frozen=True)
class HeatRow:
    """One variant, with a cell per column of the map: None if the method did not run."""

    family: str
    scenario: str
    label: str
    n_seeds: int
    cells: tuple[HeatCell | None, ...]


@dataclass(frozen=True)
class HeatMap:
    columns: tuple[str, ...]
    rows: tuple[HeatRow, ...]


def heat_map(variants: Sequence[TreeVariant]) -> HeatMap:
    """Every variant that has a number, every method that any of them ran, and the base, which unlearned nothing."""
    columns = tuple(c for c in ("base", *methods.names()) if any(v.entries_with("floor", c) for v in variants))
    rows = [
        HeatRow(
            v.family,
            v.variant.scenario,
            f"{v.variant.scenario} {v.variant.key}",
            len(v.entries),
            tuple(_cell(v, column) for column in columns),
        )
        for v in variants
    ]
    return HeatMap(columns, tuple(row for row in rows if any(row.cells)))


def write_heat_map(directory: Path, variants: Sequence[TreeVariant]) -> list[FigureFile]:
    """The map of all variants, as tall as it needs to be; nothing if no KL_f has a floor beside it."""
    cells = heat_map(variants)
    if not any(cell.ratio for row in cells.rows for cell in row.cells if cell):
        return []
    height = sum(_spaces(cells.rows)) + len(cells.rows)
    width_in = LEFT + max(len(cells.columns) * COLUMN, LEAST_WIDTH) + RIGHT
    more_lines = max(_broken(name).count("\n") for name in cells.columns) * LINE
    top, bottom = TOP + more_lines, BOTTOM + more_lines
    height_in = top + height * ROW + bottom
    with styled():
        figure = new_figure(width_in, height_in)
        figure.set_layout_engine("none")  # cells of one size, whatever the labels need
        box = (LEFT / width_in, bottom / height_in, len(cells.columns) * COLUMN / width_in, height * ROW / height_in)
        axes = figure.add_axes(box)
        drawn = _draw(axes, cells, height)
        bar = figure.add_axes((box[0], 0.42 / height_in, 1.0 - (LEFT + RIGHT) / width_in, 0.13 / height_in))
        figure.colorbar(drawn, cax=bar, orientation="horizontal", label="KL_f / floor's KL_f")
        title = "KL from the retrain on the forget set, over the floor's"
        axes.text(0.0, -1.6 - more_lines / ROW, title, fontsize="large", va="bottom")
        return [save(figure, directory, NAME, title, _caption(cells))]


def _cell(variant: TreeVariant, column: str) -> HeatCell | None:
    entries = variant.entries_with("floor", column)
    if not entries:
        return None
    kl_f, floor = (mean_over_seeds(entries, row, "last", "kl_f") for row in (column, "floor"))
    return HeatCell(ratio(kl_f, floor), all(unlearned_nothing(entry, column) for entry in entries))


def _broken(name: str) -> str:
    """A method's name in lines that fit above its column, broken after hyphens."""
    lines = [""]
    for part in name.replace("-", "-\n").split("\n"):
        if lines[-1] and len(lines[-1] + part) > NAME_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _short(value: float) -> str:
    """At most four signs."""
    if value < 9.95:
        return f"{value:.1f}" if value >= 0.095 else f"{value:.2f}"
    return f"{value:.0f}" if value < 9999.5 else f"{value:.0e}".replace("e+0", "e")


def _spaces(rows: Sequence[HeatRow]) -> list[float]:
    """The space above each row, in rows."""
    spaces = []
    for before, row in zip((None, *rows), rows, strict=False):
        if before is None or before.family != row.family:
            spaces.append(HEADING)
        else:
            spaces.append(0.0 if before.scenario == row.scenario else GAP)
    return spaces


def _draw(axes: Axes, cells: HeatMap, height: float) -> PolyCollection:
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LogNorm

    ratios = [cell.ratio for row in cells.rows for cell in row.cells if cell and cell.ratio]
    norm = LogNorm(min(1.0, *ratios), max(10.0, *ratios))
    boxes, values, ticks, labels, top = [], [], [], [], 0.0
    colours = PolyCollection([], cmap=COLOURS, norm=norm, edgecolors="white", linewidths=0.8)
    usual = max(row.n_seeds for row in cells.rows)
    for row, space in zip(cells.rows, _spaces(cells.rows), strict=True):
        if space == HEADING:
            axes.text(0.0, top + space - 0.25, row.family, fontweight="bold", va="bottom")
        top += space
        ticks.append(top + 0.5)
        labels.append(row.label if row.n_seeds == usual else f"{row.label} ({counted(row.n_seeds, 'seed')})")
        for column, cell in enumerate(row.cells):
            if cell is None:
                continue
            dark = False
            if cell.ratio:
                boxes.append([(column + dx, top + dy) for dx, dy in ((0, 0), (1, 0), (1, 1), (0, 1))])
                values.append(cell.ratio)
                red, green, blue, _ = colours.to_rgba(np.array([cell.ratio]))[0]
                dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            place = {"ha": "center", "va": "center", "fontsize": 7.5}
            axes.text(column + 0.5, top + 0.52, cell.text, color="white" if dark else "black", **place)
        top += 1.0
    colours.set_verts(boxes)
    colours.set_array(values)
    axes.add_collection(colours)
    axes.set(xlim=(0, len(cells.columns)), ylim=(height, 0), yticks=ticks, yticklabels=labels)
    axes.set_xticks([i + 0.5 for i in range(len(cells.columns))], [_broken(name) for name in cells.columns])
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=len(cells.rows) > 30)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return colours


def _caption(cells: HeatMap) -> str:
    counts = sorted({row.n_seeds for row in cells.rows})
    over = ("" if len(counts) == 1 else f"{counts[0]} to ") + counted(counts[-1], "seed")
    return (
        f"KL_f at the last epoch over the floor's (1 is as close to the retrain as a second retrain), means over {over}, "
        f"{counted(len(cells.rows), 'variant')}. In brackets: admissible in no seed, so the base's value; dashes: not "
        "finite in some seed; empty: not run."
    )
