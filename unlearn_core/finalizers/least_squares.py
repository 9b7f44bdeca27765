"""``mse``: the shift as a linear function of the penultimate representation, added to the last layer in closed form.

[app:random_projection]
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.nets.heads import HeadStack

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


def add_to_last_layer(head: HeadStack, member: int, weight: Array, bias: Array) -> HeadStack:
    """A stack of one: that member with W and b added to its last layer."""
    state = head.state(member)
    last = len(head.widths) - 2
    state[f"layers.{last}.weight"] += torch.from_numpy(weight.T).float()
    state[f"layers.{last}.bias"] += torch.from_numpy(bias).float()
    return HeadStack.from_states([state], head.device)
