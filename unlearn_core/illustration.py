"""The paper's two illustrations as plain arrays: trained weights beside closed-form ones, and forgetting in the plane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.audit.divergence import log_probabilities, mean_kl
from unlearn_core.data.digits import load_digits
from unlearn_core.grid import head_widths
from unlearn_core.nets.heads import HeadStack
from unlearn_core.problem import problem_of
from unlearn_core.proxies.covariance import regularize
from unlearn_core.proxies.gaussian import factorize, linear_terms, log_share
from unlearn_core.proxies.points import Points
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.proxies.statistics import compute_moments
from unlearn_core.recipes import CROSS_ENTROPY, HEAD_TRAINING, Pass, Phase, Recipe, Visit
from unlearn_core.seeding import derive_seed
from unlearn_core.target import fit, make_target
from unlearn_core.training import Member, train

Array = NDArray[np.float64]
Model = Callable[[Array], Array]
"""(N, d) points to (N, C) log probabilities."""

SEED = 42
GAUSSIAN: tuple[str, ...] = ("lda", "qda", "lda-mix", "qda-mix", "lda-2c")
DIGIT_SHAPE = (8, 8)


@dataclass(frozen=True, eq=False)
class DigitWeights:
    """Two linear classifiers of the digits, each (10, 8, 8) and without what is common to all classes.

    Softmax does not see a weight that all classes share, so that the two could differ by it and be the same classifier.
    """

    class_names: tuple[str, ...]
    trained: Array
    closed_form: Array
    ridge: float
    epochs: int
    correlation: float
    """Over all weights."""
    agreement: float
    """Share of test images to which both give the same class."""


def digit_weights(ridge: float = 0.1, epochs: int = 1000) -> DigitWeights:
    """Cross-entropy weights beside the LDA weights of the same rows  [fig:mon_image].

    Args:
        ridge: of the covariance. Some pixels hardly ever have ink, and with the proxies' own 1e-3 their weights outshine
            all others.
        epochs: of Adam, as heads are trained, from weights of zero, so that a pixel that is always 0 keeps a weight of 0.
    """
    digits = load_digits()
    n_classes = len(digits.class_names)
    net = HeadStack((digits.dim, n_classes), 1)
    _train(net, digits.train_x, digits.train_y, epochs, "linear")
    trained = net.state(0)["layers.0.weight"].double().numpy()

    moments = compute_moments(digits.train_x, digits.train_y, n_classes)
    covariance = regularize(moments.scatter(), moments.n_rows, ridge, moments.mean_total_variance())
    linear, constant = linear_terms(moments.means(), factorize(covariance))
    scores = (digits.test_x - moments.reference) @ linear + constant + log_share(moments.counts, moments.n_rows)

    images = [weights - weights.mean(axis=0) for weights in (trained, linear.T)]
    return DigitWeights(
        class_names=digits.class_names,
        trained=images[0].reshape(-1, *DIGIT_SHAPE),
        closed_form=images[1].reshape(-1, *DIGIT_SHAPE),
        ridge=ridge,
        epochs=epochs,
        correlation=float(np.corrcoef(images[0].ravel(), images[1].ravel())[0, 1]),
        agreement=float(np.mean(_logits(net, digits.test_x).argmax(axis=1) == scores.argmax(axis=1))),
    )


@dataclass(frozen=True, eq=False)
class Region:
    """One model over the plane: P(class 1) at every grid point (H, W)."""

    name: str
    probability: Array
    kl_f: float
    """KL(retrain||model) in nats, mean over the forgotten rows."""
    eta_max: float | None
    """0 where the proxy is not admissible; None for networks."""


@dataclass(frozen=True, eq=False)
class PlaneRegions:
    """Class 1 has two subclasses, one of which is forgotten.

    Attributes:
        points: (N, 2) training rows, with labels (N,) and the forget mask (N,).
        across: (W,), up: (H,) the grid's coordinates.
    """

    points: Array
    labels: NDArray[np.int64]
    forget: NDArray[np.bool_]
    across: Array
    up: Array
    regions: tuple[Region, ...]


def plane_regions(seed: int = SEED, epochs: int = 300, grid: int = 120) -> PlaneRegions:
    """Base, retrain and the target of each Gaussian proxy on synthetic heteroscedastic data  [fig:illustration].

    ``dir`` and ``dir-2c`` are the base wherever there is no training row, and have no regions of their own.
    """
    points, labels, forget = _two_subclasses(seed)
    base, retrain = (_network(points[rows], labels[rows], epochs, seed) for rows in (np.ones_like(forget), ~forget))
    low, high = points.min(axis=0) - 0.5, points.max(axis=0) + 0.5
    across, up = np.linspace(low[0], high[0], grid), np.linspace(low[1], high[1], grid)
    plane = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    log_retrain = log_probabilities(_logits(retrain, points[forget]))

    def region(name: str, log_model: Model, eta_max: float | None = None) -> Region:
        probability = np.exp(log_model(plane)[:, 1]).reshape(grid, grid)
        return Region(name, probability, mean_kl(log_retrain, log_model(points[forget])), eta_max)

    problem = problem_of(points, labels, n_classes=2)
    of_base = problem.training_points(_logits(base, points))
    request = ForgetRequest(problem, forget, of_base)

    def target(name: str) -> Region:
        made = make_target(fit(name, request), of_base, request.lost_classes, cap=1.0)
        return region(name, lambda x: made.on(Points(x, _logits(base, x))), made.eta)

    regions = (
        region("base", lambda x: log_probabilities(_logits(base, x))),
        region("retrain", lambda x: log_probabilities(_logits(retrain, x))),
        *(target(name) for name in GAUSSIAN),
    )
    return PlaneRegions(points, labels, forget, across, up, regions)


def _two_subclasses(seed: int) -> tuple[Array, NDArray[np.int64], NDArray[np.bool_]]:
    """Rows of class 0, of the kept and of the forgotten subclass of class 1."""
    rng = np.random.default_rng(derive_seed(seed, "illustration", "points"))
    parts = (
        (600, (0.0, 0.0), ((1.2, 0.3), (0.3, 0.9))),
        (400, (-2.6, 1.8), ((0.7, 0.4), (0.4, 0.6))),
        (200, (2.4, 2.0), ((0.25, -0.1), (-0.1, 0.35))),
    )
    points = np.concatenate([rng.multivariate_normal(mean, covariance, n) for n, mean, covariance in parts])
    part = np.repeat(np.arange(len(parts)), [n for n, _, _ in parts])
    return points, np.minimum(part, 1), part == len(parts) - 1


def _network(points: Array, labels: NDArray[np.int64], epochs: int, seed: int) -> HeadStack:
    """Base and retrain start from the same weights: what tells them apart is the data."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "illustration", "weights"))
    net = HeadStack.initialise(head_widths("mlp1", points.shape[1], int(labels.max()) + 1), [generator])
    _train(net, points, labels, epochs, "plane", seed)
    return net


def _train(
    net: HeadStack, x: NDArray[np.floating], y: NDArray[np.int64], epochs: int, stream: str, seed: int = SEED
) -> None:
    recipe = Recipe(phases=(Phase((Pass(Visit.ALL, CROSS_ENTROPY),), epochs),))
    inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    train(net, inputs, [Member(seed, stream, torch.from_numpy(y))], recipe, HEAD_TRAINING)


def _logits(net: HeadStack, x: NDArray[np.floating]) -> Array:
    """(N, C) of the one member."""
    return net.logits(0, torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))).double().numpy()
