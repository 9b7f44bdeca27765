"""A linear classifier's weights as images: trained above, closed form below.  [fig:mon_image]"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tracking.figures.style import FigureFile, new_figure, save, styled

Array = NDArray[np.float64]

NAME = "weights"


class WeightImages(Protocol):
    """What ``unlearn_core.illustration.digit_weights`` gives; that module needs torch, which this one does without."""

    @property
    def class_names(self) -> tuple[str, ...]: ...
    @property
    def trained(self) -> Array: ...
    @property
    def closed_form(self) -> Array: ...
    @property
    def ridge(self) -> float: ...
    @property
    def epochs(self) -> int: ...
    @property
    def correlation(self) -> float: ...
    @property
    def agreement(self) -> float: ...


def write_weights(directory: Path, weights: WeightImages) -> list[FigureFile]:
    """A column per class; each image is drawn in its own scale, with zero a middle grey."""
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
        return [save(figure, directory, NAME, "Cross-entropy weights beside LDA's", _caption(weights))]


def _caption(weights: WeightImages) -> str:
    return (
        f"Weights of a linear classifier of scikit-learn's digits, less their mean over classes: trained by Adam on "
        f"cross-entropy for {weights.epochs} epochs (above), and LDA's closed form with ridge {weights.ridge:g} (below); "
        "white is positive, each image in its own scale. "
        f"Their correlation is {weights.correlation:.2f}, and they agree on {100 * weights.agreement:.0f} % of the test "
        "images."
    )
