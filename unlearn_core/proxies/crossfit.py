"""``crossfit``: what models that never saw a record said of it, before anybody asked.

Of every row there is the posterior of a model that was trained without its fold (``unlearn_core.crossfit``). On the
records P is the network and P_r is that posterior; elsewhere P = P_r, and the network stays as it is. eta_max is 1, as for
``fresh``. A fold's model has seen most other records of a request: if rows vouch for each other, as those of a class or
subclass do, P_r is too sure of them.

``crossfit-net`` asks whole networks instead (``unlearn_core.fold_networks``): for a network that was trained end to end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearn_core.crossfit import CrossFit
from unlearn_core.fold_networks import OutOfFold
from unlearn_core.logspace import log_sum
from unlearn_core.preparations import CROSSFIT
from unlearn_core.proxies.points import Points
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.recipes import Schedule

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

SCHEDULE = Schedule(epochs=6, batch_divisor=8, last_rate=0.1, least_retained=2048)
"""Chosen on 1000 random rows that are in no grid: larger batches stop short of the target, larger steps drift elsewhere."""
RATE = 0.3
SAMPLE = 2048


@dataclass(frozen=True, eq=False)
class CrossFitProxy:
    """P_r on the records: (n, C) ``log_retain``, with -inf for a class that left."""

    records: Mask
    log_retain: Array
    lost_classes: Mask

    def _log_retain_at(self, points: Points) -> tuple[Mask, Array]:
        """(N,) which points are records, and log P_r on those."""
        if points.rows is None:
            return np.zeros(len(points), dtype=bool), self.log_retain[:0]
        at = self.records[points.rows]
        return at, self.log_retain[np.cumsum(self.records)[points.rows[at]] - 1]

    def signal(self, points: Points) -> Array:
        """(N, C) log P_r - log p on the records; elsewhere nothing but -inf for a class that left."""
        signal = np.tile(np.where(self.lost_classes, -np.inf, 0.0), (len(points), 1))
        at, log_retain = self._log_retain_at(points)
        if at.any():
            signal[at] = log_retain - points.log_base[at]
        return signal

    def log_posteriors(self, points: Points) -> tuple[Array, Array]:
        """log p, and the same with the records' P_r in its place, without a class that left."""
        log_p_r = np.where(self.lost_classes, -np.inf, points.log_base)
        log_p_r -= log_sum(log_p_r.T)[:, None]
        at, log_retain = self._log_retain_at(points)
        log_p_r[at] = log_retain
        return points.log_base, log_p_r


def fit_crossfit(request: ForgetRequest, _constants: None, folds: str = CROSSFIT) -> CrossFitProxy:
    """Look the records' posteriors up; ``folds`` names what was prepared: whose posteriors they are."""
    rows, lost = request.problem.train.number[request.mask], request.lost_classes
    return CrossFitProxy(request.mask, log_out_of_fold(request.prepared(folds), rows, lost), lost)


def log_out_of_fold(crossfit: CrossFit | OutOfFold, rows: NDArray[np.int64], lost_classes: Mask) -> Array:
    """(n, C) log of what the models that never saw these rows of D say of them, without a class that left."""
    log_q = np.where(lost_classes, -np.inf, crossfit.log_q[rows].astype(np.float64))
    return log_q - log_sum(log_q.T)[:, None]
