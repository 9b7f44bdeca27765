"""The two illustrations: weights against a direct solution, regions against what forgetting must do."""

from __future__ import annotations

import numpy as np
import pytest

from unlearn_core import methods
from unlearn_core.data.digits import load_digits
from unlearn_core.illustration import DigitWeights, PlaneRegions, digit_weights, plane_regions

GAUSSIAN = tuple(name for name in methods.proxies() if methods.find_proxy(name).prepares == methods.MOMENTS)


@pytest.fixture(scope="module")
def weights() -> DigitWeights:
    return digit_weights()


@pytest.fixture(scope="module")
def plane() -> PlaneRegions:
    return plane_regions(grid=40)


def test_closed_form_weights_solve_the_lda_equations(weights):
    digits = load_digits()
    x, y = digits.train_x.astype(float), digits.train_y
    means = np.stack([x[y == c].mean(axis=0) for c in range(10)])
    covariance = (x - means[y]).T @ (x - means[y]) / len(x)
    covariance += weights.ridge * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    expected = np.linalg.solve(covariance, means.T).T
    expected -= expected.mean(axis=0)
    np.testing.assert_allclose(weights.closed_form.reshape(10, -1), expected, rtol=1e-8, atol=1e-8)


def test_softmax_cannot_see_what_is_left_out(weights):
    for images in (weights.trained, weights.closed_form):
        np.testing.assert_allclose(images.sum(axis=0), 0.0, atol=1e-10)


def test_pixels_without_ink_have_no_weight(weights):
    never = (load_digits().train_x == 0).all(axis=0).reshape(8, 8)
    assert never.any()
    assert (weights.trained[:, never] == 0).all()


def test_training_finds_what_the_closed_form_says(weights):
    """Not the same numbers, as pixels are not Gaussian: 0.73 and 95 % when this was written."""
    assert weights.correlation > 0.6
    assert weights.agreement > 0.9


def test_the_grid_covers_the_points_and_is_the_right_way_up(plane):
    for axis, coordinates in enumerate((plane.across, plane.up)):
        assert coordinates[0] < plane.points[:, axis].min()
        assert coordinates[-1] > plane.points[:, axis].max()
    base = plane.regions[0].probability
    for label, rows in ((0, plane.labels == 0), (1, plane.forget), (1, (plane.labels == 1) & ~plane.forget)):
        across, up = plane.points[rows].mean(axis=0)
        at = base[np.abs(plane.up - up).argmin(), np.abs(plane.across - across).argmin()]
        assert at == pytest.approx(label, abs=0.05)


def test_every_model_is_there_and_only_networks_have_no_eta(plane):
    assert [region.name for region in plane.regions] == ["base", "retrain", *GAUSSIAN]
    assert [region.name for region in plane.regions if region.eta_max is None] == ["base", "retrain"]


def test_what_is_not_admissible_is_the_base(plane):
    base, *_ = plane.regions
    idle = [region for region in plane.regions if region.eta_max == 0]
    assert [region.name for region in idle] == ["qda"]
    for region in idle:
        np.testing.assert_allclose(region.probability, base.probability, rtol=1e-12)
        assert region.kl_f == pytest.approx(base.kl_f)


@pytest.mark.parametrize("seed", [42, 0])
def test_a_proxy_that_knows_of_subclasses_forgets_one(seed):
    kl_f = {region.name: region.kl_f for region in plane_regions(seed, grid=2).regions}
    assert kl_f["retrain"] == 0.0
    assert kl_f["lda-2c"] < 0.05 * kl_f["base"]
    assert kl_f["lda-2c"] < kl_f["lda"]


def test_the_same_seed_gives_the_same_picture(plane):
    again = plane_regions(grid=40)
    for a, b in zip(plane.regions, again.regions, strict=True):
        np.testing.assert_array_equal(a.probability, b.probability)
