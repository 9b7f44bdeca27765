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
from unlearn_core.audit.membership import Attack, Matched, threshold_attack
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
    on_epoch: EpochEnd | None = None,
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
    n_heldout: int = 0
    """Rows of the forgotten ones' classes that the base never saw, for the attack; 0 if it is not looked at."""


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
    attacks: Sequence[float] = ()
    """AUC of the loss attack by epoch, if it is looked at."""


def distil_until_done(
    start: NetworkStack,
    rows: Rows,
    lesson: Lesson,
    schedule: Schedule,
    optimization: Optimization,
    heldout: Rows | None = None,
) -> Finalized:
    """Teach a copy of one network until the schedule's stopping rule says that it is done; no retrain is needed for it.

    Args:
        heldout: rows that the base was not trained on.
    """
    stopping = schedule.stopping
    if stopping is None:
        raise ValueError("the schedule has no stopping rule; distil makes all epochs")
    if not start.parameters()[0]:
        raise BadInput("no weight of the model requires a gradient; let some train, or use the finalizer mse or none")
    inputs, forgotten, held_out = rows.inputs, np.flatnonzero(lesson.forget), _held_out(lesson, stopping)
    attacker = _Attacker.of(start, rows.labels[forgotten], lesson.log_target[forgotten], heldout, stopping)
    visited = np.ones(len(lesson.forget), dtype=bool)
    visited[held_out] = False
    visited_inputs = inputs[torch.from_numpy(np.flatnonzero(visited)).to(inputs.device)]
    member = lesson.member(torch.from_numpy(rows.labels[visited]), visited)
    recipe, built = schedule.build(optimization, len(forgotten))
    runs: list[_Watch] = []
    seconds = 0.0
    for share in schedule.rates:
        student, how = start.select([0]), replace(built, lr=share * built.lr)
        watch = _Watch(student, inputs, lesson.log_target, (forgotten, held_out), stopping, how, attacker)
        seconds += train(student, visited_inputs, [member], recipe, how, watch.end_epoch)
        runs.append(watch)
        if len(runs) > 1 and watch.rank >= runs[-2].rank < runs[0].ranks[0]:
            break
    best = min(runs, key=lambda run: run.rank)
    ended = f"no material gain in {stopping.patience} epochs" if best.waited_out else "all epochs were made"
    if best.best is None:
        ended += ", and none came closer to the target than the network was"
    watched = Watched(len(forgotten), len(held_out), 0 if attacker is None else len(attacker.matched.rows))
    return Finalized(best.best, ended, best.scores, best.best_epoch, watched, best.how, seconds, best.attacks)


def _held_out(lesson: Lesson, stopping: Stopping) -> NDArray[np.int64]:
    """Retained rows that no epoch visits: a share of them, but no more than the request has, or a minimum."""
    retain = np.flatnonzero(~lesson.forget)
    if len(retain) < 2:
        raise BadInput(f"{len(retain)} retained row is too few to distil on; use the finalizer mse or none")
    rng = np.random.default_rng(derive_seed(lesson.seed, "forget", "held-out"))
    share = int(stopping.heldout_share * len(retain))
    count = max(1, min(share, max(int(lesson.forget.sum()), stopping.least_heldout)))
    return np.sort(rng.permutation(retain)[:count])


@dataclass(frozen=True, eq=False)
class _Attacker:
    """Tells the forgotten records, by their loss, from held-out rows of their classes."""

    labels: NDArray[np.integer]
    matched: Matched
    inputs: torch.Tensor

    @staticmethod
    def of(
        start: NetworkStack,
        labels: NDArray[np.integer],
        log_target: Array,
        heldout: Rows | None,
        stopping: Stopping,
    ) -> _Attacker | None:
        """None if there is nobody to tell them from, or if by the target's own account they should stand out.

        A class or a group whose kind leaves with it is harder to a retrain than held-out rows are, and there nothing is at
        chance. So the attack is looked at only where the target makes the records no harder than held-out rows are.

        Args:
            labels: (n,) of the records.
            log_target: (n, C) on them.
        """
        matched = None if heldout is None else Matched.to(labels, heldout.labels, stopping.most_attacked)
        if matched is None or heldout is None:
            return None
        inputs = heldout.inputs[torch.from_numpy(matched.rows).to(heldout.inputs.device)]
        losses = -_confidences(start, inputs, matched.labels)
        shares = matched.weights / matched.weights.sum()
        if -log_target[np.arange(len(labels)), labels].mean() > shares @ losses:
            return None
        return _Attacker(labels, matched, inputs)

    def attack(self, student: NetworkStack, log_records: Array) -> Attack:
        """Args: log_records: (n, C) what the student says of the records."""
        others = _confidences(student, self.inputs, self.matched.labels)
        return threshold_attack(log_records[np.arange(len(self.labels)), self.labels], others, self.matched.weights)


def _confidences(net: NetworkStack, inputs: torch.Tensor, labels: NDArray[np.integer]) -> Array:
    """(n,) log probabilities of the true class."""
    return log_probabilities(net.logits(0, inputs).cpu().numpy())[np.arange(len(labels)), labels]


Rank = tuple[bool, float, float]
"""By what one epoch is preferred to another, the least first: whether the required share of the way is still ahead, how far
from chance the attack is beyond its standard error, KL to the target. The first two count only if an attack is looked at."""


class _Watch:
    """Ranks the student after every epoch, keeps its best self and says when to stop."""

    def __init__(
        self,
        student: NetworkStack,
        inputs: torch.Tensor,
        log_target: Array,
        rows: Sequence[NDArray[np.int64]],
        stopping: Stopping,
        how: Optimization,
        attacker: _Attacker | None = None,
    ) -> None:
        self.student: NetworkStack = student
        self.inputs: torch.Tensor = inputs
        self.parts: list[tuple[torch.Tensor, Array]] = [
            (torch.from_numpy(part).to(inputs.device), log_target[part]) for part in rows
        ]
        self.stopping: Stopping = stopping
        self.how: Optimization = how
        self.attacker: _Attacker | None = attacker
        self.scores: list[float] = []
        self.attacks: list[float] = []
        self.asked: float | None = None
        self.ranks: list[Rank] = [self._measure()]
        self.best: NetworkStack | None = None
        self.best_epoch: int = 0
        self.waited_out: bool = False
        self._material: Rank = self.ranks[0]
        self._renewed: int = 0

    @property
    def rank(self) -> Rank:
        return min(self.ranks)

    def end_epoch(self, epoch: float, _seconds: float) -> bool:
        best, epoch = self.rank, int(epoch)
        rank = self._measure()
        if rank < best:
            self.best, self.best_epoch = self.student.select([0]), epoch
        self.ranks.append(rank)
        way, attack, score = self._material
        if rank < (way, (1 - self.stopping.material) * attack, (1 - self.stopping.material) * score):
            self._material, self._renewed = rank, epoch
        self.waited_out = epoch - self._renewed >= self.stopping.patience
        return self.waited_out

    def _measure(self) -> Rank:
        """KL(target||student), forgotten and retained rows weighing the same, as in the distillation's own epochs."""
        said = [log_probabilities(self.student.logits(0, self.inputs, rows).cpu().numpy()) for rows, _ in self.parts]
        kls = [mean_kl(target, log_p) for (_, target), log_p in zip(self.parts, said, strict=True)]
        score = float(np.mean(kls)) if all(math.isfinite(kl) for kl in kls) else math.inf
        self.scores.append(score)
        if self.attacker is None:
            return False, 0.0, score
        self.asked = kls[0] if self.asked is None else self.asked
        attack = self.attacker.attack(self.student, said[0])
        self.attacks.append(attack.auc)
        if not kls[0] <= (1 - self.stopping.required) * self.asked:
            return True, 0.0, score
        return False, max(0.0, attack.distance - attack.chance / 2), score


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
