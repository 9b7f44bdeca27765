"""``kl``: distil the target into the network: each epoch the forget set and a fresh retain sample of its size."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.spec import Toward
from unlearn_core.training import Member


def distillation_member(
    seed: int, labels: torch.Tensor, forget: NDArray[np.bool_], log_target: NDArray[np.float64]
) -> Member:
    """What one member distils: its target (N, C) on D."""
    target = torch.from_numpy(np.exp(log_target).astype(np.float32))
    return Member(seed, "unlearn", labels, torch.from_numpy(forget), {Toward.TARGET: target})
