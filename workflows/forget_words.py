"""What ``unlearn forget`` says on the way."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from unlearn_core import methods
from unlearn_core.audit.membership import Attack
from unlearn_core.audit.stein import stein_in_words
from unlearn_core.auto import AUTO
from unlearn_core.data.labelled import LabelledSet
from unlearn_core.errors import printable
from unlearn_core.forgetting.audit_block import audit_in_words
from unlearn_core.forgetting.content import Outcome, Predicted
from unlearn_core.forgetting.forget import Observer
from unlearn_core.forgetting.measure import Attacks, Change, Retrained, RetrainSettings, planned_change
from unlearn_core.forgetting.model_files import LoadedModel
from unlearn_core.forgetting.open_request import OpenRequest
from unlearn_core.forgetting.plan import Plan
from unlearn_core.forgetting.request import NewRows
from unlearn_core.forgetting.shadows import AuditSettings
from unlearn_core.forgetting.state import OPTIONAL, PARTS

Say = Callable[[str], None]
STATE = "state"
"""What a prepared state is called in a command that is to be pasted."""
NO_TEST = (
    "the data has no test rows (test_x or test_images, test_y), so that nothing is said of rows that the model was not "
    "trained on: no KL, no accuracy, no attack, no estimate of how close to a retrain it comes"
)


class Speaker(Observer):
    """Says how a request goes. ``keep``: the command after which requests like it need not prepare anything, if any."""

    def __init__(
        self,
        console: Console,
        say: Say,
        data: LabelledSet,
        source: Path,
        model: LoadedModel | None,
        keep: str | None = None,
    ) -> None:
        self.console: Console = console
        self.say: Say = say
        self.data: LabelledSet = data
        self.source: Path = source
        self.model: LoadedModel | None = model
        self.keep: str | None = keep

    def opened(self, request: OpenRequest) -> None:
        subject = request.subject
        if self.model is not None:
            say_model(self.model, self.say)
        self.say(
            f"{request.described.model}: {subject.n_classes} classes; {len(self.data.train_y)} training rows, "
            f"{len(self.data.test_y) or 'none'} held out, {subject.train.features.shape[1]} features "
            f"({subject.seen_by_proxies})"
        )
        if not self.data.has_test:
            self.say(NO_TEST)
        if self.model is not None and (dropped := self.model.weights.dropped):
            names = printable(", ".join(dropped))
            self.say(f"not written again, for it has seen the records: {names} of {self.model.weights.name}")
        self._say_rows(request.rows)

    def _say_rows(self, rows: NewRows) -> None:
        asked = len(rows.asked.rows)
        self.say(
            f"{self.source}: {asked} record{'s' if asked > 1 else ''}, {len(rows.new)} to forget now, "
            f"{int(rows.mask.sum())} in all"
        )
        if rows.asked.repeated:
            self.say(f"  asked for more than once in this request, and counted once: {_some(rows.asked.repeated)}")
        if len(rows.already):
            names = rows.already if self.data.ids is None else self.data.ids[rows.already]
            named = _some([str(name) for name in names])
            self.say(f"  forgotten by an earlier request already, and counted once: {named}")

    def planned(self, plan: Plan) -> None:
        if plan.verdict is not None:
            tested = "" if plan.verdict.p_value is None else f" (p-value {plan.verdict.p_value:.3g})"
            self.say(f"kind of request: {plan.verdict.kind}, {plan.verdict.why}{tested}")
        if plan.weighed or plan.unusable:
            self._say_weighed(plan)
        if plan.choice.method is None:
            self.say(f"nothing to unlearn: {plan.choice.reason}")
            return
        self.say(f"{plan.choice.method}: {plan.choice.reason}")
        change = planned_change(plan)
        if change is not None:
            self.say(f"its target, KL(base||target): {_text(change)}")

    def _say_weighed(self, plan: Plan) -> None:
        table = Table(box=None, pad_edge=False)
        table.add_column("proxy")
        for column in ("admissible", "eta_max", "fit KL(p||P)", "loss KL(p||P_r) - KL(p||P)"):
            table.add_column(column, justify="right")
        for weighed in plan.weighed:
            candidate = weighed.candidate
            table.add_row(
                ("* " if candidate.method == plan.choice.method else "  ") + candidate.method,
                "yes" if candidate.admissible else "no",
                *(f"{value:.4g}" for value in (candidate.eta_max, candidate.fit, candidate.loss)),
            )
        self.console.print(table)
        for unusable in plan.unusable:
            self.say(f"  {unusable.method} cannot be used: {unusable.reason}")

    def carried_out(self, outcome: Outcome) -> None:
        done, measured = outcome.finalized, outcome.measured
        if done is not None and done.best_epoch is not None:
            self.say(
                f"distilled from {outcome.start}: kept epoch {done.best_epoch} of {len(done.scores) - 1}, {done.ended}; "
                f"KL(target||model) on watched rows {done.scores[0]:.4g} -> {done.scores[done.best_epoch]:.4g}"
            )
        elif done is not None:
            took = f", {done.seconds:.3g} s" if done.seconds else ""
            self.say(f"{outcome.plan.choice.method}: {done.ended}{took}")
        if done is not None:
            self.say(f"{outcome.judgement.outcome}: {outcome.judgement.why}")
        if outcome.net is None and not outcome.processed:
            self.say("the model stays as it was")
        for warning in outcome.warnings:
            self.say(f"WARNING: {warning}")
        before, after = measured.before, measured.after
        self.say(f"retained accuracy {_percent(before.retained)} -> {_percent(after.retained)}")
        held = "" if before.heldout is None else f", held out {_percent(before.heldout)} -> {_percent(after.heldout)}"
        self.say(f"forgotten accuracy {_percent(before.forgotten)} -> {_percent(after.forgotten)}{held}")
        self.say(f"KL(base||unlearned): {_text(measured.from_base)}")
        self._say_attack(measured.attacks)
        if (predicted := outcome.closeness) is not None:
            self._say_closeness(predicted)

    def _say_attack(self, attacks: Attacks | None) -> None:
        if attacks is None:
            self.say("no loss attack: there are no held-out rows of the records' classes")
            return
        found = f"{_attack(attacks.before)} -> {_attack(attacks.after)}, by chance up to {attacks.before.chance:.3f}"
        beside = "; a retrain may be as far from 0.5" if attacks.after.stands_out else ""
        self.say(f"loss attack on the records, AUC (its distance from 0.5): {found}{beside}")

    def _say_closeness(self, predicted: Predicted) -> None:
        if predicted.before is None or predicted.after is None:
            self.say(predicted.why)
            return
        texts = [f"{one.estimate:.3g} ({one.low:.3g} to {one.high:.3g})" for one in (predicted.before, predicted.after)]
        self.say(f"KL(retrain||model) on the records, estimated without a retrain: {texts[0]} -> {texts[1]}")
        self.say(f"  so at most {predicted.after.high:.3g}, in 9 of 10 cases; --verify-retrain measures it")

    def prepared(self, seconds: Mapping[str, float]) -> None:
        made = ", ".join(f"{name} {spent:.2g} s" for name, spent in seconds.items())
        self.say(f"prepared for this request alone: {made}")
        if self.keep is not None:
            self.say(f"  the next ones need not, with --prepared {STATE} after: {self.keep}")

    def retraining(self, settings: RetrainSettings) -> None:
        self.say(f"retraining from scratch, {2 * settings.pairs} times")

    def auditing(self, settings: AuditSettings, unlearning: float | None = None) -> None:
        """Args: unlearning: the seconds that it took to unlearn this model, if they are known."""
        took = "" if unlearning is None else f", which took {unlearning:.2g} s here"
        self.say(
            f"--audit {settings.shadows} trains {settings.shadows} shadow bases and as many shadow retrains, about "
            f"{2 * settings.shadows} trainings of this model, and unlearns each base as this request is{took}"
        )

    def shadows_done(self, n_done: int, of: int) -> None:
        self.say(f"  {n_done} of {of} shadows")

    def audited(self, outcome: Outcome) -> None:
        if outcome.audit is None:
            self.say("no audit: this request left the model as an earlier one had made it")
            return
        self.say(f"audit, {audit_in_words(outcome.audit)}")

    def retrained(self, retrained: Retrained, n_forget: int) -> None:
        for check in retrained.checks:
            for name in ("base", "target", "unlearned", "floor"):
                self.say(f"  KL(retrain||{name}), seed {check.seed}: {_text(getattr(check, name))}")
            if check.attack is not None:
                self.say(f"  loss attack on the records by the retrain: {_attack(check.attack)}")
            self.say(f"  {stein_in_words(check.entry(n_forget)['stein'], n_forget)}")


def _attack(found: Attack) -> str:
    return f"{found.auc:.3f} ({found.distance:.3f})"


def model_options(arguments: argparse.Namespace) -> str:
    """The options that name the model and its data, to be pasted into another command."""
    words: list[str] = []
    for name in ("model", "arch", "weights", "data", "features", "features_from"):
        if value := getattr(arguments, name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def how_to_keep(arguments: argparse.Namespace) -> str | None:
    """The command that prepares what the method of a request starts from; None if no state holds that."""
    needed = set() if arguments.proxy == AUTO else set(methods.prepared_for(arguments.proxy))
    if arguments.model is None or not needed <= {*PARTS, *OPTIONAL}:
        return None
    also = "".join(f" --with {name}" for name in OPTIONAL if name in needed)
    return f"unlearn prepare {model_options(arguments)}{also} --out {STATE}"


def say_model(model: LoadedModel, say: Say) -> None:
    """What was made of the weights' file."""
    if model.understood:
        say(printable(f"{model.weights.name}: {model.understood}"))


def _some(names: list[str] | tuple[str, ...], shown: int = 10) -> str:
    text = printable(", ".join(names[:shown]))
    return text if len(names) <= shown else f"{text} (and {len(names) - shown} more)"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def _text(change: Change) -> str:
    held = "" if change.heldout is None else f", held out {change.heldout:.4g}"
    return f"forgotten {change.forget:.4g}, retained {change.retain:.4g}{held}"
