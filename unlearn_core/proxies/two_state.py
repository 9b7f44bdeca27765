"""What ``lda-mix``, ``qda-mix`` and ``lda-2c`` share: a retain and a forget component per class.

P(x|y) = (1 - pi_f(y)) P_r(x|y) + pi_f(y) P_f(x|y)  [eq:lda2c-mixture] with priors from counts gives the weights
|D_s(y)| / |D|, which are also those of the doubled labels (y, s) [eq:LDAIJ]. The proxies differ in their covariances only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unlearn_core.proxies.gaussian import Components, factorize, linear_terms, log_share
from unlearn_core.proxies.request import ForgetRequest

Array = NDArray[np.float64]


def state_means(request: ForgetRequest) -> Array:
    """(C + E, d): the retain means, then the forget means of the classes that have any."""
    return np.concatenate([request.retain.means(), request.forget.means()[request.classes_with_forget]])


def two_state_components(
    request: ForgetRequest, linear: Array, constant: Array, diagonal: Array | None = None, full: Array | None = None
) -> Components:
    """Retain components first, then forget components, weighted by their counts; P_r has the former only."""
    total, retain = request.total, request.retain
    forgotten = request.classes_with_forget
    log_forget = log_share(request.forget.counts[forgotten], total.n_rows)
    return Components(
        linear=linear,
        log_weight_p=constant + np.concatenate([log_share(retain.counts, total.n_rows), log_forget]),
        log_weight_r=constant
        + np.concatenate([log_share(retain.counts, retain.n_rows), np.full(len(forgotten), -np.inf)]),
        extra_class=forgotten,
        diagonal=diagonal,
        full=full,
    )


def full_covariance_components(request: ForgetRequest, retain_cov: Array, forget_cov: Array | None) -> Components:
    """Components with one full covariance per state; ``forget_cov`` None ties it to the retain covariance."""
    means, n_classes = state_means(request), len(request.total.counts)
    retain_factor = factorize(retain_cov)
    if forget_cov is None:
        return two_state_components(request, *linear_terms(means, retain_factor))
    forget_factor = factorize(forget_cov)
    linear_r, constant_r = linear_terms(means[:n_classes], retain_factor)
    linear_f, constant_f = linear_terms(means[n_classes:], forget_factor)
    # relative to the retain density, whose quadratic term and determinant all components then share
    constant_f = constant_f - 0.5 * (forget_factor.log_determinant - retain_factor.log_determinant)
    return two_state_components(
        request,
        np.concatenate([linear_r, linear_f], axis=1),
        np.concatenate([constant_r, constant_f]),
        full=forget_factor.inverse() - retain_factor.inverse(),
    )
