"""Moments are additive: subtracting the forget rows gives what a two-pass fit on the retain rows gives."""

from __future__ import annotations

import numpy as np
import pytest

from unlearn_core.errors import BadInput
from unlearn_core.proxies.statistics import compute_moments


def two_pass(x, y, n_classes):
    """Means, variances and within-class scatter computed directly."""
    d = x.shape[1]
    means, variances, scatter = np.zeros((n_classes, d)), np.zeros((n_classes, d)), np.zeros((d, d))
    for c in range(n_classes):
        rows = x[y == c]
        if len(rows):
            means[c] = rows.mean(axis=0)
            residual = rows - means[c]
            variances[c] = (residual**2).mean(axis=0)
            scatter += residual.T @ residual
    return means, variances, scatter


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("forgotten", ["some", "a whole class"])
def test_subtraction_equals_the_two_pass_fit(data, offset, forgotten):
    x = data.x + offset
    forget = data.forget if forgotten == "some" else data.y == 1
    total = compute_moments(x, data.y, 3)
    retain = total - compute_moments(x[forget], data.y[forget], 3, total.reference)
    means, variances, scatter = two_pass(x[~forget], data.y[~forget], 3)
    present = retain.counts > 0
    np.testing.assert_allclose((retain.means() + total.reference)[present], means[present], rtol=0, atol=1e-9)
    np.testing.assert_allclose(retain.variances(), variances, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(retain.scatter(), scatter, rtol=0, atol=1e-9 * np.trace(scatter))
    np.testing.assert_array_equal(retain.counts, np.bincount(data.y[~forget], minlength=3))


def test_chunks_do_not_matter():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5000, 4)).astype(np.float32), rng.integers(0, 5, 5000)
    means, variances, scatter = two_pass(x.astype(np.float64), y, 5)
    moments = compute_moments(x, y, 5)
    np.testing.assert_allclose(moments.means() + moments.reference, means, atol=1e-12)
    np.testing.assert_allclose(moments.variances(), variances, atol=1e-12)
    np.testing.assert_allclose(moments.scatter(), scatter, atol=1e-9)


def test_one_row_has_no_spread():
    moments = compute_moments(np.full((1, 3), 0.1), np.array([1]), 2)
    assert not moments.scatter().any()
    assert not moments.variances().any()


def test_moments_that_are_no_subset_or_about_another_point_are_refused(data):
    total = compute_moments(data.x, data.y, 3)
    with pytest.raises(ValueError, match="different reference points"):
        _ = total - compute_moments(data.x[:10], data.y[:10], 3)
    few = compute_moments(data.x[:10], data.y[:10], 3, total.reference)
    with pytest.raises(ValueError, match="not a subset"):
        _ = few - total
    with pytest.raises(BadInput, match="600 feature rows but 599 labels"):
        compute_moments(data.x, data.y[1:], 3)
