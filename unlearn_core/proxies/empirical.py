"""``dir`` and ``dir-2c``: the empirical measure of the data as its own model. No eta, no features, closed form.

[eq:dd_target_softmax], [app:exact_dirac_2c]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from unlearn_core.proxies.points import Points
from unlearn_core.proxies.request import ForgetRequest

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

NOWHERE = -1


@dataclass(frozen=True, eq=False)
class EmpiricalProxy:
    """The empirical measures of D and D_r. They know the training rows; anything else is new to them.

    Attributes:
        labels: (N,) of the training rows.
        mask: (N,) True for those to forget.
        doubled: ``dir-2c``: the target mixes the truncated and the whole posterior by the forgotten share of the class.
    """

    labels: Labels
    mask: NDArray[np.bool_]
    n_classes: int
    doubled: bool

    @cached_property
    def forget_share(self) -> Array:
        """(C,) pi_f(y) = |D_f(y)| / |D(y)|; 1 for a class that left the support of P_r."""
        counts = np.bincount(self.labels, minlength=self.n_classes)
        return np.bincount(self.labels[self.mask], minlength=self.n_classes) / np.maximum(counts, 1)

    def _membership(self, points: Points) -> tuple[Labels, Labels]:
        """(N,) the label under which D knows a point, and the label of a point that D holds and D_r does not; or -1."""
        if points.rows is not None:
            known = self.labels[points.rows]
            return known, np.where(self.mask[points.rows], known, NOWHERE)
        nowhere = np.full(len(points), NOWHERE)
        return nowhere, nowhere if points.as_forgotten is None else points.as_forgotten

    def log_posteriors(self, points: Points) -> tuple[Array, Array]:
        """log P(y|x) and log P_r(y|x), each (N, C): all mass on the known label, uniform off the training set.

        D_r does not know a forgotten point; there P_r is uniform over the other classes, its label excluded.
        """
        known, forgotten = self._membership(points)
        log_p = np.full((len(points), self.n_classes), -np.log(self.n_classes))
        seen = known >= 0
        log_p[seen] = -np.inf
        log_p[seen, known[seen]] = 0.0
        log_p_r = log_p.copy()
        gone = forgotten >= 0
        log_p_r[gone] = -np.log(max(self.n_classes - 1, 1))
        log_p_r[gone, forgotten[gone]] = -np.inf
        return log_p, log_p_r

    def signal(self, points: Points) -> Array:
        """(N, C) -inf at the label of a forgotten point and, on D, at a class that D_r lost; 0 elsewhere [eq:dd_DeltaM].

        The closed form itself, not the difference of the two log posteriors, which is undefined off the label.
        """
        known, forgotten = self._membership(points)
        signal = np.zeros((len(points), self.n_classes))
        signal[np.ix_(known >= 0, self.forget_share == 1.0)] = -np.inf
        gone = forgotten >= 0
        signal[gone, forgotten[gone]] = -np.inf
        return signal

    def log_target(self, points: Points) -> Array:
        """(N, C) log of the target: base probits truncated by the signal, and for ``dir-2c`` mixed back."""
        log_base = points.log_base
        truncated = log_softmax(log_base + self.signal(points), axis=1)
        if not self.doubled:
            return truncated
        _, forgotten = self._membership(points)
        gone = forgotten >= 0
        share = self.forget_share[forgotten[gone]][:, None]
        with np.errstate(divide="ignore"):  # a share of 1 leaves nothing of the base
            kept = np.log1p(-share)
        truncated[gone] = np.logaddexp(kept + log_base[gone], np.log(share) + truncated[gone])
        return truncated


def fit_empirical(request: ForgetRequest, _constants: None, doubled: bool) -> EmpiricalProxy:
    """There is nothing to fit."""
    return EmpiricalProxy(request.labels, request.mask, request.n_classes, doubled)
