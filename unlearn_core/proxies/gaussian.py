"""Posteriors of Gaussian components: the one evaluator behind the five Gaussian proxies.

A component j belongs to a class and has log density  c_j + z.w_j + (z**2).q_j - [j in full] z^T A z / 2  up to a term that
all components share. Under P and under P_r the same densities carry different log weights; -inf takes a component
out. Nearly all of the work is shared between the two posteriors, and classes that lose no sample need one component.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from unlearn_core.errors import BadInput
from unlearn_core.proxies.statistics import centred_chunks

Array = NDArray[np.float64]

QUADRATIC_BLOCK = 96  # symmetric quadratic forms are evaluated on block columns of the upper triangle


@dataclass(frozen=True, eq=False)
class Components:
    """J = C + E components: first one per class, then E extra ones, at most one more for any class.

    Attributes:
        linear: (d, J) w.
        log_weight_p, log_weight_r: (J,) constant and log weight under P and under P_r; -inf where it has no part.
        extra_class: (E,) the class of each extra component.
        diagonal: (d, J) q, or None.
        full: (d, d) symmetric A, applied to the extra components only, or None.
    """

    linear: Array
    log_weight_p: Array
    log_weight_r: Array
    extra_class: NDArray[np.int64]
    diagonal: Array | None = None
    full: Array | None = None


@dataclass(frozen=True, eq=False)
class GaussianProxy:
    """P(y|x) and P_r(y|x) in closed form; immutable, a pure function of x."""

    method: str
    reference: Array
    components: Components

    @property
    def n_classes(self) -> int:
        return len(self.components.log_weight_p) - len(self.components.extra_class)

    def log_posteriors(self, x: NDArray[np.floating]) -> tuple[Array, Array]:
        """log P(y|x) and log P_r(y|x), each (N, C); -inf for a class that left the support of P_r.

        Args:
            x: (N, d) features in any float type.
        """
        if x.ndim != 2 or x.shape[1] != len(self.reference):
            raise BadInput(f"features have shape {x.shape}; this proxy was fitted on d = {len(self.reference)}")
        parts = self.components
        log_p = np.empty((len(x), self.n_classes))
        log_p_r = np.empty_like(log_p)
        # the class-major layout makes reductions over classes run along memory
        for rows, z in centred_chunks(x, self.reference):
            scores = parts.linear.T @ z.T
            if parts.diagonal is not None:
                scores += parts.diagonal.T @ (z**2).T
            if parts.full is not None:
                scores[self.n_classes :] -= 0.5 * symmetric_form(z, parts.full)
            log_p[rows] = self._posterior(scores, parts.log_weight_p).T
            log_p_r[rows] = self._posterior(scores, parts.log_weight_r).T
        return log_p, log_p_r

    def signal(self, x: NDArray[np.floating]) -> Array:
        """(N, C) log P_r(y|x) - log P(y|x)  [eq:delta-M]."""
        log_p, log_p_r = self.log_posteriors(x)
        return log_p_r - log_p

    def _posterior(self, scores: Array, log_weight: Array) -> Array:
        """(C, n) log posterior from (J, n) scores."""
        joint = scores + log_weight[:, None]
        per_class, extra = joint[: self.n_classes], joint[self.n_classes :]
        if len(extra):
            of = self.components.extra_class
            per_class[of] = np.logaddexp(per_class[of], extra)
        per_class -= per_class.max(axis=0)
        per_class -= np.log(np.exp(per_class).sum(axis=0))
        return per_class


def symmetric_form(z: Array, matrix: Array) -> Array:
    """(n,) z^T A z for a symmetric A, from its upper triangle: five eighths of the multiplications for four blocks."""
    d = z.shape[1]
    total = np.zeros(len(z))
    for start in range(0, d, QUADRATIC_BLOCK):
        stop = min(start + QUADRATIC_BLOCK, d)
        columns = matrix[:stop, start:stop].copy()
        columns[:start] *= 2.0
        total += np.einsum("ij,ij->i", z[:, :stop] @ columns, z[:, start:stop])
    return total


@dataclass(frozen=True, eq=False)
class Factor:
    """A Cholesky factor of one covariance, with the pieces that log densities need."""

    cholesky: tuple[Array, bool]
    log_determinant: float

    def solve(self, columns: Array) -> Array:
        return cho_solve(self.cholesky, columns)

    def inverse(self) -> Array:
        return self.solve(np.eye(len(self.cholesky[0])))


def factorize(covariance: Array) -> Factor:
    """Factor a covariance, or say what to do where it is singular."""
    try:
        factor = cho_factor(covariance, lower=True)
    except LinAlgError as error:
        raise BadInput(
            f"the {len(covariance)}x{len(covariance)} covariance is singular; use a larger ridge such as 1e-3"
        ) from error
    return Factor((factor[0], bool(factor[1])), float(2.0 * np.log(np.diag(factor[0])).sum()))


def linear_terms(means: Array, factor: Factor) -> tuple[Array, Array]:
    """w = Sigma^-1 mu as (d, J), and -mu^T Sigma^-1 mu / 2 as (J,), for means (J, d)."""
    linear = factor.solve(means.T)
    return linear, -0.5 * np.einsum("jd,dj->j", means, linear)


def diagonal_terms(means: Array, variances: Array) -> tuple[Array, Array, Array]:
    """w, q (both (d, J)) and the constant (J,) of Gaussians with diagonal covariances; means, variances (J, d)."""
    linear = means / variances
    constant = -0.5 * np.sum(means * linear, axis=1) - 0.5 * np.sum(np.log(variances), axis=1)
    return linear.T, -0.5 / variances.T, constant


def log_share(counts: NDArray[np.integer], total: int) -> Array:
    """log(counts / total), -inf where the count is zero."""
    with np.errstate(divide="ignore"):
        return np.log(counts / total)
