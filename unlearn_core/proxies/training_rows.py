"""What a fitted proxy says of the training rows, where ``fresh`` needs to know what the network says there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unlearn_core.audit.divergence import log_probabilities
from unlearn_core.proxies.fit import Proxy
from unlearn_core.proxies.fresh import FreshProxy

Array = NDArray[np.float64]


def training_signal(proxy: Proxy, features: NDArray[np.floating], logits: NDArray[np.floating]) -> Array:
    """(N, C) log P_r - log P on the training rows, up to a number of each row's own; ``logits`` are the network's."""
    if isinstance(proxy, FreshProxy):
        return proxy.training_signal(log_probabilities(logits))
    return proxy.signal(features)


def training_posteriors(
    proxy: Proxy, features: NDArray[np.floating], logits: NDArray[np.floating]
) -> tuple[Array, Array]:
    """log P(y|x) and log P_r(y|x) on the training rows, each (N, C); ``logits`` are the network's."""
    if isinstance(proxy, FreshProxy):
        return proxy.training_posteriors(features, log_probabilities(logits))
    return proxy.log_posteriors(features)
