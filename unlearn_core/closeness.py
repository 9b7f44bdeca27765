"""What kind of request it is, and how close to a retrain one comes: both without a retrain. No torch.

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
only the upper end holds. Nor can it see below what tells fold models from networks: where retrains hardly differ, as
those of a linear head, it is an upper bound as well.

Whether the records could have been held-out rows is tested (``kind_of_request``), and no number is to be given where that is
rejected: for a class, a subclass or one person's records, which vouch for each other in the fold models and would be missing
together in a retrain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import root_scalar

from unlearn_core.audit.divergence import kl_rows, log_probabilities
from unlearn_core.audit.stein import min_queries
from unlearn_core.errors import BadInput
from unlearn_core.seeding import derive_seed

Array = NDArray[np.float64]
Labels = NDArray[np.integer]

LEVEL = 0.05
"""Of all tests together: how often a request of rows drawn at random is taken for a group."""
DRAWS = 999
"""Random requests that a permutation test looks at."""
DIRECTIONS = 16
"""Principal directions of the held-out rows in which places are compared."""
MOST_COMPANIONS = 100
"""Rows, at most, among which nearest companions are looked for."""
COMPANION_DRAWS = 199
LEAST_HELDOUT = 100
FEW_RECORDS = 10


COVERAGE = 0.9
"""Of the intervals."""
INTERVAL_DRAWS = 2000
MANY_RECORDS = 400
"""From here on the mean over records is as good as normal."""
MOST_LOOKED_AT = 4096
"""Held-out rows, at most, that a stand-in is fitted on."""
MOST_STEPS = 60
"""Of fitting it; ten are usual."""


class RequestKind(StrEnum):
    WHOLE_CLASS = "whole class"
    """Every row of one or more classes, and nothing else."""
    EXCHANGEABLE = "exchangeable"
    """Nothing tells the records from held-out rows."""
    GROUP = "group"
    """Something does: they belong together, or are odd."""
    UNKNOWN = "unknown"
    """There is nothing to compare them with."""


@dataclass(frozen=True)
class Comparison:
    """One test of the records against held-out rows. ``adjusted`` is the p-value after Holm's correction for all tests."""

    name: str
    statistic: float
    p_value: float
    adjusted: float = 1.0

    @property
    def rejected(self) -> bool:
        return self.adjusted <= LEVEL


@dataclass(frozen=True)
class Verdict:
    """The kind of a request, and why.

    Attributes:
        tests: the comparisons that decided; empty where none was needed or possible.
        within_classes: held-out rows were taken in the request's own class shares, because the shares themselves differ.
        why: in words.
    """

    kind: RequestKind
    why: str
    tests: tuple[Comparison, ...] = ()
    within_classes: bool = False

    @property
    def p_value(self) -> float | None:
        """Of all tests together."""
        return min((test.adjusted for test in self.tests), default=None)


@dataclass(frozen=True, eq=False)
class Witnesses:
    """Rows as the tests see them, each through one model that never saw it.

    Attributes:
        labels: (n,) in 0..C-1.
        losses, entropies: (n,) of the model on the row.
        places: (n, P) the row in the whitened principal directions of the held-out rows.
    """

    labels: NDArray[np.int64]
    losses: Array
    entropies: Array
    places: Array

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: NDArray[np.integer]) -> Witnesses:
        return Witnesses(self.labels[rows], self.losses[rows], self.entropies[rows], self.places[rows])


@dataclass(frozen=True, eq=False)
class HeldoutView:
    """Plain arrays, prepared once: held-out rows as the tests see them, and the map to places.

    The map is fitted to every second held-out row, and the rows in between are those that records are compared with: to the
    rows that it is fitted to it fits too well.

    Attributes:
        labels, losses, entropies, places: (M // 2, ...) as ``Witnesses`` has them, each row through one fold model in turn.
        centre: (d,) and directions (d, P): a row x lies at (x - centre) @ directions.
    """

    labels: NDArray[np.int64]
    losses: Array
    entropies: Array
    places: Array
    centre: Array
    directions: Array

    @property
    def witnesses(self) -> Witnesses:
        return Witnesses(self.labels, self.losses, self.entropies, self.places)

    def see(self, log_q: NDArray[np.floating], labels: Labels, features: NDArray[np.floating]) -> Witnesses:
        """Records, by their own out-of-fold (n, C) log posteriors and their (n, d) features."""
        losses, entropies = _losses_and_entropies(log_q, labels)
        places = (np.asarray(features, dtype=np.float64) - self.centre) @ self.directions
        return Witnesses(labels.astype(np.int64), losses, entropies, places)


def view_heldout(log_folds: NDArray[np.floating], labels: Labels, features: NDArray[np.floating]) -> HeldoutView:
    """What is prepared of held-out rows.

    Args:
        log_folds: (K, M, C) log posteriors of the fold models at them.
        features: (M, d) as the fold models read them.
    """
    if len(labels) < 4:
        raise BadInput(f"{len(labels)} held-out rows are too few to compare records with; give {2 * LEAST_HELDOUT}")
    rows = np.arange(1, len(labels), 2)
    losses, entropies = _losses_and_entropies(log_folds[np.arange(len(rows)) % len(log_folds), rows], labels[rows])
    between = np.asarray(features[::2], dtype=np.float64)
    centre = between.mean(axis=0)
    variances, axes = np.linalg.eigh((between - centre).T @ (between - centre) / len(between))
    first = np.flatnonzero(variances > 1e-9 * variances[-1])[::-1][:DIRECTIONS]
    directions = axes[:, first] / np.sqrt(variances[first])
    places = (np.asarray(features[rows], dtype=np.float64) - centre) @ directions
    return HeldoutView(labels[rows].astype(np.int64), losses, entropies, places, centre, directions)


def kind_of_request(
    records: Witnesses, class_counts: NDArray[np.integer], heldout: Witnesses | None, n_folds: int, seed: int = 0
) -> Verdict:
    """Which kind a request is; 5 % of requests for rows drawn at random are taken for groups.

    Args:
        class_counts: (C,) how many rows of each class D has.
        n_folds: of the cross-fit: a fold model misses one row in that many.
        seed: of the permutation tests.
    """
    asked = np.bincount(records.labels, minlength=len(class_counts))
    if np.array_equal(asked[asked > 0], class_counts[asked > 0]):
        return Verdict(RequestKind.WHOLE_CLASS, "every row of a class is asked for, and nothing else")
    crowded = asked * n_folds > np.maximum(class_counts, n_folds)
    if crowded.any():
        share = (asked / np.maximum(class_counts, 1)).max()
        why = f"{share:.0%} of a class is asked for; a fold model misses {1 / n_folds:.0%} of it and would be too sure"
        return Verdict(RequestKind.GROUP, why)
    if heldout is None or len(heldout) < LEAST_HELDOUT:
        have = 0 if heldout is None else len(heldout)
        return Verdict(
            RequestKind.UNKNOWN, f"{have} held-out rows; at least {LEAST_HELDOUT} are needed to compare with"
        )
    shares = _compare_shares(records.labels, heldout.labels, len(class_counts), _draws("shares", seed))
    tests = _holm([shares, *_compare(records, heldout, seed)])
    within = tests[0].rejected
    if within:
        matched = _matched(records.labels, heldout.labels, _draws("matched", seed))
        if matched is None:
            return Verdict(RequestKind.UNKNOWN, "classes are asked for of which there are too few held-out rows", tests)
        tests = _holm(_compare(records, heldout[matched], seed))
    odd = [test.name for test in tests if test.rejected]
    among = " of the same classes" if within else ""
    if odd:
        why = f"the records differ from held-out rows{among} in {' and '.join(odd)}"
        return Verdict(RequestKind.GROUP, why, tests, within)
    why = f"nothing tells the records from held-out rows{among}"
    if len(records) < FEW_RECORDS:
        why += f"; of {len(records)} that shows little: only odd ones would stand out"
    return Verdict(RequestKind.EXCHANGEABLE, why, tests, within)


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
) -> Closeness:
    """How close a network is on the records, before or after unlearning.

    Args:
        log_q: (n, C) out-of-fold log posteriors of the records.
        log_net: (n, C) the network's.
        labels: (n,) of the records.
        taught: the network was taught ``log_q``, which then cannot judge it: it counts as no closer than ``log_q`` itself.
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
    return _closeness(estimate, errors, float(np.hypot(model, within)), parts, seed)


def _closeness(estimate: float, errors: Array, spread: float, parts: dict[str, float], seed: int) -> Closeness:
    """The estimate with its interval: the quantiles of drawn errors, to which normal ones of ``spread`` are added."""
    rng = _draws("networks", seed)
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(estimate + errors + spread * rng.standard_normal(len(errors)), (tail, 1 - tail))
    low, high = max(0.0, min(float(low), estimate)), max(float(high), estimate)
    return Closeness(estimate, low, high, parts, min_queries(high))


def _errors_of_means(values: Array, shares: Array, n: int, seed: int) -> Array:
    """Draws of the mean of ``n`` of the values, less their mean: skewed for few, normal for many."""
    rng = _draws("rows", seed)
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
    rng = _draws("sample", seed)
    rows = np.sort(rng.permutation(len(heldout.labels))[:MOST_LOOKED_AT])
    weights = None if heldout.weights is None else heldout.weights[rows]
    return HeldoutPosteriors(heldout.base[rows], heldout.folds[:, rows], heldout.labels[rows], weights)


@lru_cache(maxsize=1)  # once for a network before and after
def _judged(heldout: HeldoutPosteriors, seed: int) -> tuple[HeldoutPosteriors, Array, Array, Array, float]:
    """Some held-out rows, with the base's, a sharpened fold model's and another fold model's log posteriors; the power."""
    some = _sample(heldout, seed)
    base, place = np.asarray(some.base, dtype=np.float64), np.arange(len(some.labels))
    judges, others = (np.asarray(some.folds[(place + k) % len(some.folds), place], dtype=np.float64) for k in (0, 1))
    power = _sharpness(judges, float(some.shares @ _entropies(base)), some.shares)
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
    losses, entropies = _losses_and_entropies(log_net, net_labels)
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


def _entropies(log_q: Array) -> Array:
    p = np.exp(log_q)
    return -np.where(p > 0, p * log_q, 0.0).sum(axis=1)


def _losses_and_entropies(log_q: NDArray[np.floating], labels: Labels) -> tuple[Array, Array]:
    log_q = np.asarray(log_q, dtype=np.float64)
    return -log_q[np.arange(len(labels)), labels], _entropies(log_q)


def _compare(records: Witnesses, heldout: Witnesses, seed: int) -> list[Comparison]:
    """All comparisons but that of class shares."""
    tests = [
        _compare_ranks("losses", records.losses, heldout.losses),
        _compare_ranks("entropies", records.entropies, heldout.entropies),
        _compare_centres(records.places, heldout.places, _draws("places", seed)),
    ]
    if len(records) > 1:
        tests.append(_compare_companions(records.places, heldout.places, _draws("companions", seed)))
    return tests


def _compare_ranks(name: str, records: Array, heldout: Array) -> Comparison:
    """Kolmogorov and Smirnov's test. scipy's "asymp" is exact for one record and conservative for ties."""
    statistic, p_value = np.array(stats.ks_2samp(records, heldout, method="asymp"), dtype=np.float64)
    return Comparison(name, float(statistic), float(p_value))


def _compare_shares(records: Labels, heldout: Labels, n_classes: int, rng: np.random.Generator) -> Comparison:
    """Pearson's statistic among random splits of the pooled labels."""
    counts = np.bincount(records, minlength=n_classes)
    pooled = counts + np.bincount(heldout, minlength=n_classes)
    counts, pooled = counts[pooled > 0], pooled[pooled > 0]
    expected = pooled * len(records) / pooled.sum()
    drawn = rng.multivariate_hypergeometric(pooled, len(records), size=DRAWS, method="marginals")
    statistics = ((np.vstack([counts, drawn]) - expected) ** 2 / expected).sum(axis=1)
    return _among("class shares", statistics)


def _compare_centres(records: Array, heldout: Array, rng: np.random.Generator) -> Comparison:
    """How far the records' mean place is from that of all rows, among random splits of the pooled rows.

    It is Hotelling's statistic, and for many records its distribution is the chi-square; for one, it is the record's own
    distance among those of held-out rows.
    """
    pooled = np.vstack([records, heldout])
    n, total = len(records), len(pooled)
    centred = pooled - pooled.mean(axis=0)
    variances, axes = np.linalg.eigh(centred.T @ centred / (total - 1))
    keep = variances > 1e-9 * variances[-1]
    white = centred @ (axes[:, keep] / np.sqrt(variances[keep]))
    scale = n * total / (total - n)
    if n > MOST_COMPANIONS:
        statistic = scale * float((white[:n].mean(axis=0) ** 2).sum())
        return Comparison("places", statistic, float(stats.chi2.sf(statistic, keep.sum())))
    means = white[np.vstack([np.arange(n), _requests(total, n, DRAWS, rng)])].mean(axis=1)
    return _among("places", scale * (means**2).sum(axis=1))


def _compare_companions(records: Array, heldout: Array, rng: np.random.Generator) -> Comparison:
    """How close the records have their nearest companion among themselves: do they vouch for each other?

    Among random splits, by directions from the centre, so that far rows do not count as lonely ones. The statistic is the
    mean cosine.
    """
    n = min(len(records), MOST_COMPANIONS, len(heldout) // 2)
    chosen, others = records[rng.permutation(len(records))[:n]], heldout[rng.permutation(len(heldout))[: 4 * n]]
    pooled = np.vstack([chosen, others])
    pooled = pooled - pooled.mean(axis=0)
    pooled /= np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
    cosines = (pooled @ pooled.T).astype(np.float32)
    np.fill_diagonal(cosines, -1.0)
    draws = np.vstack([np.arange(n), _requests(len(pooled), n, COMPANION_DRAWS, rng)])
    closest = [cosines.take(rows, axis=0).take(rows, axis=1).max(axis=0).mean() for rows in draws]
    return _among("companions", np.array(closest))


def _draws(purpose: str, seed: int) -> np.random.Generator:
    return np.random.default_rng(derive_seed(seed, "closeness", purpose))


def _requests(total: int, n: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(count, n) random requests for ``n`` of ``total`` rows: pieces of shuffled rows, so that few shuffles are needed."""
    pieces = total // n
    shuffles = [rng.permutation(total)[: pieces * n].reshape(pieces, n) for _ in range(-(-count // pieces))]
    return np.vstack(shuffles)[:count]


def _among(name: str, statistics: Array) -> Comparison:
    """The first statistic among the others, which are of random requests: exact, whatever their distribution."""
    as_large = int((statistics[1:] >= statistics[0] * (1 - 1e-12)).sum())
    return Comparison(name, float(statistics[0]), (1 + as_large) / len(statistics))


def _holm(tests: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """The tests with p-values adjusted for their number, so that none is rejected wrongly at the level of all."""
    order = np.argsort([test.p_value for test in tests])
    steps = [(len(tests) - place) * tests[i].p_value for place, i in enumerate(order)]
    adjusted = np.empty(len(tests))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return tuple(replace(test, adjusted=float(p)) for test, p in zip(tests, adjusted, strict=True))


def _matched(records: Labels, heldout: Labels, rng: np.random.Generator) -> NDArray[np.int64] | None:
    """Held-out rows in the request's class shares, as many as there are; None if they are too few."""
    asked = np.bincount(records)
    have = np.bincount(heldout, minlength=len(asked))[: len(asked)]
    ratio = min(have[c] / asked[c] for c in np.flatnonzero(asked))
    taken = np.floor(ratio * asked + 1e-9).astype(int)
    if taken.sum() < min(LEAST_HELDOUT, len(heldout) / 2):
        return None
    rows = [rng.permutation(np.flatnonzero(heldout == c))[:count] for c, count in enumerate(taken) if count]
    return np.concatenate(rows)
