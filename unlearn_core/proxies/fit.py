"""Fit any proxy by name. A new Gaussian proxy is a builder in a file of its own and one line in the table below."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput
from unlearn_core.proxies.covariance import Shrinkage
from unlearn_core.proxies.doubled import lda_2c
from unlearn_core.proxies.empirical import EmpiricalProxy, empirical_proxy
from unlearn_core.proxies.fresh import FreshProxy, fit_fresh
from unlearn_core.proxies.gaussian import Components, GaussianProxy
from unlearn_core.proxies.mixture import lda_mix, qda_mix
from unlearn_core.proxies.naive import lda, qda
from unlearn_core.proxies.probe import ProbeFit, ProbeProxy, fit_probe, fit_probe_of_all
from unlearn_core.proxies.request import ForgetRequest, forget_request
from unlearn_core.proxies.statistics import Moments
from unlearn_core.spec import EMPIRICAL_PROXIES, FRESH, PROBE, PROXIES

Array = NDArray[np.float64]


class Proxy(Protocol):
    """What every fitted proxy offers, for features x (N, d)."""

    @property
    def method(self) -> str: ...
    @property
    def n_classes(self) -> int: ...
    def log_posteriors(self, x: NDArray[np.floating]) -> tuple[Array, Array]: ...
    def signal(self, x: NDArray[np.floating]) -> Array: ...


FittedProxy = GaussianProxy | EmpiricalProxy | ProbeProxy | FreshProxy

GAUSSIAN_BUILDERS: Mapping[str, Callable[[ForgetRequest], Components]] = MappingProxyType(
    {"lda": lda, "qda": qda, "lda-mix": lda_mix, "qda-mix": qda_mix, "lda-2c": lda_2c}
)


def fit_proxy(
    method: str,
    features: NDArray[np.floating],
    labels: NDArray[np.integer],
    forget: NDArray[np.bool_],
    n_classes: int,
    ridge: float = 1e-3,
    shrinkage: Shrinkage = Shrinkage.RIDGE,
    moments: Moments | None = None,
    probe: ProbeFit | None = None,
    probe_inputs: NDArray[np.float32] | None = None,
    seed: int = 0,
) -> FittedProxy:
    """Model P(y|x) on D and P_r(y|x) on D without the forget rows.

    Args:
        method: one of ``lda qda lda-mix qda-mix lda-2c dir dir-2c probe fresh``.
        features: (N, d).
        labels: (N,) in 0..n_classes-1; every class occurs.
        forget: (N,) True for the rows to forget.
        moments: the cached moments of (features, labels), so that only the forget rows are read.
        probe: the cached probe of (features, labels), from which the retained rows' is fitted.
        probe_inputs: the features as the probe sees them, where they are at hand.
        seed: of what is drawn by chance, in ``fresh`` alone.
    """
    if method in EMPIRICAL_PROXIES:
        return empirical_proxy(method, features, labels, forget, n_classes)
    if method in (PROBE, FRESH):
        fitted = fit_probe_of_all(features, labels, n_classes) if probe is None else probe
        if method == FRESH:
            return fit_fresh(fitted, features, labels, forget, seed, probe_inputs)
        return fit_probe(fitted, features, labels, forget, probe_inputs)
    if method not in GAUSSIAN_BUILDERS:
        raise BadInput(f"unknown proxy {method!r}; there are {', '.join(PROXIES)}")
    return fit_gaussian(method, forget_request(features, labels, forget, n_classes, ridge, shrinkage, moments))


def fit_gaussian(method: str, request: ForgetRequest) -> GaussianProxy:
    """Assemble one Gaussian proxy from a request's moments."""
    return GaussianProxy(method, request.total.reference, GAUSSIAN_BUILDERS[method](request))
