"""``forget``: one deletion request, from a model and a list of records to an unlearned model and its certificate.

A request is opened (model, data, records and ledger, checked against each other), planned (every proxy weighed, one chosen),
carried out (its target written into the network, and measured), certified, and entered into the ledger.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from unlearn_core.auto import AUTO, DEFAULT_BUDGET
from unlearn_core.errors import BadInput
from unlearn_core.finalize import LogitProcessor
from unlearn_core.forgetting.certificate import Certificate
from unlearn_core.forgetting.content import Outcome, make_certificate
from unlearn_core.forgetting.ledger import WAIT, HeldLedger, Ledger, hold_ledger
from unlearn_core.forgetting.measure import (
    RetrainSettings,
    check_by_retraining,
)
from unlearn_core.forgetting.model_files import LoadedModel
from unlearn_core.forgetting.open_request import OpenRequest, open_request
from unlearn_core.forgetting.opening import Heldout, Model
from unlearn_core.forgetting.plan import ForgetSettings, Plan
from unlearn_core.forgetting.request import RecordList
from unlearn_core.forgetting.shadows import AuditSettings, audit_request, can_be_audited
from unlearn_core.forgetting.state import PreparedState
from unlearn_core.methods import Family
from unlearn_core.nets.module import ModuleStack
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.recipes import Stopping


class Observer:
    """Hears how a request goes; a command line overrides these to say it."""

    def waiting(self, text: str) -> None: ...
    def opened(self, request: OpenRequest) -> None: ...
    def planned(self, plan: Plan) -> None: ...
    def carried_out(self, outcome: Outcome) -> None: ...
    def prepared(self, seconds: Mapping[str, float]) -> None: ...
    def retraining(self, settings: RetrainSettings) -> None: ...
    def auditing(self, settings: AuditSettings, unlearning: float | None = None) -> None: ...
    def shadows_done(self, n_done: int, of: int) -> None: ...
    def audited(self, outcome: Outcome) -> None: ...


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
        withheld: why nothing was delivered or entered into the ledger: it was not unlearned. ``model`` is what was made.
    """

    model: Any
    certificate: Certificate
    logit_processor: LogitProcessor | None
    outcome: Outcome
    deployed: NetworkStack | None
    ledger: Ledger | None
    withheld: str | None = None


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
    budget: float = DEFAULT_BUDGET,
    ledger: str | Path | HeldLedger | None = None,
    ledger_key: Path | None = None,
    trust_ledger: bool = False,
    max_drop: float = math.inf,
    force: bool = False,
    retrain: RetrainSettings | None = None,
    audit: AuditSettings | None = None,
    prepared: PreparedState | str | Path | None = None,
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
        proxy: ``auto``, or a method by name: a proxy, ``newton``, ``truncate`` or ``short``. With a prepared state ``auto``
            goes by what kind of request it is, without one it weighs proxies; ``dir`` and ``dir-2c`` are never chosen, they
            model nothing.
        finalizer: ``kl`` (distil), ``mse`` (least squares into the last layer) or ``none`` (a logit processor).
        ids: (N,) the records' own names.
        inputs: what the model reads if that is not the features; uint8 images (N, H, W, 3) reach a module as floats
            (B, 3, H, W) in [0, 1].
        features_from: a layer of the model whose output proxies see, or ``penultimate``.
        cap: the largest eta; None: the method's own, the paper's 1 for the paper's proxies; ``math.inf`` for no limit.
        stopping: when the distillation ends.
        lr: of the distillation; by default 1e-3, 1e-4, 1e-5 are tried while each improves.
        batch_size: of the distillation; by default by the request's size.
        budget: the share of a retrain's cost within which ``auto`` chooses on a prepared state.
        ledger: a folder that remembers earlier requests on this model. It is held until the request is in it: another one
            waits, for at most ten minutes; a ``HeldLedger`` is held by the caller.
        ledger_key: the private key (PEM) that signs the ledger's entry.
        trust_ledger: sign on top of entries that are not signed by this key.
        max_drop: refuse a model that loses more points of retained accuracy; if it was trained anew, of accuracy on held-out
            rows of the classes that are left.
        force: deliver it though it was not unlearned; a ledger does not take it all the same.
        retrain: also retrain from scratch and certify the distance; needs a model that can be built anew.
        audit: also train shadows, unlearn them in the same way, and certify what attacks find. It needs a
            model that can be built anew, and takes about two trainings for each shadow.
        prepared: what ``prepare`` made of this model and these data, or its folder. The request then reads its own rows and
            a few others: features, labels and inputs may be memory maps of any length, and are not checked again. A proxy
            that is fitted to rows of D (``probe``, ``fresh``) reads them all; the first fit is the state's.
        observer: hears how it goes.
        deliver: writes the results; called before the ledger is told, so that a failed write leaves the ledger as it was. If
            they are not to be seen before they count, put them in place once ``forget`` has returned.

    Examples:
        Of a black box that gives logits, forget the zeros; what comes back shifts its answers.

        >>> import numpy as np
        >>> from sklearn.linear_model import LogisticRegression
        >>> from unlearn_core.data import load_dataset
        >>> x, y = load_dataset("digits").train_x, load_dataset("digits").train_y
        >>> logits = LogisticRegression(max_iter=1000).fit(x, y).decision_function(x)
        >>> result = forget(logits, x, y, np.flatnonzero(y == 0), finalizer="none")
        >>> result.certificate.content["outcome"], result.certificate.content["accuracy"]["after"]["forgotten"]
        ('unlearned', 0.0)
        >>> shifted = result.logit_processor(logits, x)
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
        budget=budget,
        stopping=stopping or Stopping(),
    )
    if audit is not None:
        audit.check(settings)
    hear = observer or Observer()
    with contextlib.ExitStack() as held:
        if ledger is not None and not isinstance(ledger, HeldLedger):
            ledger = held.enter_context(hold_ledger(Path(ledger), WAIT, hear.waiting))
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
            ledger=None if ledger is None else ledger.folder,
            prepared=prepared,
            method=proxy,
        )
        if request.ledger is not None:
            request.ledger.check_signer(ledger_key, trust_ledger)
        if request.blueprint is None and (retrain is not None or audit is not None):
            needs = "a retrain" if audit is None else "an audit"
            raise BadInput(f"{needs} needs a model that can be built anew: an architecture by name, or a function")
        return _answer(request, model, settings, hear, max_drop, force, retrain, audit, deliver, ledger_key)


def _answer(
    request: OpenRequest,
    model: Model,
    settings: ForgetSettings,
    hear: Observer,
    max_drop: float,
    force: bool,
    retrain: RetrainSettings | None,
    audit: AuditSettings | None,
    deliver: Deliver | None,
    ledger_key: Path | None,
) -> Forgotten:
    """Carry out an open request, certify it, deliver it, enter it into the ledger."""
    hear.opened(request)
    plan = request.plan(settings)
    hear.planned(plan)
    outcome = request.carry_out(plan)
    hear.carried_out(outcome)
    if made := request.prepared_for_it:
        hear.prepared(made)
    withheld = _why_withheld(outcome, force, request.ledger)
    where, drop = _drop(outcome)
    if withheld is None and drop > max_drop:
        raise BadInput(
            f"{where} accuracy fell by {drop:.2f} points, beyond --max-drop {max_drop:g}; try another "
            "--method or --finalizer, or write the model all the same with --force"
        )
    if retrain is not None and request.blueprint is not None and withheld is None:
        hear.retraining(retrain)
        retrained = check_by_retraining(plan, outcome.posteriors, request.blueprint, retrain)
        outcome = replace(outcome, retrained=retrained)
    if audit is not None and withheld is None:
        if can_be_audited(request, outcome):
            hear.auditing(audit, None if outcome.finalized is None else outcome.finalized.seconds)
            outcome = replace(outcome, audit=audit_request(request, outcome, audit, hear.shadows_done))
        hear.audited(outcome)
    certificate = make_certificate(outcome, request.described, request.ledger.history() if request.ledger else ())
    deployed = outcome.deployed(request.last)
    result = Forgotten(
        _like(model, deployed, unchanged=outcome.net is None and request.last is None),
        certificate,
        plan.logit_processor,
        outcome,
        deployed,
        request.ledger,
        withheld,
    )
    if withheld is not None:
        return result
    if deliver is not None:
        result = replace(result, certificate=deliver(result))
    if request.ledger is None:
        return result
    return replace(result, ledger=request.record(outcome, result.certificate, ledger_key))


def _drop(outcome: Outcome) -> tuple[str, float]:
    """Where accuracy counts, and the points that were lost there.

    What is trained anew for a short while does not know single training rows by heart any more, which is no damage: it
    counts by what it says of rows that nobody trained on.
    """
    measured = outcome.measured
    if outcome.plan.family is Family.BASELINE and measured.drop_elsewhere is not None:
        return "held-out", measured.drop_elsewhere
    return "retained", measured.drop


def _why_withheld(outcome: Outcome, force: bool, ledger: Ledger | None) -> str | None:
    """None if the results may be written; with a ledger they may not be, which would count the records as forgotten."""
    if not outcome.judgement.failed or (force and ledger is None):
        return None
    remedy = "try another --method or --finalizer, or more --epochs"
    if ledger is not None:
        return f"{outcome.judgement.why}; a ledger takes only what was unlearned: {remedy}"
    return f"{outcome.judgement.why}; {remedy}, or write it all the same with --force"


def _like(model: Model, net: NetworkStack | None, unchanged: bool) -> nn.Module | NetworkStack | None:
    """The network in the shape that was given; the very object if nothing moved."""
    if isinstance(model, np.ndarray) or net is None:
        return None
    if isinstance(model, LoadedModel):
        return model.net if unchanged else net
    if unchanged:
        return model
    return net.module if isinstance(net, ModuleStack) else net
