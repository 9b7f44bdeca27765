"""h(eta), admissibility and eta_max: how much of a proxy's signal is safe.  [par:normalization], [eq:MaxInPratice]"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_softmax

from unlearn_core.errors import BadInput

Array = NDArray[np.float64]

SEARCH_END = 1e6  # where the search for a root beyond 1 ends; no signal is ever scaled by more
COARSE_ROWS = 4096  # rows of the even subsample that brackets the root before all rows confirm it


@dataclass(frozen=True)
class EtaSearch:
    """``eta_max == 0.0`` means that there is nothing this proxy can unlearn; ``reason`` says why."""

    eta_max: float
    admissible: bool
    reason: str
    slope_at_zero: float
    """h'(0) = KL(p||P) - KL(p||P_r), in nats; -inf where a class left the support."""


@dataclass(frozen=True, eq=False)
class Shift:
    """h and its derivative on one sample.

    At eta = 0 it takes the limit from the right, which is below 0 where a class left the support.

    Attributes:
        log_p: (C, N) log posterior of the network, -inf where the class left the support; class-major, so that sums over
            classes run along memory.
        signal: (C, N) its shift, 0 where the class left the support.
        loses_mass: whether the network gives any mass to a class outside the support.
    """

    log_p: Array
    signal: Array
    loses_mass: bool

    @staticmethod
    def of(logits: NDArray[np.floating], signal: Array) -> Shift:
        """From (N, C) logits and (N, C) signal."""
        log_p = log_softmax(np.asarray(logits, dtype=np.float64), axis=1).T
        lost = np.isneginf(signal.T)
        if not lost.any():
            return Shift(np.ascontiguousarray(log_p), np.ascontiguousarray(signal.T), loses_mass=False)
        loses_mass = bool((log_p[lost] > -np.inf).any())
        return Shift(np.where(lost, -np.inf, log_p), np.where(lost, 0.0, signal.T), loses_mass)

    def subsample(self, rows: int) -> Shift:
        """The same on about ``rows`` evenly spaced rows."""
        every = max(1, self.log_p.shape[1] // rows)
        return Shift(self.log_p[:, ::every].copy(), self.signal[:, ::every].copy(), self.loses_mass)

    def _terms(self, eta: float) -> tuple[Array, Array]:
        joint = self.log_p + eta * self.signal
        peak = joint.max(axis=0)
        return peak, np.exp(joint - peak)

    def value(self, eta: float) -> float:
        peak, terms = self._terms(eta)
        return float(np.mean(peak + np.log(terms.sum(axis=0))))

    def slope(self, eta: float) -> float:
        _, terms = self._terms(eta)
        return float(np.mean((terms * self.signal).sum(axis=0) / terms.sum(axis=0)))


def mean_lse_shift(eta: float, logits: NDArray[np.floating], signal: Array) -> float:
    """h(eta) = mean_x [LSE(f + eta*signal) - LSE(f)], in nats  [eq:MaxInPratice].

    Args:
        logits: (N, C) base logits f(x).
        signal: (N, C) proxy shift; -inf marks a class that left the support.
    """
    _check(logits, signal)
    return 0.0 if eta == 0 else Shift.of(logits, signal).value(eta)


def h_curve(logits: NDArray[np.floating], signal: Array, end: float, points: int = 33) -> list[tuple[float, float]]:
    """(eta, h(eta)) at evenly spaced eta in [0, end], for figures."""
    shift = Shift.of(logits, signal)
    return [(eta, shift.value(eta) if eta else 0.0) for eta in np.linspace(0.0, end, points).tolist()]


def find_eta_max(logits: NDArray[np.floating], signal: Array, cap: float = 1.0) -> EtaSearch:
    """The largest eta in (0, cap] with h(eta) <= 0, or 0 where the proxy is not admissible.

    h is convex with h(0) = 0, so it is below zero on (0, eta_max) exactly if its slope at 0 is negative, which is
    admissibility (A4): KL(p||P) < KL(p||P_r).

    Args:
        logits: (N, C) base logits on D.
        signal: (N, C) proxy shift on D.
        cap: 1.0 as in the paper; ``math.inf`` looks for the root of h wherever it is.
    """
    _check(logits, signal)
    if not cap > 0:
        raise BadInput(f"cap {cap} must be positive; the paper's is 1")
    shift = Shift.of(logits, signal)
    slope = -math.inf if shift.loses_mass else shift.slope(0.0)
    if slope >= 0:
        reason = (
            f"not admissible: KL(p||P) - KL(p||P_r) = {slope:.3g} nats >= 0, the retain proxy fits the network better"
        )
        return EtaSearch(0.0, False, reason, slope)
    end = min(cap, SEARCH_END)
    if not math.isinf(cap) and shift.value(end) <= 0:
        return EtaSearch(end, True, f"h({end:g}) <= 0: the whole signal is safe", slope)
    root = _root(shift, end)
    if root == 0.0:
        reason = f"not admissible within rounding: KL(p||P) - KL(p||P_r) = {slope:.3g} nats, h never falls below zero"
        return EtaSearch(0.0, False, reason, slope)
    if root > end:
        return EtaSearch(end, True, f"h stays below zero up to eta = {end:g}, where the search ends", slope)
    return EtaSearch(root, True, "h(eta_max) = 0", slope)


def _root(shift: Shift, end: float) -> float:
    """The positive root of h, narrowed down on a subsample first: all rows move that root by little."""
    guess = _root_from_minimiser(shift.subsample(COARSE_ROWS), end)
    if 0 < guess < end:
        for width in (0.02, 0.2):
            low, high = guess * (1 - width), min(guess * (1 + width), end)
            if shift.value(low) < 0 < shift.value(high):
                return _zero(shift.value, low, high)
    return _root_from_minimiser(shift, end)


def _root_from_minimiser(shift: Shift, end: float) -> float:
    """The positive root of h, bracketed from its minimiser: 0 where h never falls below zero, inf where it stays there."""
    high = min(1.0, end)
    while shift.value(high) <= 0:
        if high >= end:
            return math.inf
        high = min(2 * high, end)
    # with mass lost, h jumps below zero at once and need not have a minimiser
    low = 0.0 if shift.loses_mass or shift.slope(0.0) >= 0 else _zero(shift.slope, 0.0, high)
    return _zero(shift.value, low, high) if shift.value(low) < 0 else 0.0


def _zero(function: Callable[[float], float], low: float, high: float) -> float:
    root, _ = brentq(function, low, high, xtol=1e-14, rtol=np.float64(1e-12), full_output=True)
    return float(root)


def _check(logits: NDArray[np.floating], signal: Array) -> None:
    if logits.ndim != 2 or logits.shape != signal.shape:
        raise BadInput(f"logits {logits.shape} and signal {signal.shape} must have the same shape (N, C)")
    if not np.isfinite(logits).all():
        rows = np.flatnonzero(~np.isfinite(logits).all(axis=1))
        raise BadInput(f"logits are not finite in {len(rows)} rows, the first is row {rows[0]}")
    wrong = np.isnan(signal) | (signal == np.inf)
    if wrong.any():
        raise BadInput(f"the signal is NaN or +inf in {int(wrong.any(axis=1).sum())} rows; only -inf has a meaning")
