"""KL_t against run time, epoch by epoch, with the floor as a band.  [fig:hero-evolution a]"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracking.entries import Entry, Spread, spread, unlearned_nothing
from tracking.figures.style import FigureFile, height_beside_legend, look_of, new_figure, save, styled, with_seeds
from tracking.tables.table import counted, listed
from unlearn_core import methods
from unlearn_core.grid import Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNKNOWN = Spread(math.nan, math.nan)


@dataclass(frozen=True)
class EvolutionCurve:
    """One method, a value per epoch; seeds that unlearned nothing are the base and have no part in it."""

    method: str
    n_seeds: int
    run_time: tuple[float, ...]
    """Mean over seeds of the seconds so far over the retrain's of the same seed."""
    kl_t: tuple[Spread, ...]
    """NaN if the KL of some seed is not finite."""


def evolution_curves(entries: Sequence[Entry]) -> list[EvolutionCurve]:
    """The methods that have anything to draw, in the paper's order."""
    curves = (_curve([entry for entry in entries if method in entry], method) for method in methods.names())
    return [curve for curve in curves if not all(math.isnan(kl.mean) for kl in curve.kl_t)]


def write_evolution(directory: Path, entries: Sequence[Entry], variant: Variant) -> list[Path]:
    """The figure of one variant as an SVG and a PNG; nothing if there is nothing to draw."""
    name = f"evolution_{variant.scenario}_{variant.arch}_{variant.key}"
    return [path for file in evolution_figure(directory, entries, str(variant), name) for path in (file.svg, file.png)]


def evolution_figure(directory: Path, entries: Sequence[Entry], title: str, name: str) -> list[FigureFile]:
    """The same under any name, with its caption."""
    curves = evolution_curves(entries)
    floor, base = _known_kl_t(entries, "floor"), _known_kl_t(entries, "base")
    if not (curves or floor or base):
        return []
    with styled():
        figure = new_figure(7.5, height_beside_legend(len(curves) + 2))
        axes = figure.add_subplot()
        for curve in curves:
            _draw(axes, curve, len(entries))
        if floor:  # the edge keeps the band visible if a single seed gives it no height
            label = with_seeds("floor (second retrain)", len(floor), len(entries))
            axes.axhspan(min(floor), max(floor), facecolor="0.8", edgecolor="0.8", linewidth=1.5, label=label, zorder=0)
        if base:
            look = look_of("base")
            label = with_seeds("base", len(base), len(entries))
            level = math.fsum(base) / len(base)
            axes.axhline(level, color=look.color, linewidth=look.width, linestyle=look.line, label=label)
        axes.set(yscale="log", xlabel="run time / retrain's", ylabel="KL(retrain ‖ model) on test, nats")
        if curves:
            axes.set_xscale("log")
        axes.set_title(f"{title}: mean over {counted(len(entries), 'seed')}, one mark per epoch")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=3.2)
        return [save(figure, directory, name, f"KL over run time: {title}", _caption(entries, bool(floor)))]


def _known_kl_t(entries: Sequence[Entry], reference: str) -> list[float]:
    """Those that a log axis can show."""
    values = (entry[reference]["kl_t"] for entry in entries if reference in entry)
    return [kl for kl in values if kl is not None and kl > 0]


def _curve(entries: Sequence[Entry], method: str) -> EvolutionCurve:
    histories = []
    for entry in entries:
        epochs = {epoch["epoch"]: epoch for epoch in entry[method]["epochs"] if epoch["epoch"] > 0}
        if epochs and "retrain" in entry:
            histories.append((epochs, entry["retrain"]["seconds"]))
    shared = sorted(set.intersection(*(set(epochs) for epochs, _ in histories))) if histories else []
    times = [spread(epochs[at]["seconds"] / retrain for epochs, retrain in histories) or UNKNOWN for at in shared]
    kl_t = [spread(epochs[at]["kl_t"] for epochs, _ in histories) or UNKNOWN for at in shared]
    return EvolutionCurve(method, len(histories), tuple(time.mean for time in times), tuple(kl_t))


def _draw(axes: Axes, curve: EvolutionCurve, n_entries: int) -> None:
    look = look_of(curve.method)
    label = with_seeds(curve.method, curve.n_seeds, n_entries)
    axes.plot(curve.run_time, [kl.mean for kl in curve.kl_t], label=label, **look.plotted())
    # a spread beyond the mean has no lower end on a log axis: a tenth of the mean stands for it
    low = [max(kl.mean - (kl.std or 0.0), kl.mean / 10) for kl in curve.kl_t]
    high = [kl.mean + (kl.std or 0.0) for kl in curve.kl_t]
    axes.fill_between(curve.run_time, low, high, color=look.color, alpha=0.18, linewidth=0)


def _caption(entries: Sequence[Entry], has_floor: bool) -> str:
    present = {m: [entry for entry in entries if m in entry] for m in methods.names()}
    idle = [m for m, having in present.items() if having and all(unlearned_nothing(entry, m) for entry in having)]
    text = "KL(retrain ‖ model) on the test set after every epoch against run time over the retrain's, " + (
        f"mean and one standard deviation over {counted(len(entries), 'seed')}" if entries[1:] else "one seed"
    )
    text += "; the grey band spans the floor, a second retrain." if has_floor else "."
    if idle:
        text += f" Not admissible in any seed, hence the base itself and not drawn: {listed(idle)}."
    return text
