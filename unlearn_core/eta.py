"""h(eta), admissibility and eta_max: how much of a proxy's signal to apply.  [par:normalization], [eq:MaxInPratice]"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput
from unlearn_core.logspace import log_sum

Array = NDArray[np.float64]

SEARCH_END = 1e6  # where the search for a root beyond 1 ends; no signal is ever scaled by more
BLOCK_SIZE = 32_768  # numbers in a block of h's evaluation: 256 KiB, a few of which fit a core's cache
TRANSPOSED_ROWS = 1024  # rows turned class-major at a time
COARSE_ROWS = 4096  # rows of the even subsample that says where to start on all rows
SMALL_STEP = 1e-8  # relative
SLOPE_ROUNDING = 8 * np.finfo(np.float64).eps  # a slope below this share of its terms may be rounding error
VALUE_ROUNDING = 2 * np.finfo(np.float64).eps  # an |h| below this is zero as far as numbers go
MAX_STEPS = 200


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
        log_p: (G, N) log posterior of the network over groups of classes with one shift, -inf where the class left the
            support; class-major, so that sums over classes run along memory.
        signal: (G, N) their shift, 0 where the class left the support.
        loses_mass: whether the network gives any mass to a class outside the support.
    """

    log_p: Array
    signal: Array
    loses_mass: bool

    @staticmethod
    def of(logits: NDArray[np.floating], signal: Array) -> Shift:
        """From (N, C) logits and (N, C) signal."""
        shift = np.ascontiguousarray(signal.T)
        groups = _classes_of_one_shift(shift)
        log_p = np.empty((len(groups), len(logits)))
        for start in range(0, len(logits), TRANSPOSED_ROWS):
            rows = slice(start, start + TRANSPOSED_ROWS)
            block = np.ascontiguousarray(logits[rows].T).astype(np.float64)
            block -= log_sum(block)
            for g, classes in enumerate(groups):
                log_p[g, rows] = block[classes[0]] if len(classes) == 1 else log_sum(block[classes])
        shift = shift[[classes[0] for classes in groups]]
        lost = np.isneginf(shift)
        if not lost.any():
            return Shift(log_p, shift, loses_mass=False)
        loses_mass = bool((log_p[lost] > -np.inf).any())
        log_p[lost], shift[lost] = -np.inf, 0.0
        return Shift(log_p, shift, loses_mass)

    def subsample(self, rows: int) -> Shift:
        """The same on about ``rows`` evenly spaced rows."""
        every = self.log_p.shape[1] // rows
        if every < 2:
            return self
        return Shift(self.log_p[:, ::every].copy(), self.signal[:, ::every].copy(), self.loses_mass)

    def slope_at_zero(self) -> tuple[float, float]:
        """h'(0) = E sum_y p signal, and the same of absolute values: the size that rounding is relative to."""
        if self.loses_mass:
            return -math.inf, 0.0
        slope = size = 0.0
        for log_p, signal in zip(_blocks(self.log_p), _blocks(self.signal), strict=True):
            terms = np.exp(log_p) * signal
            slope += float(terms.sum())
            size += float(np.abs(terms).sum())
        return slope / self.log_p.shape[1], size / self.log_p.shape[1]

    def value(self, eta: float) -> float:
        return self.value_and_slope(eta)[0]

    def value_and_slope(self, eta: float) -> tuple[float, float]:
        """h(eta) and h'(eta), which is the mean over x of the target's expected signal."""
        value = slope = 0.0
        for log_p, signal in zip(_blocks(self.log_p), _blocks(self.signal), strict=True):
            joint = eta * signal
            joint += log_p
            peak = joint.max(axis=0)
            joint -= peak
            terms = np.exp(joint, out=joint)
            total = terms.sum(axis=0)
            value += float((peak + np.log(total)).sum())
            slope += float((np.einsum("cn,cn->n", terms, signal) / total).sum())
        n_rows = self.log_p.shape[1]
        return value / n_rows, slope / n_rows


def _classes_of_one_shift(shift: Array) -> list[NDArray[np.int64]]:
    """Classes grouped by equal rows of a (C, N) signal: to h, such classes are one with their summed probability.

    A proxy gives the classes that lose no sample the same signal, so that a request that touches few classes costs
    as much as if there were few.
    """
    every = max(1, shift.shape[1] // 16)
    _, group_of = np.unique(shift[:, ::every], axis=0, return_inverse=True)
    groups: list[NDArray[np.int64]] = []
    for group in range(int(group_of.max()) + 1):
        classes = np.flatnonzero(group_of == group)
        alike = all(np.array_equal(shift[classes[0]], shift[other]) for other in classes[1:])
        groups += [classes] if alike else [classes[i : i + 1] for i in range(len(classes))]
    return groups


def _blocks(values: Array) -> Iterator[Array]:
    """Views of (C, N) values over column ranges whose temporaries stay in the cache."""
    width = max(64, BLOCK_SIZE // len(values))
    for start in range(0, values.shape[1], width):
        yield values[:, start : start + width]


def mean_lse_shift(eta: float, logits: NDArray[np.floating], signal: Array) -> float:
    """h(eta) = mean_x [LSE(f + eta*signal) - LSE(f)], in nats  [eq:MaxInPratice].

    Args:
        logits: (N, C) base logits f(x).
        signal: (N, C) proxy shift; -inf marks a class that left the support.

    Examples:
        One of two equally likely classes leaves: h(1) = -log 2.

        >>> import numpy as np
        >>> round(mean_lse_shift(1.0, np.zeros((1, 2)), np.array([[0.0, -np.inf]])), 4)
        -0.6931
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

    Examples:
        h(eta) = log((e^eta + e^(-2 eta)) / 2) is zero where e^eta is the golden ratio.

        >>> import math
        >>> import numpy as np
        >>> found = find_eta_max(np.zeros((1, 2)), np.array([[1.0, -2.0]]))
        >>> found.admissible, round(math.exp(found.eta_max), 4)
        (True, 1.618)
    """
    _check(logits, signal)
    if not cap > 0:
        raise BadInput(f"cap {cap} must be positive; the paper's is 1")
    shift = Shift.of(logits, signal)
    slope, size = shift.slope_at_zero()
    if slope >= -SLOPE_ROUNDING * size:
        reason = f"not admissible: KL(p||P) - KL(p||P_r) = {slope:.3g} nats, so P_r fits the network no worse than P"
        return EtaSearch(0.0, False, reason, slope)
    end = min(cap, SEARCH_END)
    root = _largest_root(shift, end)
    if root is not None:
        return EtaSearch(root, True, "h(eta_max) = 0", slope)
    whole = "the whole signal" if end == cap else "the search ends there"
    return EtaSearch(end, True, f"h({end:g}) <= 0: {whole}", slope)


def _largest_root(shift: Shift, end: float) -> float | None:
    """The positive root of h up to ``end``, or None where h stays at or below zero.

    The root of an even subsample is a start from which all rows need two or three steps. A root that these lead to is
    the root: h is convex and zero at 0, so it has one other zero at most.
    """
    coarse = shift.subsample(COARSE_ROWS)
    if coarse is not shift:
        above = _above_root(coarse, end)
        start = None if above is None else _newton(coarse, above)
        root = _newton(shift, start) if start else None
        if root is not None and root <= end:
            return root
    above = _above_root(shift, end)
    return None if above is None else _newton(shift, above)


def _above_root(shift: Shift, end: float) -> float | None:
    """A point up to ``end`` where h > 0, doubling from 1; None where h stays at or below zero."""
    high = min(1.0, end)
    while shift.value(high) <= 0:
        if high >= end:
            return None
        high = min(2 * high, end)
    return high


def _newton(shift: Shift, eta: float) -> float | None:
    """Newton's method; None where it starts left of the minimum, or where there is no positive root to fall onto.

    A convex function lies above its tangents: one step from anywhere right of the minimum lands right of the root, and
    from there the steps fall onto it. Convergence is quadratic, so the step after a small one is below rounding.
    """
    for _ in range(MAX_STEPS):
        value, slope = shift.value_and_slope(eta)
        if slope <= 0:  # before the value is looked at: close to 0, h is zero as well, and that is not the root
            return None
        if abs(value) <= VALUE_ROUNDING:
            return eta
        step = value / slope
        eta -= step
        if eta <= 0:
            return None
        if abs(step) <= SMALL_STEP * eta:
            return eta
    raise ArithmeticError(f"no root of h within {MAX_STEPS} steps; eta is at {eta}")


def _check(logits: NDArray[np.floating], signal: Array) -> None:
    if logits.ndim != 2 or logits.shape != signal.shape:
        raise BadInput(f"logits {logits.shape} and signal {signal.shape} must have the same shape (N, C)")
    if not np.isfinite(logits.sum()) and not np.isfinite(logits).all():  # the sum is the quicker of the two
        rows = np.flatnonzero(~np.isfinite(logits).all(axis=1))
        raise BadInput(f"logits are not finite in {len(rows)} rows, the first is row {rows[0]}")
    if not signal.max() < np.inf:  # false for NaN as well
        wrong = np.isnan(signal) | (signal == np.inf)
        raise BadInput(f"the signal is NaN or +inf in {int(wrong.any(axis=1).sum())} rows; only -inf has a meaning")
