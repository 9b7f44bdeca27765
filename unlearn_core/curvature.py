"""The curvature of a network, measured once for all requests, and one Newton step that takes records out with it.

Leaving rows out moves the optimum by ``H^-1 (sum of their gradients) / N`` to first order, H being the Gauss-Newton matrix
of the network on D. H knows no request. It is kept as EK-FAC has it: for every layer the eigenvectors of ``E[a a^T]`` (what
enters it, with a 1 appended if it has a bias) and of ``E[g g^T]`` (what the loss says at its output), and in that basis the
second moments of single rows' gradients, as sums over rows, so that rows can be subtracted. A request then costs its own
gradient and four small products.

Linear layers (on sequences too) and convolutions without groups take part; whatever else a module has is left as it is, and
named. A layer that is applied at many positions has for its gradient the sum over them, and that is what is squared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from unlearn_core.edits.newton import CurvatureConstants, NewtonConstants
from unlearn_core.errors import BadInput
from unlearn_core.nets.autograd import AutogradStack, logits_of
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.make import with_state
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.seeding import derive_seed

CHUNK = 1 << 21
"""Numbers of one tensor that are held at a time."""
GRADIENT_ROWS = 512


@dataclass(frozen=True, eq=False)
class LayerCurvature:
    """One layer's curvature; a convolution's inputs are its patches, flattened as its weights are.

    Attributes:
        inputs: (in, in) eigenvectors, in columns, of what enters, the bias's 1 last if there is a bias.
        outputs: (out, out) those of the gradients at its output.
        moments: (out, in) sums over rows of the squared gradients in that basis.
    """

    inputs: NDArray[np.float32]
    outputs: NDArray[np.float32]
    moments: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curvature:
    """The Gauss-Newton matrix of a network on some rows of D, as EK-FAC has it.

    Attributes:
        rows: which rows of D it was measured on, ascending.
        layers: by the name of the layer, which is the prefix of its weights in ``state``.
        frozen: parameters that no such layer holds; a step leaves them as they are.
    """

    rows: NDArray[np.int64]
    layers: Mapping[str, LayerCurvature]
    frozen: tuple[str, ...]
    constants: CurvatureConstants

    def without(self, net: NetworkStack, member: int, inputs: torch.Tensor, rows: NDArray[np.integer]) -> Curvature:
        """The curvature of what is left of D: the rows' moments subtracted, in the same basis.

        Args:
            net: the network that it was measured of.
            inputs: of ``rows`` only, in their order; rows that it was not measured on change nothing.
        """
        seen = np.flatnonzero(np.isin(rows, self.rows))
        if not len(seen):
            return self
        gone = np.asarray(rows, dtype=np.int64)[seen]
        left = np.setdiff1d(self.rows, gone)
        if not len(left):
            raise BadInput("the request holds every row that the curvature was measured on; measure it on more rows")
        with _probed(net, member, self.constants) as probes:
            taken = probes.moments(_Rows(inputs, seen, gone), self.layers)
        layers = {
            name: replace(layer, moments=np.maximum(layer.moments - taken[name], 0.0))
            for name, layer in self.layers.items()
        }
        return replace(self, rows=left, layers=layers)

    def arrays(self) -> dict[str, NDArray]:
        """All of it as plain arrays by name."""
        constants = (self.constants.rows, self.constants.seed, self.constants.targets)
        arrays: dict[str, NDArray] = {
            "rows": self.rows,
            "frozen": np.frombuffer("\n".join(self.frozen).encode(), dtype=np.uint8),
            "constants": np.array(constants, dtype=np.int64),
        }
        for name, layer in self.layers.items():
            arrays |= {f"{part}.{name}": getattr(layer, part) for part in ("inputs", "outputs", "moments")}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray]) -> Curvature:
        names = [key.removeprefix("moments.") for key in arrays if key.startswith("moments.")]
        layers = {
            name: LayerCurvature(*(arrays[f"{part}.{name}"] for part in ("inputs", "outputs", "moments")))
            for name in names
        }
        frozen = arrays["frozen"].tobytes().decode()
        constants = CurvatureConstants(*(int(value) for value in arrays["constants"]))
        return cls(arrays["rows"], layers, tuple(frozen.split("\n")) if frozen else (), constants)


def measure_curvature(
    net: NetworkStack,
    member: int,
    inputs: torch.Tensor,
    rows: NDArray[np.integer] | None = None,
    constants: CurvatureConstants | None = None,
) -> Curvature:
    """The curvature of one member on at most ``constants.rows`` of the rows of D, drawn among ``rows`` or all."""
    constants = constants or CurvatureConstants()
    among = np.arange(len(inputs)) if rows is None else np.unique(np.asarray(rows, dtype=np.int64))
    draw = np.random.default_rng(derive_seed(constants.seed, "curvature", "rows"))
    chosen = np.sort(draw.permutation(among)[: constants.rows]).astype(np.int64)
    among = _Rows(inputs, chosen, chosen)
    with _probed(net, member, constants) as probes:
        bases = probes.bases(among)
        moments = probes.moments(among, bases)
        held = {key for name in bases for key in _weights(probes.module, name).values()}
        frozen = tuple(name for name, _ in probes.module.named_parameters() if name not in held)
    layers = {name: replace(basis, moments=moments[name]) for name, basis in bases.items()}
    return Curvature(chosen, layers, frozen, constants)


def newton_step(
    net: NetworkStack,
    member: int,
    curvature: Curvature,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    n_train: int,
    constants: NewtonConstants | None = None,
) -> NetworkStack:
    """A stack of one: the member after one Newton step away from some rows.

    Args:
        inputs: of those rows only.
        n_train: how many rows the curvature stands for: all of D, or what is left of it after ``without``.
    """
    return newton_steps(net, member, curvature, inputs, labels, n_train)(constants or NewtonConstants())


def newton_steps(
    net: NetworkStack, member: int, curvature: Curvature, inputs: torch.Tensor, labels: torch.Tensor, n_train: int
) -> Callable[[NewtonConstants], NetworkStack]:
    """``newton_step`` for one request and any constants: the rows' gradient, most of the work, is taken once."""
    module, read = _plain(net, member)
    keys = {name: _weights(module, name) for name in curvature.layers}
    parameters = {key: module.get_parameter(key) for parts in keys.values() for key in parts.values()}
    gradient = _summed_gradient(module, parameters, lambda rows: read(inputs[rows]), labels)

    def step(constants: NewtonConstants) -> NetworkStack:
        state = net.state(member)
        for name, layer in curvature.layers.items():
            weight = gradient[keys[name]["weight"]]
            flat = weight.flatten(1)
            if "bias" in keys[name]:
                flat = torch.cat([flat, gradient[keys[name]["bias"]][:, None]], 1)
            inward, outward = (torch.from_numpy(part).to(flat) for part in (layer.inputs, layer.outputs))
            curved = torch.from_numpy(layer.moments / len(curvature.rows) + constants.damping).to(flat)
            moved = outward @ ((outward.T @ flat @ inward) / curved) @ inward.T
            moved = (moved * (constants.scale / n_train)).cpu()
            width = flat.shape[1] - ("bias" in keys[name])
            for part, shift in (("weight", moved[:, :width].reshape(weight.shape)), ("bias", moved[:, -1])):
                if part in keys[name]:
                    state[keys[name][part]] += shift.to(state[keys[name][part]].dtype)
        return with_state(net, state)

    return step


def _summed_gradient(
    module: nn.Module,
    parameters: Mapping[str, torch.Tensor],
    read: Callable[[slice], torch.Tensor],
    labels: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """The gradient of the rows' summed cross-entropy."""
    total = {key: torch.zeros_like(parameter) for key, parameter in parameters.items()}
    with _in_eval_mode(module), torch.enable_grad():
        for start in range(0, len(labels), GRADIENT_ROWS):
            here = slice(start, start + GRADIENT_ROWS)
            loss = functional.cross_entropy(logits_of(module(read(here))), labels[here], reduction="sum")
            for key, part in zip(total, torch.autograd.grad(loss, list(parameters.values())), strict=True):
                total[key] += part
    return total


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of D: where they are in ``inputs``, and their numbers in D, from which the signs are drawn."""

    inputs: torch.Tensor
    at: NDArray[np.int64]
    numbers: NDArray[np.int64]

    def chunks(self, size: int) -> Iterator[tuple[torch.Tensor, NDArray[np.int64]]]:
        for start in range(0, len(self.at), size):
            here = slice(start, start + size)
            yield self.inputs[torch.from_numpy(self.at[here])], self.numbers[here]


Layer = nn.Linear | nn.Conv2d


class _Probes:
    """What enters the layers of a module and which gradients leave them, by hooks."""

    def __init__(
        self, module: nn.Module, read: Callable[[torch.Tensor], torch.Tensor], constants: CurvatureConstants
    ) -> None:
        self.module: nn.Module = module
        self._read: Callable[[torch.Tensor], torch.Tensor] = read
        self._constants: CurvatureConstants = constants
        self._layers: dict[str, Layer] = _layers(module)
        self._calls: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        hooks = [layer.register_forward_hook(self._remembered(name)) for name, layer in self._layers.items()]
        try:
            with _in_eval_mode(self.module):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _remembered(self, name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], torch.Tensor]:
        def remember(_layer: nn.Module, entering: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            # its gradient is the output's, also if what follows works in place
            nothing = torch.zeros_like(output, requires_grad=True)
            self._calls.setdefault(name, []).append((entering[0].detach(), nothing))
            return output + nothing

        return remember

    def _seen(self, batch: torch.Tensor, numbers: NDArray[np.int64]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """For each layer what enters it (B, L, in) and the gradients (T, B, L, out) at its output, at L positions."""
        self._calls = {}
        with torch.enable_grad():
            logits = logits_of(self.module(self._read(batch)))
        calls = {
            name: calls
            for name, calls in self._calls.items()
            if all(len(entering) == len(batch) for entering, _ in calls)
        }
        nothings = [nothing for several in calls.values() for _, nothing in several]
        targets = _targets(logits.detach(), numbers, self._constants)
        gradients = [
            torch.autograd.grad(logits, nothings, target, retain_graph=True, allow_unused=True, materialize_grads=True)
            for target in targets
        ]
        stacked = iter([torch.stack(parts) for parts in zip(*gradients, strict=True)])
        self._calls = {}
        return {
            name: (
                torch.cat([_entering(self._layers[name], entering) for entering, _ in several], 1),
                torch.cat([_leaving(self._layers[name], next(stacked)) for _ in several], 2),
            )
            for name, several in calls.items()
        }

    def _all_seen(self, rows: _Rows) -> Iterator[dict[str, tuple[torch.Tensor, torch.Tensor]]]:
        """Chunk by chunk."""
        trial = self._seen(*next(rows.chunks(2)))
        held = [
            max(a[0].numel(), g[:, 0].numel(), a.shape[2] * g.shape[3] if a.shape[1] > 1 else 0)
            for a, g in trial.values()
        ]
        for batch, numbers in rows.chunks(max(1, CHUNK // max(held, default=1))):
            yield self._seen(batch, numbers)

    def bases(self, rows: _Rows) -> dict[str, LayerCurvature]:
        """The eigenvectors; moments are still nothing."""
        sums: dict[str, list[torch.Tensor]] = {}
        for seen in self._all_seen(rows):
            for name, parts in seen.items():
                flat = [part.flatten(0, -2) for part in parts]
                products = [(part.T @ part).double() for part in flat]
                sums[name] = [a + b for a, b in zip(sums[name], products, strict=True)] if name in sums else products
        found = {}
        for name, products in sums.items():
            inward, outward = (
                torch.linalg.eigh(part).eigenvectors.float().contiguous().cpu().numpy() for part in products
            )
            found[name] = LayerCurvature(inward, outward, np.zeros((len(outward), len(inward))))
        return found

    def moments(self, rows: _Rows, bases: Mapping[str, LayerCurvature]) -> dict[str, NDArray[np.float64]]:
        """(out, in) sums over the rows of their squared gradients in a basis."""
        sums = {name: torch.zeros(basis.moments.shape, dtype=torch.float64) for name, basis in bases.items()}
        for seen in self._all_seen(rows):
            for name, basis in bases.items():
                a, g = seen[name]
                a, g = a @ torch.from_numpy(basis.inputs).to(a), g @ torch.from_numpy(basis.outputs).to(g)
                if a.shape[1] == 1:
                    found = g[:, :, 0].square().sum(0).double().T @ a[:, 0].square().double()
                else:
                    per_row = (torch.bmm(target.transpose(1, 2), a) for target in g)
                    found = sum(part.square_().sum(0, dtype=torch.float64) for part in per_row)
                sums[name] += cast(torch.Tensor, found).cpu()
        return {name: total.numpy() for name, total in sums.items()}


@contextlib.contextmanager
def _probed(net: NetworkStack, member: int, constants: CurvatureConstants) -> Iterator[_Probes]:
    probes = _Probes(*_plain(net, member), constants)
    with probes.hooked():
        yield probes


def _plain(net: NetworkStack, member: int) -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    """One member as a module, named as ``state`` names it, and what turns rows of the inputs into what it reads.

    Heads are small enough for double precision, in which sums over rows do not depend on how they are split.
    """
    if isinstance(net, HeadStack):
        return net.as_module(member).double(), torch.Tensor.double
    if isinstance(net, AutogradStack):
        return net.as_module()
    raise TypeError(f"the curvature of a {type(net).__name__} cannot be measured")


@contextlib.contextmanager
def _in_eval_mode(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def _layers(module: nn.Module) -> dict[str, Layer]:
    """The layers whose weights a step moves: each with weights of its own that train."""
    every = [parameter for _, parameter in module.named_parameters(remove_duplicate=False)]
    shared = {id(parameter) for parameter in every if sum(parameter is other for other in every) > 1}

    def fits(layer: nn.Module) -> bool:
        own = dict(layer.named_parameters())
        expected = {"weight"} if layer.bias is None else {"weight", "bias"}
        return set(own) == expected and all(p.requires_grad and id(p) not in shared for p in own.values())

    return {
        name: layer
        for name, layer in module.named_modules()
        if (isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)) and fits(layer)
    }


def _weights(module: nn.Module, name: str) -> dict[str, str]:
    """The keys of a layer's weight and bias; the module may itself be the layer."""
    prefix = f"{name}." if name else ""
    return {part: f"{prefix}{part}" for part, _ in module.get_submodule(name).named_parameters()}


def _entering(layer: Layer, entering: torch.Tensor) -> torch.Tensor:
    """(B, L, in) what the weights, flattened, and the bias are multiplied with at each position."""
    if isinstance(layer, nn.Conv2d):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        padded = functional.pad(entering, layer._reversed_padding_repeated_twice, mode=mode)
        patches = functional.unfold(padded, layer.kernel_size, layer.dilation, 0, layer.stride).transpose(1, 2)
    else:
        patches = entering.reshape(len(entering), -1, entering.shape[-1])
    return patches if layer.bias is None else functional.pad(patches, (0, 1), value=1.0)


def _leaving(layer: Layer, gradients: torch.Tensor) -> torch.Tensor:
    """(T, B, L, out) the gradients at a layer's output."""
    if isinstance(layer, nn.Conv2d):
        return gradients.flatten(3).transpose(2, 3)
    return gradients.reshape(*gradients.shape[:2], -1, gradients.shape[-1])


def _targets(logits: torch.Tensor, numbers: NDArray[np.int64], constants: CurvatureConstants) -> torch.Tensor:
    """(T, B, C) vectors whose outer products sum to diag(p) - p p^T = sum over classes c of p_c (e_c - p)(e_c - p)^T.

    Of many classes the likeliest have theirs. The others' sum is that of their mean, and what each differs from it by: one
    vector with random signs, right in expectation. A row's signs are drawn from its number, so that rows can be subtracted.
    """
    p = torch.softmax(logits, 1)
    n_classes = p.shape[1]
    if n_classes <= constants.targets:
        return (p.sqrt()[..., None] * (torch.eye(n_classes).to(p) - p[:, None])).transpose(0, 1)
    top, at = p.topk(constants.targets - 2, dim=1)
    named = functional.one_hot(at, n_classes).to(p)
    exact = top.sqrt()[..., None] * (named - p[:, None])
    others = p * (1 - named.sum(1))
    mass = others.sum(1, keepdim=True)
    mean = others / mass.clamp_min(torch.finfo(p.dtype).tiny)
    signed = others.sqrt() * _signs(numbers, n_classes, constants.seed).to(p)
    spread = signed - signed.sum(1, keepdim=True) * mean
    return torch.cat([exact.transpose(0, 1), (mass.sqrt() * (mean - p))[None], spread[None]])


def _signs(numbers: NDArray[np.int64], n_classes: int, seed: int) -> torch.Tensor:
    """(B, C) of +-1, a hash of seed, row and class."""
    bits = numbers.astype(np.uint64)[:, None] * np.uint64(n_classes) + np.arange(n_classes, dtype=np.uint64)
    bits += np.uint64(derive_seed(seed, "curvature", "signs"))
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):  # splitmix64
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(factor)
    return torch.from_numpy(np.where(bits >> np.uint64(63), 1.0, -1.0))
