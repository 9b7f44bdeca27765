"""``mse``: the shift as a linear function of the penultimate representation, added to the last layer in closed form.

[app:random_projection]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def fit_last_layer_shift(representation: Array, shift: Array) -> tuple[Array, Array]:
    """Weight (width, C) and bias (C,) minimising sum |phi(x) W + b - shift(x)|^2, of least norm where not unique.

    Args:
        representation: (N, width) phi(x).
        shift: (N, C) what to add to the logits, finite.
    """
    # centring takes the bias out, so that the least-norm solution does not shrink it
    mean_phi, mean_shift = representation.mean(axis=0), shift.mean(axis=0)
    weight, *_ = np.linalg.lstsq(representation - mean_phi, shift - mean_shift, rcond=None)
    return weight, mean_shift - mean_phi @ weight
