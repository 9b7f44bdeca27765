"""``fresh``: what two models that were not fitted to the records say about them.

The other proxies model the data, and know nothing of what the network memorised: between P and the network a gap
remains that no eta closes. But on the forgotten points the network itself is the best model of the network, so P is p there,
and P_r is what was fitted to D_r alone and is asked about points that are new to it, as a retrain would be. Elsewhere
P = P_r, and the network stays as it is. So on D_f h(eta) = log sum p^(1-eta) P_r^eta: below zero between 0 and 1 and zero
at both, whatever P_r. eta_max is 1, the target is P_r, and the bound says that its distance from the retrain is P_r's.

P_r is the geometric mean of the probe of D_r and a small network trained on D_r for a few epochs: one has too simple a shape
and the other too much noise, and they err apart. If the network is less sure of retained points than the two are, as one
that was trained for a short while, P_r is softened until it fits: a retrain would be no surer. The other way round it is
left alone: a network is surer of what it saw than a retrain is of what it has not seen.

If the network is no farther from P_r on the records than on retained points of the same classes, P is P_r there as well, for
it fits as it does anywhere: there is nothing to unlearn, and the pair is not admissible. Points of all classes would not do:
where the small models are bad at some classes, a small part of another one that the network knows by heart passes for usual.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root_scalar

from unlearn_core.audit.divergence import kl_rows, mean_kl
from unlearn_core.logspace import log_sum
from unlearn_core.proxies.points import Points
from unlearn_core.proxies.probe import ProbeConstants, ProbeProxy, design, fit_probe
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.recipes import HEAD_EPOCHS, Optimization, Schedule, Visit, training_recipe
from unlearn_core.seeding import derive_seed

if TYPE_CHECKING:
    from unlearn_core.nets.heads import HeadStack

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

STREAM = "fresh"
EXPONENT_DIGITS = 1e-6

SCHEDULE = Schedule(epochs=6, least_steps=240, batch_divisor=2, last_rate=0.075)
"""Fewer and shorter steps than the paper's, that end: as close as 20 epochs of constant steps, in a third of the time."""


TRAINING = Optimization(lr=6e-3, batch_size=256)


@dataclass(frozen=True)
class FreshConstants:
    """The small network and its training."""

    width: int = 64
    training: Optimization = TRAINING
    least_epochs: int = 3
    least_steps: int = 512
    """Steps that a small data set should make, in ``most_epochs`` at most."""
    most_epochs: int = HEAD_EPOCHS
    last_rate: float = 0.125
    """Of the first; the learning rate falls to it epoch by epoch."""
    sample: int = 2048
    """Retained rows, evenly spaced, that tell how sure the network is."""
    within_classes: bool = True
    """Whether records are compared with retained rows of their own classes, or with all."""
    probe: ProbeConstants = field(default_factory=ProbeConstants)


@dataclass(frozen=True, eq=False)
class FreshProxy:
    """P_r as models of D_r, and where P is the network.

    Attributes:
        tempering: the exponent in (0, 1] with which P_r fits the network on retained rows, as far as it needs softening.
        special: (N,) the training rows on which P is the network: those that are not in D_r, if they are something
            special to the network.
        log_retain_special: (n, C) log P_r on them, tempered.
    """

    probe: ProbeProxy
    small: HeadStack
    tempering: float
    special: Mask
    log_retain_special: Array

    @property
    def lost_classes(self) -> Mask:
        return self.probe.lost_classes

    def _at(self, points: Points) -> Mask:
        """(N,) which of the points are special training rows."""
        return np.zeros(len(points), dtype=bool) if points.rows is None else self.special[points.rows]

    def signal(self, points: Points) -> Array:
        """(N, C) log P_r - log p on the special rows; elsewhere nothing but -inf for a class that left."""
        signal = np.tile(np.where(self.lost_classes, -np.inf, 0.0), (len(points), 1))
        at = self._at(points)
        if points.rows is not None and at.any():
            place = np.cumsum(self.special) - 1
            signal[at] = self.log_retain_special[place[points.rows[at]]] - points.log_base[at]
        return signal

    def log_posteriors(self, points: Points) -> tuple[Array, Array]:
        """log P(y|x) and log P_r(y|x); they are one off the special rows, but for a class that left.

        Such a class has, under P, what the network gives it.
        """
        lost, log_base = self.lost_classes, points.log_base
        log_p_r = _tempered(
            _log_retain(self.probe, self.small, design(points.features, self.probe.fit)), self.tempering
        )
        stays = log_sum(log_base[:, ~lost].T)[:, None]
        elsewhere = np.where(lost, log_base, log_p_r + stays)
        return np.where(self._at(points)[:, None], log_base, elsewhere), log_p_r


def fit_fresh(request: ForgetRequest, constants: FreshConstants) -> FreshProxy:
    """Fit both models to D_r and ask them, and the network, about the rest."""
    z, log_base = request.problem.probe_inputs, request.points.log_base
    probe = fit_probe(request, constants.probe)
    small = _train_small(z, request, constants)
    unseen = request.mask.copy()
    unseen[_held_as_well(request)] = False
    retained = np.flatnonzero(~request.mask)
    sample = retained[:: max(1, len(retained) // constants.sample)]
    log_retain_unseen = _log_retain(probe, small, z[unseen])
    stays = ~request.lost_classes
    on_sample = log_base[sample][:, stays]
    on_sample = on_sample - log_sum(on_sample.T)[:, None]
    log_retain_sample = _log_retain(probe, small, z[sample])[:, stays]
    tempering = _tempering(on_sample, log_retain_sample)
    log_retain_unseen = _tempered(log_retain_unseen, tempering)
    special = np.zeros_like(unseen)
    if unseen.any():
        distances = kl_rows(on_sample, _tempered(log_retain_sample, tempering))
        usual = float(distances.mean())
        if constants.within_classes:
            usual = _usual_of_classes(request.labels[unseen], request.labels[sample], distances)
        if mean_kl(log_base[unseen], log_retain_unseen) > usual:
            special = unseen
    return FreshProxy(probe, small, tempering, special, log_retain_unseen if special.any() else log_retain_unseen[:0])


def _usual_of_classes(asked: NDArray[np.integer], retained: NDArray[np.integer], distances: Array) -> float:
    """The mean of (n,) distances of retained rows in the class shares of the records; of all, for a class without any."""
    overall = float(distances.mean())
    usual = {int(c): float(distances[retained == c].mean()) for c in np.unique(retained)}
    return float(np.mean([usual.get(int(c), overall) for c in asked]))


def _train_small(z: NDArray[np.float32], request: ForgetRequest, constants: FreshConstants) -> HeadStack:
    import torch

    from unlearn_core.nets.heads import HeadStack
    from unlearn_core.training import Member, train

    generator = torch.Generator().manual_seed(derive_seed(request.seed, STREAM, "weights"))
    small = HeadStack.initialise((z.shape[1], constants.width, request.n_classes), [generator])
    member = Member(request.seed, STREAM, torch.from_numpy(request.labels), torch.from_numpy(request.mask))
    steps = math.ceil(int((~request.mask).sum()) / constants.training.batch_size)
    epochs = min(max(constants.least_epochs, math.ceil(constants.least_steps / steps)), constants.most_epochs)
    how = constants.training.falling_to(constants.last_rate, epochs)
    train(small, torch.from_numpy(z), [member], training_recipe(Visit.RETAIN, epochs), how)
    return small


def _log_retain(probe: ProbeProxy, small: HeadStack, z: NDArray[np.float32]) -> Array:
    """(n, C) the mean of the two log posteriors, normalised over the classes that are left."""
    import torch

    log_small = small.logits(0, torch.from_numpy(z)).double().numpy()
    log_small -= log_sum(log_small.T)[:, None]
    mean = 0.5 * (probe.log_retain(z) + log_small)  # -inf stays
    return mean - log_sum(mean.T)[:, None]


def _tempered(log_q: Array, exponent: float) -> Array:
    """log of q^exponent, normalised; -inf stays."""
    if exponent == 1.0:
        return log_q
    scaled = exponent * log_q
    return scaled - log_sum(scaled.T)[:, None]


def _tempering(log_p: Array, log_q: Array) -> float:
    """The exponent in (0, 1] that brings q closest to p in mean KL(p||q^exponent), which is convex in it."""

    def slope(exponent: float) -> float:
        q = np.exp(_tempered(log_q, exponent))
        return float(np.mean(np.sum((q - np.exp(log_p)) * log_q, axis=1)))

    if slope(1.0) <= 0:
        return 1.0
    if slope(0.0) >= 0:  # a network that knows nothing of these rows yet, or the opposite: P_r says nothing either
        return EXPONENT_DIGITS
    return max(root_scalar(slope, bracket=(0.0, 1.0), xtol=EXPONENT_DIGITS).root, EXPONENT_DIGITS)


def _held_as_well(request: ForgetRequest) -> NDArray[np.int64]:
    """Forgotten rows that D_r holds as well, point and label: whoever retrains sees them."""
    features, labels = request.features, request.labels
    gone, kept = np.flatnonzero(request.mask), np.flatnonzero(~request.mask)
    for column in range(min(4, features.shape[1])):  # a few numbers tell most rows apart
        kept = kept[np.isin(features[kept, column], features[gone, column])]
    held = {(features[row].tobytes(), int(labels[row])) for row in kept}
    return np.array([row for row in gone if (features[row].tobytes(), int(labels[row])) in held], dtype=np.int64)
