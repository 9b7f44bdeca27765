"""The two figures that come not from a results tree but from ``unlearn_core.illustration``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tracking.figures.style import FigureFile, new_figure, save, styled
from tracking.tables.table import listed

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from unlearn_core.illustration import DigitWeights, PlaneRegions, Region  # needs torch, which figures do without

COLUMNS = 4
DRAWN_POINTS = 300
RETRAIN = "retrain"


def write_regions(directory: Path, plane: PlaneRegions) -> list[FigureFile]:
    """Decision regions in the plane, a panel per model with the retrain's boundary in each.  [fig:illustration]"""
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
        return [
            save(
                figure,
                directory,
                "illustration",
                "Forgetting one of two subclasses, in the plane",
                _regions_caption(plane),
            )
        ]


def _draw(axes: Axes, plane: PlaneRegions, region: Region, retrain: Region | None) -> None:
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


def _point_looks(plane: PlaneRegions) -> list[tuple[NDArray[np.bool_], dict]]:
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


def _regions_caption(plane: PlaneRegions) -> str:
    idle = [region.name for region in plane.regions if region.eta_max == 0]
    every = max(1, len(plane.points) // DRAWN_POINTS)
    text = (
        f"P(class 1) of networks and of the proxies' targets on {len(plane.points)} synthetic points (one in {every} is "
        f"drawn), of which the {int(plane.forget.sum())} of one subclass are forgotten; one seed, KL_f in nats."
    )
    return text + (f" Not admissible, so the base itself: {listed(idle)}." if idle else "")


def write_weights(directory: Path, weights: DigitWeights) -> list[FigureFile]:
    """A linear classifier's weights as images, trained above and closed form below, zero a middle grey.  [fig:mon_image]"""
    rows = (("cross-entropy", weights.trained), ("LDA", weights.closed_form))
    with styled():
        figure = new_figure(0.8 * len(weights.class_names) + 0.6, 1.9)
        axes = figure.subplots(len(rows), len(weights.class_names), squeeze=False)
        for row, (label, images) in enumerate(rows):
            for column, image in enumerate(images):
                panel, largest = axes[row, column], float(np.abs(image).max())
                panel.imshow(image, cmap="gray", vmin=-largest, vmax=largest, interpolation="nearest")
                panel.set(xticks=[], yticks=[])
                if row == 0:
                    panel.set_title(weights.class_names[column])
            axes[row, 0].set_ylabel(label)
        return [save(figure, directory, "weights", "Cross-entropy weights beside LDA's", _weights_caption(weights))]


def _weights_caption(weights: DigitWeights) -> str:
    return (
        f"Weights of a linear classifier of scikit-learn's digits, less their mean over classes: trained by Adam on "
        f"cross-entropy for {weights.epochs} epochs (above), and LDA's closed form with ridge {weights.ridge:g} (below); "
        "white is positive, each image in its own scale. "
        f"Their correlation is {weights.correlation:.2f}, and they agree on {100 * weights.agreement:.0f} % of the test "
        "images."
    )
