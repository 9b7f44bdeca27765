"""``lda-2c``: one LDA over the doubled labels (y, s); P_r(y|x) = P(y | x, s = r).  [eq:LDAIJ]"""

from unlearn_core.proxies.gaussian import Components
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.proxies.two_state import full_covariance_components


def lda_2c(request: ForgetRequest) -> Components:
    """One covariance, pooled within the 2C cells."""
    return full_covariance_components(request, request.pooled_covariance(request.retain, request.forget), None)
