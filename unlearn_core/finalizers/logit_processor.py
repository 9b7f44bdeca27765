"""``none``: leave the network alone and shift its logits at inference. For black boxes that return logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearn_core.proxies.fit import Proxy
from unlearn_core.target import floor_lost_classes, log_target

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LogitProcessor:
    """Base logits and features in, unlearned log probabilities out."""

    proxy: Proxy
    eta: float
    lost_classes: NDArray[np.bool_]

    def __call__(self, logits: NDArray[np.floating], x: NDArray[np.floating]) -> Array:
        """(N, C) log softmax(f + eta * signal(x)), which are logits as well.

        Args:
            logits: (N, C) the black box's answer.
            x: (N, d) the features that the proxy was fitted on.
        """
        shifted = log_target(logits, self.proxy.signal(x), self.eta)
        return floor_lost_classes(shifted, logits, self.lost_classes)
