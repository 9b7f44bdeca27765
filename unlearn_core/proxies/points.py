"""The one question that every proxy answers: what do D and D_r say of these points?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unlearn_core.audit.divergence import log_probabilities

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Points:
    """Points that a proxy is asked about. Most proxies read the features alone.

    Attributes:
        features: (N, d).
        logits: (N, C) what the base network says there; None if nobody has asked it.
        rows: (N,) the training rows that the points are; None off the training set.
        as_forgotten: (N,) the label of a point off the training set that counts as forgotten, -1 elsewhere. Only the
            empirical proxies look (``DirOnTest.AS_FORGOTTEN``).
    """

    features: NDArray[np.floating]
    logits: NDArray[np.floating] | None = None
    rows: NDArray[np.int64] | None = None
    as_forgotten: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.features)

    @property
    def base_logits(self) -> NDArray[np.floating]:
        if self.logits is None:
            raise ValueError(
                "this needs what the base network says of the points: give Points their logits, and a proxy that reads "
                "them per_network=True in its line of the table"
            )
        return self.logits

    @cached_property
    def log_base(self) -> Array:
        """(N, C) log p, the base network's posteriors."""
        return log_probabilities(self.base_logits)


class Proxy(Protocol):
    """P(y|x) and P_r(y|x) at some points."""

    def log_posteriors(self, points: Points) -> tuple[Array, Array]:
        """log P and log P_r, each (N, C); -inf for a class that left the support."""
        ...

    def signal(self, points: Points) -> Array:
        """(N, C) log P_r - log P  [eq:delta-M]; -inf for a class that left the support of P_r."""
        ...


class ClosedFormProxy(Proxy, Protocol):
    """A proxy that needs no eta: its target is written down."""

    def log_target(self, points: Points) -> Array:
        """(N, C) log of the target."""
        ...


class StorableProxy(Proxy, Protocol):
    """A proxy that speaks of any point and can be saved as a logit processor."""

    def arrays(self) -> dict[str, NDArray]:
        """Plain arrays by name, from which the method's ``load`` makes the proxy again."""
        ...
