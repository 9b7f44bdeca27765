"""Arithmetic on a GPU is what was asked for and nothing else; torch's own flags are the oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tasks.worker import Worker
from tests.pretended_cuda import pretended_cuda
from unlearn_core.arithmetic import arithmetic, check_precision
from unlearn_core.errors import BadInput
from unlearn_core.nets.resnet import ResNetStack
from unlearn_core.precision import Precision


def flags() -> tuple[Any, Any]:
    """How convolutions and matrix products treat float32."""
    convolutions: Any = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]
    return convolutions.fp32_precision, torch.backends.cuda.matmul.fp32_precision


@pytest.mark.parametrize(("precision", "expected"), [("float32", "ieee"), ("tf32", "tf32"), ("bf16", "ieee")])
def test_convolutions_and_matrix_products_run_in_what_was_asked_for(precision, expected):
    before = flags()
    assert before == ("tf32", "none"), "torch's default: convolutions are not float32"
    with arithmetic(Precision(precision)):
        assert flags() == (expected, expected)
        with arithmetic():
            assert flags() == ("ieee", "ieee")
        assert flags() == (expected, expected)
    assert flags() == before
    assert torch.backends.cudnn.allow_tf32, "whoever uses torch's earlier interface is not disturbed"


def test_settings_are_restored_after_an_error():
    before = flags()
    with pytest.raises(ZeroDivisionError), arithmetic(Precision.TF32):
        _ = 1 / 0
    assert flags() == before


@pytest.mark.parametrize(("precision", "dtype"), [("float32", None), ("tf32", None), ("bf16", torch.bfloat16)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_resnet_runs_under_autocast_only_if_asked(precision, dtype, deterministic):
    seen: list[torch.dtype | None] = []

    def look(*_: object) -> None:
        seen.append(torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None)

    with pretended_cuda(), arithmetic(Precision(precision)):
        torch.use_deterministic_algorithms(deterministic)
        try:
            stack = ResNetStack.initialise(3, torch.Generator().manual_seed(0), "cuda")
            images = torch.zeros(2, 32, 32, 3, dtype=torch.uint8).to("cuda")
            for net in (stack, stack.select([0])):  # copies as well
                net.as_module()[0].register_forward_hook(look)
                net.forward(images, torch.arange(2)[None].to("cuda"))
                net.logits(0, images)
        finally:
            torch.use_deterministic_algorithms(False)
    assert seen == [dtype] * 4


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_what_a_device_cannot_is_refused_in_one_line(precision):
    with pytest.raises(
        BadInput, match=rf"^--precision {precision} is for GPUs: cpu computes in float32; use --precision"
    ):
        check_precision(Precision(precision), "cpu")
    with (
        pretended_cuda(bfloat16=False, capability=(7, 5)),
        pytest.raises(
            BadInput, match=r"compute capability 8\.0, .*; a pretended GPU has 7\.5; use --precision float32"
        ),
    ):
        check_precision(Precision(precision), "cuda:0")
    with pretended_cuda():
        check_precision(Precision(precision), "cuda:0")
    check_precision(Precision.FLOAT32, "cpu")


def test_a_worker_says_why_it_cannot_work_where_it_is(tmp_path):
    assert Worker(tmp_path).ready() is None
    said = Worker(tmp_path, "cuda:99").ready()
    assert said is not None
    assert said.startswith("torch cannot use cuda:99 on ")
    assert "\n" not in said
    assert "--precision tf32 is for GPUs" in (Worker(tmp_path, precision=Precision.TF32).ready() or "")
