"""KL divergence between class posteriors, in nats, float64, unclamped."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

Array = NDArray[np.float64]


def log_probabilities(logits: NDArray[np.floating]) -> Array:
    """(N, C) log softmax of logits, in float64 whatever came in."""
    return log_softmax(np.asarray(logits, dtype=np.float64), axis=-1)


def kl_rows(log_p: Array, log_q: Array) -> Array:
    """(N,) KL(p||q) for each row of two (N, C) log distributions; +inf where q misses mass that p has, 0 log 0 = 0."""
    p = np.exp(log_p)
    with np.errstate(invalid="ignore"):
        terms = p * (log_p - log_q)
    return np.where(p > 0, terms, 0.0).sum(axis=-1)


def mean_kl(log_p: Array, log_q: Array) -> float:
    """E KL(p||q) over the rows. KL_t and KL_f are this with p the retrain and q the unlearned model."""
    return float(kl_rows(log_p, log_q).mean())
