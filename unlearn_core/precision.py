"""The arithmetic of networks on a GPU, as a setting: float32 unless asked otherwise. Light: imports no torch.

A word other than the default is part of a step's id. ``arithmetic`` makes torch obey it.
"""

from __future__ import annotations

from enum import StrEnum

from unlearn_core.grid import RESNETS


class Precision(StrEnum):
    FLOAT32 = "float32"
    """All bits, as on a CPU."""
    TF32 = "tf32"
    """Factors of matrix products and convolutions are rounded to 10 bits; sums are float32."""
    BF16 = "bf16"
    """ResNets under bfloat16 autocast, 7 bits; its weights, losses and all else are float32."""


def precision_of(arch: str, asked: Precision) -> Precision:
    """What an architecture runs in: heads, which are written out in float32, know no autocast."""
    return Precision.FLOAT32 if asked is Precision.BF16 and arch not in RESNETS else asked


def precision_config(arch: str, asked: Precision) -> dict[str, str]:
    """What a step's config says of it: nothing if it is the default, so that such a step is the same on every device."""
    precision = precision_of(arch, asked)
    return {} if precision is Precision.FLOAT32 else {"precision": str(precision)}
