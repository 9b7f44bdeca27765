"""Make torch compute in what ``precision`` names, and refuse what a device does not have.

Torch's own default on GPUs is a mixture: matrix products in float32, convolutions in TF32, which keeps 10 of a number's 23
bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import backends

from unlearn_core.errors import BadInput
from unlearn_core.precision import Precision

_present: ContextVar[Precision] = ContextVar("precision", default=Precision.FLOAT32)


def present_precision() -> Precision:
    """What the innermost ``arithmetic`` says."""
    return _present.get()


@contextlib.contextmanager
def arithmetic(precision: Precision = Precision.FLOAT32) -> Iterator[None]:
    """Compute in ``precision``, and leave torch's settings as they were."""
    parts: tuple[Any, ...] = (backends.cudnn.conv, backends.cuda.matmul)  # pyright: ignore[reportAttributeAccessIssue]
    before = [part.fp32_precision for part in parts]
    token = _present.set(precision)
    try:
        for part in parts:
            part.fp32_precision = "tf32" if precision is Precision.TF32 else "ieee"
        yield
    finally:
        _present.reset(token)
        for part, value in zip(parts, before, strict=True):
            part.fp32_precision = value


def check_precision(precision: Precision, device: torch.device | str) -> None:
    """Refuse arithmetic that a device does not have; emulation would be slower than float32."""
    if precision is Precision.FLOAT32:
        return
    remedy = f"use --precision {Precision.FLOAT32}"
    if torch.device(device).type != "cuda":
        raise BadInput(f"--precision {precision} is for GPUs: {device} computes in {Precision.FLOAT32}; {remedy}")
    if precision is Precision.BF16:
        able = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        able = torch.cuda.get_device_capability(device) >= (8, 0)
    if not able:
        major, minor = torch.cuda.get_device_capability(device)
        raise BadInput(
            f"--precision {precision} needs a GPU of compute capability 8.0, such as an A10G or an A100; "
            f"{torch.cuda.get_device_name(device)} has {major}.{minor}; {remedy}"
        )


@contextlib.contextmanager
def denormals_flushed(yes: bool = True) -> Iterator[None]:
    """Take numbers below 1e-38 for zero in this thread; if not ``yes``, compute with them, as Python does.

    A network that is very sure of its answers has such gradients, and a processor takes a hundred times as long for each:
    late epochs of ``mlp2`` with two classes took six times as long, and led to the same weights to the bit.
    """
    before = bool(torch.full((1,), 1e-40).mul(1.0).eq(0.0))
    torch.set_flush_denormal(yes)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
