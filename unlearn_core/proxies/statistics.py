"""Sufficient statistics of the Gaussian proxies: additive, so that a forget set is a subtraction.

Computed once per (features, label space), they serve every forget request: ``moments(D) - moments(D_f)`` is
``moments(D_r)`` at a cost of O(|D_f| d^2), without another pass over D. All are taken about one fixed reference point (the
mean of D), so that neither the subtraction nor an offset common to all features loses digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput

Array = NDArray[np.float64]

CHUNK_ROWS = 1024  # float64 copies of the features are made chunk by chunk and stay in the cache


@dataclass(frozen=True, eq=False)
class Moments:
    """Zeroth, first and second moments of z = x - reference, summed (not averaged) over rows.

    Attributes:
        reference: (d,) the fixed point; moments about different points are never combined.
        counts: (C,) rows per label.
        sums: (C, d) sum of z per label.
        squares: (C, d) sum of z**2 per label, all that diagonal covariances need.
        outer: (d, d) sum of z z^T over all labels, all that pooled covariances need.
    """

    reference: Array
    counts: NDArray[np.int64]
    sums: Array
    squares: Array
    outer: Array

    def __sub__(self, other: Moments) -> Moments:
        """The moments of the rows that are in ``self`` and not in ``other``, which must be a subset of them."""
        if not np.array_equal(self.reference, other.reference):
            raise ValueError("moments about different reference points cannot be subtracted")
        counts = self.counts - other.counts
        if (counts < 0).any():
            raise ValueError("the subtracted rows are not a subset")
        present = (counts > 0)[:, None]
        return Moments(
            reference=self.reference,
            counts=counts,
            # a label that lost all its rows has sums of exactly zero, not of rounding errors
            sums=np.where(present, self.sums - other.sums, 0.0),
            squares=np.where(present, self.squares - other.squares, 0.0),
            outer=self.outer - other.outer,
        )

    def __add__(self, other: Moments) -> Moments:
        """The moments of the rows of both, which must have none in common."""
        if not np.array_equal(self.reference, other.reference):
            raise ValueError("moments about different reference points cannot be added")
        return Moments(
            self.reference,
            self.counts + other.counts,
            self.sums + other.sums,
            self.squares + other.squares,
            self.outer + other.outer,
        )

    def recentred(self) -> Moments:
        """The same rows about their own mean, so that the reference, too, tells of these rows and of no others."""
        total = self.sums.sum(axis=0)
        shift = -total / self.n_rows
        each, crossed = self.counts[:, None] * shift, np.outer(total, shift)
        return Moments(
            self.reference - shift,
            self.counts,
            self.sums + each,
            self.squares + shift * (2 * self.sums + each),
            self.outer + crossed + crossed.T + self.n_rows * np.outer(shift, shift),
        )

    @property
    def n_rows(self) -> int:
        return int(self.counts.sum())

    def means(self) -> Array:
        """(C, d) mean of z per label; zero for a label with no row."""
        return self.sums / np.maximum(self.counts, 1)[:, None]

    def variances(self) -> Array:
        """(C, d) maximum-likelihood variances per label; zero where one row or none leaves nothing to vary."""
        spread = self.squares / np.maximum(self.counts, 1)[:, None] - self.means() ** 2
        return np.where((self.counts > 1)[:, None], np.maximum(spread, 0.0), 0.0)

    def scatter(self) -> Array:
        """(d, d) within-label scatter matrix, sum over labels of (z - mean_y)(z - mean_y)^T."""
        if self.n_rows <= np.count_nonzero(self.counts):
            return np.zeros_like(self.outer)  # every row is its label's mean
        weighted = self.sums / np.sqrt(np.maximum(self.counts, 1))[:, None]
        return self.outer - weighted.T @ weighted

    def mean_total_variance(self) -> float:
        """Mean over features of the variance of all rows together: the scale of the diagonal ridge."""
        n = self.n_rows
        total = self.squares.sum(axis=0) / n - (self.sums.sum(axis=0) / n) ** 2
        return float(np.maximum(total, 0.0).mean())


def moments_of_all(
    features: NDArray[np.floating], labels: NDArray[np.integer], n_classes: int, _constants: None = None
) -> Moments:
    """The moments of D about its own mean: what every request starts from."""
    return compute_moments(features, labels, n_classes)


def compute_moments(
    features: NDArray[np.floating],
    labels: NDArray[np.integer],
    n_classes: int,
    reference: Array | None = None,
) -> Moments:
    """The moments of some rows; ``reference`` defaults to their own mean.

    Args:
        features: (N, d) in any float type; the arithmetic is float64.
        labels: (N,) in 0..n_classes-1.
    """
    if len(features) != len(labels):
        raise BadInput(f"{len(features)} feature rows but {len(labels)} labels; each row needs one")
    if len(features) == 0:
        raise BadInput("no rows to take moments of")
    if reference is None:
        reference = np.asarray(features.mean(axis=0, dtype=np.float64))
    d = features.shape[1]
    sums, squares, outer = np.zeros((n_classes, d)), np.zeros((n_classes, d)), np.zeros((d, d))
    for rows, z in centred_chunks(features, reference):
        member = (labels[rows][:, None] == np.arange(n_classes)).astype(np.float64)
        sums += member.T @ z
        squares += member.T @ z**2
        outer += z.T @ z
    return Moments(reference, np.bincount(labels, minlength=n_classes), sums, squares, outer)


def centred_chunks(features: NDArray[np.floating], reference: Array) -> Iterator[tuple[slice, Array]]:
    """Row ranges of ``features`` with z = x - reference in float64."""
    for start in range(0, len(features), CHUNK_ROWS):
        rows = slice(start, min(start + CHUNK_ROWS, len(features)))
        yield rows, np.subtract(features[rows], reference)  # float64, as the reference is
