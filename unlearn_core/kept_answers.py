"""Would a model without the records still know them? By linear discriminant analysis, from sums: no torch, no retrain.

A group is easy if the retained rows of its class stand for it: then a network without it answers as before, and starting
from a share of the base's weights leads there sooner. If they do not, those weights remember what a retrain would not know.

The covariance, too, must lack the records. With that of D the answer is nearly always yes: cats among vehicles kept 92 %
of the right answers, where a retrain is right on 56 % of them; without the records, 58 %.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearn_core.proxies.covariance import regularize
from unlearn_core.proxies.gaussian import factorize, linear_terms, log_share
from unlearn_core.proxies.statistics import Moments

RIDGE = 1e-3


@dataclass(frozen=True, eq=False)
class Discriminant:
    """An LDA in single precision: a row z scores z @ linear + constant, of shapes (d, C) and (C,)."""

    linear: NDArray[np.float32]
    constant: NDArray[np.float32]

    def right(self, z: NDArray[np.float32], labels: NDArray[np.integer]) -> NDArray[np.bool_]:
        """(n,) whether it gives rows their labels."""
        return (z @ self.linear + self.constant).argmax(axis=1) == labels


@functools.lru_cache(maxsize=4)
def discriminant_of_all(total: Moments, ridge: float = RIDGE) -> Discriminant:
    """Of D: the same for every request, so that it is prepared with the moments."""
    return _discriminant(total, ridge)


def kept_answers(
    total: Moments, features: NDArray[np.floating], labels: NDArray[np.integer], ridge: float = RIDGE
) -> float | None:
    """The share of an LDA's right answers on the records that are still right in an LDA without them.

    Args:
        total: the moments of D.
        features: (n, d) the records, some of D's rows, and labels (n,).

    Returns:
        None if the LDA of D is right about none of them, or no row is left.
    """
    z = np.subtract(features, total.reference, dtype=np.float32, casting="same_kind")
    left = total - _moments(z, labels, total)
    if left.n_rows == 0:
        return None
    before = discriminant_of_all(total, ridge).right(z, labels)
    after = _discriminant(left, ridge).right(z, labels)
    return float((before & after).sum() / before.sum()) if before.any() else None


def _moments(z: NDArray[np.float32], labels: NDArray[np.integer], total: Moments) -> Moments:
    """Of the records, in single precision: a third of the time, and its product of all pairs of features is most of it."""
    of_class = (labels[:, None] == np.arange(len(total.counts))).astype(np.float32)
    sums, squares, outer = of_class.T @ z, of_class.T @ z**2, z.T @ z
    counts = np.bincount(labels, minlength=len(total.counts))
    return Moments(total.reference, counts, *(moment.astype(np.float64) for moment in (sums, squares, outer)))


def _discriminant(moments: Moments, ridge: float) -> Discriminant:
    covariance = regularize(moments.scatter(), moments.n_rows, ridge, moments.mean_total_variance())
    linear, constant = linear_terms(moments.means(), factorize(covariance))
    constant = constant + log_share(moments.counts, moments.n_rows)
    return Discriminant(linear.astype(np.float32), constant.astype(np.float32))
