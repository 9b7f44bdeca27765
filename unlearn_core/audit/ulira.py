"""U-LiRA: can an attacker who trained shadows of their own tell an unlearned network from a retrained one, record by record?

Hayes et al. 2024, *Inexact Unlearning Needs More Careful Evaluations to Avoid a False Sense of Privacy*, after the LiRA of
Carlini et al. 2022. For a record, fit the margins that unlearned networks give it and those that retrained ones give it;
the score of a network under attack is the log ratio of the two densities at its own margin. That is two-sided: a record
stands out by a margin that retrained networks do not have, be it high or low.

The network under attack is never in the fits. Shadows are split into folds; a fold is attacked with fits from the others,
without its unlearned networks *and* without its retrained ones, which may share initial weights with them. Within a fold
unlearned and retrained networks then play the same part, so that two samples of one distribution are at chance in
expectation, however few there are. (Leaving out the attacked network alone would push its own side below chance.)

Intervals are over networks, for the records at hand: a delete-a-fold jackknife, which also has the noise of the fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput

Array = NDArray[np.float64]
Density = Callable[[Array, Array], Array]
"""(n, r) margins that are fitted, (m, r) margins at which log densities are asked for; NaN: not there."""

FALSE_POSITIVE_RATES = (0.001, 0.01)
CURVE: tuple[float, ...] = tuple(np.logspace(-4, 0, 49).tolist())
"""False positive rates of a ROC curve, evenly on a log axis."""
MOST_FOLDS = 8
CLIP = 100.0
"""Margins beyond are cut off, as KLOM's authors do."""
LEAST_STD = 1e-3
OWN_VARIANCE = 16
"""With fewer networks, all records share one variance: LiRA's authors do so below 64."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ULira:
    """Means over folds."""

    auc: Estimate
    """0.5 is chance. Below it is chance too: the attacker knows which side is which, and was misled by noise."""
    accuracy: Estimate
    """Of calling a network unlearned if that is the likelier; 0.5 is chance."""
    tpr: tuple[Estimate, ...]
    """True positive rates at ``FALSE_POSITIVE_RATES``; chance is the rate itself."""
    curve: tuple[float, ...]
    """True positive rates at ``CURVE``."""


def gaussian(fitted: Array, at: Array) -> Array:
    """(m, r) log densities of a Gaussian for each record."""
    mean, std, _ = _moments(fitted)
    return -0.5 * ((at - mean) / std) ** 2 - np.log(std)


def kernel(fitted: Array, at: Array) -> Array:
    """(m, r) log densities of a Gaussian kernel for each record, of Scott's bandwidth."""
    _, std, count = _moments(fitted)
    width = std * count**-0.2
    terms = -0.5 * ((at[:, None, :] - fitted[None]) / width) ** 2
    terms = np.where(np.isnan(fitted)[None], -np.inf, terms)  # where ``at`` is not there, the sum is not either
    peak = terms.max(axis=1, keepdims=True)  # scipy's logsumexp does the same, in ten times the time on few networks
    return peak[:, 0] + np.log(np.exp(terms - peak).sum(axis=1)) - np.log(count * width)


FITS: dict[str, Density] = {"gaussian": gaussian, "kernel": kernel}


def folds_of(n_shadows: int, in_pairs: bool) -> NDArray[np.int64]:
    """(n,) the fold of each shadow. ``in_pairs``: 2j and 2j + 1 stay together, for they forget what the other does not."""
    places = np.arange(n_shadows) // 2 if in_pairs else np.arange(n_shadows)
    return places % min(MOST_FOLDS, int(places[-1]) + 1)


def ulira(unlearned: Array, retrained: Array, folds: NDArray[np.int64], fit: str = "gaussian") -> ULira:
    """Attack every network, each with fits from the other folds.

    Args:
        unlearned, retrained: (n, r) margins of n networks on r records; NaN for a record that a shadow does not forget.
        folds: (n,) numbers from 0; row k of both is of one fold.
    """
    if unlearned.shape != retrained.shape or len(unlearned) != len(folds):
        raise ValueError(f"margins {unlearned.shape} and {retrained.shape} for {len(folds)} shadows do not fit")
    n_folds = int(folds.max()) + 1
    if n_folds < 4:
        raise BadInput(f"U-LiRA needs at least 4 folds of shadows, not {n_folds}; train more shadows")
    unlearned, retrained = (np.clip(margins, -CLIP, CLIP) for margins in (unlearned, retrained))

    def measured(dropped: int | None) -> Array:
        used = [fold for fold in range(n_folds) if fold != dropped]
        return np.mean([_attack(unlearned, retrained, folds, fold, used, FITS[fit]) for fold in used], axis=0)

    from scipy.stats import t as student_t  # here, for it takes a second to load, and workers attack nothing

    values = measured(None)
    without = np.array([measured(fold) for fold in range(n_folds)])
    errors = np.sqrt((n_folds - 1) / n_folds * ((without - without.mean(0)) ** 2).sum(0))
    reach = float(student_t.ppf(0.5 + CONFIDENCE / 2, n_folds - 1)) * errors
    found = [
        Estimate(float(value), max(0.0, float(value - r)), min(1.0, float(value + r)))
        for value, r in zip(values, reach, strict=True)
    ]
    n_rates = len(FALSE_POSITIVE_RATES)
    return ULira(found[0], found[1], tuple(found[2 : 2 + n_rates]), tuple(float(v) for v in values[2 + n_rates :]))


def _attack(
    unlearned: Array, retrained: Array, folds: NDArray[np.int64], fold: int, used: Sequence[int], density: Density
) -> Array:
    """AUC, accuracy and true positive rates on one fold, with fits from the other ones that are used."""
    attacked, fitted = folds == fold, np.isin(folds, [one for one in used if one != fold])

    # both sides at once: a fit's moments serve for all that it is asked for
    at = np.concatenate([unlearned[attacked], retrained[attacked]])
    ratios = density(unlearned[fitted], at) - density(retrained[fitted], at)
    ours, theirs = (side[~np.isnan(there)] for side, there in zip(np.split(ratios, 2), np.split(at, 2), strict=True))
    positives, negatives = np.sort(ours), np.sort(theirs)
    accuracy = 0.5 * (np.mean(positives > 0) + np.mean(negatives <= 0))
    return np.array([_auc(positives, negatives), accuracy, *_tprs(positives, negatives)])


def _auc(positives: Array, negatives: Array) -> float:
    """The probability that a positive is above a negative, ties counted half; ``negatives`` ascend."""
    below = np.searchsorted(negatives, positives, "left") + np.searchsorted(negatives, positives, "right")
    return float(below.mean() / (2 * len(negatives)))


def _tprs(positives: Array, negatives: Array) -> Array:
    """For each rate, the share of positives above a threshold that at most such a share of negatives exceeds; all ascend."""
    allowed = (np.array([*FALSE_POSITIVE_RATES, *CURVE]) * len(negatives)).astype(np.int64)
    thresholds = negatives[np.maximum(len(negatives) - 1 - allowed, 0)]
    above = len(positives) - np.searchsorted(positives, thresholds, "right")
    return np.where(allowed >= len(negatives), 1.0, above / len(positives))


def _moments(margins: Array) -> tuple[Array, Array, Array]:
    """(r,) mean, standard deviation and count for each record."""
    there = ~np.isnan(margins)
    count = there.sum(0).astype(np.float64)
    if count.min() < 1 or count.max() < 2:
        raise BadInput(
            f"a record has the margins of only {int(count.min())} networks in a fit; U-LiRA needs 2: train more shadows"
        )
    mean = np.where(there, margins, 0.0).sum(0) / count
    squares = np.where(there, (margins - mean) ** 2, 0.0).sum(0)
    shared = squares.sum() / (count - 1).sum()
    variance = np.where(count >= OWN_VARIANCE, squares / np.maximum(count - 1, 1.0), shared)
    return mean, np.maximum(np.sqrt(variance), LEAST_STD), count
