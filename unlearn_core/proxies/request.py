"""A forget request as the proxies see it: the moments of D, D_f and D_r, and how covariances are regularised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput
from unlearn_core.proxies.covariance import Shrinkage, regularize
from unlearn_core.proxies.statistics import Moments, centred_chunks, compute_moments

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ForgetRequest:
    """Everything a Gaussian proxy is assembled from. Five proxies of one request share it."""

    features: NDArray[np.floating]
    labels: NDArray[np.integer]
    mask: NDArray[np.bool_]
    total: Moments
    forget: Moments
    ridge: float = 1e-3
    shrinkage: Shrinkage = Shrinkage.RIDGE

    @cached_property
    def retain(self) -> Moments:
        return self.total - self.forget

    @cached_property
    def classes_with_forget(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.forget.counts)

    def pooled_covariance(self, *states: Moments) -> Array:
        """The covariance pooled within the labels of each of ``states``, regularised."""
        n_rows = sum(state.n_rows for state in states)
        scatter = np.sum([state.scatter() for state in states], axis=0)
        quartic = None
        if self.shrinkage is Shrinkage.LEDOIT_WOLF:
            quartic = sum(self._residual_quartic(state) for state in states)
        own_scale = float(np.trace(self.total.scatter())) / (self.total.n_rows * len(scatter))
        fallback = own_scale if own_scale > 0 else self.total.mean_total_variance()
        return regularize(scatter, n_rows, self.ridge, fallback, self.shrinkage, quartic)

    def _residual_quartic(self, state: Moments) -> float:
        """Sum of |x - mean of its label in this state|^4 over the state's rows: O(N d), one pass."""
        rows = np.arange(len(self.labels))
        if state is self.forget:
            rows = np.flatnonzero(self.mask)
        elif state is self.retain:
            rows = np.flatnonzero(~self.mask)
        features, labels, means = self.features[rows], self.labels[rows], state.means()
        total = 0.0
        for chunk, z in centred_chunks(features, state.reference):
            total += float(np.sum(np.sum((z - means[labels[chunk]]) ** 2, axis=1) ** 2))
        return total


def check_mask(mask: NDArray[np.bool_], labels: NDArray[np.integer]) -> None:
    if mask.shape != labels.shape or mask.dtype != np.bool_:
        raise BadInput(f"the forget mask has shape {mask.shape}, dtype {mask.dtype}; it needs {labels.shape} booleans")
    if not mask.any() or mask.all():
        raise BadInput(f"the request forgets {int(mask.sum())} of {len(mask)} rows; it must leave some on either side")


def forget_request(
    features: NDArray[np.floating],
    labels: NDArray[np.integer],
    mask: NDArray[np.bool_],
    n_classes: int,
    ridge: float = 1e-3,
    shrinkage: Shrinkage = Shrinkage.RIDGE,
    total: Moments | None = None,
) -> ForgetRequest:
    """Check a request and take the forget moments; ``total`` is the cached moments of D, computed here if not given."""
    check_mask(mask, labels)
    if total is None:
        total = compute_moments(features, labels, n_classes)
    if (total.counts == 0).any():
        missing = int(np.flatnonzero(total.counts == 0)[0])
        raise BadInput(f"class {missing} of {n_classes} has no training row; a proxy cannot model it")
    forget = compute_moments(features[mask], labels[mask], n_classes, total.reference)
    return ForgetRequest(features, labels, mask, total, forget, ridge, shrinkage)
