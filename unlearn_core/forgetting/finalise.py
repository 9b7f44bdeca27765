"""Write a plan's target into the network, with a stopping rule that needs no retrain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.audit.divergence import log_probabilities, mean_kl
from unlearn_core.errors import BadInput
from unlearn_core.finalizers.distill import distillation_member
from unlearn_core.finalizers.least_squares import fit_last_layer_shift
from unlearn_core.forgetting.plan import Plan
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.seeding import derive_seed
from unlearn_core.spec import Optimization, distillation
from unlearn_core.target import finite_shift
from unlearn_core.training import train

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

SHORTER_STEPS: tuple[float, ...] = (1.0, 0.1, 0.01)
"""Shares of the learning rate, tried in turn for as long as the next comes closer to the target.

Adam's steps are as long as the learning rate whatever the gradient, and a request may change much or hardly anything.
"""
STEPS = 64
"""Steps that an epoch should make: a request is often smaller than one batch of the training."""
SMALLEST_BATCH = 16
LEAST_RETAINED = 512
"""Retained rows that an epoch visits at least: with as few as a small request has, the network drifts everywhere else.

Within the 20 epochs of a grid they would crowd out the records; a deletion request may take its time.
"""
MATERIAL = 0.01
"""A gain below this share of the best score so far does not renew patience."""
MIN_HELD_OUT = 256
"""Retained rows that are held out at least, where their share allows it: a few would make the score noise."""


@dataclass(frozen=True)
class Watched:
    """How many rows the stopping rule looks at.

    The retained ones are held out: no epoch visits them. The forgotten ones are all of the request, and are visited:
    what a network has memorised of one record cannot be taken out by way of others, so sparing some would leave them in.
    """

    n_forget: int
    n_retain: int


@dataclass(frozen=True, eq=False)
class Finalised:
    """``net`` is None where the network stays as it is. Scores are KL(target||network) on the watched rows, in nats."""

    net: NetworkStack | None
    ended: str
    scores: Sequence[float] = ()
    """By epoch; the first is the network as it was."""
    best_epoch: int | None = None
    watched: Watched | None = None
    optimization: Optimization | None = None
    seconds: float = 0.0


def finalise(plan: Plan, start: NetworkStack | None, optimization: Optimization) -> Finalised:
    """Carry out a plan.

    Args:
        start: where distillation starts: the base, or what earlier requests made of it. None for a black box.
        optimization: for distillation, where the settings do not say another.
    """
    if plan.target is None:
        raise ValueError("there is nothing to unlearn")
    finalizer = plan.settings.finalizer
    if finalizer == "none":
        return Finalised(None, "the logit processor does it at inference")
    if start is None or plan.subject.net is None:
        raise BadInput(f"the finalizer {finalizer} needs the network's weights; a black box takes the finalizer none")
    if finalizer == "mse":
        return _least_squares(plan, plan.subject.net)
    return _distill(plan, start, optimization)


def _least_squares(plan: Plan, base: NetworkStack) -> Finalised:
    """The shift is one of the base's logits, so it is added to the base's last layer."""
    inputs = plan.subject.train.inputs
    if inputs is None or plan.target is None:
        raise ValueError("least squares needs inputs and a target")
    phi = base.penultimate(0, inputs).double().cpu().numpy()
    logits, target, chosen = plan.subject.train.logits, plan.target.train, plan.chosen
    if chosen is None:
        shift = finite_shift(logits, target)
    else:
        shift = finite_shift(logits, target, chosen.signal, chosen.search.eta_max)
    return Finalised(base.with_shifted_last_layer(0, *fit_last_layer_shift(phi, shift)), "closed form")


def _distill(plan: Plan, start: NetworkStack, optimization: Optimization) -> Finalised:
    inputs, target, settings = plan.subject.train.inputs, plan.target, plan.settings
    if inputs is None or target is None:
        raise ValueError("distillation needs inputs and a target")
    if not start.parameters()[0]:
        raise BadInput("no weight of the model requires a gradient; let some train, or use the finalizer mse or none")
    watched = (np.flatnonzero(plan.forget), _held_out(plan))
    visited = np.ones(len(plan.forget), dtype=bool)
    visited[watched[1]] = False
    rows = torch.from_numpy(np.flatnonzero(visited)).to(inputs.device)
    labels = torch.from_numpy(plan.subject.train.labels[visited])
    member = distillation_member(settings.seed, labels, plan.forget[visited], target.train[visited])
    recipe = distillation(settings.stopping.epochs, LEAST_RETAINED)
    batch_size = settings.batch_size or _batch_size(plan.n_forget, optimization.batch_size)
    rates = [share * optimization.lr for share in SHORTER_STEPS] if settings.lr is None else [settings.lr]
    runs: list[_Watch] = []
    visited_inputs, seconds = inputs[rows], 0.0
    for rate in rates:
        student, how = start.select([0]), replace(optimization, lr=rate, batch_size=batch_size)
        watch = _Watch(student, inputs, target.train, watched, settings.stopping.patience, how)
        seconds += train(student, visited_inputs, [member], recipe, how, watch.end_epoch)
        runs.append(watch)
        if len(runs) > 1 and watch.score >= runs[-2].score < runs[0].scores[0]:
            break
    return _best_of(runs, Watched(len(watched[0]), len(watched[1])), seconds)


def _batch_size(n_forget: int, largest: int) -> int:
    """An epoch visits the request and as many retained rows, or a few hundred."""
    return min(largest, max(SMALLEST_BATCH, 2 * n_forget // STEPS))


def _best_of(runs: Sequence[_Watch], watched: Watched, seconds: float) -> Finalised:
    best = min(runs, key=lambda run: run.score)
    ended = f"no material gain in {best.patience} epochs" if best.waited_out else "all epochs were made"
    if best.best is None:
        ended += ", and none came closer to the target than the network was"
    return Finalised(best.best, ended, best.scores, best.best_epoch, watched, best.how, seconds)


def _held_out(plan: Plan) -> Rows:
    """Retained rows that no epoch visits: a share of them, but no more than the request has, or a minimum."""
    retain = np.flatnonzero(~plan.forget)
    if len(retain) < 2:
        raise BadInput(f"{len(retain)} retained row is too few to distil on; use the finalizer mse or none")
    rng = np.random.default_rng(derive_seed(plan.settings.seed, "forget", "held-out"))
    share = int(plan.settings.stopping.heldout_share * len(retain))
    count = max(1, min(share, max(plan.n_forget, MIN_HELD_OUT)))
    return np.sort(rng.permutation(retain)[:count])


class _Watch:
    """Scores the student after every epoch, keeps its best self and says when to stop."""

    def __init__(
        self,
        student: NetworkStack,
        inputs: torch.Tensor,
        target: Array,
        rows: tuple[Rows, Rows],
        patience: int,
        how: Optimization,
    ) -> None:
        self.student: NetworkStack = student
        self.inputs: torch.Tensor = inputs
        self.parts: list[tuple[torch.Tensor, Array]] = [
            (torch.from_numpy(part).to(inputs.device), target[part]) for part in rows
        ]
        self.patience: int = patience
        self.how: Optimization = how
        self.scores: list[float] = [self._measure()]
        self.best: NetworkStack | None = None
        self.best_epoch: int = 0
        self.waited_out: bool = False
        self._material: float = self.scores[0]
        self._renewed: int = 0

    @property
    def score(self) -> float:
        return min(self.scores)

    def end_epoch(self, epoch: int, _seconds: float) -> bool:
        score = self._measure()
        if score < self.score:
            self.best, self.best_epoch = self.student.select([0]), epoch
        self.scores.append(score)
        if score < (1 - MATERIAL) * self._material:
            self._material, self._renewed = score, epoch
        self.waited_out = epoch - self._renewed >= self.patience
        return self.waited_out

    def _measure(self) -> float:
        """KL(target||student), forgotten and retained rows weighing the same, as in the distillation's own epochs."""
        scores = [
            mean_kl(target, log_probabilities(self.student.logits(0, self.inputs, rows).cpu().numpy()))
            for rows, target in self.parts
        ]
        return float(np.mean(scores)) if all(math.isfinite(score) for score in scores) else math.inf
