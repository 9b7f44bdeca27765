"""``dir`` and ``dir-2c``: the empirical measure of the data as its own model. No eta, no features, closed form.

[eq:dd_target_softmax], [app:exact_dirac_2c]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from unlearn_core.errors import BadInput

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

NOWHERE = -1


@dataclass(frozen=True, eq=False)
class Membership:
    """What the empirical measures of D and of D_r know of some points.

    Attributes:
        known: (N,) the label of a point of D, -1 off the training set.
        forgotten: (N,) the label of a point that D holds and D_r does not, -1 elsewhere.
    """

    known: Labels
    forgotten: Labels


@dataclass(frozen=True, eq=False)
class EmpiricalProxy:
    """The empirical measures of D and D_r. Points are recognised by their exact feature values."""

    method: str
    features: NDArray[np.floating]
    labels: Labels
    mask: NDArray[np.bool_]
    n_classes: int

    @property
    def doubled(self) -> bool:
        return self.method == "dir-2c"

    @cached_property
    def forget_share(self) -> Array:
        """(C,) pi_f(y) = |D_f(y)| / |D(y)|; 1 for a class that left the support of P_r."""
        counts = np.bincount(self.labels, minlength=self.n_classes)
        return np.bincount(self.labels[self.mask], minlength=self.n_classes) / np.maximum(counts, 1)

    @property
    def lost_classes(self) -> NDArray[np.bool_]:
        return self.forget_share == 1.0

    @property
    def training_membership(self) -> Membership:
        """The membership of the training rows themselves, in their order: no look-up needed."""
        return Membership(self.labels, np.where(self.mask, self.labels, NOWHERE))

    def membership(self, x: NDArray[np.floating]) -> Membership:
        """What is known of arbitrary points x (N, d); a forgotten point that D_r holds as well is not forgotten."""
        if x.ndim != 2 or x.shape[1] != self.features.shape[1]:
            raise BadInput(f"features have shape {x.shape}; this proxy was fitted on d = {self.features.shape[1]}")
        known, retained = self._tables
        keys = _keys(x)
        label = np.array([known.get(key, NOWHERE) for key in keys], dtype=np.int64)
        kept = np.array([(key, y) in retained for key, y in zip(keys, label.tolist(), strict=True)], dtype=bool)
        return Membership(label, np.where(kept, NOWHERE, label))

    @cached_property
    def _tables(self) -> tuple[dict[bytes, int], set[tuple[bytes, int]]]:
        keys, labels = _keys(self.features), self.labels.tolist()
        retained = {(keys[row], labels[row]) for row in np.flatnonzero(~self.mask)}
        return dict(zip(keys, labels, strict=True)), retained

    def log_posteriors(self, x: NDArray[np.floating]) -> tuple[Array, Array]:
        """log P(y|x) and log P_r(y|x), each (N, C): all mass on the known label, uniform off the training set.

        D_r does not know a forgotten point; there P_r is uniform over the other classes, its label excluded.
        """
        member = self.membership(x)
        log_p = np.full((len(x), self.n_classes), -np.log(self.n_classes))
        seen = member.known >= 0
        log_p[seen] = -np.inf
        log_p[seen, member.known[seen]] = 0.0
        log_p_r = log_p.copy()
        gone = member.forgotten >= 0
        log_p_r[gone] = -np.log(max(self.n_classes - 1, 1))
        log_p_r[gone, member.forgotten[gone]] = -np.inf
        return log_p, log_p_r

    def signal(self, x: NDArray[np.floating]) -> Array:
        """(N, C) -inf at the label of a forgotten point and, on D, at a class that D_r lost; 0 elsewhere [eq:dd_DeltaM].

        The closed form itself, not the difference of the two log posteriors, which is undefined off the label.
        """
        return self._signal(self.membership(x))

    def _signal(self, member: Membership) -> Array:
        signal = np.zeros((len(member.known), self.n_classes))
        signal[np.ix_(member.known >= 0, self.lost_classes)] = -np.inf
        gone = member.forgotten >= 0
        signal[gone, member.forgotten[gone]] = -np.inf
        return signal

    def log_target(self, logits: NDArray[np.floating], member: Membership) -> Array:
        """(N, C) log of the target: base probits truncated by the signal, and for ``dir-2c`` mixed back.

        Args:
            logits: (N, C) base logits.
            member: of the same points, usually ``training_membership``.
        """
        log_base = log_softmax(np.asarray(logits, dtype=np.float64), axis=1)
        truncated = log_softmax(log_base + self._signal(member), axis=1)
        if not self.doubled:
            return truncated
        gone = member.forgotten >= 0
        share = self.forget_share[member.forgotten[gone]][:, None]
        with np.errstate(divide="ignore"):  # a share of 1 leaves nothing of the base
            kept = np.log1p(-share)
        truncated[gone] = np.logaddexp(kept + log_base[gone], np.log(share) + truncated[gone])
        return truncated


def empirical_proxy(
    method: str,
    features: NDArray[np.floating],
    labels: NDArray[np.integer],
    mask: NDArray[np.bool_],
    n_classes: int,
) -> EmpiricalProxy:
    """Check a request; there is nothing to fit."""
    if mask.shape != labels.shape or not mask.any() or mask.all():
        raise BadInput(
            f"the request forgets {int(mask.sum())} of {len(labels)} rows; it must leave some on either side"
        )
    return EmpiricalProxy(method, features, labels.astype(np.int64), mask, n_classes)


def _keys(x: NDArray[np.floating]) -> list[bytes]:
    rows = np.asarray(x, dtype=np.float64) + 0.0  # one width for all float types, and -0.0 is 0.0
    return [row.tobytes() for row in rows]
