"""The target: what the unlearned network should say.  [eq:lda2c-lstsq-grad]"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

Array = NDArray[np.float64]

LOST_CLASS_PROBABILITY = 1e-12


def log_target(logits: NDArray[np.floating], signal: Array, eta: float) -> Array:
    """(N, C) log softmax(f + eta * signal).

    A class whose signal is -inf left the support of P_r: the target is renormalised over the others, whatever eta.
    """
    log_base = log_softmax(np.asarray(logits, dtype=np.float64), axis=1)
    if eta == 0.0:
        return log_base
    lost = np.isneginf(signal)
    return log_softmax(np.where(lost, -np.inf, log_base + eta * np.where(lost, 0.0, signal)), axis=1)


def floor_lost_classes(log_target: Array, logits: NDArray[np.floating], lost_classes: NDArray[np.bool_]) -> Array:
    """Give each class outside the support of P_r min(p_theta, 1e-12), where the target gives it nothing.

    Only so that KL from a retrain, whose unused output is small and not zero, stays finite. Never done before eta is
    found or the target is normalised: flooring log P_r instead lets the class gain on retained data.

    Args:
        lost_classes: (C,) True for classes with no retain sample.
    """
    if not lost_classes.any():
        return log_target
    log_base = log_softmax(np.asarray(logits, dtype=np.float64), axis=1)
    floor = np.minimum(log_base, np.log(LOST_CLASS_PROBABILITY))
    return np.where(lost_classes & np.isneginf(log_target), floor, log_target)


def finite_shift(
    logits: NDArray[np.floating], log_target: Array, signal: Array | None = None, eta: float = 0.0
) -> Array:
    """(N, C) what least squares teaches: eta * signal; where that is infinite or there is none, the shift of the log
    posteriors, with lost mass at its floor.
    """
    if signal is not None and np.isfinite(signal).all():
        return eta * signal
    every_class = np.ones(logits.shape[1], dtype=bool)
    log_base = log_softmax(np.asarray(logits, dtype=np.float64), axis=1)
    return floor_lost_classes(log_target, logits, every_class) - log_base
