"""The data behind a grid cell or a deletion request: rows as networks and proxies see them, and what is prepared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.splits import scenario_mask
from unlearn_core.errors import BadInput
from unlearn_core.grid import LabelSpace, Scenario, Variant
from unlearn_core.kept_answers import kept_answers
from unlearn_core.preparations import DISCRIMINANT, MOMENTS, PROBE, Given, Kept
from unlearn_core.proxies.points import Points
from unlearn_core.proxies.probe import ProbeFit, design
from unlearn_core.proxies.statistics import Moments

if TYPE_CHECKING:
    import torch

    from unlearn_core.data.labelled import LabelledSet
    from unlearn_core.data.sketch import Sketch

Features = NDArray[np.floating]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Rows:
    """Labelled rows. Networks read the inputs, proxies see the features.

    Attributes:
        labels: (N,) int64 in 0..C-1.
        features: (N, d); None for images of which no layer was sketched.
        load_inputs: the rows as the network reads them, on its device; None for a black box.
        numbers: which rows of D these are; None: all of them, in order.
    """

    labels: NDArray[np.int64]
    features: Features | None
    load_inputs: Callable[[], torch.Tensor] | None = None
    numbers: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def seen(self) -> Features:
        """What proxies see."""
        if self.features is None:
            raise ValueError("proxies need features or a sketch; these rows are images")
        return self.features

    @cached_property
    def inputs(self) -> torch.Tensor:
        """What the network reads."""
        if self.load_inputs is None:
            raise BadInput("a black box has no inputs: only its logits are known; give the network")
        return self.load_inputs()

    @cached_property
    def label_tensor(self) -> torch.Tensor:
        import torch

        # a file may hold them in any integer type, and torch looks rows up by this one alone
        return torch.from_numpy(np.ascontiguousarray(self.labels, dtype=np.int64)).to(self.inputs.device)

    @property
    def number(self) -> NDArray[np.int64]:
        """(N,) which row of D each is."""
        return np.arange(len(self)) if self.numbers is None else self.numbers

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """Some of the rows; inputs are read when they are needed."""

        def load() -> torch.Tensor:
            import torch

            return self.inputs[torch.from_numpy(rows).to(self.inputs.device)]

        features = None if self.features is None else self.features[rows]
        numbers = rows if self.numbers is None else self.numbers[rows]
        return Rows(self.labels[rows], features, None if self.load_inputs is None else load, numbers)


@dataclass(frozen=True, eq=False)
class Problem:
    """What every request on these rows and labels shares.

    Attributes:
        heldout: rows that no network is trained on; None if there are none.
        prepared: what was computed from D before any request came.
        counts: (C,) rows of D by class, if ``train`` is a part of D.
    """

    train: Rows
    heldout: Rows | None
    n_classes: int
    prepared: Kept = field(default_factory=Kept)
    counts: NDArray[np.int64] | None = None

    @property
    def test(self) -> Rows:
        if self.heldout is None:
            raise ValueError("this problem has no held-out rows")
        return self.heldout

    @property
    def device(self) -> torch.device:
        return self.train.inputs.device

    @cached_property
    def class_counts(self) -> NDArray[np.int64]:
        """(C,) rows of D by class."""
        return np.bincount(self.train.labels, minlength=self.n_classes) if self.counts is None else self.counts

    def lost_classes(self, forget: Mask) -> Mask:
        """(C,) the classes of which every row is forgotten; ``forget`` (N,) is of the rows that are here."""
        return self.class_counts == np.bincount(self.train.labels[forget], minlength=self.n_classes)

    @property
    def n_rows(self) -> int:
        """Of D, whatever part of it is here."""
        return int(self.class_counts.sum())

    def prepare(self, name: str, arch: str | None = None) -> Any:
        """What is prepared of D, for networks of an architecture; computed if nobody has."""
        return self.prepared.get(name, Given(self, arch))

    @property
    def moments(self) -> Moments:
        """The sufficient statistics of D."""
        return self.prepare(MOMENTS)

    @property
    def probe(self) -> ProbeFit:
        """The linear classifier of D."""
        return self.prepare(PROBE)

    @cached_property
    def probe_inputs(self) -> NDArray[np.float32]:
        """(N, d + 1) what the probe is fitted on: prepared with it, though not stored."""
        from unlearn_core.clock import Stopwatch

        probe, watch = self.probe, Stopwatch()
        with watch.running():
            inputs = design(self.train.seen, probe)
        self.prepared.seconds[PROBE] = self.prepared.seconds.get(PROBE, 0.0) + watch.seconds
        return inputs

    def training_points(self, logits: NDArray[np.floating] | None) -> Points:
        """The training rows as proxies are asked about them."""
        return Points(self.train.seen, logits, rows=np.arange(len(self.train)))

    def kept_answers(self, forget: Mask) -> float | None:
        """Would a model of D without these rows, some of those that are here, still know them? A share of right answers."""
        return kept_answers(self.prepare(DISCRIMINANT), self.train.seen, self.train.labels, np.flatnonzero(forget))

    def part(self, forget: Mask, retained: int) -> tuple[Problem, Mask]:
        """The rows to forget and so many retained ones, evenly spread, or as many as are forgotten; and which are which.

        The same for every network, and nothing in it takes longer for more rows of D.
        """
        gone = np.flatnonzero(forget)
        spread = np.linspace(0, len(forget) - 1, min(len(forget), max(retained, len(gone)))).astype(np.int64)
        rows = np.union1d(gone, spread)
        part = Problem(self.train.take(rows), self.heldout, self.n_classes, self.prepared, self.class_counts)
        return part, forget[rows]


def problem_of(features: Features, labels: NDArray[np.integer], n_classes: int) -> Problem:
    """Plain arrays as a problem, for proxies alone."""
    if len(features) != len(labels):
        raise BadInput(f"{len(features)} feature rows but {len(labels)} labels; each row needs one")
    return Problem(Rows(labels.astype(np.int64), features), None, n_classes)


@dataclass(frozen=True, eq=False)
class Inputs:
    """A data set as networks read it, on a device once for all label spaces: float32 features, or uint8 images."""

    data: LabelledSet
    device: str | torch.device = "cpu"

    @cached_property
    def train(self) -> torch.Tensor:
        return as_inputs(self.data.train_x, self.device)

    @cached_property
    def test(self) -> torch.Tensor:
        return as_inputs(self.data.test_x, self.device)


def as_inputs(array: NDArray, device: str | torch.device = "cpu") -> torch.Tensor:
    """Rows as networks read them: uint8 images (N, H, W, 3) stay so, all else becomes float32."""
    import torch

    if array.dtype == np.uint8:
        if array.ndim != 4 or array.shape[-1] != 3:
            raise BadInput(
                f"uint8 inputs of shape {array.shape} are no images (rows, height, width, 3); give floats instead"
            )
    else:
        array = array.astype(np.float32, copy=False)
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def make_problem(
    inputs: Inputs,
    space: LabelSpace,
    sketch: Sketch | None = None,
    prepared: Kept | None = None,
) -> Problem:
    """A data set in one label space. If the rows are images, proxies see the sketch."""
    data = inputs.data
    train, test = (sketch.train, sketch.test) if sketch else (data.train_x, data.test_x)
    if train.ndim != 2:
        train = test = None
    return Problem(
        Rows(data.train_labels(space), train, lambda: inputs.train),
        Rows(data.test_labels(space), test, lambda: inputs.test),
        data.n_classes(space),
        prepared or Kept(),
    )


@dataclass(frozen=True, eq=False)
class Cell:
    """A forget request under one seed.

    Attributes:
        forget: (N,) True for the training rows to forget.
        heldout: (N_test,) True for the test rows of the fine classes that lose rows: the attack's non-members.
        test_of_forgotten: (N_test,) True for the test rows of a class or subclass that is forgotten entirely.
    """

    seed: int
    forget: Mask
    heldout: Mask
    test_of_forgotten: Mask

    @property
    def n_forget(self) -> int:
        return int(self.forget.sum())


def make_cell(data: LabelledSet, forget: Mask, seed: int) -> Cell:
    """A cell for any forget mask."""
    counts = np.bincount(data.train_y, minlength=data.n_fine)
    lost = np.bincount(data.train_y[forget], minlength=data.n_fine)
    return Cell(seed, forget, (lost > 0)[data.test_y], (lost == counts)[data.test_y])


def make_cells(data: LabelledSet, variant: Variant, seeds: Sequence[int]) -> list[Cell]:
    """The variant's cells: one per seed; the forget set depends on the seed in the random scenario only."""
    scenario = Scenario(variant.scenario)
    return [make_cell(data, scenario_mask(scenario, variant.key, data.train_y, seed), seed) for seed in seeds]
