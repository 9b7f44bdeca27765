"""``lda-mix`` and ``qda-mix``: P_r and P_f fitted separately, P their mixture within each class.

[eq:LDAII], [eq:QDAII]
"""

from __future__ import annotations

import numpy as np

from unlearn_core.proxies.covariance import regularize_diagonal
from unlearn_core.proxies.gaussian import Components, diagonal_terms
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.proxies.two_state import full_covariance_components, state_means, two_state_components


def lda_mix(request: ForgetRequest) -> Components:
    """One pooled full covariance per state."""
    return full_covariance_components(
        request, request.pooled_covariance(request.retain), request.pooled_covariance(request.forget)
    )


def qda_mix(request: ForgetRequest) -> Components:
    """One diagonal covariance per class and state."""
    forgotten = request.classes_with_forget
    variances = regularize_diagonal(
        np.concatenate([request.retain.variances(), request.forget.variances()[forgotten]]),
        request.ridge,
        request.total.mean_total_variance(),
    )
    linear, diagonal, constant = diagonal_terms(state_means(request), variances)
    return two_state_components(request, linear, constant, diagonal)
