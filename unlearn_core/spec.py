"""What is asked for: variants, methods and training recipes, as frozen values without behaviour.

Nothing here imports torch, so that planning and reading results stay light.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from unlearn_core.errors import BadInput

SEEDS: tuple[int, ...] = (42, 0, 1, 2, 3)  # app:experiments_setup
PAPER_DATASETS: tuple[str, ...] = ("cifar10", "cifar100")
HEADS: tuple[str, ...] = ("linear", "mlp1", "mlp2")
"""Networks on frozen features."""
RESNET = "resnet18"
"""The network that is trained end to end on images."""
ARCHITECTURES: tuple[str, ...] = (*HEADS, RESNET)


class Scenario(StrEnum):
    """Which rows are forgotten; the key is a fine label, or for ``random`` their number."""

    CLASS = "class"
    SUBCLASS = "subclass"
    RANDOM = "random"


class LabelSpace(StrEnum):
    """What the network predicts."""

    FINE = "fine"
    SUPERCLASS = "superclass"


@dataclass(frozen=True, order=True)
class Variant:
    """One row of the grid. A *cell* is a variant with a seed."""

    dataset: str
    arch: str
    scenario: Scenario
    key: int

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise BadInput(f"unknown architecture {self.arch!r}; there are {', '.join(ARCHITECTURES)}")

    @property
    def label_space(self) -> LabelSpace:
        """Subclass forgetting trains on superclasses, so that the forgotten fine label is a part of a class."""
        return LabelSpace.SUPERCLASS if self.scenario is Scenario.SUBCLASS else LabelSpace.FINE

    def __str__(self) -> str:
        return f"{self.dataset}/{self.arch}/{self.scenario}/{self.key}"


GAUSSIAN_PROXIES: tuple[str, ...] = ("lda", "qda", "lda-mix", "qda-mix", "lda-2c")
EMPIRICAL_PROXIES: tuple[str, ...] = ("dir", "dir-2c")
PROBE = "probe"
"""Not of the paper: a pair of linear classifiers."""
PROBE_CAP = 32.0
"""Twice what requests of 50 records and more were seen to reach; only ones that change next to nothing go beyond."""
FRESH = "fresh"
"""Not of the paper: what models that never saw the records say about them."""
PROXIES: tuple[str, ...] = (*GAUSSIAN_PROXIES, *EMPIRICAL_PROXIES, PROBE, FRESH)
PROBED_PROXIES: tuple[str, ...] = (PROBE, FRESH)
"""Those that start from the probe of D, which is fitted once for all requests."""
TRAINING_POINT_PROXIES: tuple[str, ...] = (*EMPIRICAL_PROXIES, FRESH)
"""Those that shift the training points alone: a network generalises what it is taught there, a logit processor cannot."""
AUTO_CANDIDATES: tuple[str, ...] = (*GAUSSIAN_PROXIES, PROBE, FRESH)
"""What ``auto`` fits and chooses from: all that fit a model."""
BASELINES: tuple[str, ...] = ("ft", "ga", "ga-ft", "rl-ft", "scrub", "salun")
METHODS: tuple[str, ...] = PROXIES + BASELINES
PAPER_METHODS: tuple[str, ...] = (*GAUSSIAN_PROXIES, *EMPIRICAL_PROXIES, *BASELINES)


class Visit(StrEnum):
    """Which training rows one pass visits, in a fresh random order."""

    ALL = "all"
    RETAIN = "retain"
    FORGET = "forget"
    RETAIN_SAMPLE = "retain-sample"
    """A fresh sample of the retain set, as large as the forget set."""
    FORGET_AND_RETAIN_SAMPLE = "forget+retain-sample"
    """The forget set and such a sample, shuffled together."""


class Toward(StrEnum):
    """The distribution over classes that a loss term compares the network with."""

    LABELS = "labels"
    """The training labels; for a random-labelling recipe, the relabelled ones on the forget set."""
    TEACHER = "teacher"
    """The base network's output, at the term's temperature."""
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


@dataclass(frozen=True)
class Recipe:
    """A training method as data: what it visits, what it minimises there, which weights may move.

    ``optimization`` None means the architecture's own (``unlearning_optimization``).
    """

    phases: tuple[Phase, ...]
    optimization: Optimization | None = None
    random_forget_labels: bool = False
    """Forget labels are redrawn once per run, uniformly over the other classes."""
    saliency_share: float | None = None
    """Only this share of the weights moves: those with the largest summed forget-loss gradient, ranked globally."""
    batch_statistics: bool = False
    """Batch normalisation by the batch's own statistics, which move the running ones. Only networks that have it care.

    Training from scratch does. Unlearning does not: the running statistics stay the base's, because a pass that visits
    the forget set alone, or one image, would drag them to that set's and change the network on all other data.
    """

    @property
    def epochs(self) -> int:
        return sum(phase.epochs for phase in self.phases)


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


def training_epochs(arch: str) -> int:
    """The paper's epochs of base, retrain and floor."""
    return RESNET_EPOCHS if arch == RESNET else HEAD_EPOCHS


def training_recipe(visit: Visit, epochs: int) -> Recipe:
    """Training from scratch on all of D (base) or on D_r (retrain, floor)."""
    return Recipe(phases=(Phase(passes=(Pass(visit, CROSS_ENTROPY),), epochs=epochs),), batch_statistics=True)


def training_optimization(arch: str) -> Optimization:
    return RESNET_TRAINING if arch == RESNET else HEAD_TRAINING


def unlearning_optimization(arch: str) -> Optimization:
    """How weights move in every iterative method that says nothing else: the training's own, decaying."""
    return RESNET_UNLEARNING if arch == RESNET else HEAD_UNLEARNING


def distillation(epochs: int = UNLEARNING_EPOCHS, least_retained: int = 0) -> Recipe:
    """Toward a proxy's target, on the forget set and a retain sample of its size; the paper's 20 epochs."""
    sweep = Pass(Visit.FORGET_AND_RETAIN_SAMPLE, TOWARD_TARGET, least_retained=least_retained)
    return Recipe(phases=(Phase(passes=(sweep,), epochs=epochs),))


FRESH_EPOCHS = 6
FRESH_STEPS = 240
FRESH_LAST_RATE = 0.075


def distillation_of(method: str, arch: str, n_forget: int) -> tuple[Recipe, Optimization]:
    """How a proxy's target gets into the network.

    ``fresh`` takes fewer and shorter steps that end: 6 epochs or, for a small request, as many as make 240 steps, the
    paper's 20 at most. It comes as close as in 20 epochs of constant steps, in a third of the time.
    """
    how = unlearning_optimization(arch)
    if method != FRESH:
        return distillation(), how
    how = replace(how, batch_size=max(1, how.batch_size // 2))
    steps = math.ceil(2 * n_forget / how.batch_size)
    epochs = min(max(FRESH_EPOCHS, math.ceil(FRESH_STEPS / steps)), UNLEARNING_EPOCHS)
    return distillation(epochs), how.falling_to(FRESH_LAST_RATE, epochs)


class DirOnTest(StrEnum):
    """What ``dir`` and ``dir-2c`` say about test points, which the empirical measure has never seen."""

    BASE = "base"
    """The base network's own output: the closed form taken literally."""
    AS_FORGOTTEN = "as-forgotten"
    """Test points of the forgotten class or subclass count as forgotten, as in the paper's target rows."""


@dataclass(frozen=True)
class ProxySettings:
    """Choices that are part of a proxy's record."""

    ridge: float = 1e-3
    shrinkage: str = "ridge"
    cap: float | None = None
    """The largest eta; None: the paper's 1 for the paper's proxies, and ``PROBE_CAP`` for the probe, which is less sure of
    itself than the network and needs its signal enlarged."""
    finalizer: str = "kl"
    dir_on_test: DirOnTest = DirOnTest.BASE

    def cap_of(self, method: str) -> float:
        if self.cap is not None:
            return self.cap
        return PROBE_CAP if method == PROBE else 1.0


@dataclass(frozen=True)
class RunSettings:
    """Everything about a run that is not its variant, seed or method."""

    training_epochs: int | None = None
    """None: the paper's for each architecture."""
    preset: str = "paper"
    proxy: ProxySettings = field(default_factory=ProxySettings)
