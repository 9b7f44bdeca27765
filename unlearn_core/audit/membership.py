"""Fast membership inference: a threshold on the true-class confidence, forget rows against held-out rows of their classes.

A score means something only beside the retrain's own: an honest retrain is not at 0.5 where the forget rows are easier or
harder than the held-out ones. It is one attack and a weak one: a low score shows little, a high one shows leakage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Attack:
    auc: float
    """Probability that a forget row is more confident than a held-out one; ties count half."""
    balanced_accuracy: float
    """Of the best threshold above which rows count as members, chosen with knowledge of the answer.

    One-sided: rows that were pushed too far, and stand out by a low confidence, count as safe.
    """


def threshold_attack(forget_confidence: Array, heldout_confidence: Array) -> Attack:
    """Both (n,) arrays of the probability (or log probability) that a model gives to the true class."""
    n_f, n_h = len(forget_confidence), len(heldout_confidence)
    if n_f == 0 or n_h == 0:
        return Attack(float("nan"), float("nan"))
    forget, heldout = np.sort(forget_confidence), np.sort(heldout_confidence)
    below = np.searchsorted(heldout, forget, side="left")
    up_to = np.searchsorted(heldout, forget, side="right")
    auc = float((below + up_to).mean() / (2 * n_h))
    # the best threshold lies at a forget confidence: members are those at or above it
    true_positive = 1.0 - np.searchsorted(forget, forget, side="left") / n_f
    balanced = 0.5 * (true_positive + below / n_h)
    return Attack(auc, float(max(balanced.max(), 0.5)))
