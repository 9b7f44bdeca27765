"""Figures from the seed entries of the results tree: one style, readable in greyscale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearn_core.spec import BASELINES, PROXIES, Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Entry = dict[str, Any]
LINES = ("-", "--", "-.", ":")
MARKERS = "osD^v<>PXh*dp"


def write_evolution(directory: Path, entries: Sequence[Entry], variant: Variant) -> list[Path]:
    """KL_t against run time per epoch, the floor as a band  [fig:hero-evolution a]; an SVG and a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names = [name for name in (*PROXIES, *BASELINES) if all(name in entry for entry in entries)]
    for i, name in enumerate(names):
        _draw_method(axes, entries, name, i)
    floor = [entry["floor"]["kl_t"] for entry in entries]
    axes.axhspan(min(floor), max(floor), color="0.8", label="floor (second retrain)", zorder=0)
    base = _mean([entry["base"]["kl_t"] for entry in entries])
    axes.axhline(base, color="0.3", linewidth=0.8, linestyle=(0, (1, 3)), label="base")
    axes.set(yscale="log", xscale="log", xlabel="run time / retrain's", ylabel="KL(retrain || model) on test, nats")
    axes.set_title(f"{variant}: mean over {len(entries)} seeds, one mark per epoch", fontsize=10)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"evolution_{variant.scenario}_{variant.arch}_{variant.key}"
    paths = [directory / f"{stem}.{suffix}" for suffix in ("svg", "png")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def _draw_method(axes: Axes, entries: Sequence[Entry], name: str, i: int) -> None:
    """Mean over seeds with a band of one standard deviation; seeds that unlearned nothing are the base and not drawn."""
    histories = [entry[name]["epochs"] for entry in entries if entry[name]["epochs"][0]["epoch"] > 0]
    if not histories:
        return
    seconds = _mean([entry["retrain"]["seconds"] for entry in entries])
    x, y, low, high = [], [], [], []
    for epochs in zip(*histories, strict=True):
        values = [epoch["kl_t"] for epoch in epochs]
        if any(value is None for value in values):
            continue
        mean = _mean(values)
        spread = math.sqrt(_mean([(value - mean) ** 2 for value in values]))
        x.append(_mean([epoch["seconds"] for epoch in epochs]) / seconds)
        y.append(mean)
        low.append(max(mean - spread, mean / 10))
        high.append(mean + spread)
    proxy = name in PROXIES
    line = axes.plot(
        x,
        y,
        label=name,
        linestyle="-" if proxy else LINES[1 + i % 3],
        linewidth=1.6 if proxy else 1.0,
        marker=MARKERS[i % len(MARKERS)],
        markersize=3.5,
        color=f"C{i % 10}",
    )
    axes.fill_between(x, low, high, color=line[0].get_color(), alpha=0.15, linewidth=0)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
