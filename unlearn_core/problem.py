"""A data set in one label space, on a device, and the cells of a variant on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.audit.scoring import EvaluationData
from unlearn_core.data.feature_set import FeatureSet
from unlearn_core.data.splits import scenario_mask
from unlearn_core.proxies.statistics import Moments, compute_moments
from unlearn_core.spec import LabelSpace, Scenario, Variant


@dataclass(frozen=True, eq=False)
class Problem:
    """What every cell on these features and labels shares. Proxies read the arrays, networks the float32 tensors."""

    features: FeatureSet
    space: LabelSpace
    device: torch.device

    @property
    def n_classes(self) -> int:
        return self.features.n_classes(self.space)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """(N,) training labels in this label space."""
        return self.features.train_labels(self.space)

    @cached_property
    def moments(self) -> Moments:
        """The sufficient statistics of D, computed once for all requests."""
        return compute_moments(self.features.train_x, self.labels, self.n_classes)

    @cached_property
    def train_inputs(self) -> torch.Tensor:
        return self._tensor(self.features.train_x.astype(np.float32, copy=False))

    @cached_property
    def test_inputs(self) -> torch.Tensor:
        return self._tensor(self.features.test_x.astype(np.float32, copy=False))

    @cached_property
    def train_labels(self) -> torch.Tensor:
        return self._tensor(self.labels)

    @cached_property
    def test_labels(self) -> torch.Tensor:
        return self._tensor(self.features.test_labels(self.space))

    def _tensor(self, array: NDArray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


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
            forget_inputs=problem.train_inputs[rows],
            forget_labels=problem.train_labels[rows],
            heldout=torch.from_numpy(self.heldout).to(problem.device),
        )


def make_problem(features: FeatureSet, space: LabelSpace, device: str | torch.device = "cpu") -> Problem:
    return Problem(features, space, torch.device(device))


def make_cell(features: FeatureSet, forget: NDArray[np.bool_], seed: int) -> Cell:
    """A cell for any forget mask."""
    counts = np.bincount(features.train_y, minlength=features.n_fine)
    lost = np.bincount(features.train_y[forget], minlength=features.n_fine)
    return Cell(seed, forget, (lost > 0)[features.test_y], (lost == counts)[features.test_y])


def make_cells(features: FeatureSet, variant: Variant, seeds: Sequence[int]) -> list[Cell]:
    """The variant's cells: one per seed; the forget set depends on the seed in the random scenario only."""
    scenario = Scenario(variant.scenario)
    return [make_cell(features, scenario_mask(scenario, variant.key, features.train_y, seed), seed) for seed in seeds]
