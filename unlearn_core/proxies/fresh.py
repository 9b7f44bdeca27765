"""``fresh``: what two models that never saw the records say about them.

The other proxies model the data, and know nothing of what the network memorised: between P and the network a gap
remains that no eta closes. But on the forgotten points the network itself is the best model of the network, so P is p there,
and P_r is what was fitted to D_r alone and is asked about points that are new to it, as a retrain would be. Elsewhere
P = P_r, and the network stays as it is. So on D_f h(eta) = log sum p^(1-eta) P_r^eta: below zero between 0 and 1 and zero
at both, whatever P_r. eta_max is 1, the target is P_r, and the bound says that its distance from the retrain is P_r's.

P_r is the geometric mean of the probe of D_r and a small network trained on D_r for a few epochs: one has too simple a shape
and the other too much noise, and they err apart. Where the network is less sure of retained points than the two are, as one
that was trained for a short while, P_r is softened until it fits: a retrain would be no surer. The other way round it is
left alone: a network is surer of what it saw than a retrain is of what it has not seen.

If the network is no farther from P_r on the records than on retained points, P is P_r there as well, for it fits as it does
anywhere: there is nothing to unlearn, and the pair is not admissible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import root_scalar

from unlearn_core.audit.divergence import mean_kl
from unlearn_core.logspace import log_sum
from unlearn_core.nets.heads import HeadStack
from unlearn_core.proxies.probe import ProbeFit, ProbeProxy, design, fit_probe
from unlearn_core.seeding import derive_seed
from unlearn_core.spec import FRESH, HEAD_EPOCHS, Optimization, Visit, training_recipe
from unlearn_core.training import Member, train

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

WIDTH = 64
LEAST_EPOCHS = 3
STEPS = 512
"""Steps that a small data set should make; it has no more epochs for them than the network had."""
TRAINING = Optimization(lr=6e-3, batch_size=256)
SAMPLE = 2048  # retained rows, evenly spaced
LAST_RATE = 0.125  # of the first; the learning rate falls to it epoch by epoch


@dataclass(frozen=True, eq=False)
class FreshProxy:
    """P_r as models of D_r, and where P is the network.

    Attributes:
        unseen: (N,) the training rows that P_r never saw: the request's, less those that D_r holds as well.
        log_retain_unseen: (n, C) log P_r on them, before it is softened.
        sample: (m,) retained rows that tell how sure the network is.
        log_retain_sample: (m, C) log P_r on them, before it is softened.
    """

    probe: ProbeProxy
    small: HeadStack
    unseen: Mask
    log_retain_unseen: Array
    sample: NDArray[np.int64]
    log_retain_sample: Array
    method: str = FRESH

    @property
    def n_classes(self) -> int:
        return self.probe.n_classes

    @property
    def lost_classes(self) -> Mask:
        return self.probe.lost_classes

    def log_posteriors(self, x: NDArray[np.floating]) -> tuple[Array, Array]:
        """log P(y|x) and log P_r(y|x) off the forgotten points, where they are one; -inf for a class that left.

        Not softened: that takes the network.
        """
        log_p_r = _log_retain(self.probe, self.small, design(x, self.probe.fit))
        return log_p_r, log_p_r

    def sureness(self, log_base: Array) -> float:
        """The exponent in (0, 1] with which P_r fits the network on retained rows, as far as it needs softening."""
        return _softening(self._on_sample(log_base), self.log_retain_sample[:, ~self.lost_classes])

    def known_to(self, log_base: Array) -> Mask:
        """(N,) the rows on which P is the network: those unseen by P_r, if they are something special to the network."""
        if not self.unseen.any():
            return self.unseen
        sureness = self.sureness(log_base)
        on_sample = _softened(self.log_retain_sample[:, ~self.lost_classes], sureness)
        elsewhere = mean_kl(self._on_sample(log_base), on_sample)
        there = mean_kl(log_base[self.unseen], _softened(self.log_retain_unseen, sureness))
        return self.unseen if there > elsewhere else np.zeros_like(self.unseen)

    def _on_sample(self, log_base: Array) -> Array:
        log_p = log_base[self.sample][:, ~self.lost_classes]
        return log_p - log_sum(log_p.T)[:, None]

    def signal(self, x: NDArray[np.floating]) -> Array:
        """(N, C) off the forgotten points: nothing but -inf for a class that left."""
        return np.tile(np.where(self.lost_classes, -np.inf, 0.0), (len(x), 1))

    def training_signal(self, log_base: Array) -> Array:
        """(N, C) log P_r - log P on the training rows, where the network says ``log_base``."""
        signal = self.signal(log_base)
        if self.known_to(log_base).any():
            signal[self.unseen] = _softened(self.log_retain_unseen, self.sureness(log_base)) - log_base[self.unseen]
        return signal

    def training_posteriors(self, x: NDArray[np.floating], log_base: Array) -> tuple[Array, Array]:
        """log P(y|x) and log P_r(y|x) on the training rows x, where the network says ``log_base``.

        A class that left has, under P, what the network gives it.
        """
        log_p_r, lost = _softened(self.log_posteriors(x)[1], self.sureness(log_base)), self.lost_classes
        stays = log_sum(log_base[:, ~lost].T)[:, None]
        elsewhere = np.where(lost, log_base, log_p_r + stays)
        return np.where(self.known_to(log_base)[:, None], log_base, elsewhere), log_p_r


def fit_fresh(
    fit: ProbeFit,
    features: NDArray[np.floating],
    labels: NDArray[np.integer],
    forget: Mask,
    seed: int = 0,
    inputs: NDArray[np.float32] | None = None,
) -> FreshProxy:
    """Fit both models to D_r and ask them about the rest.

    Args:
        fit: the probe of D, from which that of D_r is fitted.
        seed: of the small network's weights and row order.
        inputs: ``design(features, fit)`` where it is at hand.
    """
    z = design(features, fit) if inputs is None else inputs
    probe = fit_probe(fit, features, labels, forget, z)
    small = _train_small(torch.from_numpy(z), labels, forget, probe.n_classes, seed)
    unseen = forget.copy()
    unseen[_held_as_well(features, labels, forget)] = False
    retained = np.flatnonzero(~forget)
    sample = retained[:: max(1, len(retained) // SAMPLE)]
    return FreshProxy(
        probe, small, unseen, _log_retain(probe, small, z[unseen]), sample, _log_retain(probe, small, z[sample])
    )


def _train_small(
    inputs: torch.Tensor, labels: NDArray[np.integer], forget: Mask, n_classes: int, seed: int
) -> HeadStack:
    generator = torch.Generator().manual_seed(derive_seed(seed, FRESH, "weights"))
    small = HeadStack.initialise((inputs.shape[1], WIDTH, n_classes), [generator])
    member = Member(seed, FRESH, torch.from_numpy(labels.astype(np.int64)), torch.from_numpy(forget))
    steps = math.ceil(int((~forget).sum()) / TRAINING.batch_size)
    epochs = min(max(LEAST_EPOCHS, math.ceil(STEPS / steps)), HEAD_EPOCHS)
    how = TRAINING.falling_to(LAST_RATE, epochs)
    train(small, inputs, [member], training_recipe(Visit.RETAIN, epochs), how)
    return small


def _log_retain(probe: ProbeProxy, small: HeadStack, z: NDArray[np.float32]) -> Array:
    """(n, C) the mean of the two log posteriors, normalised over the classes that are left."""
    log_small = small.logits(0, torch.from_numpy(z)).double().numpy()
    log_small -= log_sum(log_small.T)[:, None]
    mean = 0.5 * (probe.log_retain(z) + log_small)  # -inf stays
    return mean - log_sum(mean.T)[:, None]


def _softened(log_q: Array, exponent: float) -> Array:
    """log of q^exponent, normalised; -inf stays."""
    if exponent == 1.0:
        return log_q
    scaled = exponent * log_q
    return scaled - log_sum(scaled.T)[:, None]


def _softening(log_p: Array, log_q: Array) -> float:
    """The exponent in (0, 1] that brings q closest to p in mean KL(p||q^exponent), which is convex in it."""

    def slope(exponent: float) -> float:
        q = np.exp(_softened(log_q, exponent))
        return float(np.mean(np.sum((q - np.exp(log_p)) * log_q, axis=1)))

    if slope(1.0) <= 0:
        return 1.0
    return root_scalar(slope, bracket=(0.0, 1.0), xtol=1e-6).root


def _held_as_well(features: NDArray[np.floating], labels: NDArray[np.integer], forget: Mask) -> NDArray[np.int64]:
    """Forgotten rows that D_r holds as well, point and label: whoever retrains sees them."""
    gone, kept = np.flatnonzero(forget), np.flatnonzero(~forget)
    for column in range(min(4, features.shape[1])):  # a few numbers tell most rows apart
        kept = kept[np.isin(features[kept, column], features[gone, column])]
    held = {(features[row].tobytes(), int(labels[row])) for row in kept}
    return np.array([row for row in gone if (features[row].tobytes(), int(labels[row])) in held], dtype=np.int64)
