"""Posteriors of Gaussian components: the one evaluator behind the five Gaussian proxies.

A component j belongs to a class and has log density  c_j + z.w_j + (z**2).q_j - [j in full] z^T A z / 2  up to a term that
all components share. Under P and under P_r the same densities carry different log weights; -inf takes a component
out. Nearly all of the work is shared between the two posteriors, and classes that lose no sample need one component.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from unlearn_core.errors import BadInput
from unlearn_core.logspace import log_add, log_sum
from unlearn_core.proxies.points import Points
from unlearn_core.proxies.request import ForgetRequest
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

    reference: Array
    components: Components

    @property
    def n_classes(self) -> int:
        return len(self.components.log_weight_p) - len(self.components.extra_class)

    def log_posteriors(self, points: Points) -> tuple[Array, Array]:
        """log P(y|x) and log P_r(y|x), each (N, C); -inf for a class that left the support of P_r."""
        x = points.features
        log_p, log_p_r = np.empty((2, self.n_classes, len(x)))
        every = np.arange(self.n_classes)
        for rows, scores in self._score_blocks(x):
            for out, log_weight in ((log_p, self.components.log_weight_p), (log_p_r, self.components.log_weight_r)):
                joint = self._joint(scores, log_weight, every)
                out[:, rows] = joint - log_sum(joint)
        return log_p.T, log_p_r.T

    def signal(self, points: Points) -> Array:
        """(N, C) log P_r(y|x) - log P(y|x)  [eq:delta-M].

        Classes that lose no sample have the same density in both posteriors, and priors in one ratio: their signals are
        equal, and their densities are summed once. The array is a view of a class-major one, as eta's search reads it.
        """
        x, parts = points.features, self.components
        moved = parts.extra_class
        unmoved = np.setdiff1d(np.arange(self.n_classes), moved)
        prior_ratio = parts.log_weight_r[unmoved[0]] - parts.log_weight_p[unmoved[0]] if len(unmoved) else 0.0
        signal = np.empty((self.n_classes, len(x)))
        for rows, scores in self._score_blocks(x):
            joint_p, joint_r = (self._joint(scores, w, moved) for w in (parts.log_weight_p, parts.log_weight_r))
            if len(unmoved):
                shared = log_sum(self._joint(scores, parts.log_weight_p, unmoved))
                evidence_p = np.logaddexp(shared, log_sum(joint_p))
                evidence_r = np.logaddexp(shared + prior_ratio, log_sum(joint_r))
            else:
                evidence_p, evidence_r = log_sum(joint_p), log_sum(joint_r)
            falls = evidence_p - evidence_r
            signal[unmoved, rows] = prior_ratio + falls
            signal[moved, rows] = joint_r - joint_p + falls
        return signal.T

    def arrays(self) -> dict[str, NDArray]:
        parts = {f"components.{name}": value for name, value in vars(self.components).items() if value is not None}
        return {"reference": self.reference, **parts}

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray]) -> GaussianProxy:
        parts = {field.name: arrays.get(f"components.{field.name}") for field in dataclasses.fields(Components)}
        return GaussianProxy(arrays["reference"], Components(**parts))  # pyright: ignore[reportArgumentType]

    def _score_blocks(self, x: NDArray[np.floating]) -> Iterator[tuple[slice, Array]]:
        """Row ranges with the components' log densities, component-major (J, n): sums over classes run along memory."""
        if x.ndim != 2 or x.shape[1] != len(self.reference):
            raise BadInput(f"features have shape {x.shape}; this proxy was fitted on d = {len(self.reference)}")
        parts = self.components
        linear = np.ascontiguousarray(parts.linear.T)
        diagonal = None if parts.diagonal is None else np.ascontiguousarray(parts.diagonal.T)
        quadratic = None if parts.full is None else _upper_blocks(parts.full)
        for rows, z in centred_chunks(x, self.reference):
            scores = linear @ z.T
            if quadratic is not None:
                scores[self.n_classes :] -= 0.5 * _symmetric_form(z, quadratic)
            if diagonal is not None:
                scores += diagonal @ np.square(z, out=z).T
            yield rows, scores

    def _joint(self, scores: Array, log_weight: Array, classes: NDArray[np.int64]) -> Array:
        """(len(classes), n) log of density times weight, summed over a class's components; those without weight are free."""
        joint = scores[classes] + log_weight[classes, None]
        extra_classes, at, of = np.intersect1d(self.components.extra_class, classes, return_indices=True)
        weighted = log_weight[self.n_classes + at] > -np.inf
        if not weighted.any():
            return joint
        at, of = self.n_classes + at[weighted], of[weighted]
        extra = scores[at] + log_weight[at, None]
        alone = log_weight[extra_classes[weighted]] == -np.inf
        joint[of[alone]] = extra[alone]
        joint[of[~alone]] = log_add(joint[of[~alone]], extra[~alone])
        return joint


def fit_gaussian(
    components: Callable[[ForgetRequest], Components], request: ForgetRequest, _constants: None = None
) -> GaussianProxy:
    """Assemble a Gaussian proxy from a request's moments."""
    return GaussianProxy(request.total.reference, components(request))


def _upper_blocks(matrix: Array) -> list[Array]:
    """Block columns of a symmetric matrix down to their diagonal block, the part above it doubled."""
    blocks = []
    for start in range(0, len(matrix), QUADRATIC_BLOCK):
        stop = min(start + QUADRATIC_BLOCK, len(matrix))
        block = matrix[:stop, start:stop].copy()
        block[:start] *= 2.0
        blocks.append(block)
    return blocks


def _symmetric_form(z: Array, blocks: Sequence[Array]) -> Array:
    """(n,) z^T A z: with four blocks, five eighths of the multiplications that the whole matrix takes."""
    total = np.zeros(len(z))
    for block in blocks:
        stop, width = block.shape
        total += np.einsum("ij,ij->i", z[:, :stop] @ block, z[:, stop - width : stop])
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
