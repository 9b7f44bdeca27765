"""``forget``: one deletion request in one call."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from unlearn_core.errors import BadInput
from unlearn_core.finalizers.logit_processor import LogitProcessor
from unlearn_core.forgetting.carry_out import carry_out
from unlearn_core.forgetting.certificate import Certificate
from unlearn_core.forgetting.content import Described, Outcome, make_certificate
from unlearn_core.forgetting.ledger import Identity, Ledger, new_rows
from unlearn_core.forgetting.networks import MODULE_UNLEARNING
from unlearn_core.forgetting.request import RecordList
from unlearn_core.forgetting.sequence import base_and_last, plan_request, record
from unlearn_core.forgetting.settings import AUTO, ForgetSettings, Stopping
from unlearn_core.forgetting.subject import Labels, Subject, as_inputs, black_box_subject, network_subject
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.module import ModuleStack
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.spec import HEAD_UNLEARNING

Model = nn.Module | NetworkStack | NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Heldout:
    """Rows that the model was not trained on, to say what the request changes there.

    Attributes:
        features, labels, inputs: as in ``forget``.
        logits: (M, C) of a black box.
    """

    features: NDArray
    labels: ArrayLike
    inputs: NDArray | None = None
    logits: NDArray[np.floating] | None = None


@dataclass(frozen=True, eq=False)
class Forgotten:
    """What came of a request.

    Attributes:
        model: of the kind that was given, unlearned. Where there was nothing to unlearn, or with the finalizer ``none``, it
            says what it said before; None for a black box.
        logit_processor: base logits and features in, unlearned log probabilities out. Where ``auto`` chose a proxy that
            speaks of training points only, it is of the one that a black box would get. None where there was nothing to
            unlearn, or a proxy of training points was asked for by name.
    """

    model: Any
    certificate: Certificate
    logit_processor: LogitProcessor | None
    outcome: Outcome


def forget(
    model: Model,
    features: NDArray,
    labels: ArrayLike,
    forget_ids: Sequence[int | str] | NDArray,
    proxy: str = AUTO,
    finalizer: str = "kl",
    *,
    ids: NDArray | None = None,
    inputs: NDArray | None = None,
    features_from: str | None = None,
    heldout: Heldout | None = None,
    ridge: float = 1e-3,
    shrinkage: str = "ridge",
    cap: float | None = None,
    seed: int = 0,
    stopping: Stopping | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    ledger: str | Path | None = None,
) -> Forgotten:
    """Unlearn some training records; the model that is given is left as it is.

    Args:
        model: a module whose output is its logits, one of our networks, or the (N, C) logits of a black box, which takes
            the finalizer ``none``.
        features: (N, d) what proxies see; with ``features_from``, what the model reads.
        labels: (N,) in 0..C-1, what the model was trained to say.
        forget_ids: records, named as in ``ids``; without ``ids``, row numbers.
        proxy: ``auto``, or one by name; ``dir`` and ``dir-2c`` are never chosen, they model nothing.
        finalizer: ``kl`` (distil), ``mse`` (least squares into the last layer) or ``none`` (a logit processor).
        ids: (N,) the records' own names.
        inputs: what the model reads where that is not the features; uint8 images (N, H, W, 3) reach a module as floats
            (B, 3, H, W) in [0, 1].
        features_from: a layer of the model whose output proxies see, or ``penultimate``.
        cap: the largest eta; None: the paper's 1 for the paper's proxies; ``math.inf`` for no limit.
        lr, batch_size: of the distillation; by default 1e-3 or what is better of its tenths, and by the request's size.
        ledger: a folder that remembers earlier requests on this model.
    """
    settings = ForgetSettings(proxy, finalizer, ridge, shrinkage, cap, seed, lr, batch_size, stopping or Stopping())
    book = None if ledger is None else Ledger.open(Path(ledger))
    last = None
    if isinstance(model, np.ndarray):
        subject = _black_box(model, features, labels, heldout)
        kind, default = "black box", HEAD_UNLEARNING
    else:
        given = _network(model, features if inputs is None else inputs)
        base, last = base_and_last(book, given)
        subject = _white_box(base, features, labels, inputs, features_from, heldout)
        kind = type(model).__name__
        default = HEAD_UNLEARNING if isinstance(given, HeadStack) else MODULE_UNLEARNING
    identity = Identity.of(subject)
    if book is not None:
        book.check(identity)
    names = tuple(str(name) for name in np.asarray(forget_ids).ravel().tolist())
    rows = new_rows(RecordList("the request", names), len(subject.train), ids, book.forgotten if book else ())
    outcome = carry_out(plan_request(subject, rows, settings, book), default, last)
    certificate = make_certificate(outcome, Described.of(rows, kind), None, book.history() if book else ())
    if book is not None:
        record(book, identity, outcome, rows, certificate, last)
    return Forgotten(
        _like(model, outcome.deployed(last), unchanged=outcome.net is None and last is None),
        certificate,
        outcome.plan.logit_processor,
        outcome,
    )


def _black_box(logits: NDArray, features: NDArray, labels: ArrayLike, heldout: Heldout | None) -> Subject:
    held = None
    if heldout is not None:
        if heldout.logits is None:
            raise BadInput("the held-out rows of a black box need its logits")
        held = (heldout.features, _labels(heldout.labels), heldout.logits)
    return black_box_subject((features, _labels(labels), logits), held)


def _white_box(
    base: NetworkStack,
    features: NDArray,
    labels: ArrayLike,
    inputs: NDArray | None,
    features_from: str | None,
    heldout: Heldout | None,
) -> Subject:
    if inputs is not None and features_from is not None:
        raise BadInput(
            f"features are given, and so is the layer {features_from!r} to take them from; choose one of the two"
        )

    def read(part_inputs: NDArray | None, part_features: NDArray, part_labels: ArrayLike):
        return as_inputs(part_features if part_inputs is None else part_inputs), _labels(part_labels)

    return network_subject(
        base,
        read(inputs, features, labels),
        None if heldout is None else read(heldout.inputs, heldout.features, heldout.labels),
        features_from or (features, None if heldout is None else heldout.features),
    )


def _labels(values: ArrayLike) -> Labels:
    labels = np.asarray(values)
    if labels.dtype.kind not in "iu":
        raise BadInput(f"labels have dtype {labels.dtype}; they are integers in 0..C-1")
    return labels.astype(np.int64)


def _network(model: nn.Module | NetworkStack, inputs: NDArray) -> NetworkStack:
    """A copy of the model, as a network."""
    if isinstance(model, nn.Module):
        return ModuleStack(copy.deepcopy(model), as_inputs(inputs[:2]))
    if model.n_members != 1:
        raise BadInput(f"the stack holds {model.n_members} networks; select the one that is to forget")
    return model.select([0])


def _like(model: Model, net: NetworkStack | None, unchanged: bool) -> nn.Module | NetworkStack | None:
    """The network in the shape that was given; the very object where nothing moved."""
    if isinstance(model, np.ndarray) or net is None:
        return None
    if unchanged:
        return model
    return net.module if isinstance(net, ModuleStack) else net
