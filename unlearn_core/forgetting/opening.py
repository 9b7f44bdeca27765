"""Models and data as they are given, checked against each other: what ``forget`` and ``prepare`` start from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from unlearn_core.errors import BadInput
from unlearn_core.forgetting.ledger import WAIT, Identity, Ledger, hold_ledger
from unlearn_core.forgetting.model_files import LoadedModel
from unlearn_core.forgetting.state import OPTIONAL, PreparedState, keep_state, parts_to_prepare, what_is_given
from unlearn_core.forgetting.subject import Labels, LayerFeatures, Subject, black_box_subject, network_subject
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.make import MODULE_UNLEARNING, Blueprint, NamedBlueprint, with_state
from unlearn_core.nets.module import ModuleStack
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.preparations import Given, Kept
from unlearn_core.problem import Problem, Rows, as_inputs
from unlearn_core.proxies.points import Points
from unlearn_core.recipes import HEAD_UNLEARNING, Optimization

Model = nn.Module | NetworkStack | LoadedModel | NDArray[np.floating]


RETAINED_LOOKED_AT = 2048
"""Retained rows, evenly spread, that a request on a prepared state looks at, or as many as there are records."""


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
class OpenModel:
    """A network as it was given; ``blueprint`` builds it anew, None if nobody knows how."""

    net: NetworkStack
    kind: str
    blueprint: Blueprint | None
    optimization: Optimization

    @property
    def arch(self) -> str | None:
        return self.blueprint.name if isinstance(self.blueprint, NamedBlueprint) else None


def open_model(model: nn.Module | NetworkStack | LoadedModel, inputs: NDArray) -> OpenModel:
    """Args: inputs: what the model reads."""
    if isinstance(model, LoadedModel):
        return OpenModel(model.net, model.blueprint.name, model.blueprint, model.blueprint.unlearning)
    net = _network(model, inputs)
    if isinstance(net, HeadStack):
        known = None if net.arch is None else NamedBlueprint(net.arch)
        return OpenModel(net, type(model).__name__, known, HEAD_UNLEARNING)
    return OpenModel(net, type(model).__name__, None, MODULE_UNLEARNING)


def prepare(
    model: nn.Module | NetworkStack | LoadedModel,
    features: NDArray,
    labels: ArrayLike,
    out: str | Path,
    *,
    ids: NDArray | None = None,
    inputs: NDArray | None = None,
    features_from: str | None = None,
    heldout: Heldout | None = None,
    sources: tuple[Path, ...] = (),
    ledger: str | Path | None = None,
    wait: float = WAIT,
    waiting: Callable[[str], None] = lambda _text: None,
    also: Sequence[str] = (),
    compute: Callable[[Given, Sequence[str]], Kept] | None = None,
) -> PreparedState:
    """Compute once, into a folder, what requests on this model start from; ``forget`` takes it as ``prepared``.

    Args:
        model, features, labels, ids, inputs, features_from, heldout: as in ``forget``. Without held-out rows no request can
            be compared with any, and nothing is said of how close to a retrain it comes.
        sources: the files that all of it came from: as long as they do not change, they need not be read again.
        ledger: of earlier requests on this model, which may be the base or what the last one left. The state is of the
            base, which edits start from; fold models and curvature see none of the rows that are forgotten by now.
        wait, waiting: for how many seconds to wait while a request holds the ledger, and who is told of it.
        also: what to prepare that is not always: ``probe``, which ``probe`` and ``fresh`` start from.
        compute: computes the parts that it is given the names of, elsewhere; None: here.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from sklearn.linear_model import LogisticRegression
        >>> from unlearn_core import forget
        >>> from unlearn_core.data import load_dataset
        >>> digits = load_dataset("digits")
        >>> x, y, heldout = digits.train_x, digits.train_y, Heldout(digits.test_x, digits.test_y)
        >>> fitted, model = LogisticRegression(max_iter=1000).fit(x, y), torch.nn.Linear(64, 10)
        >>> weights = {"weight": fitted.coef_, "bias": fitted.intercept_}
        >>> _ = model.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     state = prepare(model, x, y, f"{folder}/state", heldout=heldout)
        ...     result = forget(model, x, y, [3, 14, 15], "newton", heldout=heldout, prepared=state)
        >>> result.certificate.content["outcome"]
        'unlearned'
    """
    opened = open_model(model, features if inputs is None else inputs)
    if unknown := set(also) - set(OPTIONAL):
        raise BadInput(f"{', '.join(sorted(unknown))} cannot be prepared as well; there is {', '.join(OPTIONAL)}")
    book, base = None, opened.net
    if ledger is not None:
        if not Ledger.read(Path(ledger)).exists:
            raise BadInput(f"no ledger at {ledger}: nothing was forgotten yet; leave it out")
        with hold_ledger(Path(ledger), wait, waiting) as held:  # until its rows and its weights are read
            book = Ledger.read(held.folder)
            base, _ = base_and_last(book, opened.net)
    subject = white_box(base, features, labels, inputs, features_from, heldout)
    if book is not None:
        book.check(Identity.of(subject))
    ids = None if ids is None else np.asarray(ids)
    if ids is not None and (len(ids) != len(subject.labels) or len(np.unique(ids)) != len(ids)):
        raise BadInput(
            f"there are {len(subject.labels)} rows and {len(np.unique(ids))} different ids; each needs its own"
        )
    removed = () if book is None else book.forgotten
    given, parts = what_is_given(subject, opened.arch, removed), parts_to_prepare(opened.arch, also)
    kept = None if compute is None else compute(given, parts)
    return keep_state(subject, opened.arch, Path(out), ids, sources, kept, removed, also)


def base_and_last(ledger: Ledger | None, given: NetworkStack) -> tuple[NetworkStack, NetworkStack | None]:
    """The base, and what the last request left of it if there was one. The given network must be either of the two."""
    if ledger is None or not ledger.exists:
        return given, None
    ledger.check_model(given.state(0))
    base, last = ledger.base_state(), ledger.last_state()
    if base is None or last is None:
        return given, None
    return with_state(given, base), with_state(given, last)


def black_box(logits: NDArray, features: NDArray, labels: ArrayLike, heldout: Heldout | None) -> Subject:
    held = None
    if heldout is not None:
        if heldout.logits is None:
            raise BadInput("the held-out rows of a black box need its logits")
        held = (heldout.features, _labels(heldout.labels), heldout.logits)
    return black_box_subject((features, _labels(labels), logits), held)


def white_box(
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
        read_by_net = part_features if part_inputs is None else part_inputs
        return as_inputs(read_by_net, base.device), _labels(part_labels)

    return network_subject(
        base,
        read(inputs, features, labels),
        None if heldout is None else read(heldout.inputs, heldout.features, heldout.labels),
        features_from or (features, None if heldout is None else heldout.features),
    )


def whole_box(
    base: NetworkStack,
    state: PreparedState,
    features: NDArray,
    labels: ArrayLike,
    inputs: NDArray | None,
    features_from: str | None,
    heldout: Heldout | None,
) -> Subject:
    """All of D, for a proxy that is fitted to its rows, with what was prepared of it."""
    subject = white_box(base, features, labels, inputs, features_from, heldout)
    state.check_features(subject.seen_by_proxies, None if features_from else subject.train.features.shape[1:])
    problem = replace(subject.problem, prepared=state.of_data)
    return replace(subject, problem=problem, known=(state.base_sha256, state.data_sha256))


def prepared_box(
    base: NetworkStack,
    state: PreparedState,
    features: NDArray,
    labels: ArrayLike,
    inputs: NDArray | None,
    features_from: str | None,
    heldout: Heldout | None,
    forget: NDArray[np.bool_],
) -> Subject:
    """The records, a few retained rows and the held-out rows of a prepared state; nothing here reads all of D."""
    given, counts = features if inputs is None else inputs, np.asarray(state.document["data"]["class_counts"])
    read_all = partial(as_inputs, given, base.device)
    seen = features if features_from is None else None
    whole = Problem(Rows(np.asarray(labels), seen, read_all), None, len(counts), state.of_data, counts)
    source = None if features_from is None else LayerFeatures.of(base, features_from, as_inputs(given[:2], base.device))
    state.check_features("given" if source is None else str(source), None if seen is None else seen.shape[1:])
    held = None
    if heldout is not None and state.log_heldout:
        rows = state.heldout_rows
        held_seen = heldout.features[rows]
        held_given = heldout.features if heldout.inputs is None else heldout.inputs
        held_inputs = as_inputs(held_seen if held_given is heldout.features else held_given[rows], base.device)
        if source is not None:
            held_seen = source(base, held_inputs)
        held = Rows(np.asarray(heldout.labels)[rows].astype(np.int64), held_seen, lambda: held_inputs)
    part, _ = whole.part(forget, RETAINED_LOOKED_AT)
    at_hand = part.train.features if given is features else None
    read = as_inputs(given[part.train.number] if at_hand is None else at_hand, base.device)
    seen = part.train.features if source is None else source(base, read)
    train = replace(part.train, labels=part.train.labels.astype(np.int64), features=seen, load_inputs=lambda: read)
    problem = replace(part, train=train, heldout=held)
    logits = base.logits(0, train.inputs).double().cpu().numpy()
    held_points = None if held is None else Points(held.seen, state.log_heldout["base"].astype(np.float64))
    known = (state.base_sha256, state.data_sha256)
    return Subject(problem, problem.training_points(logits), held_points, base, source, whole, known)


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
