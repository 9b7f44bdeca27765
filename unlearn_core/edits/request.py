"""A forget request as an edit sees it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from unlearn_core.nets.stack import NetworkStack
    from unlearn_core.problem import Problem, Rows


@dataclass(frozen=True, eq=False)
class EditRequest:
    """The records, and a member of ``net`` that is to forget them.

    Attributes:
        mask: (N,) True for the rows of ``problem.train`` to forget.
        prepared: what the method starts from; None if it needs nothing.
    """

    problem: Problem
    mask: NDArray[np.bool_]
    net: NetworkStack
    member: int
    prepared: Any = None

    @cached_property
    def records(self) -> Rows:
        return self.problem.train.take(np.flatnonzero(self.mask))

    @cached_property
    def inputs(self) -> torch.Tensor:
        return self.records.inputs

    @cached_property
    def lost_classes(self) -> NDArray[np.bool_]:
        """(C,) the classes of which every row is asked for."""
        asked = np.bincount(self.records.labels, minlength=self.problem.n_classes)
        return self.problem.class_counts == asked

    @property
    def is_whole_classes(self) -> bool:
        """Whether nothing but whole classes is asked for."""
        return bool(self.lost_classes[self.records.labels].all())
