"""Any ``nn.Module`` whose output is its logits, as a stack of one.

``use_batch_statistics(False)`` puts all of it in evaluation mode: unlearning leaves dropout out as well.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence

import torch
from numpy.typing import NDArray
from torch import nn

from unlearn_core.errors import BadInput
from unlearn_core.nets.autograd import AutogradStack, logits_of
from unlearn_core.nets.stack import State

PENULTIMATE = "penultimate"
"""Names the input of the last linear layer, in a module that has no layer of that name."""


class ModuleStack(AutogradStack):
    """One module (see ``NetworkStack``), which belongs to the stack from then on; weights are named as it names them.

    Args:
        sample: a few rows that the module must be able to read; uint8 images (B, H, W, 3) reach it as floats (B, 3, H, W)
            in [0, 1], all else in the type of its weights.
    """

    def __init__(self, module: nn.Module, sample: torch.Tensor, device: torch.device | str = "cpu") -> None:
        super().__init__(module.to(device), torch.device(device))
        tensors = itertools.chain(module.parameters(), module.buffers())
        floats = (tensor.dtype for tensor in tensors if tensor.is_floating_point())
        self._dtype: torch.dtype = next(floats, torch.float32)
        if self._dtype not in (torch.float32, torch.float64):
            raise BadInput(
                f"{type(module).__name__} holds {self._dtype} weights; convert it with .float() to unlearn with it"
            )
        self._sample: torch.Tensor = sample[:2].to(self._device)
        self._n_classes: int = self._try(self._sample).shape[1]

    def _try(self, sample: torch.Tensor) -> torch.Tensor:
        """Logits of a few rows, or one line that says why there are none."""
        what = f"{type(self._net).__name__}, given rows of shape {tuple(sample.shape[1:])},"
        try:
            with torch.no_grad():
                logits = logits_of(self._net(self._prepared(sample)))
        except (Exception, SystemExit) as error:  # a module is code of the user's: it may fail in any way
            reason = (str(error).splitlines() or [""])[0]
            raise BadInput(
                f"{what} fails ({type(error).__name__}: {reason}); give it the data that it was trained on"
            ) from error
        if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or len(logits) != len(sample):
            shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise BadInput(
                f"{what} answers {shape} for {len(sample)} of them; its output must be logits (rows, classes)"
            )
        return logits

    @property
    def module(self) -> nn.Module:
        return self._net

    @property
    def n_classes(self) -> int:
        return self._n_classes

    def penultimate(self, member: int, inputs: torch.Tensor) -> torch.Tensor:
        last = dict(self._net.named_modules())[self._last_linear()]
        return self._seen(last, inputs, lambda entering, _output: entering)

    def activations(self, inputs: torch.Tensor, layer: str) -> torch.Tensor:
        """(N, width) the flattened output of a named layer."""
        modules = dict(self._net.named_modules())
        if layer == PENULTIMATE and layer not in modules:
            return self.penultimate(0, inputs)
        if not layer or layer not in modules:
            known = ", ".join(name for name in modules if name)
            raise BadInput(f"{type(self._net).__name__} has no layer {layer!r}; there are {PENULTIMATE}, {known}")
        return self._seen(modules[layer], inputs, lambda _entering, output: output)

    def select(self, members: Sequence[int]) -> ModuleStack:
        if list(members) != [0]:
            raise ValueError(f"a stack of one module has no members {list(members)}")
        return ModuleStack(copy.deepcopy(self._net), self._sample, self._device)

    def with_state(self, state: State) -> ModuleStack:
        """The same module with other weights, which must be named and shaped as its own."""
        check_state(self._net, state)
        other = copy.deepcopy(self._net)
        other.load_state_dict(dict(state))
        return ModuleStack(other, self._sample, self._device)

    @property
    def last_layer(self) -> str:
        last = self._last_linear()
        return f"{last}." if last else ""  # the module may itself be a linear layer

    def with_shifted_last_layer(self, member: int, weight: NDArray, bias: NDArray) -> ModuleStack:
        prefix, state = self.last_layer, self.state(member)
        if f"{prefix}bias" not in state:
            raise BadInput(f"the last layer {prefix[:-1]} has no bias to shift; use the finalizer kl or none")
        for name, shift in ((f"{prefix}weight", weight.T), (f"{prefix}bias", bias)):
            state[name] += torch.from_numpy(shift.copy()).to(state[name].dtype)
        return self.with_state(state)

    def _last_linear(self) -> str:
        """The linear layer whose output is the logits."""
        outputs: dict[str, torch.Tensor] = {}
        hooks = [
            module.register_forward_hook(lambda _module, _inputs, output, name=name: outputs.update({name: output}))
            for name, module in self._net.named_modules()
            if isinstance(module, nn.Linear)
        ]
        try:
            logits = self.logits(0, self._sample)
        finally:
            for hook in hooks:
                hook.remove()
        for name in reversed(outputs):
            if outputs[name].shape == logits.shape and torch.equal(outputs[name].float(), logits):
                return name
        raise BadInput(
            f"the logits of {type(self._net).__name__} are not the output of a linear layer, which {PENULTIMATE} "
            "features and the finalizer mse need; name a layer, and use the finalizer kl or none"
        )

    def _prepared(self, batch: torch.Tensor) -> torch.Tensor:
        if batch.dtype == torch.uint8:
            return batch.permute(0, 3, 1, 2).to(self._dtype) / 255.0
        return batch.to(self._dtype)


def check_state(module: nn.Module, state: State) -> None:
    """Refuse weights that are not named and shaped as the module's own."""
    own = module.state_dict()
    missing = [name for name in own if name not in state]
    unknown = [name for name in state if name not in own]
    if missing or unknown:
        first = f"{missing[0]!r} is missing" if missing else f"{unknown[0]!r} is unknown"
        raise BadInput(
            f"the weights' keys do not match {type(module).__name__}: {first} ({len(missing)} missing, {len(unknown)} "
            "unknown); give the weights of this very architecture"
        )
    for name, tensor in own.items():
        if state[name].shape != tensor.shape:
            raise BadInput(
                f"weight {name!r} has shape {tuple(state[name].shape)}, and in {type(module).__name__} "
                f"{tuple(tensor.shape)}; give the weights of this very architecture"
            )
