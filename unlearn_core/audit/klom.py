"""KLOM: how far the margins of unlearned networks are distributed from those of retrained ones, point by point.

Georgiev et al. 2024, *Attribute-to-Delete: Machine Unlearning via Datamodel Matching*, appendix E.1, with the numbers of its
authors' code: margins cut off at +-100, 20 bins of equal width over the range of both samples, the KL divergence of the
unlearned sample's shares from the retrained one's, of which none is taken to be below 1e-5 where the other has mass.

One difference: their ``np.digitize`` leaves the largest margin out of all bins; here it is in the last one.

Two samples of *one* distribution do not have KLOM 0: with few networks many bins are empty in one sample by chance. So it
means something only beside that of retrains against retrains, in samples of the same size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BINS = 20
CLIP = 100.0
LEAST_SHARE = 1e-5
QUANTILE = 0.95


@dataclass(frozen=True)
class Klom:
    """Over points, in nats."""

    mean: float
    p95: float


def klom_points(unlearned: Array, retrained: Array) -> Array:
    """(r,) KLOM of each point.

    Args:
        unlearned, retrained: (n, r) and (m, r) margins of networks on r points; NaN: not there.
    """
    p, q = (np.clip(margins, -CLIP, CLIP) for margins in (unlearned, retrained))
    low, high = (reach([reach(p, axis=0), reach(q, axis=0)], axis=0) for reach in (np.nanmin, np.nanmax))
    width = np.where(high > low, high - low, 1.0)
    p, q = (_shares((margins - low) / width) for margins in (p, q))
    q = np.where(p > 0, np.maximum(q, LEAST_SHARE), q)
    q = q / q.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = p * np.log(p / q)
    return np.where(p > 0, terms, 0.0).sum(0)


def summary(points: Array) -> Klom:
    return Klom(float(points.mean()), float(np.quantile(points, QUANTILE)))


def _shares(places: Array) -> Array:
    """(BINS, r) the share of a sample in each bin, of places in [0, 1]."""
    bins = np.minimum(np.floor(BINS * np.nan_to_num(places)), BINS - 1).astype(np.int64)
    there = ~np.isnan(places)
    columns = np.broadcast_to(np.arange(places.shape[1]), places.shape)
    counts = np.zeros((BINS, places.shape[1]))
    np.add.at(counts, (bins[there], columns[there]), 1.0)
    return counts / counts.sum(0)
