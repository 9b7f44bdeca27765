"""Classifier heads on frozen features: linear, mlp1 (d-256-C) and mlp2 (d-256-256-C), K of them trained as one stack.

Layers are batched matrix products into preallocated buffers, with the backward pass written out: no gradient flows into
the features, so it costs 4dh + 6hC flops a sample and no graph is built. All weights of a member are one flat vector, so
that the optimiser makes one pass over memory. The last layer is multiplied class by class: as (in, classes) its gradient is
a matrix of few columns, which takes a BLAS six times as long as one of few rows, and three quarters of a linear head's step.

Why a member's bits do not depend on the stack: each matrix product sees the same shapes, strides and 64-byte alignment for
any K (buffers are rounded up), each member's weights are an optimiser tensor of their own, and every other operation is
exact (ReLU, gather) or runs along one member's memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from numpy.typing import NDArray
from torch import nn

from unlearn_core.errors import BadInput
from unlearn_core.grid import HIDDEN_LAYERS
from unlearn_core.nets.stack import State

ALIGNMENT = 16  # floats in 64 bytes
EVALUATION_ROWS = 4096


class HeadStack:
    """K heads of one shape (see ``NetworkStack``). Weights are float32; layer i maps widths[i] to widths[i + 1]."""

    def __init__(self, widths: Sequence[int], n_members: int, device: torch.device | str = "cpu") -> None:
        self.widths: tuple[int, ...] = tuple(widths)
        self._n_members: int = n_members
        sizes = [(a + 1) * b for a, b in itertools.pairwise(self.widths)]
        self._n_weights: int = sum(sizes)
        stride = _round_up(self._n_weights)
        self._flat: torch.Tensor = torch.zeros(n_members, stride, device=device)
        self._flat_grad: torch.Tensor = torch.zeros_like(self._flat)
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = self._views(self._flat)
        self._layer_grads: list[tuple[torch.Tensor, torch.Tensor]] = self._views(self._flat_grad)
        # the last layer's weights and their gradient, class by class
        shape = (self.n_classes, self.widths[-2])
        self._by_class, self._by_class_grad = (_aligned(n_members, shape, device) for _ in range(2))
        self._buffers: dict[str, torch.Tensor] = {}
        self._batch: int = 0

    @classmethod
    def initialise(
        cls, widths: Sequence[int], generators: Sequence[torch.Generator], device: torch.device | str = "cpu"
    ) -> HeadStack:
        """Fresh weights, uniform in +-1/sqrt(fan_in) as ``torch.nn.Linear`` has them, each member from its own generator."""
        stack = cls(widths, len(generators), device)
        for member, generator in enumerate(generators):
            for weight, bias in stack._layers:
                bound = 1.0 / math.sqrt(weight.shape[1])
                for tensor in (weight[member], bias[member]):
                    tensor.copy_(torch.empty(tensor.shape).uniform_(-bound, bound, generator=generator))
        return stack

    @classmethod
    def from_states(cls, states: Sequence[State], device: torch.device | str = "cpu") -> HeadStack:
        """A stack from members' weights as ``state`` gives them: ``layers.i.weight`` (out, in), ``layers.i.bias`` (out,)."""
        n_layers = sum(name.endswith(".weight") for name in states[0])
        expected = {f"layers.{i}.{part}" for i in range(n_layers) for part in ("weight", "bias")}
        if set(states[0]) != expected:
            raise BadInput(f"head weights have the keys {sorted(states[0])}; expected {sorted(expected)}")
        weights = [states[0][f"layers.{i}.weight"] for i in range(n_layers)]
        stack = cls((weights[0].shape[1], *[w.shape[0] for w in weights]), len(states), device)
        for member, state in enumerate(states):
            for i, (weight, bias) in enumerate(stack._layers):
                weight[member].copy_(state[f"layers.{i}.weight"].T)
                bias[member].copy_(state[f"layers.{i}.bias"])
        return stack

    @property
    def arch(self) -> str | None:
        """The architecture of this package with as many hidden layers; None if there is none."""
        names = {layers: name for name, layers in HIDDEN_LAYERS.items()}
        return names.get(len(self.widths) - 2)

    @property
    def n_members(self) -> int:
        return self._n_members

    @property
    def n_classes(self) -> int:
        return self.widths[-1]

    @property
    def device(self) -> torch.device:
        return self._flat.device

    def parameters(self) -> list[list[torch.Tensor]]:
        members = []
        for weights, grad in zip(self._flat, self._flat_grad, strict=True):
            tensor = weights[: self._n_weights]
            tensor.grad = grad[: self._n_weights]
            members.append([tensor])
        return members

    def running_statistics(self) -> list[torch.Tensor]:
        return []

    def use_batch_statistics(self, yes: bool) -> None:
        pass

    def forward(self, inputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        n_rows = rows.shape[1]
        self._reserve(n_rows)
        self._batch = n_rows
        hidden = self._buffer("x0", n_rows)
        for member in range(self._n_members):
            torch.index_select(inputs, 0, rows[member], out=hidden[member])
        for i, (weight, bias) in enumerate(self._layers[:-1]):
            out = self._buffer(f"x{i + 1}", n_rows)
            torch.baddbmm(bias[:, None], hidden, weight, out=out)
            hidden = out.relu_()
        weight, bias = self._layers[-1]
        # class-major, so that the loss can reduce over classes along memory
        logits = self._buffers["logits"][..., :n_rows]
        self._by_class.copy_(weight.transpose(1, 2))
        torch.baddbmm(bias[:, :, None], self._by_class, hidden.transpose(1, 2), out=logits)
        return logits.transpose(1, 2)

    def backward(self, logit_gradient: torch.Tensor) -> None:
        gradient = logit_gradient
        for i in reversed(range(len(self._layers))):
            entering = self._buffer(f"x{i}", self._batch)
            weight_grad, bias_grad = self._layer_grads[i]
            if gradient is logit_gradient:
                torch.bmm(gradient.transpose(1, 2), entering, out=self._by_class_grad)
                weight_grad.copy_(self._by_class_grad.transpose(1, 2))
            else:
                torch.bmm(entering.transpose(1, 2), gradient, out=weight_grad)
            torch.sum(gradient, 1, out=bias_grad)
            if i == 0:
                return
            below = self._buffer(f"g{i}", self._batch)
            torch.bmm(gradient, self._layers[i][0].transpose(1, 2), out=below)
            gradient = torch.ops.aten.threshold_backward.grad_input(below, entering, 0, grad_input=below)

    def logits(self, member: int, inputs: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        weight, bias = self._layers[-1]
        count = len(inputs) if rows is None else len(rows)
        out = torch.empty(count, self.n_classes, device=self.device)
        for start in range(0, count, EVALUATION_ROWS):
            here = slice(start, start + EVALUATION_ROWS)
            batch = inputs[here] if rows is None else inputs[rows[here]]
            torch.addmm(bias[member], self.penultimate(member, batch), weight[member], out=out[here])
        return out

    def penultimate(self, member: int, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs
        for weight, bias in self._layers[:-1]:
            hidden = torch.addmm(bias[member], hidden, weight[member]).relu_()
        return hidden

    def state(self, member: int) -> dict[str, torch.Tensor]:
        named = {}
        for i, (weight, bias) in enumerate(self._layers):
            named[f"layers.{i}.weight"] = weight[member].T.contiguous().cpu().clone()
            named[f"layers.{i}.bias"] = bias[member].cpu().clone()
        return named

    def as_module(self, member: int) -> nn.Module:
        """A copy of one member as an ordinary module, whose weights are named as ``state`` names them."""
        layers = [nn.Linear(a, b, device=self.device) for a, b in itertools.pairwise(self.widths)]
        chain = _Chain(nn.ModuleList(layers))
        chain.load_state_dict(self.state(member))
        return chain

    def select(self, members: Sequence[int]) -> HeadStack:
        chosen = HeadStack(self.widths, len(members), self.device)
        for place, member in enumerate(members):  # by number: a list of rows would first be copied to the device
            chosen._flat[place].copy_(self._flat[member])
        return chosen

    @property
    def last_layer(self) -> str:
        return f"layers.{len(self._layers) - 1}."

    def with_shifted_last_layer(self, member: int, weight: NDArray, bias: NDArray) -> HeadStack:
        state, last = self.state(member), self.last_layer
        state[f"{last}weight"] += torch.from_numpy(weight.T).float()
        state[f"{last}bias"] += torch.from_numpy(bias).float()
        return HeadStack.from_states([state], self.device)

    def _views(self, flat: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each layer's weight (K, in, out) and bias (K, out) as views into ``flat``."""
        views, at = [], 0
        for fan_in, fan_out in itertools.pairwise(self.widths):
            weight = flat[:, at : at + fan_in * fan_out].unflatten(1, (fan_in, fan_out))
            at += fan_in * fan_out
            views.append((weight, flat[:, at : at + fan_out]))
            at += fan_out
        return views

    def _reserve(self, n_rows: int) -> None:
        """Buffers for batches of at least ``n_rows``: activations x0.., their gradients g0.. and the logits."""
        if self._buffers and self._buffers["x0"].shape[1] >= n_rows:
            return
        rows = _round_up(n_rows)
        self._buffers["logits"] = torch.empty(self._n_members, self.n_classes, rows, device=self.device)
        for i, width in enumerate(self.widths[:-1]):
            for kind in ("x", "g"):
                self._buffers[f"{kind}{i}"] = torch.empty(self._n_members, rows, width, device=self.device)

    def _buffer(self, name: str, n_rows: int) -> torch.Tensor:
        return self._buffers[name][:, :n_rows]


class _Chain(nn.Module):
    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers: nn.ModuleList = layers

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            hidden = layer(hidden).relu()
        return self.layers[-1](hidden)


def _aligned(n_members: int, shape: tuple[int, int], device: torch.device | str) -> torch.Tensor:
    """(K, *shape) zeros, every member's at the same alignment."""
    size = shape[0] * shape[1]
    return torch.zeros(n_members, _round_up(size), device=device)[:, :size].unflatten(1, shape)


def _round_up(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
