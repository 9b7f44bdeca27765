"""``forget``: one deletion request, from a model and a list of records to an unlearned model and its certificate.

A request is opened (model, data, records and ledger, checked against each other), planned (every proxy weighed, one chosen),
carried out (its target written into the network, and measured), certified, and entered into the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from unlearn_core import methods
from unlearn_core.auto import AUTO, Choice
from unlearn_core.clock import Stopwatch
from unlearn_core.closeness import (
    HeldoutPosteriors,
    RequestKind,
    Verdict,
    Witnesses,
    class_weights,
    estimate_network,
    kind_of_request,
)
from unlearn_core.crossfit import CrossFit
from unlearn_core.edits.request import EditRequest
from unlearn_core.errors import BadInput
from unlearn_core.finalize import Finalized, Lesson, LogitProcessor, distil_until_done, least_squares
from unlearn_core.forgetting.certificate import Certificate, state_sha256
from unlearn_core.forgetting.content import Described, Outcome, Predicted, make_certificate
from unlearn_core.forgetting.ledger import Entry, Identity, Ledger
from unlearn_core.forgetting.measure import (
    Posteriors,
    RetrainSettings,
    base_posteriors,
    check_by_retraining,
    measure,
    network_posteriors,
    target_posteriors,
)
from unlearn_core.forgetting.model_files import LoadedModel
from unlearn_core.forgetting.opening import Heldout, Model, OpenModel, black_box, open_model, prepared_box, white_box
from unlearn_core.forgetting.plan import ForgetSettings, Plan, make_plan
from unlearn_core.forgetting.request import NewRows, RecordList, new_rows
from unlearn_core.forgetting.state import PreparedState, open_state
from unlearn_core.forgetting.subject import Subject
from unlearn_core.methods import Family
from unlearn_core.nets.make import Blueprint, with_state
from unlearn_core.nets.module import ModuleStack
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.preparations import CROSSFIT, MOMENTS, Given, Kept
from unlearn_core.proxies.statistics import Moments, compute_moments
from unlearn_core.recipes import Stopping
from unlearn_core.seeding import derive_seed
from unlearn_core.training import Member, train

LEAST_STEPS = 400
"""Steps that a retrain cut short should make, in as many epochs as a whole one has at most."""


class Observer:
    """Hears how a request goes; a command line overrides these to say it."""

    def opened(self, request: OpenRequest) -> None: ...
    def planned(self, plan: Plan) -> None: ...
    def carried_out(self, outcome: Outcome) -> None: ...
    def prepared(self, seconds: Mapping[str, float]) -> None: ...
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
        ledger: a folder that remembers earlier requests on this model.
        max_drop: refuse a model that loses more points of retained accuracy.
        retrain: also retrain from scratch and certify the distance; needs a model that can be built anew.
        prepared: what ``prepare`` made of this model and these data, or its folder. The request then reads its own rows and
            a few others: features, labels and inputs may be memory maps of any length, and are not checked again.
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
        prepared=prepared,
    )
    hear.opened(request)
    plan = request.plan(settings)
    hear.planned(plan)
    outcome = request.carry_out(plan)
    hear.carried_out(outcome)
    if made := request.prepared_for_it:
        hear.prepared(made)
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
        opened: the network as it was given; None for a black box.
        round_to_file: the network as its file will hold it, so that what is measured is what is written.
    """

    subject: Subject
    rows: NewRows
    described: Described
    ledger: Ledger | None
    identity: Identity
    last: NetworkStack | None
    opened: OpenModel | None
    round_to_file: Callable[[NetworkStack], NetworkStack]
    state: PreparedState | None = None
    of_network: Kept = field(default_factory=Kept)
    """What was prepared of the base, before the request or for it."""

    @property
    def prepared_for_it(self) -> dict[str, float]:
        """What had to be computed that a prepared state would have held, and the seconds that it took."""
        if self.state is not None:
            return {}
        return {**self.subject.problem.prepared.seconds, **self.of_network.seconds}

    @property
    def forget(self) -> NDArray[np.bool_]:
        """The rows of the subject's that are forgotten now."""
        return self.rows.mask[self.subject.problem.train.number]

    @property
    def blueprint(self) -> Blueprint | None:
        return None if self.opened is None else self.opened.blueprint

    @property
    def arch(self) -> str | None:
        """What fold models are shaped like; on a prepared state, what they were."""
        if self.state is not None:
            return self.state.arch
        return None if self.opened is None else self.opened.arch

    def plan(self, settings: ForgetSettings) -> Plan:
        """Choose a method; with a ledger, only the new rows are subtracted from its moments."""
        forgotten = None if self.ledger is None else self._forgotten_moments()
        if not len(self.rows.new):
            reason = f"all {len(self.rows.already)} records were forgotten by earlier requests"
            return Plan(self.subject, self.forget, settings, (), (), Choice(None, reason), None)
        verdict, can_train_anew = self._verdict(settings), self.blueprint is not None
        return make_plan(self.subject, self.forget, settings, forgotten, self.arch, verdict, can_train_anew)

    def _verdict(self, settings: ForgetSettings) -> Verdict | None:
        """What kind of request it is; only a prepared state can tell."""
        if self.state is None:
            return None
        problem, state = self.subject.problem, self.state
        rows = np.flatnonzero(self.forget)
        crossfit: CrossFit = problem.prepare(CROSSFIT, self.arch)
        log_q = np.asarray(crossfit.log_q[problem.train.number[rows]], dtype=np.float64)
        view = state.heldout
        labels = problem.train.labels[rows]
        nothing = np.zeros(len(rows))
        seen, heldout = Witnesses(labels, nothing, nothing, nothing[:, None]), None
        if view is not None:
            seen, heldout = view.see(log_q, labels, problem.train.seen[rows]), view.witnesses
        return kind_of_request(seen, problem.class_counts, heldout, len(crossfit.weights), settings.seed)

    def _forgotten_moments(self) -> Moments:
        problem = self.subject.problem  # all of D, or a part that holds every row that is forgotten
        new = np.isin(problem.train.number, self.rows.new)
        total, forgotten = self.ledger.moments() if self.ledger else (None, None)
        if total is not None:
            problem.prepared.values[MOMENTS] = total
        if new.any() or forgotten is None:
            train = problem.train
            rows = compute_moments(train.seen[new], train.labels[new], problem.n_classes, problem.moments.reference)
            forgotten = rows if forgotten is None else forgotten + rows
        return forgotten

    def carry_out(self, plan: Plan) -> Outcome:
        """Write the target into the network and measure what came of it."""
        start = self.subject.net if self.last is None else self.last
        finalized = None if plan.choice.method is None else self._finalize(plan, start)
        net = None if finalized is None or finalized.net is None else self.round_to_file(finalized.net)
        if finalized is not None and plan.settings.finalizer == "none":
            posteriors = target_posteriors(plan)
        elif net is not None or start is not None:
            posteriors = network_posteriors(self.subject, net or start)  # pyright: ignore[reportArgumentType]
        else:
            posteriors = base_posteriors(self.subject)
        predicted = self._predict(plan, posteriors)
        kept = plan.settings.proxy != AUTO or predicted is None or not predicted.is_worse
        if not kept and finalized is not None and net is not None and start is not None:
            finalized = replace(finalized, net=None, ended=_away_from_a_retrain(predicted))
            net, posteriors = None, network_posteriors(self.subject, start)
            predicted = self._predict(plan, posteriors)
        from_base = self.last is None or plan.settings.finalizer != "kl" or plan.family is not Family.PROXY
        named = "base" if from_base else "the model of the last request"
        start_state = None if self.state is None else self.state.entry()
        return Outcome(
            plan,
            named,
            finalized,
            posteriors,
            measure(plan, posteriors),
            net,
            closeness=predicted,
            prepared=start_state,
        )

    def _predict(self, plan: Plan, unlearned: Posteriors) -> Predicted | None:
        """How close to a retrain the base was on the records and the new network is; only if they are like held-out rows."""
        state, verdict = self.state, plan.verdict
        if state is None or verdict is None:
            return None
        if verdict.kind is not RequestKind.EXCHANGEABLE or state.heldout is None:
            needed = "a retrain (--verify-retrain)" if state.heldout is not None else "held-out rows"
            return Predicted(f"no estimate: the request is {verdict.kind} ({verdict.why}); it would take {needed}")
        problem, rows = self.subject.problem, plan.forget
        crossfit: CrossFit = problem.prepare(CROSSFIT, self.arch)
        log_q = np.asarray(crossfit.log_q[problem.train.number[rows]])
        labels, held_labels = problem.train.labels[rows], state.heldout_labels
        weights = class_weights(labels, held_labels) if verdict.within_classes else None
        heldout = HeldoutPosteriors(state.log_heldout["base"], state.log_heldout["folds"], held_labels, weights)
        taught = plan.choice.method == CROSSFIT  # fold models cannot judge their own pupil
        before, after = (
            estimate_network(log_q, log_net[rows], labels, heldout, pupil, plan.settings.seed)
            for log_net, pupil in ((self.subject.train.log_base, False), (unlearned.train, taught))
        )
        return Predicted(verdict.why, before, after)

    def _finalize(self, plan: Plan, start: NetworkStack | None) -> Finalized:
        finalizer, base, rows = plan.settings.finalizer, self.subject.net, self.subject.problem.train
        if plan.family is Family.EDIT:
            return self._edit(plan)
        if plan.family is Family.BASELINE:
            return self._train_anew(plan)
        if plan.target is None:
            raise ValueError("there is nothing to unlearn")
        if finalizer == "none":
            return Finalized(None, "the logit processor does it at inference")
        if start is None or base is None or self.opened is None:
            raise BadInput(
                f"the finalizer {finalizer} needs the network's weights; a black box takes the finalizer none"
            )
        if finalizer == "mse":  # the shift is one of the base's logits, so it is added to the base's last layer
            return Finalized(least_squares(base, 0, rows.inputs, plan.target), "closed form")
        lesson = Lesson(plan.settings.seed, plan.forget, plan.target.log_target)
        return distil_until_done(start, rows, lesson, *plan.settings.distillation(self.opened.optimization))

    def _edit(self, plan: Plan) -> Finalized:
        """Change the base's weights in one step, for all rows that are forgotten by now."""
        line, net, problem = methods.find(plan.choice.method or ""), self.subject.net, self.subject.problem
        if net is None or line.family is not Family.EDIT:
            raise BadInput(f"{line.name} needs the network's weights; a black box takes a proxy and the finalizer none")
        watch = Stopwatch(net.device)
        start = None
        if line.prepares is not None:
            start = self.of_network.get(line.prepares, Given(self.subject.all_rows, self.arch, net))
        with watch.running():
            edited = line.edit(EditRequest(problem, plan.forget, net, 0, start), line.constants)
        without = "it has no answer to this request; another --method may have one"
        ended = without if edited is None else "in one step, without training"
        return Finalized(edited, ended, seconds=watch.seconds)

    def _train_anew(self, plan: Plan) -> Finalized:
        """Train on what is left, from fresh weights and not for long: it reads all of D."""
        line, net, rows = methods.find(plan.choice.method or ""), self.subject.net, self.subject.all_rows.train
        if net is None or line.family is not Family.BASELINE:
            raise BadInput(f"{line.name} needs the network's weights; a black box takes a proxy and the finalizer none")
        if self.blueprint is None:
            raise BadInput(
                f"{line.name} starts from fresh weights, and this network cannot be built anew; name its architecture or "
                "the function that builds it, or choose a proxy"
            )
        recipe, (how, longest) = line.presets["paper"], self.blueprint.training
        steps = math.ceil((len(rows) - plan.n_forget) / how.batch_size)
        epochs = min(max(recipe.epochs, math.ceil(LEAST_STEPS / steps)), longest)
        recipe = replace(recipe, phases=(replace(recipe.phases[0], epochs=epochs),), record_at=())
        fresh = self.blueprint.fresh(net, rows.inputs[:2], derive_seed(plan.settings.seed, line.name, "weights"))
        member = Member(plan.settings.seed, "unlearn", rows.label_tensor, torch.from_numpy(plan.forget_of_all))
        seconds = train(fresh, rows.inputs, [member], recipe, replace(how, lr=recipe.rate * how.lr))
        fresh.use_batch_statistics(False)
        return Finalized(fresh, f"{epochs} epochs on what is left, from fresh weights", seconds=seconds)

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
    prepared: PreparedState | str | Path | None = None,
) -> OpenRequest:
    """Read what ``forget`` is given, and refuse what does not fit together."""
    state = open_state(Path(prepared)) if isinstance(prepared, str | Path) else prepared
    if not isinstance(forget_ids, RecordList):
        names = tuple(str(name) for name in np.asarray(forget_ids).ravel().tolist())
        forget_ids = RecordList("the request", names)
    book = None if ledger is None else Ledger.open(Path(ledger))
    n_rows, before = len(np.asarray(labels)), book.forgotten if book else ()
    if state is not None:
        state.check_rows(n_rows)
    rows = new_rows(forget_ids, n_rows, ids, before, None if state is None else state.ids_order)
    last, opened = None, None
    if isinstance(model, np.ndarray):
        if state is not None:
            raise BadInput("a prepared state is of a network; of a black box only logits are known")
        subject = black_box(model, features, labels, heldout)
    else:
        opened = open_model(model, features if inputs is None else inputs)
        base, last = _base_and_last(book, opened.net)
        if state is None:
            subject = white_box(base, features, labels, inputs, features_from, heldout)
        else:
            state.check_model(state_sha256(base.state(0)))
            state.check_removed(len(before), n_rows)
            subject = prepared_box(base, state, features, labels, inputs, features_from, heldout, rows.mask)
    identity = Identity.of(subject)
    if book is not None:
        book.check(identity)
    described = Described("black box" if opened is None else opened.kind, rows, class_names)
    round_to_file = model.as_stored if isinstance(model, LoadedModel) else lambda net: net
    of_network = Kept() if state is None else state.of_network
    return OpenRequest(subject, rows, described, book, identity, last, opened, round_to_file, state, of_network)


def _base_and_last(ledger: Ledger | None, given: NetworkStack) -> tuple[NetworkStack, NetworkStack | None]:
    """The base, and what the last request left of it if there was one. The given network must be either of the two."""
    if ledger is None or not ledger.exists:
        return given, None
    ledger.check_model(given.state(0))
    base, last = ledger.base_state(), ledger.last_state()
    if base is None or last is None:
        return given, None
    return with_state(given, base), with_state(given, last)


def _away_from_a_retrain(predicted: Predicted | None) -> str:
    """Why a network that was made is not kept."""
    if predicted is None or predicted.before is None or predicted.after is None:
        raise ValueError("there is no estimate")
    return (
        f"not kept, for it goes away from a retrain: by estimate from at most {predicted.before.high:.3g} to at least "
        f"{predicted.after.low:.3g} nats on the records; another --method may come closer"
    )


def _like(model: Model, net: NetworkStack | None, unchanged: bool) -> nn.Module | NetworkStack | None:
    """The network in the shape that was given; the very object if nothing moved."""
    if isinstance(model, np.ndarray) or net is None:
        return None
    if isinstance(model, LoadedModel):
        return model.net if unchanged else net
    if unchanged:
        return model
    return net.module if isinstance(net, ModuleStack) else net
