"""``probe``: a pair of linear classifiers on the features, one of D and one of D_r.

P(y|x) and P_r(y|x) are L2-regularised multinomial logistic regressions: discriminative where the other proxies are
generative. The fit on D is computed once per (features, labels); a request starts from it.

Both fits are by L-BFGS in coordinates in which the curvature of each class at the solution on D is the identity, so that
half the squared gradient there is about how far the objective, in nats, is from its minimum. The fit on D_r minimises
its objective tilted by what gradient the fit on D has left: then, with nothing forgotten, the two fits would be equal, and
an unconverged first fit cannot make the second one look like the better model of D.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from unlearn_core.errors import BadInput
from unlearn_core.proxies.points import Points
from unlearn_core.proxies.request import ForgetRequest

Array = NDArray[np.float64]
Single = NDArray[np.float32]

DESIGN_ROWS = 4096  # rows that are turned into the probe's inputs at a time


@dataclass(frozen=True)
class ProbeConstants:
    """What the two fits depend on."""

    penalty: float = 1e-4
    bias_penalty: float = 1e-9
    """Only so that the curvature can be factored if a class is predicted with certainty."""
    gap_of_d: float = 1e-8
    """Nats that the fit on D may be from its minimum."""
    gaps_on_the_way: tuple[float, ...] = (1e-3, 1e-5)
    """The curvature is taken anew after each: at zero it starts the fit, at the solution it finishes it."""
    request_share: float = 1e-3
    """Of the gap that the request opens, what the fit on D_r may leave."""
    smallest_gap: float = 1e-9
    """Nats; a smaller one is closed by one step, for passes over D_r have not the digits to do better."""
    memory: int = 12
    max_steps: int = 500
    chunk_rows: int = 4096
    """Logits and gradient of a chunk are taken while it is in the cache."""
    decrease: float = 1e-4
    smallest_step: float = 1e-6


@dataclass(frozen=True, eq=False)
class ProbeFit:
    """The probe of D, with what a request needs in order to start from it.

    Attributes:
        centre: (d,) the mean of D, taken off the features.
        scale: the root mean square of the centred features: what makes the penalty free of their unit.
        weights: (d + 1, C), the bias last.
        gradient: (d + 1, C) of the penalised mean loss at ``weights``: what is left of it.
        factors: (C, d + 1, d + 1) lower Cholesky factors of each class's curvature at ``weights``.
    """

    centre: Array
    scale: float
    weights: Array
    gradient: Array
    factors: Array


@dataclass(frozen=True, eq=False)
class ProbeProxy:
    """P and P_r as two linear classifiers; a class with no retain sample is out of the support of P_r."""

    fit: ProbeFit
    retain_weights: Array
    lost_classes: NDArray[np.bool_]

    @property
    def n_classes(self) -> int:
        return self.fit.weights.shape[1]

    def log_posteriors(self, points: Points) -> tuple[Array, Array]:
        """log P(y|x) and log P_r(y|x), each (N, C); -inf for a class that left the support of P_r."""
        x = self._checked(points)
        log_p, log_p_r = np.empty((2, len(x), self.n_classes))
        for start in range(0, len(x), DESIGN_ROWS):
            rows = slice(start, start + DESIGN_ROWS)
            z = design(x[rows], self.fit)
            log_p[rows] = _log_softmax(_logits(z, self.fit.weights).astype(np.float64)).T
            log_p_r[rows] = self.log_retain(z)
        return log_p, log_p_r

    def log_retain(self, z: Single) -> Array:
        """(n, C) log P_r(y|x) where z = ``design(x, fit)``."""
        logits = _logits(z, self.retain_weights).astype(np.float64)
        logits[self.lost_classes] = -np.inf
        return _log_softmax(logits).T

    def signal(self, points: Points) -> Array:
        """(N, C) log P_r(y|x) - log P(y|x), from how the weights moved.

        The difference of two posteriors has their rounding errors, and where a request changes next to nothing it would
        have nothing else; an eta without a limit would then enlarge those.
        """
        x = self._checked(points)
        moved = self.retain_weights - self.fit.weights
        signal = np.empty((self.n_classes, len(x)))
        for start in range(0, len(x), DESIGN_ROWS):
            rows = slice(start, start + DESIGN_ROWS)
            z = design(x[rows], self.fit)
            log_p = _log_softmax(_logits(z, self.fit.weights).astype(np.float64))
            change = _logits(z, moved).astype(np.float64)
            change[self.lost_classes] = -np.inf
            # log sum_c p_c exp(change_c), by way of what differs from one
            signal[:, rows] = change - np.log1p(np.sum(np.exp(log_p) * np.expm1(change), axis=0))
        return signal.T

    def _checked(self, points: Points) -> NDArray[np.floating]:
        x = points.features
        if x.ndim != 2 or x.shape[1] != len(self.fit.centre):
            raise BadInput(f"features have shape {x.shape}; this probe was fitted on d = {len(self.fit.centre)}")
        return x

    def arrays(self) -> dict[str, NDArray]:
        return {
            "centre": self.fit.centre,
            "scale": np.array(self.fit.scale),
            "weights": self.fit.weights,
            "retain_weights": self.retain_weights,
            "retain_lost_classes": self.lost_classes,
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray]) -> ProbeProxy:
        # what a further fit would start from is not part of the file
        fit = ProbeFit(arrays["centre"], float(arrays["scale"]), arrays["weights"], np.empty(0), np.empty(0))
        return ProbeProxy(fit, arrays["retain_weights"], arrays["retain_lost_classes"])


def design(x: NDArray[np.floating], fit: ProbeFit) -> Single:
    """(N, d + 1) float32: features about the centre in units of the scale, and a one for the bias."""
    return _design(x, fit.centre, fit.scale)


def _design(x: NDArray[np.floating], centre: Array, scale: float) -> Single:
    out = np.empty((len(x), x.shape[1] + 1), dtype=np.float32)
    np.divide(np.subtract(x, centre.astype(np.float32), dtype=np.float32), np.float32(scale), out=out[:, :-1])
    out[:, -1] = 1.0
    return out


def fit_probe_of_all(
    features: NDArray[np.floating], labels: NDArray[np.integer], n_classes: int, constants: ProbeConstants
) -> ProbeFit:
    """The probe of D: once per (features, labels), for every request."""
    centre = np.asarray(features.mean(axis=0, dtype=np.float64))
    square = sum(float(np.sum(np.subtract(c, centre) ** 2)) for c in _row_chunks(features))
    scale = float(np.sqrt(square / features.size)) or 1.0
    data = _Data(_design(features, centre, scale), labels, n_classes, constants)
    weights = np.zeros((features.shape[1] + 1, n_classes))
    for reached in (*constants.gaps_on_the_way, constants.gap_of_d):
        factors = data.curvature_factors(weights)
        weights = _minimise(data, weights, factors, np.zeros_like(weights), max(reached, constants.gap_of_d))
    return ProbeFit(centre, scale, weights, data.objective(weights)[1], data.curvature_factors(weights))


def fit_probe(request: ForgetRequest, constants: ProbeConstants) -> ProbeProxy:
    """The probe of D_r, started from D's.

    If all that is forgotten is whole classes, P_r is P on the others, as for the other proxies; nothing is fitted.
    """
    fit, labels, forget, lost = request.problem.probe, request.labels, request.mask, request.lost_classes
    if lost[labels[forget]].all():
        return ProbeProxy(fit, fit.weights, lost)
    z, n_classes = request.problem.probe_inputs, request.n_classes
    retained = _Data(z, labels, n_classes, constants, ~forget, ~lost)
    tilt = np.where(lost, 0.0, fit.gradient)
    if lost.any():
        opened = retained.objective(fit.weights)[1] - tilt
    else:
        opened = _opened_by(_Data(z[forget], labels[forget], n_classes, constants), retained.n_rows, fit)
    gap = _gap(opened, fit.factors)
    if gap <= constants.smallest_gap:
        step = _coloured(_whitened(opened, fit.factors), fit.factors)
        return ProbeProxy(fit, fit.weights - step, lost)
    return ProbeProxy(fit, _minimise(retained, fit.weights, fit.factors, tilt, constants.request_share * gap), lost)


def _opened_by(forgotten: _Data, n_retained: int, fit: ProbeFit) -> Array:
    """The gradient of D_r's tilted objective at D's solution, from the forgotten rows alone and so to all digits."""
    penalty = forgotten.penalty[:, None] * fit.weights
    of_forgotten = forgotten.objective(fit.weights)[1] - penalty
    of_all = fit.gradient - penalty
    return (forgotten.n_rows / n_retained) * (of_all - of_forgotten)


def _row_chunks(x: NDArray) -> Iterator[NDArray]:
    for start in range(0, len(x), DESIGN_ROWS):
        yield x[start : start + DESIGN_ROWS]


def _logits(z: Single, weights: Array) -> Single:
    """(C, n), class-major: sums over classes run along memory."""
    return np.ascontiguousarray(weights.T, dtype=np.float32) @ z.T


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=0)
    return shifted - np.log(np.exp(shifted).sum(axis=0))


class _Data:
    """Penalised mean cross-entropy of some rows over some classes. Products are float32, sums over chunks float64."""

    def __init__(
        self,
        z: Single,
        labels: NDArray[np.integer],
        n_classes: int,
        constants: ProbeConstants,
        rows: NDArray[np.bool_] | None = None,
        classes: NDArray[np.bool_] | None = None,
    ) -> None:
        self.z: Single = z
        self.labels: NDArray[np.integer] = labels
        self.n_classes: int = n_classes
        self.left_out: NDArray[np.bool_] | None = None if rows is None else ~rows
        self.absent: NDArray[np.bool_] = np.zeros(n_classes, dtype=bool) if classes is None else ~classes
        self.n_rows: int = len(z) if rows is None else int(rows.sum())
        self.constants: ProbeConstants = constants
        self.penalty: Array = np.full(z.shape[1], constants.penalty)
        self.penalty[-1] = constants.bias_penalty

    def objective(self, weights: Array) -> tuple[float, Array]:
        """Its value and its gradient (d + 1, C)."""
        loss, gradient = 0.0, np.zeros_like(weights)
        for rows, logits in self._chunks(weights):
            labels, at = self.labels[rows], np.arange(logits.shape[1])
            logits -= logits.max(axis=0)
            p = np.exp(logits)
            total = p.sum(axis=0)
            terms = np.log(total) - logits[labels, at]
            p /= total
            p[labels, at] -= 1.0
            if self.left_out is not None:  # set, not multiplied: a row of an absent class has an infinite term
                terms[self.left_out[rows]] = 0.0
                p[:, self.left_out[rows]] = 0.0
            loss += float(terms.sum(dtype=np.float64))
            gradient += (p @ self.z[rows]).T
        present = np.where(self.absent, 0.0, weights)
        value = loss / self.n_rows + 0.5 * float(np.sum(self.penalty[:, None] * present**2))
        return value, gradient / self.n_rows + self.penalty[:, None] * present

    def curvature_factors(self, weights: Array) -> Array:
        """(C, d + 1, d + 1) Cholesky factors of each class's own block of the Hessian."""
        width = self.z.shape[1]
        blocks = np.zeros((self.n_classes, width, width))
        for rows, logits in self._chunks(weights):
            p = np.exp(_log_softmax(logits.astype(np.float64))).astype(np.float32)
            for c in range(self.n_classes):
                weighted = self.z[rows] * np.sqrt(p[c] * (1.0 - p[c]))[:, None]
                blocks[c] += weighted.T @ weighted
        blocks /= self.n_rows
        blocks += np.diag(self.penalty)
        return np.asarray(np.linalg.cholesky(blocks), dtype=np.float64)

    def _chunks(self, weights: Array) -> Iterator[tuple[slice, Single]]:
        for start in range(0, len(self.z), self.constants.chunk_rows):
            rows = slice(start, min(start + self.constants.chunk_rows, len(self.z)))
            logits = _logits(self.z[rows], weights)
            logits[self.absent] = -np.inf
            yield rows, logits


def _whitened(gradient: Array, factors: Array) -> Array:
    """The gradient in coordinates in which each class's curvature is the identity."""
    return np.stack([solve_triangular(factor, gradient[:, c], lower=True) for c, factor in enumerate(factors)], axis=1)


def _coloured(direction: Array, factors: Array) -> Array:
    """A direction of those coordinates in the weights' own."""
    return np.stack(
        [solve_triangular(factor, direction[:, c], lower=True, trans=1) for c, factor in enumerate(factors)], axis=1
    )


def _gap(gradient: Array, factors: Array) -> float:
    """About how far, in nats, the objective is from its minimum."""
    return 0.5 * float(np.sum(_whitened(gradient, factors) ** 2))


def _minimise(data: _Data, weights: Array, factors: Array, tilt: Array, gap: float) -> Array:
    """Weights at which the objective, less its ``tilt``, is within ``gap`` of its minimum, by L-BFGS."""
    how = data.constants
    value, gradient = data.objective(weights)
    value -= float(np.sum(tilt * weights))
    slope = _whitened(gradient - tilt, factors)
    history: list[tuple[Array, Array, float]] = []
    for _ in range(how.max_steps):
        if 0.5 * float(np.sum(slope**2)) <= gap:
            return weights
        direction = -_inverse_curvature(slope, history)
        move = _coloured(direction, factors)
        expected = float(np.sum(slope * direction))
        step = 1.0
        while True:
            trial = weights + step * move
            trial_value, trial_gradient = data.objective(trial)
            trial_value -= float(np.sum(tilt * trial))
            if trial_value <= value + how.decrease * step * expected:
                break
            step *= 0.5
            if step < how.smallest_step:
                return weights  # as far as the objective's digits tell its minimum
        trial_slope = _whitened(trial_gradient - tilt, factors)
        moved, turned = step * direction, trial_slope - slope
        curvature = float(np.sum(moved * turned))
        if curvature > 0:
            history = [*history, (moved, turned, 1.0 / curvature)][-how.memory :]
        weights, value, slope = trial, trial_value, trial_slope
    raise ArithmeticError(f"the probe is not fitted within {how.max_steps} steps; its features may be degenerate")


def _inverse_curvature(slope: Array, history: list[tuple[Array, Array, float]]) -> Array:
    """The two-loop recursion of L-BFGS."""
    q, shares = slope.copy(), []
    for moved, turned, inverse in reversed(history):
        share = inverse * float(np.sum(moved * q))
        shares.append(share)
        q -= share * turned
    if history:
        moved, turned, inverse = history[-1]
        q /= inverse * float(np.sum(turned**2))
    for (moved, turned, inverse), share in zip(history, reversed(shares), strict=True):
        q += (share - inverse * float(np.sum(turned * q))) * moved
    return q
