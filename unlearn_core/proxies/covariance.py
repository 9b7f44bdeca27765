"""Regularised covariances: ridge (default), Ledoit-Wolf and OAS.  [sec:lda2c]

Every estimate is positive definite whatever the sample (one row, constant features, d > n), so that no proxy is ever NaN.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput

Array = NDArray[np.float64]

# A covariance whose scale is below this share of the reference scale is rounding error, not spread.
NEGLIGIBLE = 1e-12


class Shrinkage(StrEnum):
    RIDGE = "ridge"
    """S + ridge * tr(S)/d * I."""
    LEDOIT_WOLF = "ledoit-wolf"
    """(1 - a) S + a * tr(S)/d * I with Ledoit and Wolf's a, then a ridge."""
    OAS = "oas"
    """The same with the oracle-approximating a of Chen et al."""


def regularize(
    scatter: Array,
    n_rows: int,
    ridge: float,
    fallback_scale: float,
    shrinkage: Shrinkage = Shrinkage.RIDGE,
    residual_quartic: float | None = None,
) -> Array:
    """A positive definite (d, d) covariance from a within-label scatter matrix.

    Args:
        scatter: (d, d) sum of outer products of residuals.
        fallback_scale: the mean variance to take where the scatter itself has none (one row, identical rows).
        residual_quartic: sum over rows of |residual|^4, which Ledoit-Wolf needs beyond the scatter.
    """
    if not (np.isfinite(ridge) and ridge >= 0):
        raise BadInput(f"ridge {ridge} must be a number of at least 0; 1e-3 is the default")
    d = len(scatter)
    covariance = scatter / n_rows
    scale = float(np.trace(covariance)) / d
    reference_scale = fallback_scale if fallback_scale > 0 else 1.0
    if scale <= NEGLIGIBLE * reference_scale:
        covariance, scale = np.zeros_like(covariance), reference_scale
    amount = _shrinkage_amount(covariance, scale, n_rows, shrinkage, residual_quartic)
    identity = np.eye(d)
    return (1.0 - amount) * covariance + (amount + ridge) * scale * identity


def regularize_diagonal(variances: Array, ridge: float, mean_total_variance: float) -> Array:
    """v + ridge * (mean over features of the total variance), positive also for constant features.

    Args:
        variances: (C, d).
    """
    scale = mean_total_variance if mean_total_variance > 0 else 1.0
    positive = variances + ridge * scale
    if (positive <= 0).any():
        raise BadInput("some features do not vary within a class and ridge is 0; use a ridge such as 1e-3")
    return positive


def _shrinkage_amount(
    covariance: Array, scale: float, n_rows: int, shrinkage: Shrinkage, residual_quartic: float | None
) -> float:
    if shrinkage is Shrinkage.RIDGE:
        return 0.0
    d = len(covariance)
    squared = float(np.sum(covariance**2))
    if shrinkage is Shrinkage.OAS:
        mean_square = squared / d**2
        numerator = mean_square + scale**2
        denominator = (n_rows + 1.0) * (mean_square - scale**2 / d)
        return 1.0 if denominator <= 0 else min(numerator / denominator, 1.0)
    if residual_quartic is None:
        raise ValueError("Ledoit-Wolf needs the fourth moment of the residuals")
    dispersion = squared / d - scale**2
    noise = (residual_quartic / n_rows - squared) / (d * n_rows)
    return 1.0 if dispersion <= 0 else float(np.clip(noise / dispersion, 0.0, 1.0))
