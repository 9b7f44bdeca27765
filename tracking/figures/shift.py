"""h(eta) of the Gaussian proxies, one panel per scenario, eta_max marked.  [fig:h_eta]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tracking.entries import Entry, gaussian_proxies
from tracking.figures.style import FigureFile, look_of, new_figure, save, styled
from tracking.tables.table import listed
from tracking.tree import TreeVariant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

NAME = "h_eta"


@dataclass(frozen=True)
class ShiftCurve:
    """One proxy's curve as recorded, in nats."""

    proxy: str
    eta: tuple[float, ...]
    h: tuple[float, ...]
    eta_max: float | None
    """0 if the proxy is not admissible; None if the record does not say."""
    h_at_eta_max: float | None

    @property
    def scale(self) -> float:
        """The unit in which the curve is drawn: its depth, or its height if it does not fall below zero."""
        return -min(self.h) if min(self.h) < 0 else max(self.h) or 1.0

    @property
    def label(self) -> str:
        if self.eta_max is None:
            return f"{self.proxy}: no η_max"
        if self.eta_max == 0:
            return f"{self.proxy}: not admissible, max h {self.scale:.2g}"
        return f"{self.proxy}: η_max {self.eta_max:.3f}, min h {min(self.h):.2g}"

    def drawn(self) -> tuple[Array, Array]:
        """The curve in its own scale, through eta_max, which may lie between points that are far from it."""
        points = dict(zip(self.eta, self.h, strict=True))
        if self.eta_max is not None and self.h_at_eta_max is not None:
            points[self.eta_max] = self.h_at_eta_max
        eta, h = np.array(sorted(points.items())).T
        return eta, h / self.scale


@dataclass(frozen=True)
class ShiftPanel:
    """One seed of one variant: the mean over seeds would cross zero at an eta where no seed does."""

    title: str
    seed: int
    curves: tuple[ShiftCurve, ...]


def shift_panel(variant: TreeVariant) -> ShiftPanel | None:
    """The first seed that recorded any curve, or None."""
    for entry in variant.entries:
        curves = [_curve(proxy, entry[proxy]["target"]) for proxy in gaussian_proxies() if proxy in entry]
        if known := tuple(curve for curve in curves if curve is not None):
            title = f"{variant.variant.scenario} {variant.variant.key}\n{variant.family}, seed {entry['seed']}"
            return ShiftPanel(title, entry["seed"], known)
    return None


def write_shift(directory: Path, panels: Sequence[ShiftPanel]) -> list[FigureFile]:
    """All panels side by side; nothing if there is none."""
    if not panels:
        return []
    with styled():
        figure = new_figure(0.6 + 3.3 * len(panels), 4.6)
        for i, panel in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), i + 1)
            _draw(axes, panel)
            if i == 0:
                axes.set_ylabel("h(η) over its depth (height, if not admissible)")
        return [save(figure, directory, NAME, "h(η) and η_max of the Gaussian proxies", _caption(panels))]


def _curve(proxy: str, target: Entry) -> ShiftCurve | None:
    points = [(eta, h) for eta, h in target["h_curve"] if h is not None]
    if not points:
        return None
    eta, h = zip(*points, strict=True)
    eta_max, at_max = target["eta_max"], (target.get("bound") or {}).get("h")
    if at_max is None and eta_max is not None:
        at_max = float(np.interp(eta_max, eta, h))
    return ShiftCurve(proxy, eta, h, eta_max, at_max)


def _draw(axes: Axes, panel: ShiftPanel) -> None:
    axes.axhline(0.0, color="black", linewidth=0.7, zorder=1)
    for i, curve in enumerate(panel.curves):
        look = look_of(curve.proxy)
        drawn = {
            **look.plotted(),
            "markersize": 3.5,
            "markevery": (2 + 2 * i, 10),
        }  # in turn: equal curves are both seen
        # thick lines first, so that a thin one of the same course shows on top
        axes.plot(*curve.drawn(), label=curve.label, zorder=4 - look.width, **drawn)
        if curve.eta_max and curve.h_at_eta_max is not None:
            ring = {"marker": look.marker, "markersize": 9, "markeredgewidth": 1.6, "markeredgecolor": look.color}
            axes.plot(
                curve.eta_max,
                curve.h_at_eta_max / curve.scale,
                linestyle="",
                markerfacecolor="white",
                zorder=5,
                clip_on=False,
                **ring,
            )
    end = max(curve.eta[-1] for curve in panel.curves)
    axes.set(xlim=(0.0, 1.02 * end), ylim=(-1.12, 1.12), xlabel="η  (large hollow mark: η_max)")
    axes.set_title(panel.title)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), handlelength=3.2)


def _caption(panels: Sequence[ShiftPanel]) -> str:
    seeds = sorted({panel.seed for panel in panels})
    text = (
        f"Mean log-partition shift h(η) of the Gaussian proxies, each in units of its own depth and for one seed "
        f"({listed([str(seed) for seed in seeds])}); a large hollow mark is η_max, the last η up to the cap with h ≤ 0."
    )
    rising = any(curve.eta_max == 0 for panel in panels for curve in panel.curves)
    return text + (" Curves that rise from 0 are not admissible: nothing is unlearned." if rising else "")
