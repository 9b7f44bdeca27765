"""A forget request as proxies see it: D, the rows to forget, what was prepared, how covariances are regularised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput
from unlearn_core.proxies.covariance import Shrinkage, regularize
from unlearn_core.proxies.points import Points
from unlearn_core.proxies.statistics import Moments, centred_chunks, compute_moments

if TYPE_CHECKING:
    from unlearn_core.problem import Problem

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ForgetRequest:
    """Everything a proxy is fitted to. The proxies of one request share it, and what it computes.

    Attributes:
        mask: (N,) True for the rows to forget.
        points: the training rows, with the base network's logits if a proxy needs them.
        seed: of what is drawn by chance.
        forgotten: the moments of the rows to forget, if they are known already.
        arch: of the network, if it has a name.
    """

    problem: Problem
    mask: NDArray[np.bool_]
    points: Points
    ridge: float = 1e-3
    shrinkage: Shrinkage = Shrinkage.RIDGE
    seed: int = 0
    forgotten: Moments | None = None
    arch: str | None = None

    def __post_init__(self) -> None:
        check_mask(self.mask, self.labels)

    @property
    def features(self) -> NDArray[np.floating]:
        return self.problem.train.seen

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.problem.train.labels

    @property
    def n_classes(self) -> int:
        return self.problem.n_classes

    def prepared(self, name: str) -> Any:
        """What was prepared of D, for networks like the base."""
        return self.problem.prepare(name, self.arch)

    @cached_property
    def lost_classes(self) -> NDArray[np.bool_]:
        """(C,) the classes without a retained row: they leave the support of P_r."""
        return self.problem.lost_classes(self.mask)

    @cached_property
    def total(self) -> Moments:
        """The moments of D."""
        total = self.problem.moments
        if (total.counts == 0).any():
            missing = int(np.flatnonzero(total.counts == 0)[0])
            raise BadInput(f"class {missing} of {self.n_classes} has no training row; a proxy cannot model it")
        return total

    @cached_property
    def forget(self) -> Moments:
        """The moments of D_f."""
        if self.forgotten is not None:
            return self.forgotten
        rows = self.mask
        return compute_moments(self.features[rows], self.labels[rows], self.n_classes, self.total.reference)

    @cached_property
    def retain(self) -> Moments:
        """The moments of D_r."""
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
