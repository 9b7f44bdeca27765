"""KL against cost on two log axes: every method's records, the curve of a retrain cut short, and the floor's band."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracking.entries import Spread, spread
from tracking.figures.style import FigureFile, log_axis, look_of, new_figure, save, styled
from tracking.front import BUDGETS, KL_F, KL_T, SHORT, Trajectory, trajectories
from tracking.tables.table import counted, listed
from tracking.tree import TreeVariant, slug

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHORT_LABEL, FLOOR_LABEL, BASE_LABEL = (
    f"{SHORT} (a retrain cut short)",
    "floor (a second retrain)",
    "base (nothing done)",
)
PANELS = ((KL_F, "forgotten rows (KL_f)"), (KL_T, "test set (KL_t)"))

THIN = 1e-3
"""Of its mean, half the height of a band that has none of its own: a line."""


WIDTH, HEIGHT = 9.6, 4.9
LEFT, RIGHT, TOP, BOTTOM, BETWEEN = 0.75, 0.1, 0.62, 0.62, 0.6
"""Inches around and between the panels; the legend's lines come on top."""
LEGEND_COLUMNS, LEGEND_LINE = 7, 0.165


def write_front(directory: Path, variant: TreeVariant, kinds: Sequence[str] = ("svg", "png")) -> list[FigureFile]:
    """The figure of one variant; nothing if no method has a cost."""
    found = [t for t in trajectories(variant) if any(_drawn(t, measure) for measure, _ in PANELS)]
    if not found:
        return []
    with styled():
        figure = front_figure(variant, found)
        title = f"Closeness against cost: {variant.name}"
        return [save(figure, directory, f"front_{slug(variant.name)}", title, _caption(variant, found), kinds)]


def front_figure(variant: TreeVariant, found: Sequence[Trajectory]) -> Figure:
    """Two panels, and below them a legend of as many lines as it needs."""
    figure = new_figure(WIDTH, HEIGHT, by_hand=True)
    panels = [figure.add_subplot(1, 2, i + 1) for i in range(len(PANELS))]
    for axes, (measure, rows) in zip(panels, PANELS, strict=True):
        _draw(axes, variant, found, measure)
        axes.set_title(f"on the {rows}")
        axes.set_xlabel("cost, % of a retrain")
    panels[0].set_ylabel("KL(retrain ‖ model), nats")
    entries = sorted(zip(*panels[0].get_legend_handles_labels(), strict=True), key=lambda e: _legend_order(e[1]))
    figure.legend(
        *zip(*entries, strict=True), loc="lower center", ncols=LEGEND_COLUMNS, handlelength=2.4, columnspacing=1.4
    )
    figure.subplots_adjust(
        left=LEFT / WIDTH,
        right=1 - RIGHT / WIDTH,
        top=1 - TOP / HEIGHT,
        bottom=(BOTTOM + LEGEND_LINE * -(-len(entries) // LEGEND_COLUMNS)) / HEIGHT,
        wspace=2 * BETWEEN / (WIDTH - LEFT - RIGHT - BETWEEN),
    )
    figure.suptitle(f"{variant.name}: how close to a retrain, at what cost", fontsize=10.5)
    return figure


def _legend_order(label: str) -> int:
    """What the others are measured by comes first."""
    return 0 if label == SHORT_LABEL else 1 if label in (FLOOR_LABEL, BASE_LABEL) else 2


def _drawn(trajectory: Trajectory, measure: str) -> list[tuple[float, float]]:
    """The records that two log axes can show, as percent and nats."""
    return [
        (100 * point.cost, kl)
        for point in trajectory.points
        if (kl := point.mean(measure)) is not None and kl > 0 < point.cost
    ]


def _draw(axes: Axes, variant: TreeVariant, found: Sequence[Trajectory], measure: str) -> None:
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        log_axis(axis)
    floor, base = (_reference(variant, name, measure) for name in ("floor", "base"))
    if floor:
        # with one seed the band would have no height, and a log axis needs some; nor has it an end at or below zero
        reach = max(floor.std or 0.0, THIN * floor.mean)
        low, high = max(floor.mean - reach, floor.mean / 10), floor.mean + reach
        axes.axhspan(low, high, facecolor="0.85", edgecolor="0.6", linewidth=0.8, label=FLOOR_LABEL, zorder=0)
    if base:
        look = look_of("base")
        axes.axhline(base.mean, color=look.color, linewidth=1.2, linestyle=look.line, label=BASE_LABEL, zorder=1)
    for trajectory in found:
        if points := _drawn(trajectory, measure):
            _draw_method(axes, trajectory.method, points)
    for budget in BUDGETS:
        axes.axvline(100 * budget, color="0.92", linewidth=0.8, zorder=-1)
    axes.tick_params(which="both", top=False, right=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_method(axes: Axes, method: str, points: Sequence[tuple[float, float]]) -> None:
    look = look_of(method)
    costs, kls = zip(*points, strict=True)
    if method == SHORT:
        drawn: dict[str, Any] = {**look.plotted(), "markersize": 5.5}
        axes.plot(costs, kls, label=SHORT_LABEL, zorder=5, **drawn)
        return
    fill = look.color if look.filled else "white"
    axes.plot(costs, kls, color=look.color, linewidth=0.6, alpha=0.45, zorder=2)
    axes.plot(
        costs[:-1], kls[:-1], linestyle="", marker=look.marker, markersize=2.4, color=look.color, alpha=0.45, zorder=2
    )
    last: dict[str, Any] = {"markersize": 8.0, "markerfacecolor": fill, "markeredgewidth": 1.3}
    axes.plot(costs[-1:], kls[-1:], linestyle="", marker=look.marker, color=look.color, label=method, zorder=4, **last)


def _reference(variant: TreeVariant, name: str, measure: str) -> Spread | None:
    found = spread(entry[name][measure] for entry in variant.entries_with(name))
    return found if found and found.mean > 0 else None


def _caption(variant: TreeVariant, found: Sequence[Trajectory]) -> str:
    parts = [
        "KL(retrain ‖ model) against processor time after the request over the retrain's, means over "
        f"{counted(len(variant.entries), 'seed')}: small marks are a method's records, the large one its last."
    ]
    if any(t.method == SHORT for t in found):
        parts.append(
            f"The black line is {SHORT}: plain training on the retained rows, stopped early. What lies above it is further "
            "from the retrain than plain training for as long."
        )
    else:
        parts.append(f"These results have no {SHORT}, a retrain cut short, to compare with.")
    parts.append("Grey band: the floor, mean ± one standard deviation; dotted: the base.")
    if prepared := [f"{t.method} {100 * t.preparation:.2g} %" for t in found if t.preparation]:
        parts.append(f"Computed before any request and not in the cost: {listed(prepared)} of a retrain.")
    if absent := [method for method in variant.methods if method not in {t.method for t in found}]:
        parts.append(f"Not drawn, for they unlearn nothing or some seeds lack them: {listed(absent)}.")
    return " ".join(parts)
