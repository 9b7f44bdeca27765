"""What ``unlearn forget`` says on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from unlearn_core.data.labelled import LabelledSet
from unlearn_core.forgetting.content import Outcome
from unlearn_core.forgetting.ledger import NewRows
from unlearn_core.forgetting.plan import Change, Plan
from unlearn_core.forgetting.retrain import RetrainCheck
from workflows.forget_case import Case

Say = Callable[[str], None]


def say_case(case: Case, say: Say) -> None:
    subject = case.subject
    say(
        f"{case.kind}: {subject.n_classes} classes; {len(case.data.train_y)} training rows, {len(case.data.test_y)} "
        "held out, "
        f"{subject.train.features.shape[1]} features ({subject.seen_by_proxies})"
    )
    if case.weights is not None and case.weights.dropped:
        say(f"not written again, for it has seen the records: {', '.join(case.weights.dropped)} of {case.weights.name}")


def say_retrain(checks: list[RetrainCheck], n_forget: int, say: Say) -> None:
    for check in checks:
        for name in ("base", "target", "unlearned", "floor"):
            say(f"  KL(retrain||{name}), seed {check.seed}: {change_text(getattr(check, name))}")
        n_f = check.entry(n_forget)["stein"]["n_f_at_0.001"]
        say(f"  N_f {n_f} label queries needed at error 0.001, |D_f| {n_forget}")


def say_request(rows: NewRows, data: LabelledSet, source: Path, say: Say) -> None:
    asked = len(rows.asked.rows)
    say(
        f"{source}: {asked} record{'s' if asked > 1 else ''}, {len(rows.new)} to forget now, {int(rows.mask.sum())} "
        "in all"
    )
    if rows.asked.repeated:
        say(f"  asked for more than once in this request, and counted once: {_some(rows.asked.repeated)}")
    if len(rows.already):
        names = rows.already if data.ids is None else data.ids[rows.already]
        say(f"  forgotten by an earlier request already, and counted once: {_some([str(name) for name in names])}")


def _some(names: list[str] | tuple[str, ...], shown: int = 10) -> str:
    text = ", ".join(names[:shown])
    return text if len(names) <= shown else f"{text} (and {len(names) - shown} more)"


def say_plan(plan: Plan, console: Console, say: Say) -> None:
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
    console.print(table)
    for unusable in plan.unusable:
        say(f"  {unusable.method} cannot be used: {unusable.reason}")
    change = plan.change()
    if change is None:
        say(f"nothing to unlearn: {plan.choice.reason}")
        return
    say(f"{plan.choice.method}: {plan.choice.reason}")
    say(f"its target, KL(base||target): {change_text(change)}")


def say_outcome(outcome: Outcome, say: Say) -> None:
    done, measured = outcome.finalised, outcome.measured
    if done is not None and done.best_epoch is not None:
        say(
            f"distilled from {outcome.start}: kept epoch {done.best_epoch} of {len(done.scores) - 1}, {done.ended}; "
            f"KL(target||model) on watched rows {done.scores[0]:.4g} -> {done.scores[done.best_epoch]:.4g}"
        )
    if not outcome.unlearned:
        say("the model is returned untouched" + (f": {outcome.reason}" if done is not None else ""))
    before, after = measured.before, measured.after
    say(f"retained accuracy {_percent(before.retained)} -> {_percent(after.retained)}")
    held = "" if before.heldout is None else f", held out {_percent(before.heldout)} -> {_percent(after.heldout)}"
    say(f"forgotten accuracy {_percent(before.forgotten)} -> {_percent(after.forgotten)}{held}")
    say(f"KL(base||unlearned): {change_text(measured.from_base)}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def change_text(change: Change) -> str:
    held = "" if change.heldout is None else f", held out {change.heldout:.4g}"
    return f"forgotten {change.forget:.4g}, retained {change.retain:.4g}{held}"
