"""Whether a model without the records still knows them: densities written out, and the groups that it must tell apart."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA

from unlearn_core.kept_answers import DiscriminantConstants, discriminant_of_all, kept_answers
from unlearn_core.proxies.statistics import compute_moments

RIDGE = 1e-3


def rows_of(centres, labels, each=60, dim=4, seed=0):
    """Clusters of rows, ``each`` rows about every centre, and the cluster of every row."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(size=(each, dim)) + np.pad(c, (0, dim - len(c))) for c in centres])
    return x, np.repeat(labels, each), np.repeat(np.arange(len(centres)), each)


def kept(x, y, forget, directions=48, most_records=1000):
    """As a request asks: of D's discriminant, which was prepared."""
    of_all = discriminant_of_all(compute_moments(x, y, 2), DiscriminantConstants(directions, RIDGE, most_records))
    return kept_answers(of_all, x, y, np.flatnonzero(forget))


def by_densities(x, y, forget, ridge):
    """Two passes over all rows: class means, priors and the pooled covariance of D, then of D_r."""
    classes = range(y.max() + 1)

    def answers(rows):
        residuals = np.concatenate([x[rows & (y == c)] - x[rows & (y == c)].mean(axis=0) for c in classes])
        covariance = residuals.T @ residuals / rows.sum()
        covariance += ridge * np.trace(covariance) / x.shape[1] * np.eye(x.shape[1])
        scores = [
            multivariate_normal(x[rows & (y == c)].mean(axis=0), covariance).logpdf(x[forget])
            + np.log((rows & (y == c)).mean())
            for c in classes
        ]
        return np.argmax(scores, axis=0) == y[forget]

    before, after = answers(np.ones(len(x), dtype=bool)), answers(~forget)
    return (before & after).sum() / before.sum()


@pytest.mark.parametrize("centres", [[(0, 0), (3, 0), (0, 3)], [(0, 0), (4, 4), (1.5, 1.5)], [(0,), (0.5,), (1,)]])
def test_it_is_a_share_of_answers_by_densities(centres):
    x, y, cluster = rows_of(centres, labels=[0, 0, 1])
    forget = cluster == 1
    assert kept(x, y, forget) == pytest.approx(by_densities(x, y, forget, RIDGE), abs=1e-12)


def test_in_some_directions_it_is_that_of_the_rows_as_they_lie_there():
    """The two directions in which D varies most, found by scikit-learn."""
    x, y, cluster = rows_of([(0, 0), (2, 0), (0, 2)], labels=[0, 0, 1], dim=12)
    there = PCA(2).fit_transform(x)
    forget = cluster == 1
    assert kept(x, y, forget, directions=2) == pytest.approx(by_densities(there, y, forget, RIDGE), abs=1e-12)
    assert kept(x, y, forget, directions=2) != kept(x, y, forget)


@pytest.mark.parametrize("place", [(1.5, 0.0), (2.2, 0.0), (9.0, 0.0)])
def test_some_of_many_records_stand_for_all(place):
    """A share of 250 rows has a standard deviation of 0.03 at most; three of them."""
    x, y, cluster = rows_of([(0, 0), place, (3, 0)], labels=[0, 0, 1], each=4000)
    forget = cluster == 1
    some, of_all = kept(x, y, forget, most_records=250), kept(x, y, forget, most_records=4000)
    assert some == pytest.approx(of_all, abs=0.09)
    assert some != of_all or of_all in (0.0, 1.0)


def test_of_a_class_that_is_nearly_gone_every_record_counts():
    """Ten rows of it are left: what some of the records stand for would be wrong by more than these are."""
    x, y, cluster = rows_of([(0, 0), (3, 0)], labels=[0, 1], each=2000)
    forget = (cluster == 1) & (np.arange(len(x)) < len(x) - 10)
    assert kept(x, y, forget, most_records=250) == kept(x, y, forget, most_records=4000)


def test_a_class_of_which_too_few_are_looked_at_makes_every_record_count():
    x, y, cluster = rows_of([(0, 0), (3, 0), (6, 0)], labels=[0, 0, 1], each=2000)
    forget = (cluster == 1) | ((cluster == 2) & (np.arange(len(x)) % 40 == 0))
    assert kept(x, y, forget, most_records=250) == kept(x, y, forget, most_records=4000)


def test_it_tells_a_group_that_others_stand_for_from_one_that_is_alone():
    """Labels 0 0 1: the second cluster lies beside its own class, or beside the other one."""
    for place, share in (((1.0, 0.0), 1.0), ((9.0, 0.0), 0.0)):
        x, y, cluster = rows_of([(0, 0), place, (10, 0)], labels=[0, 0, 1])
        assert kept(x, y, cluster == 1) == pytest.approx(share, abs=0.1)


def test_the_covariance_forgets_too():
    """The group lies beside the other class, and stretches the covariance of D towards itself: that one does not mind."""
    x, y, cluster = rows_of([(0, 0), (0, 8), (4, 6)], labels=[0, 0, 1])
    found = kept(x, y, cluster == 1)
    assert found is not None
    assert found < 0.2


def test_a_class_that_is_gone_is_known_no_more():
    x, y, _ = rows_of([(0, 0), (5, 0)], labels=[0, 1])
    assert kept(x, y, y == 1) == 0.0


def test_nothing_is_kept_of_what_was_never_known():
    """One row of a class in the middle of another."""
    x, y, _ = rows_of([(0, 0), (0, 0)], labels=[0, 0])
    y[-1], x[-1] = 1, x[:-1].mean(axis=0)
    x[-2] = x[-1]  # the other class has the same place and far more rows
    assert kept(x, y, np.arange(len(x)) == len(x) - 1) is None
