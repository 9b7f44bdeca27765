"""Proxies: closed-form models of P(y|x) and of P_r(y|x), had the forget data never been there.  [sec:lda2c]"""

from unlearn_core.proxies.covariance import Shrinkage
from unlearn_core.proxies.empirical import EmpiricalProxy
from unlearn_core.proxies.fit import GAUSSIAN_BUILDERS, FittedProxy, Proxy, fit_gaussian, fit_proxy
from unlearn_core.proxies.gaussian import GaussianProxy
from unlearn_core.proxies.request import ForgetRequest, forget_request
from unlearn_core.proxies.statistics import Moments, compute_moments

__all__ = [
    "GAUSSIAN_BUILDERS",
    "EmpiricalProxy",
    "FittedProxy",
    "ForgetRequest",
    "GaussianProxy",
    "Moments",
    "Proxy",
    "Shrinkage",
    "compute_moments",
    "fit_gaussian",
    "fit_proxy",
    "forget_request",
]
