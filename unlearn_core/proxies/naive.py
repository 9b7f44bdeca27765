"""``lda`` and ``qda``: one distribution per class; forgetting moves its mean, the covariance is that of D.

[eq:LDAI], [eq:QDAI]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unlearn_core.proxies.covariance import regularize_diagonal
from unlearn_core.proxies.gaussian import Components, diagonal_terms, factorize, linear_terms, log_share
from unlearn_core.proxies.request import ForgetRequest

Array = NDArray[np.float64]


def lda(request: ForgetRequest) -> Components:
    """One pooled within-class covariance, from D."""
    factor = factorize(request.pooled_covariance(request.total))
    moved = request.classes_with_forget
    linear, constant = linear_terms(_means(request), factor)
    return _moved_means(request, moved, linear, constant)


def qda(request: ForgetRequest) -> Components:
    """One diagonal covariance per class, from D."""
    total, moved = request.total, request.classes_with_forget
    variances = regularize_diagonal(total.variances(), request.ridge, total.mean_total_variance())
    linear, diagonal, constant = diagonal_terms(_means(request), np.concatenate([variances, variances[moved]]))
    return _moved_means(request, moved, linear, constant, diagonal)


def _means(request: ForgetRequest) -> Array:
    """(C + E, d): the means of D, then the retain means of the classes that lose samples."""
    return np.concatenate([request.total.means(), request.retain.means()[request.classes_with_forget]])


def _moved_means(
    request: ForgetRequest, moved: NDArray[np.int64], linear: Array, constant: Array, diagonal: Array | None = None
) -> Components:
    """P has the means of D; P_r has the moved ones where there are any, and those of D elsewhere."""
    total, retain = request.total, request.retain
    log_r = log_share(retain.counts, retain.n_rows)
    unmoved = log_r.copy()
    unmoved[moved] = -np.inf
    return Components(
        linear=linear,
        log_weight_p=constant + np.concatenate([log_share(total.counts, total.n_rows), np.full(len(moved), -np.inf)]),
        log_weight_r=constant + np.concatenate([unmoved, log_r[moved]]),
        extra_class=moved,
        diagonal=diagonal,
    )
