"""How close to a retrain a network comes on the records, estimated without one. No torch.

Held-out rows are rows that the *base* never saw. On them the base is what a retrain is on the forgotten records: a network
asked about rows that it was not trained on. If the records could as well have been held-out rows, then

    mean over the records of KL(retrain || q)   has the expectation of   mean over held-out rows of KL(base || q_k)

where q is what the record's own fold model says (``crossfit``) and q_k are the fold models, none of which saw a held-out
row (``estimate_target``).

For a network u in place of q (the base before, the unlearned one after) somebody has to play the retrain beside it. Once a
fold model does, sharpened until it is as sure on held-out rows as the base is: KL(q' || u) on the records. Once the base
does, on held-out rows, and a fold model plays u, tilted until it is as sure and as right there as u is on the records:
KL(base || u'). Either way one side is a network and the other a fold model in its clothes, once left and once right; the
estimate is the mean of both, and half their difference goes into its interval (``estimate_network``). It speaks of a
retrain from *other* initial weights; one from the base's own is closer to whatever was made of the base, so that for it
only the upper end holds. Nor can it see below what tells fold models, which stop early, from networks. That matters for a
linear head: its loss is convex, its retrains all go to one place and hardly differ, and the interval begins at 0.

Whether the records could have been held-out rows is tested (``request_kind``), and no number is to be given where that is
rejected: for a class, a subclass or one person's records, which vouch for each other in the fold models and would be missing
together in a retrain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root_scalar

from unlearn_core.audit.divergence import kl_rows, log_probabilities
from unlearn_core.audit.stein import min_queries
from unlearn_core.request_kind import FEW_RECORDS, Array, Labels, draws_for, entropies_of, losses_and_entropies

COVERAGE = 0.9
"""Of the intervals."""
INTERVAL_DRAWS = 2000
MANY_RECORDS = 400
"""From here on the mean over records is as good as normal."""
MOST_LOOKED_AT = 4096
"""Held-out rows, at most, that a stand-in is fitted on."""
MOST_STEPS = 60
"""Of fitting it; ten are usual."""


def class_weights(records: Labels, heldout: Labels) -> Array:
    """(M,) weights of mean 1 that give held-out rows the request's class shares."""
    n_classes = int(max(records.max(), heldout.max())) + 1
    wanted = np.bincount(records, minlength=n_classes) / len(records)
    have = np.bincount(heldout, minlength=n_classes) / len(heldout)
    weights = (wanted / np.where(have > 0, have, np.inf))[heldout]
    return weights / weights.mean()


@dataclass(frozen=True)
class Closeness:
    """Mean KL(retrain || model) over the records, estimated without a retrain, in nats.

    Attributes:
        low, high: where it lies in 90 % of cases.
        parts: what the estimate was made of.
        queries: Stein's number of random queries that ``high`` allows (``audit.stein``).
    """

    estimate: float
    low: float
    high: float
    parts: dict[str, float]
    queries: int


@dataclass(frozen=True, eq=False)
class HeldoutPosteriors:
    """What networks say about held-out rows.

    Attributes:
        base: (M, C) log posteriors of the network that is to forget.
        folds: (K, M, C) of the fold models.
        labels: (M,).
        weights: (M,) of mean 1, if the rows are to have the request's class shares (``class_weights``).
    """

    base: NDArray[np.floating]
    folds: NDArray[np.floating]
    labels: Labels
    weights: Array | None = None

    @property
    def shares(self) -> Array:
        """(M,) the rows' weights, of sum 1."""
        weights = np.ones(len(self.labels)) if self.weights is None else self.weights
        return weights / weights.sum()


def estimate_target(heldout: HeldoutPosteriors, n_records: int, seed: int = 0) -> Closeness:
    """How close the out-of-fold posteriors themselves are: mean over held-out rows of KL(base || q_k).

    Its error: the records are other rows than the held-out ones, and a retrain is another network than the base. What
    networks differ by is read off the K fold models.
    """
    base, shares = np.asarray(heldout.base, dtype=np.float64), heldout.shares
    rows = np.array([kl_rows(base, np.asarray(fold, dtype=np.float64)) for fold in heldout.folds])
    by_fold = rows @ shares
    between = float(by_fold.std(ddof=1))
    estimate = float(by_fold.mean())
    within = np.sqrt(shares**2 @ (rows.mean(axis=0) - estimate) ** 2)
    one_each = rows[np.arange(rows.shape[1]) % len(rows), np.arange(rows.shape[1])]
    errors = _errors_of_means(one_each, shares, n_records, seed)
    parts = {"between networks": between, "held-out rows": float(within)}
    return _closeness(estimate, errors, float(np.hypot(np.sqrt(2) * between, within)), parts, seed)


def estimate_network(
    log_q: NDArray[np.floating],
    log_net: NDArray[np.floating],
    labels: Labels,
    heldout: HeldoutPosteriors,
    taught: bool = False,
    seed: int = 0,
    convex: bool = False,
) -> Closeness:
    """How close a network is on the records, before or after unlearning.

    Args:
        log_q: (n, C) out-of-fold log posteriors of the records.
        log_net: (n, C) the network's.
        labels: (n,) of the records.
        taught: the network was taught ``log_q``, which then cannot judge it: it counts as no closer than ``log_q`` itself.
        convex: the network is a linear head: the estimate is an upper bound, and the interval begins at 0.
    """
    q, net = np.asarray(log_q, dtype=np.float64), np.asarray(log_net, dtype=np.float64)
    some, base, sharpened, others, power = _judged(heldout, seed)
    shares = some.shares
    on_records = float(kl_rows(log_probabilities(power * q), net).mean())
    if taught:
        on_records = max(on_records, estimate_target(heldout, len(labels), seed).estimate)
    stand_in = _stand_in(others, some.labels, shares, net, labels)
    rows = kl_rows(base, stand_in)
    on_heldout = float(shares @ rows)
    half = len(labels) / (len(labels) + FEW_RECORDS) / 2  # a stand-in of few records looks like nothing in particular
    estimate, model = on_records + half * (on_heldout - on_records), half * abs(on_records - on_heldout)
    swapped = rows - kl_rows(sharpened, stand_in)
    errors = _errors_of_means(swapped, shares, len(labels), seed)
    within = np.sqrt(shares**2 @ (rows - on_heldout) ** 2)
    parts = {"on the records": on_records, "on held-out rows": on_heldout, "sharpening": power}
    found = _closeness(estimate, errors, float(np.hypot(model, within)), parts, seed)
    return replace(found, low=0.0) if convex else found


def _closeness(estimate: float, errors: Array, spread: float, parts: dict[str, float], seed: int) -> Closeness:
    """The estimate with its interval: the quantiles of drawn errors, to which normal ones of ``spread`` are added."""
    rng = draws_for("networks", seed)
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(estimate + errors + spread * rng.standard_normal(len(errors)), (tail, 1 - tail))
    low, high = max(0.0, min(float(low), estimate)), max(float(high), estimate)
    return Closeness(estimate, low, high, parts, min_queries(high))


def _errors_of_means(values: Array, shares: Array, n: int, seed: int) -> Array:
    """Draws of the mean of ``n`` of the values, less their mean: skewed for few, normal for many."""
    rng = draws_for("rows", seed)
    mean = float(shares @ values)
    if n >= MANY_RECORDS:
        return np.sqrt(shares @ (values - mean) ** 2 / n) * rng.standard_normal(INTERVAL_DRAWS)
    if (shares == shares[0]).all():
        drawn = rng.integers(len(values), size=(INTERVAL_DRAWS, n), dtype=np.int32)
    else:
        drawn = np.searchsorted(np.cumsum(shares)[:-1], rng.random((INTERVAL_DRAWS, n)), side="right")
    return values.take(drawn).mean(axis=1) - mean


def _sample(heldout: HeldoutPosteriors, seed: int) -> HeldoutPosteriors:
    """At most ``MOST_LOOKED_AT`` held-out rows."""
    rng = draws_for("sample", seed)
    rows = np.sort(rng.permutation(len(heldout.labels))[:MOST_LOOKED_AT])
    weights = None if heldout.weights is None else heldout.weights[rows]
    return HeldoutPosteriors(heldout.base[rows], heldout.folds[:, rows], heldout.labels[rows], weights)


@lru_cache(maxsize=1)  # once for a network before and after
def _judged(heldout: HeldoutPosteriors, seed: int) -> tuple[HeldoutPosteriors, Array, Array, Array, float]:
    """Some held-out rows, with the base's, a sharpened fold model's and another fold model's log posteriors; the power."""
    some = _sample(heldout, seed)
    base, place = np.asarray(some.base, dtype=np.float64), np.arange(len(some.labels))
    judges, others = (np.asarray(some.folds[(place + k) % len(some.folds), place], dtype=np.float64) for k in (0, 1))
    power = _sharpness(judges, float(some.shares @ entropies_of(base)), some.shares)
    return some, base, log_probabilities(power * judges), others, power


def _sharpness(log_q: Array, entropy: float, shares: Array) -> float:
    """The power of q, from 1/32 to 32, that has this mean entropy."""
    by_class, label = log_q.T.copy(), np.zeros(len(log_q), dtype=np.int64)

    def surplus(log_power: float) -> float:
        return float(shares @ _Tilted.of(by_class, label, np.array([log_power, 0.0])).entropies) - entropy

    ends = (-np.log(32.0), np.log(32.0))
    if surplus(ends[0]) <= 0 or surplus(ends[1]) >= 0:
        return float(np.exp(ends[0] if surplus(ends[0]) <= 0 else ends[1]))
    return float(np.exp(root_scalar(surplus, bracket=ends, xtol=1e-4).root))


def _stand_in(log_q: Array, labels: Labels, shares: Array, log_net: Array, net_labels: Labels) -> Array:
    """(M, C) log of q^a e^(b at the label), normalised, with the mean entropy and the mean loss that the network has."""
    losses, entropies = losses_and_entropies(log_net, net_labels)
    goal, setting = np.array([losses.mean(), entropies.mean()]), np.zeros(2)
    for every in (8, 1):  # fewer rows tell where to begin
        some = log_q[::every].T.copy(), labels[::every], shares[::every] / shares[::every].sum()
        setting = _fit_tilt(*some, goal, setting)
    return _Tilted.of(log_q.T, labels, setting).log_p.T


def _fit_tilt(log_q: Array, labels: Labels, shares: Array, goal: Array, setting: Array) -> Array:
    """The log of a and b with mean loss and entropy nearest to the goal's, by their logarithms: Levenberg and Marquardt."""
    ends, smallest = np.array([[-3.5, -20.0], [3.5, 20.0]]), 1e-6

    def look(setting: Array) -> tuple[Array, Array]:
        found = _Tilted.of(log_q, labels, setting)
        means = np.maximum([found.losses @ shares, found.entropies @ shares], smallest)
        return np.log(means / np.maximum(goal, smallest)), found.slopes(log_q) @ shares / means[:, None]

    (misses, slopes), damping = look(setting), 1e-3
    for _ in range(MOST_STEPS):
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(2), -slopes.T @ misses)
        trial = np.clip(setting + step, *ends)
        if np.abs(trial - setting).max() < 1e-5:
            break
        found = look(trial)
        better = bool(np.linalg.norm(found[0]) < np.linalg.norm(misses))
        if better:
            setting, (misses, slopes) = trial, found
        damping *= 0.1 if better else 10
    return setting


@dataclass(frozen=True, eq=False)
class _Tilted:
    """q^a e^(b at the label), normalised. Classes come first, (C, M), so that sums over them run along memory."""

    log_p: Array
    p: Array
    labels: Labels
    power: float

    @staticmethod
    def of(log_q: Array, labels: Labels, setting: Array) -> _Tilted:
        power = float(np.exp(setting[0]))
        logits = power * log_q
        logits[labels, np.arange(len(labels))] += setting[1]
        logits -= logits.max(axis=0)
        p = np.exp(logits)
        total = p.sum(axis=0)
        p /= total
        logits -= np.log(total)
        return _Tilted(logits, p, labels, power)

    def mean(self, values: Array) -> Array:
        return np.einsum("cm,cm->m", self.p, values)

    def own(self, values: Array) -> Array:
        return values[self.labels, np.arange(len(self.labels))]

    @property
    def losses(self) -> Array:
        return -self.own(self.log_p)

    @property
    def entropies(self) -> Array:
        return -self.mean(self.log_p)

    def slopes(self, log_q: Array) -> Array:
        """(2, 2, M) of losses and entropies, by the log of a and by b: covariances of what is tilted."""
        mean_q, right = self.mean(log_q), self.own(self.p)
        of_losses = (self.power * (mean_q - self.own(log_q)), right - 1)
        along = self.power * (self.mean(self.log_p * log_q) + self.entropies * mean_q)
        return np.array([of_losses, (-along, right * (self.losses - self.entropies))])
