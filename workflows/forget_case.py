"""What a deletion request is about, read from files and checked against each other."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.datasets import holds_images
from unlearn_core.data.feature_set import load_feature_set
from unlearn_core.data.images import load_image_file
from unlearn_core.data.labelled import LabelledSet
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.ledger import Identity, Ledger
from unlearn_core.forgetting.logits_file import load_logits
from unlearn_core.forgetting.networks import Blueprint, blueprint, with_state
from unlearn_core.forgetting.sequence import base_and_last
from unlearn_core.forgetting.subject import Subject, as_inputs, black_box_subject, network_subject
from unlearn_core.forgetting.weights_file import WeightsFile, read_weights_file
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.spec import LabelSpace

Features = tuple[NDArray[np.floating], NDArray[np.floating]]
"""Of the training rows and of the held-out ones."""


@dataclass(frozen=True, eq=False)
class Case:
    """Model, data and ledger, read and checked against each other.

    Attributes:
        files: what was read, by role.
        weights: the file that the model came in; None for a black box.
        last: what earlier requests made of the base, if there were any.
    """

    subject: Subject
    data: LabelledSet
    kind: str
    class_names: tuple[str, ...]
    files: Mapping[str, Path]
    ledger: Ledger | None
    blueprint: Blueprint | None = None
    weights: WeightsFile | None = None
    last: NetworkStack | None = None

    def as_stored(self, net: NetworkStack) -> NetworkStack:
        return net if self.weights is None else with_state(net, self.weights.as_stored(net.state(0)))


def open_case(arguments: argparse.Namespace) -> Case:
    """Read model, data and ledger as the options name them."""
    data = _load_data(arguments.data)
    ledger = None if arguments.ledger is None else Ledger.open(arguments.ledger)
    files = {"data": arguments.data, "request": arguments.ids}
    features = None
    if arguments.features:
        features = _given_features(arguments.features, data)
        files["features"] = arguments.features
    open_model = _open_black_box if arguments.logits else _open_network
    case = open_model(arguments, data, ledger, features, files)
    if ledger is not None:
        ledger.check(Identity.of(case.subject))
    return case


def _load_data(path: Path) -> LabelledSet:
    if path.suffix != ".npz":
        raise BadInput(f"--data {path} must be an .npz file, of features or of images")
    return load_image_file(path) if holds_images(str(path)) else load_feature_set(path)


def _given_features(path: Path, data: LabelledSet) -> Features:
    """Features of the same rows as the data's, as a cached backbone gives them."""
    features = load_feature_set(path)
    for part in ("train_y", "test_y"):
        if not np.array_equal(getattr(features, part), getattr(data, part)):
            raise BadInput(
                f"{path}: {part} is not that of {data.name}; features must be of the same rows in the same order"
            )
    return features.train_x, features.test_x


def _open_black_box(
    arguments: argparse.Namespace,
    data: LabelledSet,
    ledger: Ledger | None,
    features: Features | None,
    files: dict[str, Path],
) -> Case:
    logits = load_logits(arguments.logits, len(data.train_y), len(data.test_y))
    space = _label_space(data, logits.train.shape[1])
    if features is None:
        if data.train_x.ndim != 2:
            raise BadInput(f"{arguments.data} holds images; give features of them as --features NPZ")
        features = (data.train_x, data.test_x)
    subject = black_box_subject(
        (features[0], data.train_labels(space), logits.train), (features[1], data.test_labels(space), logits.test)
    )
    return Case(subject, data, "black box", _class_names(data, space), {"logits": arguments.logits, **files}, ledger)


def _open_network(
    arguments: argparse.Namespace,
    data: LabelledSet,
    ledger: Ledger | None,
    features: Features | None,
    files: dict[str, Path],
) -> Case:
    plan = _blueprint(arguments)
    place = arguments.weights or Path(arguments.model)
    weights = read_weights_file(place)
    train, test = (as_inputs(x, arguments.device) for x in (data.train_x, data.test_x))
    given = plan.restore(weights.state, train[:2])
    space = _label_space(data, given.n_classes)
    base, last = base_and_last(ledger, given)
    subject = network_subject(
        base,
        (train, data.train_labels(space)),
        (test, data.test_labels(space)),
        arguments.features_from or features or ((data.train_x, data.test_x) if data.train_x.ndim == 2 else None),
    )
    names = _class_names(data, space)
    return Case(subject, data, plan.name, names, {"model": place, **files}, ledger, plan, weights, last)


def _label_space(data: LabelledSet, n_classes: int) -> LabelSpace:
    """What the model predicts: as many classes as it has outputs."""
    if n_classes == data.n_fine:
        return LabelSpace.FINE
    if data.superclass is not None and n_classes == data.n_classes(LabelSpace.SUPERCLASS):
        return LabelSpace.SUPERCLASS
    supers = "" if data.superclass is None else f" and {data.n_classes(LabelSpace.SUPERCLASS)} superclasses"
    raise BadInput(
        f"the model has {n_classes} classes and the data {data.n_fine}{supers}; give the labels that it was trained on"
    )


def _class_names(data: LabelledSet, space: LabelSpace) -> tuple[str, ...]:
    if space is LabelSpace.FINE:
        return data.class_names
    return tuple(f"superclass {c}" for c in range(data.n_classes(space)))


def _blueprint(arguments: argparse.Namespace) -> Blueprint:
    if ":" in arguments.model:
        if arguments.weights is None:
            raise BadInput(f"--model {arguments.model} builds a network; give its weights as --weights FILE")
        if arguments.arch is not None:
            raise BadInput(
                f"--arch {arguments.arch} and --model {arguments.model} are two architectures; leave --arch out"
            )
        return blueprint(arguments.model)
    if arguments.arch is None:
        raise BadInput(f"--model {arguments.model} is a file of weights; say with --arch what they are of")
    if arguments.weights is not None:
        raise BadInput("--weights goes with --model PACKAGE.MODULE:FUNCTION; with --arch, --model is the weights")
    return blueprint(arguments.arch)
