"""What a fitted proxy says of the training rows, where ``fresh`` needs to know what the network says there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unlearn_core.proxies.fit import Proxy
from unlearn_core.proxies.fresh import FreshProxy

Array = NDArray[np.float64]


def training_signal(proxy: Proxy, features: NDArray[np.floating], log_base: Array) -> Array:
    """(N, C) log P_r - log P on the training rows, up to a number of each row's own."""
    return proxy.training_signal(log_base) if isinstance(proxy, FreshProxy) else proxy.signal(features)


def training_posteriors(proxy: Proxy, features: NDArray[np.floating], log_base: Array) -> tuple[Array, Array]:
    """log P(y|x) and log P_r(y|x) on the training rows, each (N, C)."""
    if isinstance(proxy, FreshProxy):
        return proxy.training_posteriors(features, log_base)
    return proxy.log_posteriors(features)
