"""How often a training draws each row: by how unsure models that never saw it are. No torch.

Most rows teach a classifier next to nothing: after a moment's training it is sure of them, and their gradient is zero. An
epoch that visits all of them alike spends its time there. Drawn by the length of their gradient, and weighed by what each
then stands for, fewer rows give the same gradient in the mean with less noise (importance sampling; Zhao and Zhang, 2015,
Katharopoulos and Fleuret, 2018). How long it will be is known before anybody asks: what a model that never saw the row
(``crossfit``) does not give to its label, one minus ``q``, is about what a training has still to learn there.

The draw decides which rows are looked at, not what is learned in the mean: the weights undo it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput

SURE = 1e-12
"""Doubt below this is none: a posterior in single precision does not tell."""


@dataclass(frozen=True)
class DoubtConstants:
    """How chances follow from doubt.

    Attributes:
        power: to which power doubt counts; not to the first, for of a row of which D is sure a retrain may be unsure.
        even: the share of draws that is made evenly, so that no row stands for more than 1 / even.
    """

    power: float = 0.5
    even: float = 0.1

    def __post_init__(self) -> None:
        if not (self.power >= 0 and 0 < self.even <= 1):
            raise BadInput(f"power {self.power} must be at least 0 and even {self.even} in (0, 1]")


def chances(log_q: NDArray[np.floating], labels: NDArray[np.integer], constants: DoubtConstants) -> NDArray[np.float64]:
    """(N,) of every row, in units of an even draw: means over any large part of the rows are about alike, not one.

    Args:
        log_q: (N, C) log posteriors of models that did not see the row they speak of.
    """
    given = np.exp(np.take_along_axis(log_q, labels[:, None].astype(np.int64), axis=1)[:, 0].astype(np.float64))
    doubt = np.maximum(1.0 - given, SURE) ** constants.power
    return constants.even + (1 - constants.even) * doubt / doubt.mean()
