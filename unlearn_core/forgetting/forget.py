"""``forget``: one deletion request, from a model and a list of records to an unlearned model and its certificate.

A request is opened (model, data, records and ledger, checked against each other), planned (every proxy weighed, one chosen),
carried out (its target written into the network, and measured), certified, and entered into the ledger.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from unlearn_core.auto import AUTO, Choice
from unlearn_core.errors import BadInput
from unlearn_core.finalize import Finalized, Lesson, LogitProcessor, distil_until_done, least_squares
from unlearn_core.forgetting.certificate import Certificate, state_sha256
from unlearn_core.forgetting.content import Described, Outcome, make_certificate
from unlearn_core.forgetting.ledger import Entry, Identity, Ledger
from unlearn_core.forgetting.measure import (
    RetrainSettings,
    base_posteriors,
    check_by_retraining,
    measure,
    network_posteriors,
    target_posteriors,
)
from unlearn_core.forgetting.model_files import LoadedModel
from unlearn_core.forgetting.plan import ForgetSettings, Plan, make_plan
from unlearn_core.forgetting.request import NewRows, RecordList, new_rows
from unlearn_core.forgetting.subject import Labels, Subject, black_box_subject, network_subject
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.make import MODULE_UNLEARNING, Blueprint, with_state
from unlearn_core.nets.module import ModuleStack
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.problem import as_inputs
from unlearn_core.proxies.statistics import Moments, compute_moments
from unlearn_core.recipes import HEAD_UNLEARNING, Optimization, Stopping

Model = nn.Module | NetworkStack | LoadedModel | NDArray[np.floating]


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


class Observer:
    """Hears how a request goes; a command line overrides these to say it."""

    def opened(self, request: OpenRequest) -> None: ...
    def planned(self, plan: Plan) -> None: ...
    def carried_out(self, outcome: Outcome) -> None: ...
    def retraining(self, settings: RetrainSettings) -> None: ...


@dataclass(frozen=True, eq=False)
class Forgotten:
    """What came of a request.

    Attributes:
        model: of the kind that was given, unlearned. If there was nothing to unlearn, or with the finalizer ``none``, it
            says what it said before; None for a black box.
        logit_processor: base logits and features in, unlearned log probabilities out. If ``auto`` chose a proxy that
            speaks of training points only, it is of the one that a black box would get. None if there was nothing to
            unlearn, or a proxy of training points was asked for by name.
        deployed: the network to use from now on; None for a black box.
        ledger: as it stands afterwards; None without one.
    """

    model: Any
    certificate: Certificate
    logit_processor: LogitProcessor | None
    outcome: Outcome
    deployed: NetworkStack | None
    ledger: Ledger | None


Deliver = Callable[[Forgotten], Certificate]
"""Puts results where they belong and returns the certificate as written, with its files and signature."""


def forget(
    model: Model,
    features: NDArray,
    labels: ArrayLike,
    forget_ids: Sequence[int | str] | NDArray | RecordList,
    proxy: str = AUTO,
    finalizer: str = "kl",
    *,
    ids: NDArray | None = None,
    inputs: NDArray | None = None,
    features_from: str | None = None,
    heldout: Heldout | None = None,
    class_names: Sequence[str] = (),
    ridge: float = 1e-3,
    shrinkage: str = "ridge",
    cap: float | None = None,
    seed: int = 0,
    stopping: Stopping | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    ledger: str | Path | None = None,
    max_drop: float = math.inf,
    retrain: RetrainSettings | None = None,
    observer: Observer | None = None,
    deliver: Deliver | None = None,
) -> Forgotten:
    """Unlearn some training records. Returns an unlearned copy; the given model is not modified.

    Args:
        model: a module whose output is its logits, one of our networks, a model read from files, or the (N, C) logits of a
            black box, which takes the finalizer ``none``.
        features: (N, d) what proxies see; with ``features_from``, what the model reads.
        labels: (N,) in 0..C-1, what the model was trained to say.
        forget_ids: records, named as in ``ids``; without ``ids``, row numbers.
        proxy: ``auto``, or one by name; ``dir`` and ``dir-2c`` are never chosen, they model nothing.
        finalizer: ``kl`` (distil), ``mse`` (least squares into the last layer) or ``none`` (a logit processor).
        ids: (N,) the records' own names.
        inputs: what the model reads if that is not the features; uint8 images (N, H, W, 3) reach a module as floats
            (B, 3, H, W) in [0, 1].
        features_from: a layer of the model whose output proxies see, or ``penultimate``.
        cap: the largest eta; None: the method's own, the paper's 1 for the paper's proxies; ``math.inf`` for no limit.
        stopping: when the distillation ends.
        lr: of the distillation; by default 1e-3, 1e-4, 1e-5 are tried while each improves.
        batch_size: of the distillation; by default by the request's size.
        ledger: a folder that remembers earlier requests on this model.
        max_drop: refuse a model that loses more points of retained accuracy.
        retrain: also retrain from scratch and certify the distance; needs a model that can be built anew.
        observer: hears how it goes.
        deliver: writes the results; called before the ledger is told, so that a failed write leaves the ledger as it was.
    """
    settings = ForgetSettings(
        ridge=ridge,
        shrinkage=shrinkage,
        cap=cap,
        finalizer=finalizer,
        proxy=proxy,
        seed=seed,
        lr=lr,
        batch_size=batch_size,
        stopping=stopping or Stopping(),
    )
    hear = observer or Observer()
    request = open_request(
        model,
        features,
        labels,
        forget_ids,
        ids=ids,
        inputs=inputs,
        features_from=features_from,
        heldout=heldout,
        class_names=class_names,
        ledger=ledger,
    )
    hear.opened(request)
    plan = request.plan(settings)
    hear.planned(plan)
    outcome = request.carry_out(plan)
    hear.carried_out(outcome)
    if outcome.measured.drop > max_drop:
        raise BadInput(
            f"retained accuracy fell by {outcome.measured.drop:.2f} points, beyond --max-drop {max_drop:g}; try another "
            "--proxy or --finalizer, or write the model all the same with --force"
        )
    if retrain is not None:
        if request.blueprint is None:
            raise BadInput("a retrain needs a model that can be built anew: an architecture by name, or a function")
        hear.retraining(retrain)
        retrained = check_by_retraining(plan, outcome.posteriors, request.blueprint, retrain)
        outcome = replace(outcome, retrained=retrained)
    certificate = make_certificate(outcome, request.described, request.ledger.history() if request.ledger else ())
    deployed = outcome.deployed(request.last)
    result = Forgotten(
        _like(model, deployed, unchanged=outcome.net is None and request.last is None),
        certificate,
        plan.logit_processor,
        outcome,
        deployed,
        request.ledger,
    )
    if deliver is not None:
        result = replace(result, certificate=deliver(result))
    if request.ledger is None:
        return result
    return replace(result, ledger=request.record(outcome, result.certificate))


@dataclass(frozen=True, eq=False)
class OpenRequest:
    """Model, data, records and ledger, checked against each other.

    Attributes:
        last: what earlier requests made of the base; None if there were none.
        blueprint: how to build the network anew; None if nobody knows.
        optimization: of a distillation, unless the settings say another.
        round_to_file: the network as its file will hold it, so that what is measured is what is written.
    """

    subject: Subject
    rows: NewRows
    described: Described
    ledger: Ledger | None
    identity: Identity
    last: NetworkStack | None
    blueprint: Blueprint | None
    optimization: Optimization
    round_to_file: Callable[[NetworkStack], NetworkStack]

    def plan(self, settings: ForgetSettings) -> Plan:
        """Weigh the proxies and choose one; with a ledger, only the new rows are subtracted from its moments."""
        if self.ledger is None:
            return make_plan(self.subject, self.rows.mask, settings)
        plan = make_plan(self.subject, self.rows.mask, settings, self._forgotten_moments())
        if len(self.rows.new):
            return plan
        reason = f"all {len(self.rows.already)} records were forgotten by earlier requests"
        return replace(plan, choice=Choice(None, reason), target=None)

    def _forgotten_moments(self) -> Moments:
        problem, new = self.subject.problem, self.rows.new
        total, forgotten = self.ledger.moments() if self.ledger else (None, None)
        if total is not None:
            problem.prepared["moments"] = total
        if len(new) or forgotten is None:
            train = problem.train
            rows = compute_moments(train.seen[new], train.labels[new], problem.n_classes, problem.moments.reference)
            forgotten = rows if forgotten is None else forgotten + rows
        return forgotten

    def carry_out(self, plan: Plan) -> Outcome:
        """Write the target into the network and measure what came of it."""
        start = self.subject.net if self.last is None else self.last
        finalized = None if plan.target is None else self._finalize(plan, start)
        net = None if finalized is None or finalized.net is None else self.round_to_file(finalized.net)
        if finalized is not None and plan.settings.finalizer == "none":
            posteriors = target_posteriors(plan)
        elif net is not None or start is not None:
            posteriors = network_posteriors(self.subject, net or start)  # pyright: ignore[reportArgumentType]
        else:
            posteriors = base_posteriors(self.subject)
        from_base = self.last is None or plan.settings.finalizer != "kl"
        named = "base" if from_base else "the model of the last request"
        return Outcome(plan, named, finalized, posteriors, measure(plan, posteriors), net)

    def _finalize(self, plan: Plan, start: NetworkStack | None) -> Finalized:
        finalizer, base, rows = plan.settings.finalizer, self.subject.net, self.subject.problem.train
        if plan.target is None:
            raise ValueError("there is nothing to unlearn")
        if finalizer == "none":
            return Finalized(None, "the logit processor does it at inference")
        if start is None or base is None:
            raise BadInput(
                f"the finalizer {finalizer} needs the network's weights; a black box takes the finalizer none"
            )
        if finalizer == "mse":  # the shift is one of the base's logits, so it is added to the base's last layer
            return Finalized(least_squares(base, 0, rows.inputs, plan.target), "closed form")
        lesson = Lesson(plan.settings.seed, plan.forget, plan.target.log_target)
        return distil_until_done(start, rows, lesson, *plan.settings.distillation(self.optimization))

    def record(self, outcome: Outcome, certificate: Certificate) -> Ledger:
        """Enter the request into the ledger, once its results are where they belong."""
        if self.ledger is None:
            raise ValueError("there is no ledger")
        plan, base, left = outcome.plan, self.subject.net, outcome.deployed(self.last)
        left_state = None if left is None else left.state(0)
        entry = Entry(
            number=len(self.ledger.entries) + 1,
            time=certificate.content["made"]["time"],
            outcome=certificate.content["outcome"],
            n_asked=len(self.rows.asked.rows),
            n_new=len(self.rows.new),
            n_forget=plan.n_forget,
            proxy=plan.choice.method,
            eta_max=certificate.content["proxy"]["eta_max"],
            finalizer=plan.settings.finalizer,
            model_sha256=None if left_state is None else state_sha256(left_state),
            certificate=certificate.digest,
        )
        return self.ledger.append(
            self.identity,
            entry,
            np.flatnonzero(self.rows.mask).tolist(),
            (self.subject.problem.moments, self._forgotten_moments()),
            None if base is None else base.state(0),
            left_state,
        )


def open_request(
    model: Model,
    features: NDArray,
    labels: ArrayLike,
    forget_ids: Sequence[int | str] | NDArray | RecordList,
    *,
    ids: NDArray | None = None,
    inputs: NDArray | None = None,
    features_from: str | None = None,
    heldout: Heldout | None = None,
    class_names: Sequence[str] = (),
    ledger: str | Path | None = None,
) -> OpenRequest:
    """Read what ``forget`` is given, and refuse what does not fit together."""
    book = None if ledger is None else Ledger.open(Path(ledger))
    last, blueprint, optimization, round_to_file = None, None, HEAD_UNLEARNING, lambda net: net
    if isinstance(model, np.ndarray):
        kind, subject = "black box", _black_box(model, features, labels, heldout)
    else:
        if isinstance(model, LoadedModel):
            given, kind, blueprint = model.net, model.blueprint.name, model.blueprint
            optimization, round_to_file = blueprint.unlearning, model.as_stored
        else:
            given, kind = _network(model, features if inputs is None else inputs), type(model).__name__
            optimization = HEAD_UNLEARNING if isinstance(given, HeadStack) else MODULE_UNLEARNING
        base, last = _base_and_last(book, given)
        subject = _white_box(base, features, labels, inputs, features_from, heldout)
    identity = Identity.of(subject)
    if book is not None:
        book.check(identity)
    if not isinstance(forget_ids, RecordList):
        names = tuple(str(name) for name in np.asarray(forget_ids).ravel().tolist())
        forget_ids = RecordList("the request", names)
    rows = new_rows(forget_ids, len(subject.labels), ids, book.forgotten if book else ())
    described = Described(kind, rows, class_names)
    return OpenRequest(subject, rows, described, book, identity, last, blueprint, optimization, round_to_file)


def _base_and_last(ledger: Ledger | None, given: NetworkStack) -> tuple[NetworkStack, NetworkStack | None]:
    """The base, and what the last request left of it if there was one. The given network must be either of the two."""
    if ledger is None or not ledger.exists:
        return given, None
    ledger.check_model(given.state(0))
    base, last = ledger.base_state(), ledger.last_state()
    if base is None or last is None:
        return given, None
    return with_state(given, base), with_state(given, last)


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
        read_by_net = part_features if part_inputs is None else part_inputs
        return as_inputs(read_by_net, base.device), _labels(part_labels)

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
    """The network in the shape that was given; the very object if nothing moved."""
    if isinstance(model, np.ndarray) or net is None:
        return None
    if isinstance(model, LoadedModel):
        return model.net if unchanged else net
    if unchanged:
        return model
    return net.module if isinstance(net, ModuleStack) else net
