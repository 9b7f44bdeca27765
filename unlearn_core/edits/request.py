"""A forget request as an edit sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unlearn_core.recipes import Optimization, Schedule

if TYPE_CHECKING:
    import torch

    from unlearn_core.nets.stack import NetworkStack
    from unlearn_core.problem import Problem, Rows


@dataclass(frozen=True, eq=False)
class EditRequest:
    """The records, and a member of ``net`` that is to forget them.

    Attributes:
        mask: (N,) True for the rows of ``problem.train`` to forget.
        prepared: by name of its preparation, what the method starts from.
        seed: of what is drawn by chance.
        schedule, optimization: of the training that the method ends in; None if it trains nothing.
    """

    problem: Problem
    mask: NDArray[np.bool_]
    net: NetworkStack
    member: int
    prepared: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    schedule: Schedule | None = None
    optimization: Optimization | None = None

    @cached_property
    def records(self) -> Rows:
        return self.problem.train.take(np.flatnonzero(self.mask))

    @cached_property
    def inputs(self) -> torch.Tensor:
        return self.records.inputs

    @cached_property
    def lost_classes(self) -> NDArray[np.bool_]:
        """(C,) the classes of which every row is asked for."""
        return self.problem.lost_classes(self.mask)

    @property
    def is_whole_classes(self) -> bool:
        """Whether nothing but whole classes is asked for."""
        return bool(self.lost_classes[self.records.labels].all())
