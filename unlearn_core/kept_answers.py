"""Would a model without the records still know them? By linear discriminant analysis, from sums: no torch, no retrain.

A group is easy if the retained rows of its class stand for it: then a network without it answers as before, and starting
from a share of the base's weights leads there sooner. If they do not, those weights remember what a retrain would not know.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unlearn_core.proxies.covariance import regularize
from unlearn_core.proxies.gaussian import factorize, linear_terms, log_share
from unlearn_core.proxies.statistics import Moments, centred_chunks

RIDGE = 1e-3


def kept_answers(
    total: Moments, features: NDArray[np.floating], labels: NDArray[np.integer], ridge: float = RIDGE
) -> float | None:
    """The share of an LDA's right answers on the records that are still right once the records are not in its means.

    The covariance is that of D, as ``lda`` has it, so that a request costs O(n d): its own second moments are not needed.

    Args:
        total: the moments of D.
        features: (n, d) the records, some of D's rows, and labels (n,).

    Returns:
        None if the LDA of D is right about none of them.
    """
    z = np.concatenate([chunk for _, chunk in centred_chunks(features, total.reference)])
    of_class = (labels[:, None] == np.arange(len(total.counts))).astype(np.float64)
    left = total.counts - np.bincount(labels, minlength=len(total.counts))
    sums = np.where((left > 0)[:, None], total.sums - of_class.T @ z, 0.0)
    factor = factorize(regularize(total.scatter(), total.n_rows, ridge, total.mean_total_variance()))

    def right(counts: NDArray[np.int64], means: NDArray[np.float64]) -> NDArray[np.bool_]:
        linear, constant = linear_terms(means, factor)
        return (z @ linear + constant + log_share(counts, int(counts.sum()))).argmax(axis=1) == labels

    before = right(total.counts, total.means())
    after = right(left, sums / np.maximum(left, 1)[:, None])
    return float((before & after).sum() / before.sum()) if before.any() else None
