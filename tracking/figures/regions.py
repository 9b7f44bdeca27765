"""Decision regions in the plane: base, retrain and each proxy's target.  [fig:illustration]"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tracking.figures.style import FigureFile, new_figure, save, styled
from tracking.figures.wording import listed

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

NAME = "illustration"
COLUMNS = 4
DRAWN_POINTS = 300
RETRAIN = "retrain"


class Region(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def probability(self) -> Array: ...
    @property
    def kl_f(self) -> float: ...
    @property
    def eta_max(self) -> float | None: ...


class Plane(Protocol):
    """What ``unlearn_core.illustration.plane_regions`` gives; that module needs torch, which this one does without."""

    @property
    def points(self) -> Array: ...
    @property
    def labels(self) -> NDArray[np.int64]: ...
    @property
    def forget(self) -> NDArray[np.bool_]: ...
    @property
    def across(self) -> Array: ...
    @property
    def up(self) -> Array: ...
    @property
    def regions(self) -> Sequence[Region]: ...


def write_regions(directory: Path, plane: Plane) -> list[FigureFile]:
    """A panel per model, the retrain's boundary in each; nothing where there is no model."""
    if not plane.regions:
        return []
    retrain = next((region for region in plane.regions if region.name == RETRAIN), None)
    with styled():
        n_rows = math.ceil((len(plane.regions) + 1) / COLUMNS)  # one more for the legend
        figure = new_figure(2.3 * COLUMNS, 2.35 * n_rows)
        panels = figure.subplots(n_rows, COLUMNS, squeeze=False, sharex=True, sharey=True).ravel()
        for axes, region in zip(panels, plane.regions, strict=False):
            _draw(axes, plane, region, retrain)
        for axes in panels[len(plane.regions) :]:
            axes.set_axis_off()
        _explain(panels[-1], has_retrain=retrain is not None)
        return [save(figure, directory, NAME, "Forgetting one of two subclasses, in the plane", _caption(plane))]


def _draw(axes: Axes, plane: Plane, region: Region, retrain: Region | None) -> None:
    extent = (plane.across[0], plane.across[-1], plane.up[0], plane.up[-1])
    # vmax beyond 1: the darkest grey must leave the points to be seen
    axes.imshow(region.probability, cmap="Greys", vmin=0.0, vmax=2.4, origin="lower", extent=extent, aspect="auto")
    every = max(1, len(plane.points) // DRAWN_POINTS)
    for rows, look in _point_looks(plane):
        axes.plot(*plane.points[rows][::every].T, linestyle="", **look)
    axes.contour(plane.across, plane.up, region.probability, [0.5], colors="black", linewidths=1.6)
    if retrain is not None and region is not retrain:
        axes.contour(plane.across, plane.up, retrain.probability, [0.5], colors="black", linewidths=1.0, linestyles=":")
    axes.set_title(_title(region))
    axes.set(xticks=[], yticks=[])


def _title(region: Region) -> str:
    kl_f = f"KL_f {region.kl_f:.2g}"
    if region.eta_max is None:
        return f"{region.name}\n{kl_f}"
    return f"{region.name}\n" + (f"η_max {region.eta_max:.2f}, {kl_f}" if region.eta_max else f"not admissible, {kl_f}")


CLASS_0 = {"marker": "o", "color": "#3b82c4", "markersize": 2.2, "markeredgewidth": 0.0, "label": "class 0"}
KEPT = {"marker": "^", "color": "#1d7a46", "markersize": 3.6, "markeredgewidth": 0.0, "label": "class 1, kept"}
FORGOTTEN = {
    "marker": "x",
    "color": "#b3261e",
    "markersize": 3.6,
    "markeredgewidth": 1.0,
    "label": "class 1, forgotten",
}


def _point_looks(plane: Plane) -> list[tuple[NDArray[np.bool_], dict]]:
    kept = (plane.labels == 1) & ~plane.forget
    return [(plane.labels == 0, CLASS_0), (kept, KEPT), (plane.forget, FORGOTTEN)]


def _explain(axes: Axes, has_retrain: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [
        Line2D([], [], linestyle="", **{**look, "markersize": 5}) for look in (CLASS_0, KEPT, FORGOTTEN)
    ]
    handles.append(Line2D([], [], color="black", linewidth=1.6, label="P(class 1) = 1/2"))
    if has_retrain:
        handles.append(Line2D([], [], color="black", linewidth=1.0, linestyle=":", label="the same, retrain"))
    handles.append(Patch(facecolor="0.72", label="darker: P(class 1) larger"))
    axes.legend(handles=handles, loc="center", fontsize=8.5)


def _caption(plane: Plane) -> str:
    idle = [region.name for region in plane.regions if region.eta_max == 0]
    every = max(1, len(plane.points) // DRAWN_POINTS)
    text = (
        f"P(class 1) of networks and of the proxies' targets on {len(plane.points)} synthetic points (one in {every} is "
        f"drawn), of which the {int(plane.forget.sum())} of one subclass are forgotten; one seed, KL_f in nats."
    )
    return text + (f" Not admissible, so the base itself: {listed(idle)}." if idle else "")
