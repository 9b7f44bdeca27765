"""What kind of request it is, tested without a retrain: a whole class, rows like held-out ones, or a group. No torch.

Held-out rows are rows that the base never saw. If nothing tells the records from them, each seen by models that saw
neither, the records could as well have been held out: they are exchangeable. A class, a subclass or one person's records
are not: their rows vouch for each other in the fold models, and would be missing together in a retrain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, smirnov

from unlearn_core.errors import BadInput
from unlearn_core.seeding import derive_seed

Array = NDArray[np.float64]
Labels = NDArray[np.integer]

LEVEL = 0.05
"""Of all tests together: how often, at most, a request of rows drawn at random is taken for a group.

On requests that are in no grid (CIFAR-10 features, mlp1, 1 to 3000 rows) that was 0 to 4 %. At a level of 1 % none was, but
small groups were lost: of 12 clusters of 3 nearest rows 6 were found in place of 11, of 12 draws of ten rows of subclass 1
two in place of 6. From 30 rows on both levels found next to all.
"""
DRAWS = 999
"""Random requests that a permutation test looks at, at most."""
ENOUGH = 10
"""Random requests as extreme as this one that end a permutation test: the p-value is then plain (Besag and Clifford, 1991).
Most requests are like random ones, and know it after some twenty draws."""
PIECE = 40
"""Random requests that are drawn at a time."""
DIRECTIONS = 16
"""Principal directions of the held-out rows in which places are compared."""
MOST_COMPANIONS = 100
"""Rows, at most, among which nearest companions are looked for."""
COMPANION_DRAWS = 199
LEAST_HELDOUT = 100
FEW_RECORDS = 10
MOST_TESTS = 5
"""Comparisons that a request goes through at the most."""


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
        find_places: of ``places``, when they are asked for: what a request's losses tell needs no look at its features.
    """

    labels: NDArray[np.int64]
    losses: Array
    entropies: Array
    find_places: Callable[[], Array]

    @cached_property
    def places(self) -> Array:
        """(n, P) the rows in the whitened principal directions of the held-out rows."""
        return self.find_places()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: NDArray[np.integer]) -> Witnesses:
        return Witnesses(self.labels[rows], self.losses[rows], self.entropies[rows], lambda: self.places[rows])


@dataclass(frozen=True, eq=False)
class HeldoutView:
    """Plain arrays, prepared once: held-out rows as the tests see them, and the map to places.

    The map is fitted to every second held-out row, and the rows in between are those that records are compared with: to the
    rows that it is fitted to it fits too well.

    Attributes:
        labels, losses, entropies: (M // 2,) and places (M // 2, P) of ``Witnesses``, by one fold model in turn.
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
        return Witnesses(self.labels, self.losses, self.entropies, lambda: self.places)

    def see(
        self, log_q: NDArray[np.floating], labels: Labels, find_features: Callable[[], NDArray[np.floating]]
    ) -> Witnesses:
        """Records, by their own out-of-fold (n, C) log posteriors and, if it takes them to tell, their (n, d) features."""

        def places() -> Array:
            rows = np.asarray(find_features(), dtype=np.float32)  # half the time, and finer than features are kept
            return ((rows - self.centre.astype(np.float32)) @ self.directions.astype(np.float32)).astype(np.float64)

        losses, entropies = losses_and_entropies(log_q, labels)
        return Witnesses(labels.astype(np.int64), losses, entropies, places)


def view_heldout(log_folds: NDArray[np.floating], labels: Labels, features: NDArray[np.floating]) -> HeldoutView:
    """What is prepared of held-out rows.

    Args:
        log_folds: (K, M, C) log posteriors of the fold models at them.
        features: (M, d) as the fold models read them.
    """
    rows = np.arange(len(labels))
    return view_rows(log_folds[rows // 2 % len(log_folds), rows], labels, features)


def view_rows(log_q: NDArray[np.floating], labels: Labels, features: NDArray[np.floating]) -> HeldoutView:
    """The same of any rows to compare records with, by (M, C) log posteriors of models that never saw them."""
    if len(labels) < 4:
        raise BadInput(f"{len(labels)} held-out rows are too few to compare records with; give {2 * LEAST_HELDOUT}")
    rows = np.arange(1, len(labels), 2)
    losses, entropies = losses_and_entropies(log_q[rows], labels[rows])
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
    return kind_by_counts(records.labels, class_counts, n_folds) or kind_by_tests(
        records, len(class_counts), heldout, seed
    )


def kind_by_counts(labels: Labels, class_counts: NDArray[np.integer], n_folds: int) -> Verdict | None:
    """A whole class, or so much of one that a fold model cannot speak of it; None if it takes tests to know."""
    asked = np.bincount(labels, minlength=len(class_counts))
    if np.array_equal(asked[asked > 0], class_counts[asked > 0]):
        return Verdict(RequestKind.WHOLE_CLASS, "every row of a class is asked for, and nothing else")
    crowded = asked * n_folds > np.maximum(class_counts, n_folds)
    if crowded.any():
        share = (asked / np.maximum(class_counts, 1)).max()
        why = f"{share:.0%} of a class is asked for; a fold model misses {1 / n_folds:.0%} of it and would be too sure"
        return Verdict(RequestKind.GROUP, why)
    return None


def kind_by_tests(records: Witnesses, n_classes: int, heldout: Witnesses | None, seed: int = 0) -> Verdict:
    """Whether anything tells the records from held-out rows."""
    if heldout is None or len(heldout) < LEAST_HELDOUT:
        have = 0 if heldout is None else len(heldout)
        return Verdict(
            RequestKind.UNKNOWN, f"{have} held-out rows; at least {LEAST_HELDOUT} are needed to compare with"
        )
    shares = _compare_shares(records.labels, heldout.labels, n_classes, draws_for("shares", seed))
    tests = _until_told(chain([shares], _comparisons(records, heldout, seed)))
    within = tests[0].rejected
    if within:
        matched = _matched(records.labels, heldout.labels, draws_for("matched", seed))
        if matched is None:
            return Verdict(RequestKind.UNKNOWN, "classes are asked for of which there are too few held-out rows", tests)
        tests = _until_told(_comparisons(records, heldout[matched], seed))
    odd = [test.name for test in tests if test.rejected]
    among = " of the same classes" if within else ""
    if odd:
        why = f"the records differ from held-out rows{among} in {' and '.join(odd)}"
        return Verdict(RequestKind.GROUP, why, tests, within)
    why = f"nothing tells the records from held-out rows{among}"
    if len(records) < FEW_RECORDS:
        why += f"; of {len(records)} that shows little: only odd ones would stand out"
    return Verdict(RequestKind.EXCHANGEABLE, why, tests, within)


def entropies_of(log_q: Array) -> Array:
    p = np.exp(log_q)
    return -np.where(p > 0, p * log_q, 0.0).sum(axis=1)


def losses_and_entropies(log_q: NDArray[np.floating], labels: Labels) -> tuple[Array, Array]:
    log_q = np.asarray(log_q, dtype=np.float64)
    return -log_q[np.arange(len(labels)), labels], entropies_of(log_q)


def _comparisons(records: Witnesses, heldout: Witnesses, seed: int) -> Iterator[Comparison]:
    """All comparisons but that of class shares, each made when it is asked for, those that take least first."""
    yield _compare_ranks("losses", records.losses, heldout.losses)
    yield _compare_ranks("entropies", records.entropies, heldout.entropies)
    yield _compare_centres(records.places, heldout.places, draws_for("places", seed))
    if len(records) > 1:
        yield _compare_companions(records.places, heldout.places, draws_for("companions", seed))


def _until_told(comparisons: Iterable[Comparison]) -> tuple[Comparison, ...]:
    """Up to the first that tells the records from the others, whatever the ones after it would say."""
    made: list[Comparison] = []
    for test in comparisons:
        made.append(test)
        if test.p_value * MOST_TESTS <= LEVEL:
            return _holm(made, MOST_TESTS)
    return _holm(made)


def _compare_ranks(name: str, records: Array, heldout: Array) -> Comparison:
    """Kolmogorov and Smirnov's test.

    The p-value is twice that of Smirnov's one-sided statistic, exact in one term (Birnbaum and Tingey, 1951): never smaller
    than the two-sided one, next to equal where it is small, exact for one record, and had in microseconds.
    """
    n, m = len(records), len(heldout)
    pooled, ours = np.concatenate([records, heldout]), np.zeros(n + m)
    ours[:n] = 1.0
    order = np.argsort(pooled, kind="stable")
    pooled, ours = pooled[order], ours[order]
    below = np.cumsum(ours) / n - np.cumsum(1.0 - ours) / m
    last = np.append(pooled[1:] != pooled[:-1], True)  # of tied rows the distributions are compared after all of them
    statistic = float(np.abs(below[last]).max())
    effective = max(round(n * m / (n + m)), 1)
    return Comparison(name, statistic, min(2.0 * float(smirnov(effective, statistic)), 1.0))


def _compare_shares(records: Labels, heldout: Labels, n_classes: int, rng: np.random.Generator) -> Comparison:
    """Pearson's statistic among random splits of the pooled labels."""
    counts = np.bincount(records, minlength=n_classes)
    pooled = counts + np.bincount(heldout, minlength=n_classes)
    counts, pooled = counts[pooled > 0], pooled[pooled > 0]
    expected = pooled * len(records) / pooled.sum()

    def statistics(drawn: NDArray[np.integer]) -> Array:
        return ((drawn - expected) ** 2 / expected).sum(axis=1)

    def at_random(count: int) -> Array:
        return statistics(rng.multivariate_hypergeometric(pooled, len(records), size=count, method="marginals"))

    return _among("class shares", float(statistics(counts[None])[0]), at_random, DRAWS)


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
    whiten, scale = axes[:, keep] / np.sqrt(variances[keep]), n * total / (total - n)
    if n > MOST_COMPANIONS:
        statistic = scale * float(((centred[:n].mean(axis=0) @ whiten) ** 2).sum())
        return Comparison("places", statistic, float(chdtrc(keep.sum(), statistic)))
    white = centred @ whiten

    def statistics(draws: NDArray[np.int64]) -> Array:
        return scale * (white[draws].mean(axis=1) ** 2).sum(axis=1)

    drawn = float(statistics(np.arange(n)[None])[0])
    return _among("places", drawn, lambda count: statistics(_requests(total, n, count, rng)), DRAWS)


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

    def closeness(draws: NDArray[np.int64]) -> Array:
        # The closest of the drawn rows to every row, of which the drawn are picked; new memory for each draw took most time
        nearest, drawn = np.empty((len(draws), len(pooled)), np.float32), np.empty((n, len(pooled)), np.float32)
        for i, rows in enumerate(draws):
            cosines.take(rows, axis=0, out=drawn, mode="clip").max(axis=0, out=nearest[i])
        return np.take_along_axis(nearest, draws, axis=1).mean(axis=1)

    own = float(closeness(np.arange(n)[None])[0])
    return _among("companions", own, lambda count: closeness(_requests(len(pooled), n, count, rng)), COMPANION_DRAWS)


def draws_for(purpose: str, seed: int) -> np.random.Generator:
    return np.random.default_rng(derive_seed(seed, "closeness", purpose))


def _requests(total: int, n: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(count, n) random requests for ``n`` of ``total`` rows: pieces of shuffled rows, so that few shuffles are needed."""
    pieces = total // n
    shuffles = [rng.permutation(total)[: pieces * n].reshape(pieces, n) for _ in range(-(-count // pieces))]
    return np.vstack(shuffles)[:count]


def _among(name: str, own: float, at_random: Callable[[int], Array], most: int) -> Comparison:
    """A statistic among those of random requests: a p-value that is exact, or larger, whatever their distribution.

    Args:
        at_random: the statistics of so many of them.
    """
    as_large = drawn = 0
    while as_large < ENOUGH and drawn < most:
        found = at_random(min(PIECE, most - drawn)) >= own * (1 - 1e-12)
        ends = np.flatnonzero(np.cumsum(found) == ENOUGH - as_large)
        looked_at = int(ends[0]) + 1 if len(ends) else len(found)  # what was drawn beyond the end does not count
        as_large, drawn = as_large + int(found[:looked_at].sum()), drawn + looked_at
    p_value = as_large / drawn if as_large == ENOUGH else (1 + as_large) / (1 + drawn)
    return Comparison(name, own, p_value)


def _holm(tests: Sequence[Comparison], of: int | None = None) -> tuple[Comparison, ...]:
    """The tests with p-values adjusted for their number, so that none is rejected wrongly at the level of all.

    Args:
        of: how many tests there may be, if some were not made: those may have any p-value.
    """
    order = np.argsort([test.p_value for test in tests])
    steps = [((of or len(tests)) - place) * tests[i].p_value for place, i in enumerate(order)]
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
