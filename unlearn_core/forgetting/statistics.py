"""The moments of D and of what was forgotten so far: a further request only adds its own rows to the latter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearn_core.proxies.statistics import Moments, compute_moments


@dataclass(frozen=True, eq=False)
class Statistics:
    """``forgotten`` is None before the first request; both are about the same reference point."""

    total: Moments
    forgotten: Moments | None = None

    @staticmethod
    def of(features: NDArray[np.floating], labels: NDArray[np.int64], n_classes: int) -> Statistics:
        return Statistics(compute_moments(features, labels, n_classes))

    def without(self, features: NDArray[np.floating], labels: NDArray[np.int64]) -> Statistics:
        """The same after these rows, which were not forgotten before, are gone as well."""
        rows = compute_moments(features, labels, len(self.total.counts), self.total.reference)
        return Statistics(self.total, rows if self.forgotten is None else _add(self.forgotten, rows))

    def arrays(self) -> dict[str, NDArray]:
        """Plain arrays by name, for a file."""
        return {f"total_{name}": value for name, value in vars(self.total).items()} | (
            {}
            if self.forgotten is None
            else {f"forgotten_{name}": value for name, value in vars(self.forgotten).items()}
        )

    @staticmethod
    def from_arrays(arrays: dict[str, NDArray]) -> Statistics:
        def moments(of: str) -> Moments:
            return Moments(**{name.removeprefix(of): value for name, value in arrays.items() if name.startswith(of)})

        return Statistics(moments("total_"), moments("forgotten_") if "forgotten_counts" in arrays else None)


def _add(a: Moments, b: Moments) -> Moments:
    return Moments(a.reference, a.counts + b.counts, a.sums + b.sums, a.squares + b.squares, a.outer + b.outer)
