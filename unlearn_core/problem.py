"""A data set in one label space, on a device, and the cells of a variant on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.audit.scoring import EvaluationData
from unlearn_core.data.labelled import LabelledSet
from unlearn_core.data.sketch import Sketch
from unlearn_core.data.splits import scenario_mask
from unlearn_core.proxies.probe import ProbeFit, design, fit_probe_of_all
from unlearn_core.proxies.statistics import Moments, compute_moments
from unlearn_core.spec import LabelSpace, Scenario, Variant


@dataclass(frozen=True, eq=False)
class Inputs:
    """The data as networks see it, on a device once for all label spaces: float32 features, or uint8 images."""

    data: LabelledSet
    device: torch.device

    @cached_property
    def train(self) -> torch.Tensor:
        return self._tensor(self.data.train_x)

    @cached_property
    def test(self) -> torch.Tensor:
        return self._tensor(self.data.test_x)

    def _tensor(self, array: NDArray) -> torch.Tensor:
        if array.dtype != np.uint8:
            array = array.astype(np.float32, copy=False)
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


@dataclass(frozen=True, eq=False)
class Problem:
    """What every cell on these inputs and labels shares. Networks read the inputs, proxies the features or the sketch."""

    inputs: Inputs
    space: LabelSpace
    sketch: Sketch | None = None
    """What proxies see where the network's inputs are images: a layer of the base network."""

    @property
    def data(self) -> LabelledSet:
        return self.inputs.data

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    @property
    def n_classes(self) -> int:
        return self.data.n_classes(self.space)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """(N,) training labels in this label space."""
        return self.data.train_labels(self.space)

    @property
    def proxy_train(self) -> NDArray[np.floating]:
        """(N, d) what proxies are fitted on."""
        return self._seen_by_proxies(self.data.train_x, self.sketch.train if self.sketch else None)

    @property
    def proxy_test(self) -> NDArray[np.floating]:
        return self._seen_by_proxies(self.data.test_x, self.sketch.test if self.sketch else None)

    def _seen_by_proxies(self, x: NDArray, sketched: NDArray[np.floating] | None) -> NDArray[np.floating]:
        if sketched is not None:
            return sketched
        if x.ndim != 2:
            raise ValueError(f"proxies need features or a sketch; {self.data.name} holds images")
        return x

    @cached_property
    def moments(self) -> Moments:
        """The sufficient statistics of D, computed once for all requests."""
        return compute_moments(self.proxy_train, self.labels, self.n_classes)

    @cached_property
    def probe(self) -> ProbeFit:
        """The linear classifier of D, fitted once for all requests."""
        return fit_probe_of_all(self.proxy_train, self.labels, self.n_classes)

    @cached_property
    def probe_inputs(self) -> NDArray[np.float32]:
        """(N, d + 1) what the probe is fitted on."""
        return design(self.proxy_train, self.probe)

    @property
    def train_inputs(self) -> torch.Tensor:
        return self.inputs.train

    @property
    def test_inputs(self) -> torch.Tensor:
        return self.inputs.test

    @cached_property
    def train_labels(self) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.labels)).to(self.device)

    @cached_property
    def test_labels(self) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.data.test_labels(self.space))).to(self.device)


@dataclass(frozen=True, eq=False)
class Cell:
    """A forget request under one seed.

    Attributes:
        forget: (N,) True for the training rows to forget.
        heldout: (N_test,) True for the test rows of the fine classes that lose rows: the attack's non-members.
        test_of_forgotten: (N_test,) True for the test rows of a class or subclass that is forgotten entirely.
    """

    seed: int
    forget: NDArray[np.bool_]
    heldout: NDArray[np.bool_]
    test_of_forgotten: NDArray[np.bool_]

    @property
    def n_forget(self) -> int:
        return int(self.forget.sum())

    def evaluation_data(self, problem: Problem) -> EvaluationData:
        rows = torch.from_numpy(np.flatnonzero(self.forget)).to(problem.device)
        return EvaluationData(
            test_inputs=problem.test_inputs,
            test_labels=problem.test_labels,
            train_inputs=problem.train_inputs,
            forget_rows=rows,
            forget_labels=problem.train_labels[rows],
            heldout=torch.from_numpy(self.heldout).to(problem.device),
        )


def make_problem(
    data: LabelledSet, space: LabelSpace, device: str | torch.device = "cpu", sketch: Sketch | None = None
) -> Problem:
    return Problem(Inputs(data, torch.device(device)), space, sketch)


def make_cell(data: LabelledSet, forget: NDArray[np.bool_], seed: int) -> Cell:
    """A cell for any forget mask."""
    counts = np.bincount(data.train_y, minlength=data.n_fine)
    lost = np.bincount(data.train_y[forget], minlength=data.n_fine)
    return Cell(seed, forget, (lost > 0)[data.test_y], (lost == counts)[data.test_y])


def make_cells(data: LabelledSet, variant: Variant, seeds: Sequence[int]) -> list[Cell]:
    """The variant's cells: one per seed; the forget set depends on the seed in the random scenario only."""
    scenario = Scenario(variant.scenario)
    return [make_cell(data, scenario_mask(scenario, variant.key, data.train_y, seed), seed) for seed in seeds]
