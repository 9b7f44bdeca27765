"""A request that is open: model, data, records and ledger, checked against each other; planned, carried out, entered.

What is chosen is in ``plan``, what was measured in ``measure``; here is how it is done to the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from unlearn_core import methods
from unlearn_core.assess import Assessment, assess
from unlearn_core.audit.divergence import log_probabilities
from unlearn_core.auto import AUTO, Choice
from unlearn_core.closeness import HeldoutPosteriors, class_weights, estimate_network
from unlearn_core.crossfit import CrossFit
from unlearn_core.edits.flow_path import FLOW, FlowPath
from unlearn_core.errors import BadInput
from unlearn_core.finalize import Finalized, Lesson, distil_until_done, least_squares
from unlearn_core.forgetting.certificate import NOTHING, Certificate, state_sha256
from unlearn_core.forgetting.content import Described, Outcome, Predicted
from unlearn_core.forgetting.judgement import (
    JUDGED_BY_LOSS,
    OF_TRAINING_ON,
    Judgement,
    Progress,
    judge,
    made_nothing,
    nothing_to_unlearn,
    rule_for,
)
from unlearn_core.forgetting.ledger import Entry, Identity, Ledger
from unlearn_core.forgetting.measure import (
    Posteriors,
    base_posteriors,
    compare_losses,
    measure,
    network_posteriors,
    target_posteriors,
)
from unlearn_core.forgetting.model_files import LoadedModel
from unlearn_core.forgetting.new_weights import NO_ANSWER, edit, train_anew
from unlearn_core.forgetting.opening import (
    Heldout,
    Model,
    OpenModel,
    base_and_last,
    black_box,
    open_model,
    prepared_box,
    white_box,
    whole_box,
)
from unlearn_core.forgetting.plan import ForgetSettings, Plan, make_plan
from unlearn_core.forgetting.request import NewRows, RecordList, new_rows
from unlearn_core.forgetting.state import PreparedState, open_state
from unlearn_core.forgetting.subject import Subject
from unlearn_core.grid import RESNETS
from unlearn_core.methods import Family
from unlearn_core.nets.make import Blueprint
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.preparations import CROSSFIT, MOMENTS, YOUNG, Kept
from unlearn_core.proxies.statistics import Moments, compute_moments
from unlearn_core.recipes import HEAD_EPOCHS
from unlearn_core.request_kind import RequestKind
from unlearn_core.within_budget import (
    LINEAR,
    Costs,
    flow_cost,
    hidden_layers,
    least_warm_cost,
    least_young_cost,
    newton_cost,
    newton_crossfit_cost,
)


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
    def new(self) -> NDArray[np.bool_]:
        """Those that no earlier request asked for."""
        return np.isin(self.subject.problem.train.number, self.rows.new)

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
        """Choose a method; with a ledger, from its moments, without reading all of D."""
        forgotten = None if self.ledger is None else self._forgotten_moments
        if not len(self.rows.new):
            reason = f"all {len(self.rows.already)} records were forgotten by earlier requests"
            return Plan(self.subject, self.forget, self.new, settings, (), (), Choice(None, reason), None)
        assessed, can_train_anew = self._assessment(settings), self.blueprint is not None
        n_forget, n_rows = int(self.forget.sum()), self.subject.problem.n_rows
        costs = Costs(
            newton_cost(n_forget, n_rows, self._retrain_epochs),
            newton_crossfit_cost(n_forget, n_rows, self._retrain_epochs),
            self._least_warm_cost(n_rows - n_forget),
            self._path_cost(),
            self._young_cost(n_rows - n_forget),
        )
        return make_plan(
            self.subject,
            self.forget,
            settings,
            forgotten,
            self.arch,
            None if assessed is None else assessed.verdict,
            can_train_anew,
            self.new,
            costs,
            None if assessed is None else assessed.kept,
        )

    @property
    def _retrain_epochs(self) -> int:
        """A head's, if nobody knows how the network was trained."""
        return HEAD_EPOCHS if self.blueprint is None else self.blueprint.training[1]

    def _path_cost(self) -> float | None:
        """What ``flow`` takes of a retrain; None if no path was prepared, or it does not answer this request."""
        if self.state is None:
            return None
        problem = self.subject.problem
        path: FlowPath = problem.prepare(FLOW, self.arch)
        if not path.answers(int(problem.lost_classes(self.forget).sum())):
            return None
        rows_read = path.rows_read(problem.n_rows)
        n_retained = problem.n_rows - int(self.forget.sum())
        return flow_cost(rows_read, problem.n_classes, n_retained, self._retrain_epochs)

    def _young_cost(self, n_retained: int) -> float | None:
        """What ``short-young`` takes of a retrain at the least; None if no young network was prepared."""
        if self.state is None or self.blueprint is None or YOUNG not in self.state.parts:
            return None
        how, epochs = self.blueprint.training
        return least_young_cost(n_retained, epochs, how.batch_size)

    def _least_warm_cost(self, n_retained: int) -> float:
        if self.blueprint is None:
            return math.inf
        how, epochs = self.blueprint.training
        return least_warm_cost(n_retained, epochs, how.batch_size, self.arch in RESNETS)

    def _assessment(self, settings: ForgetSettings) -> Assessment | None:
        """What kind of request it is; only a prepared state can tell."""
        if self.state is None:
            return None
        problem = self.subject.problem
        crossfit: CrossFit = problem.prepare(CROSSFIT, self.arch)
        return assess(problem, self.forget, crossfit, self.state.heldout, hidden_layers(self.arch), settings.seed)

    def _out_of_fold(self, rows: NDArray[np.bool_]) -> NDArray[np.float64]:
        """(n, C) what the model of each row's own fold says of it."""
        problem = self.subject.problem
        crossfit: CrossFit = problem.prepare(CROSSFIT, self.arch)
        return np.asarray(crossfit.log_q[problem.train.number[rows]], dtype=np.float64)

    @cached_property
    def _forgotten_moments(self) -> Moments:
        """Of the rows that are forgotten now; with the ledger's moments of the others, D need not be read."""
        problem = self.subject.problem  # all of D, or a part that holds every row that is forgotten
        retained, new = None if self.ledger is None else self.ledger.retained(), self.new
        if retained is None:
            return self._moments_of(self.forget, problem.moments.reference)
        before = self._moments_of(self.forget & ~new, retained.reference)
        if not np.array_equal(retained.counts + before.counts, problem.class_counts):
            raise BadInput(
                f"the statistics of the ledger {self.ledger and self.ledger.folder} are of {retained.n_rows} rows, and "
                f"{problem.n_rows - before.n_rows} are not forgotten; restore it from a backup"
            )
        problem.prepared.values[MOMENTS] = retained + before
        return before + self._moments_of(new, retained.reference) if new.any() else before

    def _moments_of(self, rows: NDArray[np.bool_], reference: NDArray[np.float64]) -> Moments:
        train = self.subject.problem.train
        return compute_moments(train.seen[rows], train.labels[rows], self.subject.n_classes, reference)

    def carry_out(self, plan: Plan) -> Outcome:
        """Write the target into the network and measure what came of it; ``auto`` goes on where its edit is of no use."""
        outcome = self._attempt(plan)
        first = outcome.finalized
        if first is None or plan.otherwise is None or plan.family is not Family.EDIT or not outcome.judgement.failed:
            return outcome
        why = "has no answer" if first.ended == NO_ANSWER else "is not enough"
        reason = why if first.ended == NO_ANSWER else f"{why}, for {outcome.judgement.why}"
        outcome = self._attempt(plan.next_best(reason))
        if outcome.finalized is None:
            return outcome
        ended = f"{outcome.finalized.ended}, for {plan.choice.method} {why}"
        seconds = first.seconds + outcome.finalized.seconds
        return replace(outcome, finalized=replace(outcome.finalized, ended=ended, seconds=seconds))

    def _attempt(self, plan: Plan) -> Outcome:
        """By the plan's own method."""
        start = self.subject.net if self.last is None else self.last
        finalized = None if plan.choice.method is None else self.finalize(plan, start)
        net = None if finalized is None or finalized.net is None else self.round_to_file(finalized.net)
        if finalized is not None and plan.settings.finalizer == "none":
            posteriors = target_posteriors(plan)
        elif net is not None or start is not None:
            posteriors = network_posteriors(self.subject, net or start)  # pyright: ignore[reportArgumentType]
        else:
            posteriors = base_posteriors(self.subject)
        predicted = self._predict(plan, posteriors)
        worse = None if predicted is None or plan.settings.proxy != AUTO else predicted.worse
        if worse is not None and finalized is not None and net is not None and start is not None:
            finalized = replace(finalized, net=None, ended=worse)
            net, posteriors = None, network_posteriors(self.subject, start)
            predicted = self._predict(plan, posteriors, stays=self.last is None)
        judgement = self._judge(plan, finalized, posteriors)
        if judgement.outcome == NOTHING and net is not None and start is not None:
            net, posteriors = None, network_posteriors(self.subject, start)
        from_base = self.last is None or plan.settings.finalizer != "kl" or plan.family is not Family.PROXY
        named = "base" if from_base else "the model of the last request"
        return Outcome(
            plan,
            named,
            finalized,
            posteriors,
            measure(plan, posteriors),
            net,
            judgement,
            closeness=predicted,
            prepared=None if self.state is None else self.state.entry(),
        )

    def _judge(self, plan: Plan, finalized: Finalized | None, model: Posteriors) -> Judgement:
        """Whether the model says of the records what was asked for."""
        if finalized is None:
            return nothing_to_unlearn(plan.choice.reason)
        rule = rule_for(methods.find(plan.choice.method or ""))
        rows = np.flatnonzero(plan.forget)
        if plan.target is not None:
            asked = plan.target.log_target[rows]
        elif finalized.net is not None:  # before its numbers were rounded to those of its file
            inputs = self.subject.problem.train.inputs
            logits = finalized.net.logits(0, inputs, torch.from_numpy(rows).to(inputs.device))
            asked = log_probabilities(logits.cpu().numpy())
        else:
            return made_nothing(finalized.ended, rule)
        base, now, new = self.subject.train.log_base[rows], model.train[rows], plan.new[rows]
        like_heldout = plan.verdict is None or plan.verdict.kind is not RequestKind.GROUP
        return judge(
            rule,
            Progress.of(asked[new], base[new], now[new]),
            None if new.all() else Progress.of(asked, base, now),
            compare_losses(plan, model, like_heldout, rule == OF_TRAINING_ON) if rule in JUDGED_BY_LOSS else None,
        )

    def _predict(self, plan: Plan, unlearned: Posteriors, stays: bool = False) -> Predicted | None:
        """How close to a retrain the base was on the records and the model is now, which is the base itself if it ``stays``;
        only if they are like held-out rows."""
        state, verdict = self.state, plan.verdict
        if state is None or verdict is None:
            return None
        if verdict.kind is not RequestKind.EXCHANGEABLE or state.heldout is None:
            needed = "a retrain (--verify-retrain)" if state.heldout is not None else "held-out rows"
            return Predicted(f"no estimate: the request is {verdict.kind} ({verdict.why}); it would take {needed}")
        problem, rows = self.subject.problem, plan.forget
        log_q = self._out_of_fold(rows)
        labels, held_labels = problem.train.labels[rows], state.heldout_labels
        weights = class_weights(labels, held_labels) if verdict.within_classes else None
        heldout = HeldoutPosteriors(state.log_heldout["base"], state.log_heldout["folds"], held_labels, weights)
        method = None if stays else plan.choice.method
        taught = method is not None and methods.learns_from_folds(method)
        before, after = (
            estimate_network(log_q, log_net[rows], labels, heldout, pupil, plan.settings.seed, self.arch == LINEAR)
            for log_net, pupil in ((self.subject.train.log_base, False), (unlearned.train, taught))
        )
        return Predicted(verdict.why, before, after)

    def finalize(self, plan: Plan, start: NetworkStack | None) -> Finalized:
        """Make of the network what the plan says; distillation goes on from ``start``, all else from the base."""
        finalizer, base, rows = plan.settings.finalizer, self.subject.net, self.subject.problem.train
        if plan.family is Family.EDIT:
            return edit(self, plan)
        if plan.family is Family.BASELINE:
            return train_anew(self, plan)
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
        how = plan.settings.distillation(self.opened.optimization)
        return distil_until_done(start, rows, lesson, *how, self.subject.problem.heldout)

    def record(self, outcome: Outcome, certificate: Certificate, key_file: Path | None = None) -> Ledger:
        """Enter the request into the ledger, signed if there is a key: from then on it counts."""
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
            self.subject.problem.moments - self._forgotten_moments,
            None if base is None else base.state(0),
            left_state,
            key_file,
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
    method: str = AUTO,
) -> OpenRequest:
    """Read what ``forget`` is given, and refuse what does not fit together. ``method``: what will be asked for by name."""
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
        base, last = base_and_last(book, opened.net)
        given = (features, labels, inputs, features_from, heldout)
        if state is None:
            subject = white_box(base, *given)
        else:
            state.check_model(state_sha256(base.state(0)))
            state.check_removed(before, n_rows)
            if methods.reads_all_rows(method):
                state.check_parts(method, methods.prepared_for(method))
                subject = whole_box(base, state, *given)
            else:
                subject = prepared_box(base, state, *given, rows.mask)
    identity = Identity.of(subject)
    if book is not None:
        book.check(identity)
    described = Described("black box" if opened is None else opened.kind, rows, class_names)
    round_to_file = model.as_stored if isinstance(model, LoadedModel) else lambda net: net
    of_network = Kept() if state is None else state.of_network
    return OpenRequest(subject, rows, described, book, identity, last, opened, round_to_file, state, of_network)
