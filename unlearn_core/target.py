"""From a fitted proxy to what the unlearned network should say: fit, eta, target. One path, for cells and for requests.

[eq:lda2c-lstsq-grad]
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from unlearn_core import methods
from unlearn_core.audit.bounds import tight_bound
from unlearn_core.audit.divergence import mean_kl
from unlearn_core.eta import EtaSearch, find_eta_max, h_curve, mean_lse_shift
from unlearn_core.problem import problem_of
from unlearn_core.proxies.covariance import Shrinkage
from unlearn_core.proxies.points import ClosedFormProxy, Points, Proxy
from unlearn_core.proxies.request import ForgetRequest

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

LOST_CLASS_PROBABILITY = 1e-12


@dataclass(frozen=True, eq=False)
class Fitted:
    """A proxy fitted to one request; ``signal`` (N, C) on the training rows, None for a closed form, which needs none."""

    method: str
    proxy: Proxy
    signal: Array | None


def fit(method: str, request: ForgetRequest, constants: Any = None) -> Fitted:
    """Fit one proxy, with its own constants unless others are given, and take its signal on the training rows."""
    line = methods.find_proxy(method)
    proxy = line.fit(request, constants or line.constants)
    return Fitted(method, proxy, None if line.closed_form else proxy.signal(request.points))


def fit_proxy(
    method: str,
    features: NDArray[np.floating],
    labels: NDArray[np.integer],
    forget: Mask,
    n_classes: int,
    ridge: float = 1e-3,
    shrinkage: str = "ridge",
    logits: NDArray[np.floating] | None = None,
    seed: int = 0,
) -> Proxy:
    """Model P(y|x) on D and P_r(y|x) on D without the forget rows, from plain arrays.

    Args:
        features: (N, d).
        labels: (N,) in 0..n_classes-1; every class occurs.
        forget: (N,) True for the rows to forget.
        logits: (N, C) of the base network, which ``fresh`` needs.
        seed: of what is drawn by chance, in ``fresh`` alone.

    Examples:
        Without the zeros nothing is a zero.

        >>> from unlearn_core.data import load_dataset
        >>> digits = load_dataset("digits")
        >>> proxy = fit_proxy("lda", digits.train_x, digits.train_y, digits.train_y == 0, n_classes=10)
        >>> log_p, log_p_r = proxy.log_posteriors(Points(digits.test_x))
        >>> float(np.exp(log_p[:, 0]).max()) > 0.99, float(np.exp(log_p_r[:, 0]).max())
        (True, 0.0)
    """
    problem = problem_of(features, labels, n_classes)
    line = methods.find_proxy(method)
    request = ForgetRequest(problem, forget, problem.training_points(logits), ridge, Shrinkage(shrinkage), seed)
    return line.fit(request, line.constants)


@dataclass(frozen=True, eq=False)
class Target:
    """What one request makes of the network, as one proxy sees it.

    Attributes:
        points: the training rows, with the base network's logits.
        lost_classes: (C,) True for classes without a retained row.
        search: None for a closed form, which has no eta.
    """

    fitted: Fitted
    points: Points
    lost_classes: Mask
    search: EtaSearch | None

    @property
    def method(self) -> str:
        return self.fitted.method

    @property
    def eta(self) -> float:
        return 0.0 if self.search is None else self.search.eta_max

    @property
    def unlearns(self) -> bool:
        return self.search is None or self.search.eta_max > 0

    @cached_property
    def log_target(self) -> Array:
        """(N, C) log of the target on the training rows."""
        return self._on(self.points, self.fitted.signal)

    def on(self, points: Points) -> Array:
        """(N, C) log of the target at any points."""
        return self._on(points, None if self.search is None else self.fitted.proxy.signal(points))

    def _on(self, points: Points, signal: Array | None) -> Array:
        if signal is None:
            whole = cast(ClosedFormProxy, self.fitted.proxy).log_target(points)
        else:
            whole = shifted(points.base_logits, signal, self.eta)
        return floor_lost_classes(whole, points.base_logits, self.lost_classes)

    def posteriors(self) -> tuple[Array, Array]:
        """log P(y|x) and log P_r(y|x) on the training rows, each (N, C). Not kept: they are large."""
        return self.fitted.proxy.log_posteriors(self.points)

    def kl_net_proxy(self, posteriors: tuple[Array, Array] | None = None) -> tuple[float, float]:
        """KL(p||P) and KL(p||P_r) over the training rows, in nats; ``posteriors`` if they are at hand."""
        before, after = (mean_kl(self.points.log_base, log_q) for log_q in posteriors or self.posteriors())
        return before, after

    def h_curve(self) -> list[tuple[float, float]]:
        """(eta, h(eta)) to a little beyond eta_max; empty for a closed form."""
        if self.fitted.signal is None:
            return []
        return h_curve(self.points.base_logits, self.fitted.signal, end=max(1.0, 1.1 * self.eta))

    def bound(self, log_retrain: Array, posteriors: tuple[Array, Array] | None = None) -> dict[str, float] | None:
        """The terms of prop:tight-bound on D, with the ``measured`` divergence beside them; None for a closed form."""
        if self.fitted.signal is None:
            return None
        h = mean_lse_shift(self.eta, self.points.base_logits, self.fitted.signal)
        terms = tight_bound(self.eta, h, self.points.log_base, log_retrain, *(posteriors or self.posteriors()))
        return {**dataclasses.asdict(terms), "measured": mean_kl(log_retrain, self.log_target)}

    def finite_shift(self) -> Array:
        """(N, C) what least squares teaches: eta * signal; if that is infinite or there is none, the shift of the log
        posteriors, with lost mass at its floor.
        """
        signal = self.fitted.signal
        if signal is not None and np.isfinite(signal).all():
            return self.eta * signal
        every_class = np.ones_like(self.lost_classes)
        return floor_lost_classes(self.log_target, self.points.base_logits, every_class) - self.points.log_base


def make_target(fitted: Fitted, points: Points, lost_classes: Mask, cap: float) -> Target:
    """Find eta, unless the proxy is a closed form.

    Args:
        points: the training rows, with the logits of the network that is to unlearn.
        cap: the largest eta.
    """
    search = None if fitted.signal is None else find_eta_max(points.base_logits, fitted.signal, cap)
    return Target(fitted, points, lost_classes, search)


def shifted(logits: NDArray[np.floating], signal: Array, eta: float) -> Array:
    """(N, C) log softmax(f + eta * signal).

    A class whose signal is -inf left the support of P_r: the target is renormalised over the others, whatever eta.
    """
    log_base = log_softmax(np.asarray(logits, dtype=np.float64), axis=1)
    if eta == 0.0:
        return log_base
    lost = np.isneginf(signal)
    return log_softmax(np.where(lost, -np.inf, log_base + eta * np.where(lost, 0.0, signal)), axis=1)


def floor_lost_classes(log_target: Array, logits: NDArray[np.floating], lost_classes: Mask) -> Array:
    """Give each class outside the support of P_r min(p_theta, 1e-12), if the target gives it nothing.

    Only so that KL from a retrain, whose unused output is small and not zero, stays finite. Never done before eta is
    found or the target is normalised: flooring log P_r instead lets the class gain on retained data.

    Args:
        lost_classes: (C,) True for classes with no retain sample.
    """
    if not lost_classes.any():
        return log_target
    log_base = log_softmax(np.asarray(logits, dtype=np.float64), axis=1)
    floor = np.minimum(log_base, np.log(LOST_CLASS_PROBABILITY))
    return np.where(lost_classes & np.isneginf(log_target), floor, log_target)
