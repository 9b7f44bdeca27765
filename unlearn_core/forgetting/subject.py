"""What a request is about: the training rows, held-out rows, and what the base model says of both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.data.sketch import semi_orthogonal
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.hashing import arrays_sha256
from unlearn_core.nets.module import PENULTIMATE, ModuleStack
from unlearn_core.nets.resnet import ResNetStack
from unlearn_core.nets.stack import NetworkStack, State

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

SKETCH_DIM = 512
"""Layers with more numbers than this are projected down to it, as the paper does for ResNets  [app:random_projection]."""


@dataclass(frozen=True, eq=False)
class LayerFeatures:
    """Proxies see a layer of the base network. ``projection`` (k, width) is None where the layer is narrow enough."""

    layer: str
    projection: NDArray[np.float32] | None = None

    @staticmethod
    def of(net: NetworkStack, layer: str, sample: torch.Tensor) -> LayerFeatures:
        width = _activations(net, layer, sample[:2]).shape[1]
        return LayerFeatures(layer, semi_orthogonal(SKETCH_DIM, width) if width > SKETCH_DIM else None)

    def __call__(self, net: NetworkStack, inputs: torch.Tensor) -> NDArray[np.float32]:
        """(N, k) the features of some inputs."""
        activations = _activations(net, self.layer, inputs).cpu().numpy()
        return activations if self.projection is None else activations @ self.projection.T

    def __str__(self) -> str:
        sketched = "" if self.projection is None else f", projected from {self.projection.shape[1]} dimensions"
        return f"layer {self.layer} of the base model{sketched}"


def _activations(net: NetworkStack, layer: str, inputs: torch.Tensor) -> torch.Tensor:
    if isinstance(net, ModuleStack):
        return net.activations(inputs, layer)
    if layer == PENULTIMATE:
        return net.penultimate(0, inputs)
    if isinstance(net, ResNetStack):
        return net.activations(inputs, layer, lambda activation: activation)
    raise BadInput(f"a head has no layer {layer!r} to take features from; there is {PENULTIMATE}")


@dataclass(frozen=True, eq=False)
class Part:
    """Some labelled rows.

    Attributes:
        features: (N, d) what proxies see.
        labels: (N,) in 0..C-1.
        logits: (N, C) float64, the base model's.
        inputs: what the network reads, on its device; None for a black box.
    """

    features: NDArray[np.floating]
    labels: Labels
    logits: Array
    inputs: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Subject:
    """A base model and its data. ``net`` is None for a black box, of which only logits are known."""

    train: Part
    heldout: Part | None
    n_classes: int
    net: NetworkStack | None = None
    feature_source: LayerFeatures | None = None
    """None where the features were given."""

    def __post_init__(self) -> None:
        for what, part in (("training", self.train), ("held-out", self.heldout)):
            if part is not None:
                _check_part(part, self.n_classes, what)
        counts = np.bincount(self.train.labels, minlength=self.n_classes)
        if (counts == 0).any():
            absent = np.flatnonzero(counts == 0)
            raise BadInput(
                f"the model has {self.n_classes} classes and the data no row of class {absent[0]} ({len(absent)} "
                "such); give "
                "the data and the labels that it was trained on"
            )

    @property
    def seen_by_proxies(self) -> str:
        """Where the features come from, for people."""
        return "given" if self.feature_source is None else str(self.feature_source)

    @property
    def data_sha256(self) -> str:
        """The content of the rows as the request sees them, features that come from the model left out."""
        arrays: dict[str, NDArray] = {"train_labels": self.train.labels}
        for name, part in (("train", self.train), ("heldout", self.heldout)):
            if part is None:
                continue
            arrays[f"{name}_labels"] = part.labels
            if part.inputs is not None:
                arrays[f"{name}_inputs"] = part.inputs.cpu().numpy()
            if self.feature_source is None:
                arrays[f"{name}_features"] = part.features
        return arrays_sha256(arrays)

    @property
    def base_sha256(self) -> str:
        """The content of the base model's weights, or of a black box's logits on the training rows."""
        return arrays_sha256({"logits": self.train.logits}) if self.net is None else state_sha256(self.net.state(0))


def state_sha256(state: State) -> str:
    # numpy knows no bfloat16, and every float type is exact in float64
    return arrays_sha256(
        {
            name: (tensor.double() if tensor.is_floating_point() else tensor).cpu().numpy()
            for name, tensor in state.items()
        }
    )


def network_subject(
    net: NetworkStack,
    train: tuple[torch.Tensor, Labels],
    heldout: tuple[torch.Tensor, Labels] | None,
    features: tuple[NDArray[np.floating], NDArray[np.floating] | None] | str | None,
) -> Subject:
    """A network on inputs and labels.

    Args:
        features: of training and held-out rows, or the layer to take them from, or None where the inputs are features.
    """
    source = LayerFeatures.of(net, features, train[0]) if isinstance(features, str) else None

    def part(inputs: torch.Tensor, labels: Labels, given: NDArray[np.floating] | None) -> Part:
        seen = given if source is None else source(net, inputs)
        if seen is None:
            seen = inputs.cpu().numpy()
        return Part(seen, labels, net.logits(0, inputs).double().cpu().numpy(), inputs)

    given_train, given_heldout = (None, None) if features is None or isinstance(features, str) else features
    return Subject(
        part(*train, given_train),
        None if heldout is None else part(*heldout, given_heldout),
        net.n_classes,
        net,
        source,
    )


def black_box_subject(
    train: tuple[NDArray[np.floating], Labels, NDArray[np.floating]],
    heldout: tuple[NDArray[np.floating], Labels, NDArray[np.floating]] | None,
) -> Subject:
    """A model of which only logits are known.

    Args:
        train, heldout: features (N, d), labels (N,) and logits (N, C).
    """

    def part(features: NDArray[np.floating], labels: Labels, logits: NDArray[np.floating]) -> Part:
        if logits.ndim != 2 or logits.dtype.kind != "f":
            raise BadInput(f"logits have shape {logits.shape}, dtype {logits.dtype}; give floats (rows, classes)")
        return Part(features, labels, logits.astype(np.float64))

    rows = part(*train)
    return Subject(rows, None if heldout is None else part(*heldout), rows.logits.shape[1])


def as_inputs(array: NDArray, device: torch.device | str = "cpu") -> torch.Tensor:
    """Rows as networks read them: uint8 images stay so, all else becomes float32."""
    if array.dtype == np.uint8:
        if array.ndim != 4 or array.shape[-1] != 3:
            raise BadInput(
                f"uint8 inputs of shape {array.shape} are no images (rows, height, width, 3); give floats instead"
            )
    else:
        array = array.astype(np.float32, copy=False)
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _check_part(part: Part, n_classes: int, what: str) -> None:
    n_rows = len(part.labels)
    if part.labels.ndim != 1 or part.labels.dtype.kind not in "iu":
        raise BadInput(
            f"{what} labels have shape {part.labels.shape}, dtype {part.labels.dtype}; give (rows,) integers"
        )
    if part.features.ndim != 2:
        raise BadInput(
            f"{what} features have shape {part.features.shape} and proxies need (rows, features); give features, or "
            "name a "
            "layer of the model to take them from, such as penultimate"
        )
    if len(part.features) != n_rows:
        raise BadInput(f"there are {len(part.features)} {what} rows and {n_rows} labels; each row needs one")
    if part.logits.shape != (n_rows, n_classes):
        raise BadInput(
            f"{what} logits have shape {part.logits.shape}; they must be ({n_rows}, {n_classes}): rows, classes"
        )
    for name, values in (("features", part.features), ("logits", part.logits)):
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            rows = np.flatnonzero(~finite)
            raise BadInput(
                f"{what} {name} hold NaN or infinite numbers in {len(rows)} rows, the first is row {rows[0]}; mend "
                "or remove them"
            )
    if n_rows and not (part.labels.min() >= 0 and part.labels.max() < n_classes):
        raise BadInput(
            f"{what} labels run from {part.labels.min()} to {part.labels.max()} and the model has {n_classes} "
            "classes; labels "
            "are 0..C-1"
        )
