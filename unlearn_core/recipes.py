"""Training as data: what an epoch visits, what it minimises there, how weights move. Light: imports no torch.

All of it is hashed into step ids, field by field: a setting that changes a result changes the id.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from unlearn_core.errors import BadInput
from unlearn_core.grid import HIDDEN_LAYERS, HIDDEN_WIDTH, RESNET, SMALL_CHANNELS, SMALL_RESNET


class Visit(StrEnum):
    """Which training rows one pass visits, in a fresh random order."""

    ALL = "all"
    RETAIN = "retain"
    FORGET = "forget"
    RETAIN_SAMPLE = "retain-sample"
    """A fresh sample of the retain set, as large as the forget set."""
    RETAIN_DRAWN = "retain-drawn"
    """As many rows of the retain set as it has, drawn by the member's chances; each weighs what it then stands for."""
    FORGET_AND_RETAIN_SAMPLE = "forget+retain-sample"
    """The forget set and such a sample, shuffled together."""
    FORGET_AND_30_PERCENT = "forget+retain-30%"
    """The forget set and a fresh sample of three tenths of the retain set, shuffled together."""


class Toward(StrEnum):
    """The distribution over classes that a loss term compares the network with."""

    LABELS = "labels"
    """The training labels; on the forget set what the recipe's ``forget_labels`` says."""
    TEACHER = "teacher"
    """The base network's output, at the term's temperature."""
    TWO_TEACHERS = "two-teachers"
    """The same, but on the forget set the output of a network that was never trained, drawn for this run."""
    TARGET = "target"
    """The proxy's target."""


@dataclass(frozen=True)
class Term:
    """weight * T^2 * KL(q || softmax(logits / T)), where q is what ``toward`` names; a negative weight ascends.

    Against labels this is cross-entropy. All losses of the paper are sums of such terms, and the gradient with respect
    to the logits is weight * T * (softmax(logits / T) - q).
    """

    toward: Toward
    weight: float = 1.0
    temperature: float = 1.0


@dataclass(frozen=True)
class Pass:
    """One sweep over some rows under one loss. ``batch_size`` overrides the recipe's.

    A sample of retained rows has as many as there are forgotten ones, or ``least_retained``.
    """

    visit: Visit
    loss: tuple[Term, ...]
    batch_size: int | None = None
    least_retained: int = 0
    beside: Pass | None = None
    """Every step takes a batch of this pass as well and descends on the sum of both losses, each a mean over its own batch.

    The pass itself sets how many steps there are; the batches of the other one are gone through again and again.
    """

    def retained(self, n_forget: int, n_retain: int) -> int:
        """How many retained rows a sample has."""
        if self.visit is Visit.FORGET_AND_30_PERCENT:
            return int(0.3 * n_retain)
        return min(max(n_forget, self.least_retained), n_retain)


@dataclass(frozen=True)
class Phase:
    """``epochs`` epochs, each making all ``passes`` in order."""

    passes: tuple[Pass, ...]
    epochs: int


class Algorithm(StrEnum):
    ADAM = "adam"
    SGD = "sgd"


@dataclass(frozen=True)
class Optimization:
    """How weights move. ``decay`` multiplies the learning rate after every epoch."""

    lr: float
    batch_size: int
    decay: float = 1.0
    algorithm: Algorithm = Algorithm.ADAM
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise BadInput(f"learning rate {self.lr} must be positive")
        if self.batch_size < 1:
            raise BadInput(f"batch size {self.batch_size} must be at least 1")

    def falling_to(self, share: float, epochs: int) -> Optimization:
        """The same with a learning rate that would be ``share`` of the first after the last epoch."""
        return replace(self, decay=share ** (1 / epochs))


class ForgetLabels(StrEnum):
    """What the forgotten rows are labelled as in training."""

    TRUE = "true"
    OTHER_ONCE = "other-once"
    """One of the other classes, drawn once per run. With two classes this flips the label."""
    ANY_EACH_EPOCH = "any-each-epoch"
    """One of all classes, the true one included, drawn anew for every epoch."""


class Start(StrEnum):
    """The weights that a recipe starts from."""

    BASE = "base"
    FRESH = "fresh"
    """As a retrain starts, from a draw of the method's own: neither the retrain's nor the floor's."""
    INITIAL = "initial"
    """The very weights that the base started from, and the retrain does: for who kept them, or their seed."""


@dataclass(frozen=True)
class Recipe:
    """A training method as data: what it visits, what it minimises there, which weights may move.

    ``optimization`` None means the architecture's own (``unlearning_optimization``).
    """

    phases: tuple[Phase, ...]
    optimization: Optimization | None = None
    start: Start = Start.BASE
    base_share: float = 0.0
    """Of a fresh start, how much of the base's weights is mixed in: share * base + (1 - share) * fresh."""
    rate: float = 1.0
    """Of a fresh start, the learning rate in units of the architecture's own training rate."""
    last_rate: float = 1.0
    """Of a fresh start, the share of that rate to which it falls by the end, step by step."""
    averaging: float | None = None
    """Return the mean of the weights after each step so far, step t weighing as t to this power; None: the last weights.

    It is kept up as training goes (Shamir and Zhang, 2013), so that it is valid after any step.
    """
    record_at: tuple[float, ...] = ()
    """Epochs after which the network is recorded, fractions allowed; empty: after every epoch.

    If the rate falls step by step, each of them ends a training of its own: in the middle of a longer one it has not fallen
    yet, and nobody would hand that network out.
    """
    forget_labels: ForgetLabels = ForgetLabels.TRUE
    saliency_share: float | None = None
    """Only this share of the weights moves: those with the largest summed forget-loss gradient, ranked globally."""
    l1: float = 0.0
    """In the loss of the first epoch, the weight of the sum of all weights' absolute values.

    It falls linearly: by the same amount with each epoch, and would be 0 after the last.
    """
    batch_statistics: bool = False
    """Batch normalisation by the batch's own statistics, which move the running ones. Only networks that have it care.

    Training from scratch does. Unlearning does not: the running statistics stay the base's, because a pass that visits
    the forget set alone, or one image, would drag them to that set's and change the network on all other data.
    """

    @property
    def epochs(self) -> int:
        return sum(phase.epochs for phase in self.phases)

    @property
    def trainings(self) -> tuple[Recipe, ...]:
        """What is trained, each from the start, to have every record."""
        apart = self.last_rate != 1.0 and self.record_at
        return tuple(self.lasting(at) for at in self.record_at) if apart else (self,)

    @property
    def trains_anew(self) -> bool:
        """Whether it starts where a training from scratch does."""
        return self.start is not Start.BASE

    def lasting(self, epochs: float) -> Recipe:
        """The same in one phase of so many epochs, which need not be whole: it is recorded, and meant to end, there.

        The learning rate has then fallen as far as it falls in all.
        """
        whole = math.ceil(epochs)
        phase = replace(self.phases[0], epochs=whole)
        return replace(self, phases=(phase,), record_at=(epochs,), last_rate=self.last_rate ** (whole / epochs))

    @property
    def terms(self) -> tuple[Term, ...]:
        """Of all losses."""
        passes = [sweep for phase in self.phases for sweep in phase.passes]
        passes += [sweep.beside for sweep in passes if sweep.beside is not None]
        return tuple(term for sweep in passes for term in sweep.loss)


CROSS_ENTROPY: tuple[Term, ...] = (Term(Toward.LABELS),)
ASCEND_CROSS_ENTROPY: tuple[Term, ...] = (Term(Toward.LABELS, weight=-1.0),)
TOWARD_TARGET: tuple[Term, ...] = (Term(Toward.TARGET),)

# app:experiments_setup
HEAD_TRAINING = Optimization(lr=1e-3, batch_size=512)
HEAD_UNLEARNING = replace(HEAD_TRAINING, decay=0.95)
RESNET_TRAINING = Optimization(lr=1e-4, batch_size=128)
RESNET_UNLEARNING = replace(RESNET_TRAINING, decay=0.95)
HEAD_EPOCHS = 50
RESNET_EPOCHS = 20
UNLEARNING_EPOCHS = 20
# No paper's: of three trainings on the first 5,000 images of CIFAR-10 (seed 100, nothing forgotten) it had the best accuracy
# on 1,000 test images: 0.52 for 45 s of one core, where batches of 64 for 20 epochs had 0.51, and a constant 1e-3 had 0.47.
SMALL_RESNET_TRAINING = Optimization(lr=3e-3, batch_size=128, decay=0.9)
# it starts where the training ended, whose rate had fallen to a fourteenth
SMALL_RESNET_UNLEARNING = Optimization(lr=3e-4, batch_size=128, decay=0.95)
SMALL_RESNET_EPOCHS = 25


def training_epochs(arch: str) -> int:
    """Of base, retrain and floor."""
    return {RESNET: RESNET_EPOCHS, SMALL_RESNET: SMALL_RESNET_EPOCHS}.get(arch, HEAD_EPOCHS)


def training_recipe(visit: Visit, epochs: int) -> Recipe:
    """Training from scratch on all of D (base) or on D_r (retrain, floor)."""
    return Recipe(phases=(Phase(passes=(Pass(visit, CROSS_ENTROPY),), epochs=epochs),), batch_statistics=True)


def optimization_of(recipe: Recipe, arch: str) -> Optimization:
    """How weights move under a recipe on an architecture."""
    if recipe.trains_anew:
        how = training_optimization(arch)
        return replace(how, lr=recipe.rate * how.lr)
    return recipe.optimization or unlearning_optimization(arch)


def training_optimization(arch: str) -> Optimization:
    return {RESNET: RESNET_TRAINING, SMALL_RESNET: SMALL_RESNET_TRAINING}.get(arch, HEAD_TRAINING)


def unlearning_optimization(arch: str) -> Optimization:
    """How weights move in every iterative method that says nothing else: the training's own, decaying."""
    return {RESNET: RESNET_UNLEARNING, SMALL_RESNET: SMALL_RESNET_UNLEARNING}.get(arch, HEAD_UNLEARNING)


def training_config(arch: str, role: str, epochs: int) -> dict[str, Any]:
    """All that training a reference from scratch depends on beside data, seed and initial weights, as plain JSON values."""
    visit = Visit.ALL if role == "base" else Visit.RETAIN
    return {
        "epochs": epochs,
        **_shape(arch),
        "recipe": asdict(training_recipe(visit, epochs)),
        "optimization": asdict(training_optimization(arch)),
    }


def _shape(arch: str) -> dict[str, list[int]]:
    """What the name of an architecture stands for, where that is a choice of ours."""
    if arch in HIDDEN_LAYERS:
        return {"hidden": [HIDDEN_WIDTH] * HIDDEN_LAYERS[arch]}
    return {"channels": list(SMALL_CHANNELS)} if arch == SMALL_RESNET else {}


REQUIRED = 0.8
"""The share of the way to its target, in KL on the records, that must be behind a network that has unlearned."""


@dataclass(frozen=True)
class Stopping:
    """When distillation ends: after ``patience`` epochs in which KL to the target did not materially fall.

    The divergence is measured on all forgotten rows and, with the same weight, on retained rows that no epoch visits. If
    held-out rows are there that the records should be like, a loss attack is looked at as well: of the epochs that have gone
    the ``required`` share of the way on the forgotten rows, those come first in which it is at chance, on either side.
    """

    epochs: int = 100
    """The most that are made."""
    patience: int = 10
    heldout_share: float = 0.2
    """Of the retained rows, but no more than the request has, or ``least_heldout``."""
    least_heldout: int = 256
    """A few rows would make the score noise."""
    material: float = 0.01
    """A gain below this share of the best score so far does not renew patience."""
    required: float = REQUIRED
    most_attacked: int = 4096
    """Held-out rows that the attack looks at, at most."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.patience < 1:
            raise BadInput(f"{self.epochs} epochs with patience {self.patience}: both must be at least 1")
        if not 0 < self.heldout_share <= 0.5:
            raise BadInput(f"held-out share {self.heldout_share} must lie in (0, 0.5]; 0.2 is the default")


@dataclass(frozen=True)
class Schedule:
    """How a target is distilled into a network, for a request of any size.

    Each epoch visits the forgotten rows and as many retained ones, or ``least_retained``. Without ``stopping`` all epochs
    are made, and several members train as one stack; with it, each member stops by itself.
    """

    epochs: int = UNLEARNING_EPOCHS
    least_steps: int = 0
    """A small request gets as many epochs as make this many steps, ``most_epochs`` at most."""
    most_epochs: int = UNLEARNING_EPOCHS
    batch_divisor: int = 1
    """The batch is the architecture's own, divided by this."""
    steps_per_epoch: int | None = None
    """Shrink the batch until an epoch makes about this many steps; a request is often smaller than one batch."""
    smallest_batch: int = 1
    last_rate: float | None = None
    """The learning rate falls to this share of the first; None: by the architecture's own decay."""
    rates: tuple[float, ...] = (1.0,)
    """Shares of the learning rate, tried in turn for as long as the next comes closer to the target.

    Adam's steps are as long as the learning rate whatever the gradient, and a request may change much or hardly anything.
    """
    least_retained: int = 0
    """With as few retained rows as a small request has, the network drifts everywhere else."""
    stopping: Stopping | None = None

    def build(self, optimization: Optimization, n_forget: int) -> tuple[Recipe, Optimization]:
        """What to run for a request of ``n_forget`` rows on a network that unlearns by ``optimization``."""
        batch = max(1, optimization.batch_size // self.batch_divisor)
        if self.steps_per_epoch is not None:
            batch = min(batch, max(self.smallest_batch, 2 * n_forget // self.steps_per_epoch))
        epochs = self.epochs if self.stopping is None else self.stopping.epochs
        if self.least_steps:
            steps = math.ceil(2 * n_forget / batch)
            epochs = min(max(epochs, math.ceil(self.least_steps / steps)), self.most_epochs)
        sweep = Pass(Visit.FORGET_AND_RETAIN_SAMPLE, TOWARD_TARGET, least_retained=self.least_retained)
        how = replace(optimization, batch_size=batch)
        if self.last_rate is not None:
            how = how.falling_to(self.last_rate, epochs)
        return Recipe(phases=(Phase(passes=(sweep,), epochs=epochs),)), how


PAPER_SCHEDULE = Schedule()
"""The paper's 20 epochs, at the architecture's own rate and batch  [app:experiments_setup]."""
REQUEST_SCHEDULE = Schedule(
    steps_per_epoch=64, smallest_batch=16, rates=(1.0, 0.1, 0.01), least_retained=512, stopping=Stopping()
)
"""What ``forget`` runs: it may take its time, and no retrain tells it when to stop."""
