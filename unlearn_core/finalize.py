"""Write a target into the network: ``kl`` distils it, ``mse`` fits it into the last layer, ``none`` waits for inference."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core import methods
from unlearn_core.audit.divergence import log_probabilities, mean_kl
from unlearn_core.errors import BadInput
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.problem import Rows
from unlearn_core.proxies.points import Points, Proxy, StorableProxy
from unlearn_core.recipes import Optimization, Schedule, Stopping, Toward
from unlearn_core.seeding import derive_seed
from unlearn_core.target import Target, floor_lost_classes, shifted
from unlearn_core.training import EpochEnd, Member, train

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Lesson:
    """What one network is to learn.

    Attributes:
        seed: of row orders and held-out rows.
        forget: (N,) True for the rows to forget.
        log_target: (N, C) on all training rows.
    """

    seed: int
    forget: Mask
    log_target: Array

    def member(self, labels: torch.Tensor, rows: Mask | slice = slice(None)) -> Member:
        """The lesson on some of the training rows; ``labels`` are theirs."""
        target = torch.from_numpy(np.exp(self.log_target[rows]).astype(np.float32))
        return Member(self.seed, "unlearn", labels, torch.from_numpy(self.forget[rows]), {Toward.TARGET: target})


def distil(
    student: NetworkStack,
    rows: Rows,
    lessons: Sequence[Lesson],
    schedule: Schedule,
    optimization: Optimization,
    on_epoch: EpochEnd,
) -> float:
    """Teach each member of ``student`` its lesson, as one stack, in place; returns the seconds per member."""
    recipe, how = schedule.build(optimization, int(lessons[0].forget.sum()))
    members = [lesson.member(rows.label_tensor) for lesson in lessons]
    return train(student, rows.inputs, members, recipe, how, on_epoch)


@dataclass(frozen=True)
class Watched:
    """How many rows the stopping rule looks at.

    The retained ones are held out: no epoch visits them. The forgotten ones are all of the request, and are visited:
    what a network has memorised of one record cannot be taken out by way of others, so sparing some would leave them in.
    """

    n_forget: int
    n_retain: int


@dataclass(frozen=True, eq=False)
class Finalized:
    """``net`` is None if the network stays as it is. Scores are KL(target||network) on the watched rows, in nats."""

    net: NetworkStack | None
    ended: str
    scores: Sequence[float] = ()
    """By epoch; the first is the network as it was."""
    best_epoch: int | None = None
    watched: Watched | None = None
    optimization: Optimization | None = None
    seconds: float = 0.0


def distil_until_done(
    start: NetworkStack, rows: Rows, lesson: Lesson, schedule: Schedule, optimization: Optimization
) -> Finalized:
    """Teach a copy of one network until the schedule's stopping rule says that it is done; no retrain is needed for it."""
    stopping = schedule.stopping
    if stopping is None:
        raise ValueError("the schedule has no stopping rule; distil makes all epochs")
    if not start.parameters()[0]:
        raise BadInput("no weight of the model requires a gradient; let some train, or use the finalizer mse or none")
    inputs, forgotten, held_out = rows.inputs, np.flatnonzero(lesson.forget), _held_out(lesson, stopping)
    visited = np.ones(len(lesson.forget), dtype=bool)
    visited[held_out] = False
    visited_inputs = inputs[torch.from_numpy(np.flatnonzero(visited)).to(inputs.device)]
    member = lesson.member(torch.from_numpy(rows.labels[visited]), visited)
    recipe, built = schedule.build(optimization, len(forgotten))
    runs: list[_Watch] = []
    seconds = 0.0
    for share in schedule.rates:
        student, how = start.select([0]), replace(built, lr=share * built.lr)
        watch = _Watch(student, inputs, lesson.log_target, (forgotten, held_out), stopping, how)
        seconds += train(student, visited_inputs, [member], recipe, how, watch.end_epoch)
        runs.append(watch)
        if len(runs) > 1 and watch.score >= runs[-2].score < runs[0].scores[0]:
            break
    best = min(runs, key=lambda run: run.score)
    ended = f"no material gain in {stopping.patience} epochs" if best.waited_out else "all epochs were made"
    if best.best is None:
        ended += ", and none came closer to the target than the network was"
    watched = Watched(len(forgotten), len(held_out))
    return Finalized(best.best, ended, best.scores, best.best_epoch, watched, best.how, seconds)


def _held_out(lesson: Lesson, stopping: Stopping) -> NDArray[np.int64]:
    """Retained rows that no epoch visits: a share of them, but no more than the request has, or a minimum."""
    retain = np.flatnonzero(~lesson.forget)
    if len(retain) < 2:
        raise BadInput(f"{len(retain)} retained row is too few to distil on; use the finalizer mse or none")
    rng = np.random.default_rng(derive_seed(lesson.seed, "forget", "held-out"))
    share = int(stopping.heldout_share * len(retain))
    count = max(1, min(share, max(int(lesson.forget.sum()), stopping.least_heldout)))
    return np.sort(rng.permutation(retain)[:count])


class _Watch:
    """Scores the student after every epoch, keeps its best self and says when to stop."""

    def __init__(
        self,
        student: NetworkStack,
        inputs: torch.Tensor,
        log_target: Array,
        rows: Sequence[NDArray[np.int64]],
        stopping: Stopping,
        how: Optimization,
    ) -> None:
        self.student: NetworkStack = student
        self.inputs: torch.Tensor = inputs
        self.parts: list[tuple[torch.Tensor, Array]] = [
            (torch.from_numpy(part).to(inputs.device), log_target[part]) for part in rows
        ]
        self.stopping: Stopping = stopping
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

    def end_epoch(self, epoch: float, _seconds: float) -> bool:
        score, epoch = self._measure(), int(epoch)
        if score < self.score:
            self.best, self.best_epoch = self.student.select([0]), epoch
        self.scores.append(score)
        if score < (1 - self.stopping.material) * self._material:
            self._material, self._renewed = score, epoch
        self.waited_out = epoch - self._renewed >= self.stopping.patience
        return self.waited_out

    def _measure(self) -> float:
        """KL(target||student), forgotten and retained rows weighing the same, as in the distillation's own epochs."""
        scores = [
            mean_kl(target, log_probabilities(self.student.logits(0, self.inputs, rows).cpu().numpy()))
            for rows, target in self.parts
        ]
        return float(np.mean(scores)) if all(math.isfinite(score) for score in scores) else math.inf


def least_squares(base: NetworkStack, member: int, inputs: torch.Tensor, target: Target) -> NetworkStack:
    """A stack of one: the member with the target's shift of the base's logits added to its last layer, in closed form.

    The shift is a linear function of the penultimate representation  [app:random_projection].
    """
    phi = base.penultimate(member, inputs).double().cpu().numpy()
    return base.with_shifted_last_layer(member, *fit_last_layer_shift(phi, target.finite_shift()))


def fit_last_layer_shift(representation: Array, shift: Array) -> tuple[Array, Array]:
    """Weight (width, C) and bias (C,) minimising sum |phi(x) W + b - shift(x)|^2, of least norm if not unique.

    Args:
        representation: (N, width) phi(x).
        shift: (N, C) what to add to the logits, finite.
    """
    # centring takes the bias out, so that the least-norm solution does not shrink it
    mean_phi, mean_shift = representation.mean(axis=0), shift.mean(axis=0)
    weight, *_ = np.linalg.lstsq(representation - mean_phi, shift - mean_shift, rcond=None)
    return weight, mean_shift - mean_phi @ weight


@dataclass(frozen=True, eq=False)
class LogitProcessor:
    """Base logits and features in, unlearned log probabilities out: for black boxes that return logits."""

    method: str
    proxy: Proxy
    eta: float
    lost_classes: Mask

    def __call__(self, logits: NDArray[np.floating], x: NDArray[np.floating]) -> Array:
        """(N, C) log softmax(f + eta * signal(x)), which are logits as well.

        Args:
            logits: (N, C) the black box's answer.
            x: (N, d) the features that the proxy was fitted on.
        """
        changed = shifted(logits, self.proxy.signal(Points(x, logits)), self.eta)
        return floor_lost_classes(changed, logits, self.lost_classes)

    def save(self, path: Path) -> None:
        """Write plain arrays that ``load_processor`` reads; nothing is pickled."""
        if methods.find_proxy(self.method).load is None:
            raise BadInput(
                f"a logit processor of {self.method} cannot be saved; choose another proxy, or the finalizer kl or mse"
            )
        arrays = {
            "eta": np.array(self.eta),
            "lost_classes": self.lost_classes,
            "method": np.array(self.method),
            **cast(StorableProxy, self.proxy).arrays(),
        }
        np.savez(path, allow_pickle=False, **arrays)


def load_processor(path: str | Path) -> LogitProcessor:
    """A processor from its file. Nothing in it is unpickled."""
    path = Path(path)
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise BadInput(f"no logit processor at {path}; 'unlearn forget --finalizer none' writes one as an .npz")
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if absent := [name for name in ("eta", "lost_classes", "method") if name not in arrays]:
        raise BadInput(f"{path} is no logit processor: array {absent[0]!r} is missing")
    method = str(arrays["method"])
    if method not in methods.proxies() or (load := methods.find_proxy(method).load) is None:
        raise BadInput(f"{path} holds the unknown proxy {method!r}; a newer version of this package may know it")
    return LogitProcessor(method, load(arrays), float(arrays["eta"]), arrays["lost_classes"])
