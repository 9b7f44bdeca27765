"""What the paper proves about KL(p_r || target), evaluated on one sample once a retrain exists.

With p the base network, p_r the retrain, (P, P_r) the proxies and h(eta) the mean LSE shift, all averaged over one sample:

* decomposition [app:Decrease], an identity:
  KL(p_r||target) = KL(p_r||p) + h(eta) + eta * (KL(p_r||P_r) - KL(p_r||P))
* tight bound [prop:tight-bound]:
  KL(p_r||target) <= (1 - eta) KL(p_r||p) + eta * (KL(p_r||P_r) - KL(p||P)) + remainder, where
  remainder = eta * E sum_y (p - p_r) log(p/P) is the O(pi_f) term; equality where h(eta) = 0.

The remainder is taken as is. The paper writes it through pi_f and E_f by way of E = E_r + pi_f (E_f - E_r).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearn_core.audit.divergence import mean_kl

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Bound:
    """All in nats; +inf where a class left the support of P_r and the retrain gives it any mass."""

    kl_retrain_base: float
    kl_retrain_proxy: float
    kl_retrain_retain_proxy: float
    kl_base_proxy: float
    h: float
    remainder: float
    decomposition: float
    """KL(p_r||target) as the identity gives it."""
    tight_bound: float
    """The bound of prop:tight-bound, remainder included."""


def tight_bound(eta: float, h: float, log_p: Array, log_p_r: Array, log_proxy: Array, log_retain_proxy: Array) -> Bound:
    """Evaluate identity and bound.

    Args:
        log_p, log_p_r: (N, C) log posteriors of the base and of the retrain.
        log_proxy, log_retain_proxy: (N, C) log P(y|x) and log P_r(y|x).
    """
    initial = mean_kl(log_p_r, log_p)
    retrain_proxy = mean_kl(log_p_r, log_proxy)
    retrain_retain_proxy = mean_kl(log_p_r, log_retain_proxy)
    base_proxy = mean_kl(log_p, log_proxy)
    remainder = eta * float(np.mean(np.sum((np.exp(log_p) - np.exp(log_p_r)) * (log_p - log_proxy), axis=1)))
    modelling_shift = _scaled(eta, retrain_retain_proxy - base_proxy)
    return Bound(
        kl_retrain_base=initial,
        kl_retrain_proxy=retrain_proxy,
        kl_retrain_retain_proxy=retrain_retain_proxy,
        kl_base_proxy=base_proxy,
        h=h,
        remainder=remainder,
        decomposition=initial + h + _scaled(eta, retrain_retain_proxy - retrain_proxy),
        tight_bound=(1 - eta) * initial + modelling_shift + remainder,
    )


def _scaled(eta: float, value: float) -> float:
    return 0.0 if eta == 0 else (math.inf if math.isinf(value) else eta * value)
