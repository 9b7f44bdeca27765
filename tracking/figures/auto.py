"""What ``auto`` reaches at every cost beside a retrain cut short: a panel for each head and kind of request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from tracking.auto_front import AutoPlace, auto_places
from tracking.entries import ratio
from tracking.figures.style import FigureFile, log_axis, look_of, new_figure, save, styled
from tracking.front import BUDGETS, KL_F, SHORT
from tracking.tables.headline import WORDS
from tracking.tables.table import counted
from tracking.tree import TreeVariant
from unlearn_core.grid import ARCHITECTURES, Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COSTS: tuple[float, ...] = tuple(float(cost) for cost in np.geomspace(BUDGETS[1], 0.12, 33))
AUTO_COLOUR = "#c1121f"
AUTO_LABEL, SHORT_LABEL, FLOOR_LABEL = "auto", f"{SHORT}: a retrain cut short", "floor: a second retrain"
PANEL_WIDTH, PANEL_HEIGHT = 2.9, 1.95
LEFT, RIGHT, TOP, BOTTOM, BETWEEN = 0.75, 0.12, 0.68, 0.85, 0.3
"""Inches around and between the panels."""
TITLE = "What auto reaches, beside a retrain cut short"

Curve = list[tuple[float, float]]


def write_auto(directory: Path, variants: Sequence[TreeVariant]) -> list[FigureFile]:
    """Nothing if ``auto`` can be compared with a retrain cut short nowhere."""
    drawn = [v for v in variants if v.has(SHORT, "retrain", "floor") and any(_curves(v))]
    if not drawn:
        return []
    with styled():
        return [save(auto_figure(drawn), directory, "auto_front", TITLE, _caption(drawn))]


def auto_figure(variants: Sequence[TreeVariant]) -> Figure:
    """Heads down, kinds of requests across; thin lines are variants, thick ones their median."""
    archs = [arch for arch in ARCHITECTURES if any(v.variant.arch == arch for v in variants)]
    scenarios = [scenario for scenario in Scenario if any(v.variant.scenario is scenario for v in variants)]
    width = LEFT + RIGHT + len(scenarios) * PANEL_WIDTH + (len(scenarios) - 1) * BETWEEN
    height = TOP + BOTTOM + len(archs) * PANEL_HEIGHT + (len(archs) - 1) * BETWEEN
    figure = new_figure(width, height, by_hand=True)
    panels = figure.subplots(len(archs), len(scenarios), sharex=True, sharey="row", squeeze=False)
    for row, arch in zip(panels, archs, strict=True):
        for axes, scenario in zip(row, scenarios, strict=True):
            here = [v for v in variants if (v.variant.arch, v.variant.scenario) == (arch, scenario)]
            _draw(axes, here)
            axes.set_title(WORDS[scenario] if arch == archs[0] else "")
            axes.set_xlabel("cost, % of a retrain" if arch == archs[-1] else "")
        row[0].set_ylabel(f"{arch}\nKL_f, floor = 1")
    entries = dict(zip(*reversed(panels[0, 0].get_legend_handles_labels()), strict=True))
    figure.legend(list(entries.values()), list(entries), loc="lower center", ncols=len(entries), handlelength=2.4)
    figure.subplots_adjust(
        left=LEFT / width,
        right=1 - RIGHT / width,
        top=1 - TOP / height,
        bottom=BOTTOM / height,
        wspace=BETWEEN / PANEL_WIDTH,
        hspace=BETWEEN / PANEL_HEIGHT,
    )
    figure.suptitle("how far from a retrain, at what cost", fontsize=10.5)
    return figure


def _draw(axes: Axes, variants: Sequence[TreeVariant]) -> None:
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        log_axis(axis)
    floor, short = look_of("floor"), look_of(SHORT)
    axes.axhline(1.0, color=floor.color, linewidth=floor.width, label=FLOOR_LABEL, zorder=1)
    found = [_curves(v) for v in variants]
    for which, (label, color) in enumerate(((AUTO_LABEL, AUTO_COLOUR), (SHORT_LABEL, short.color))):
        curves = [pair[which] for pair in found]
        for curve in curves:
            if curve:
                axes.plot(*zip(*curve, strict=True), color=color, linewidth=0.6, alpha=0.35, zorder=2)
        if middle := list(_medians(curves)):
            axes.plot(*zip(*middle, strict=True), color=color, linewidth=2.2, label=label, zorder=4 - which)
    axes.tick_params(which="both", top=False, right=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _curves(variant: TreeVariant) -> tuple[Curve, Curve]:
    """KL_f over the floor's by cost in percent, of ``auto`` and of ``short``, where both are known."""
    places = [place for place in auto_places(variant, COSTS) if place.measure == KL_F]
    return _curve(places, [place.kl for place in places]), _curve(places, [place.short for place in places])


def _curve(places: Sequence[AutoPlace], kls: Sequence[float | None]) -> Curve:
    return [
        (100 * place.budget, over)
        for place, kl in zip(places, kls, strict=True)
        if place.over_short is not None and (over := ratio(kl, place.floor))
    ]


def _medians(curves: Sequence[Curve]) -> Iterator[tuple[float, float]]:
    """At every cost at which as many variants are known as at any: a median of others would jump."""
    by_cost: dict[float, list[float]] = {}
    for cost, over in (point for curve in curves for point in curve):
        by_cost.setdefault(cost, []).append(over)
    most = max(map(len, by_cost.values()), default=0)
    for cost, found in sorted(by_cost.items()):
        if len(found) == most:
            yield cost, median(found)


def _caption(variants: Sequence[TreeVariant]) -> str:
    seeds = max(len(v.entries) for v in variants)
    return (
        "KL(retrain ‖ model) on the forgotten rows over that of the floor, a second retrain, against processor time after "
        f"the request over the retrain's: {counted(len(variants), 'variant')}, means over {counted(seeds, 'seed')}, a thin "
        "line each, the median thick where all are known. Red: auto, which chooses a method without a retrain; what "
        f"choosing takes is in its cost. Black: {SHORT}, plain training on the retained rows, stopped early. A line begins "
        "where both have done something."
    )
