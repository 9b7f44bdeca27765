"""A pretended CUDA device: tensors that say ``cuda:0``, compute on the CPU and refuse to meet CPU tensors, as real ones do.

What it shows without a GPU: nothing mixes devices, results are the CPU's where kernels are the same, and how often the host
would wait for the device. What it cannot show: a GPU's rounding, autocast (which asks C++ for the device), memory, speed.

How it works. A pretended tensor is a subclass without storage of its own (C++ sees the ``meta`` device, so that no driver is
asked for anything) with CUDA's dispatch keys, so that torch takes CUDA's ways, such as cuDNN's batch normalisation. Every
operation that reaches it is run on the CPU tensors that it holds, once its devices were checked.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
CUDA, META, CPU = torch.device("cuda:0"), torch.device("meta"), torch.device("cpu")

COPIES = {aten.copy_.default, aten._to_copy.default, aten._copy_from.default}
"""They may meet both devices: that is what they are for."""
BY_INDEX = {
    *(aten.index.Tensor, aten._unsafe_index.Tensor),
    *(aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default),
}
"""Their indices may lie on the CPU, from where CUDA copies them, waiting."""
WAITS = {
    *(aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default, aten.nonzero.default),
    *(aten.masked_select.default, aten._unique2.default, aten.unique_consecutive.default, aten.unique_dim.default),
    *(aten.repeat_interleave.Tensor, aten.bincount.default, aten._linalg_check_errors.default),
}
"""The host needs a number, or the size of a result, that only the device knows."""


class PretendedTensor(torch.Tensor):
    """A tensor on ``cuda:0``; ``held`` is where its numbers are."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> PretendedTensor:
        with _disable_current_modes():
            like = torch.empty_strided(held.size(), held.stride(), dtype=held.dtype, device=META)
        return torch.Tensor._make_subclass(cls, like, False, dispatch_device=False, device_for_backend_keys=CUDA)  # pyright: ignore[reportCallIssue]

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held.detach()

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return CUDA

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"pretended({self.held!r})"

    is_cuda = property(lambda self: True)  # pyright: ignore[reportAssignmentType]
    is_meta = property(lambda self: False)  # pyright: ignore[reportAssignmentType]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside `pretended_cuda()`")


class DeviceMix(RuntimeError):
    """What a GPU would answer with 'Expected all tensors to be on the same device'."""


class Pretence(TorchDispatchMode):
    """Runs every operation; counts those on pretended tensors, and the host's waits for them by name."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.in_backward: bool = False

    @property
    def n_waits(self) -> int:
        return self.waits.total()

    def wait(self, why: str) -> None:
        self.waits[why] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.ops.prim.device.default:  # the engine compares what C++ says of both, and that is meta
            return META if self.in_backward else CUDA
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        pretended = [tensor for tensor in tensors if isinstance(tensor, PretendedTensor)]
        here = [tensor for tensor in tensors if not isinstance(tensor, PretendedTensor)]
        if any(tensor.is_meta for tensor in here) and pretended:
            raise AssertionError(
                f"{func} meets a tensor that C++ made where a real one has its device: x[[0, 2]] does so"
            )
        if pretended and here:
            self._check_devices(func, args, here)
        on_cuda = bool(pretended)
        if func is aten.copy_.default:
            on_cuda = isinstance(args[0], PretendedTensor)
        if kwargs.get("device") is not None:
            on_cuda, kwargs["device"] = torch.device(kwargs["device"]).type != "cpu", CPU
        self._count(func, args, kwargs, bool(pretended), on_cuda, bool(here))
        result = INSTEAD.get(func, func)(*tree_map(_held, args), **tree_map(_held, kwargs))
        known = {id(tensor.held): tensor for tensor in pretended}  # what is returned in place is the tensor itself
        return tree_map(lambda value: _wrapped(value, known, on_cuda), result)

    @staticmethod
    def _check_devices(func: Any, args: Sequence[Any], here: Sequence[torch.Tensor]) -> None:
        if func in COPIES:
            return
        wrong = [tensor for tensor in here if tensor.dim() > 0]  # a number is taken along with the launch
        if func in BY_INDEX and isinstance(args[0], PretendedTensor):
            values = args[2] if len(args) > 2 else None
            wrong = [tensor for tensor in wrong if tensor is values]
        if wrong:
            shapes = [tuple(tensor.shape) for tensor in wrong]
            raise DeviceMix(f"{func} meets CPU tensors of the shapes {shapes} and CUDA tensors")

    def _count(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], from_cuda: bool, to_cuda: bool, from_cpu: bool
    ) -> None:
        if not (from_cuda or to_cuda):
            return
        self.operations[str(func)] += 1
        if func in WAITS:
            self.wait(str(func))
        elif func in COPIES and ((from_cuda and not to_cuda) or (from_cpu and to_cuda)):
            # from memory that is not pinned, too, the host waits until it has been read
            if not any(isinstance(value, torch.Tensor) and value.dim() == 0 for value in args[1:2]):
                self.wait(f"{func} between devices")
        elif func in BY_INDEX:
            indices = [index for index in args[1] if index is not None]
            if any(not isinstance(index, PretendedTensor) and index.dim() > 0 for index in indices):
                self.wait(f"{func} by rows on the CPU")
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                self.wait(f"{func} by a mask")


def _held(value: Any) -> Any:
    return value.held if isinstance(value, PretendedTensor) else value


def _wrapped(value: Any, known: Mapping[int, PretendedTensor], on_cuda: bool) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, PretendedTensor):
        return value
    if id(value) in known:
        return known[id(value)]
    return PretendedTensor(value) if on_cuda else value


def _cudnn_batch_norm(x, weight, bias, mean, var, training, momentum, eps):
    out, saved_mean, saved_var = aten.native_batch_norm(x, weight, bias, mean, var, training, momentum, eps)
    return out, saved_mean, saved_var, torch.empty(0, dtype=torch.uint8)


def _cudnn_batch_norm_backward(x, gradient, weight, mean, var, saved_mean, saved_var, eps, _reserve):
    return aten.native_batch_norm_backward(
        gradient, x, weight, mean, var, saved_mean, saved_var, True, eps, [True, True, True]
    )


INSTEAD: Mapping[Any, Callable[..., Any]] = {
    aten.cudnn_batch_norm.default: _cudnn_batch_norm,
    aten.cudnn_batch_norm_backward.default: _cudnn_batch_norm_backward,
}
"""What cuDNN computes and the CPU has under another name."""


@contextlib.contextmanager
def pretended_cuda(bfloat16: bool = True, capability: tuple[int, int] = (8, 6)) -> Iterator[Pretence]:
    """As long as it lasts there is a ``cuda:0``, if torch was built for one."""
    pretence, backward = Pretence(), torch.autograd.backward

    def noted_backward(*args: Any, **kwargs: Any) -> None:
        pretence.in_backward = True
        try:
            backward(*args, **kwargs)
        finally:
            pretence.in_backward = False

    told = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: pretence.wait("torch.cuda.synchronize"),
        "is_bf16_supported": lambda including_emulation=True: bfloat16,
        "get_device_capability": lambda device=None: capability,
        "get_device_name": lambda device=None: "a pretended GPU",
        "is_current_stream_capturing": lambda: False,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
    }
    lifted = torch._C._only_lift_cpu_tensors()
    overwritten = torch.__future__.get_overwrite_module_params_on_conversion()
    with contextlib.ExitStack() as stack:
        for name, answer in told.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(mock.patch.object(torch.autograd, "backward", noted_backward))
        # in inference mode torch hands over compositions, not their parts
        stack.enter_context(mock.patch.object(torch, "inference_mode", torch.no_grad))
        torch._C._ensureCUDADeviceGuardSet()  # no driver is asked which device is the present one
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(.., device="cuda") is made here and copied
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifted)
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # a parameter cannot change its class in place
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwritten)
        stack.enter_context(pretence)
        yield pretence
