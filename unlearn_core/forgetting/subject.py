"""What a request is about: a base model, the rows it was trained on, held-out rows, and what it says of both."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.data.sketch import semi_orthogonal
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.certificate import arrays_sha256, state_sha256
from unlearn_core.nets.module import PENULTIMATE, ModuleStack
from unlearn_core.nets.resnet import ResNetStack
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.preparations import Kept
from unlearn_core.problem import Problem, Rows
from unlearn_core.proxies.points import Points

Labels = NDArray[np.int64]

SKETCH_DIM = 512
"""Layers with more numbers than this are projected down to it, as the paper does for ResNets  [app:random_projection]."""


@dataclass(frozen=True, eq=False)
class LayerFeatures:
    """Proxies see a layer of the base network. ``projection`` (k, width) is None if the layer is narrow enough."""

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
class Subject:
    """A base model on its data, checked. ``net`` is None for a black box, of which only logits are known.

    Attributes:
        train, heldout: the rows with the base model's logits (N, C) float64.
        feature_source: the layer that proxies see; None if the features were given.
        whole: all of D, if ``problem`` is the part of it that a request on a prepared state looks at.
        known: hashes of base and data, if they need not be computed.
    """

    problem: Problem
    train: Points
    heldout: Points | None
    net: NetworkStack | None = None
    feature_source: LayerFeatures | None = None
    whole: Problem | None = None
    known: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        _check(self.problem.train, self.train, self.n_classes, "training")
        if self.heldout is not None:
            _check(self.problem.test, self.heldout, self.n_classes, "held-out")
        absent = np.flatnonzero(self.problem.class_counts == 0)
        if len(absent):
            raise BadInput(
                f"the model has {self.n_classes} classes and the data no row of class {absent[0]} ({len(absent)} such); "
                "give the data and the labels that it was trained on"
            )

    @property
    def all_rows(self) -> Problem:
        """D, for whoever has to read all of it."""
        return self.problem if self.whole is None else self.whole

    @property
    def n_classes(self) -> int:
        return self.problem.n_classes

    @property
    def labels(self) -> Labels:
        return self.problem.train.labels

    @property
    def seen_by_proxies(self) -> str:
        """Where the features come from, for people."""
        return "given" if self.feature_source is None else str(self.feature_source)

    def of_network(self, net: NetworkStack) -> Subject:
        """The same rows as another network sees them.

        Features that come from a layer are then its own, and nothing is prepared of them: prepare it of ``all_rows``.
        """
        source, problem, whole = self.feature_source, self.problem, self.whole

        def seen(rows: Rows) -> Rows:
            return replace(rows, features=source and source(net, rows.inputs), load_inputs=lambda: rows.inputs)

        if source is not None:
            heldout, kept = None if problem.heldout is None else seen(problem.heldout), Kept()
            problem = replace(problem, train=seen(problem.train), heldout=heldout, prepared=kept)
            whole = None if whole is None else replace(whole, train=seen(whole.train), prepared=kept)

        def says(rows: Rows) -> NDArray[np.float64]:
            return net.logits(0, rows.inputs).double().cpu().numpy()

        held = None if problem.heldout is None else Points(problem.heldout.seen, says(problem.heldout))
        return Subject(problem, problem.training_points(says(problem.train)), held, net, source, whole)

    @property
    def data_sha256(self) -> str:
        """The content of the rows as the request sees them, features that come from the model left out."""
        if self.known is not None:
            return self.known[1]
        arrays: dict[str, NDArray] = {}
        for name, rows in (("train", self.problem.train), ("heldout", self.problem.heldout)):
            if rows is None:
                continue
            arrays[f"{name}_labels"] = rows.labels
            if rows.load_inputs is not None:
                arrays[f"{name}_inputs"] = rows.inputs.cpu().numpy()
            if self.feature_source is None:
                arrays[f"{name}_features"] = rows.seen
        return arrays_sha256(arrays)

    @property
    def base_sha256(self) -> str:
        """The content of the base model's weights, or of a black box's logits on the training rows."""
        if self.known is not None:
            return self.known[0]
        if self.net is None:
            return arrays_sha256({"logits": self.train.base_logits})
        return state_sha256(self.net.state(0))


def network_subject(
    net: NetworkStack,
    train: tuple[torch.Tensor, Labels],
    heldout: tuple[torch.Tensor, Labels] | None,
    features: tuple[NDArray[np.floating], NDArray[np.floating] | None] | str | None,
) -> Subject:
    """A network on inputs and labels.

    Args:
        features: of training and held-out rows, or the layer to take them from, or None if the inputs are features.
    """
    source = LayerFeatures.of(net, features, train[0]) if isinstance(features, str) else None
    given = (None, None) if features is None or isinstance(features, str) else features

    def part(inputs: torch.Tensor, labels: Labels, seen: NDArray[np.floating] | None) -> tuple[Rows, NDArray]:
        if source is not None:
            seen = source(net, inputs)
        elif seen is None:
            seen = inputs.cpu().numpy()
        return Rows(labels, seen, lambda: inputs), net.logits(0, inputs).double().cpu().numpy()

    held = None if heldout is None else part(*heldout, given[1])
    return _subject(part(*train, given[0]), held, net.n_classes, net, source)


def black_box_subject(
    train: tuple[NDArray[np.floating], Labels, NDArray[np.floating]],
    heldout: tuple[NDArray[np.floating], Labels, NDArray[np.floating]] | None,
) -> Subject:
    """A model of which only logits are known.

    Args:
        train, heldout: features (N, d), labels (N,) and logits (N, C).
    """

    def part(features: NDArray, labels: Labels, logits: NDArray) -> tuple[Rows, NDArray]:
        if logits.ndim != 2 or logits.dtype.kind != "f":
            raise BadInput(f"logits have shape {logits.shape}, dtype {logits.dtype}; give floats (rows, classes)")
        return Rows(labels, features), logits.astype(np.float64)

    return _subject(part(*train), None if heldout is None else part(*heldout), train[2].shape[-1])


def _subject(
    train: tuple[Rows, NDArray],
    heldout: tuple[Rows, NDArray] | None,
    n_classes: int,
    net: NetworkStack | None = None,
    source: LayerFeatures | None = None,
) -> Subject:
    problem = Problem(train[0], None if heldout is None else heldout[0], n_classes)
    held = None if heldout is None else Points(heldout[0].seen, heldout[1])
    return Subject(problem, problem.training_points(train[1]), held, net, source)


def _check(rows: Rows, points: Points, n_classes: int, what: str) -> None:
    labels, features, logits = rows.labels, points.features, points.base_logits
    n_rows = len(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(f"{what} labels have shape {labels.shape}, dtype {labels.dtype}; give (rows,) integers")
    if features.ndim != 2:
        raise BadInput(
            f"{what} features have shape {features.shape} and proxies need (rows, features); give features, or name a "
            "layer of the model to take them from, such as penultimate"
        )
    if len(features) != n_rows:
        raise BadInput(f"there are {len(features)} {what} rows and {n_rows} labels; each row needs one")
    if logits.shape != (n_rows, n_classes):
        raise BadInput(f"{what} logits have shape {logits.shape}; they must be ({n_rows}, {n_classes}): rows, classes")
    for name, values in (("features", features), ("logits", logits)):
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            bad = np.flatnonzero(~finite)
            raise BadInput(
                f"{what} {name} hold NaN or infinite numbers in {len(bad)} rows, the first is row {bad[0]}; mend or "
                "remove them"
            )
    if n_rows and not (labels.min() >= 0 and labels.max() < n_classes):
        raise BadInput(
            f"{what} labels run from {labels.min()} to {labels.max()} and the model has {n_classes} classes; labels are "
            "0..C-1"
        )
