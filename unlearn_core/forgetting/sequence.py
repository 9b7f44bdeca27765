"""One request after another on the same model: each is planned from the base, on top of all that was forgotten before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unlearn_core.auto import Choice
from unlearn_core.forgetting.certificate import Certificate
from unlearn_core.forgetting.content import Outcome
from unlearn_core.forgetting.ledger import Entry, Identity, Ledger, NewRows
from unlearn_core.forgetting.networks import with_state
from unlearn_core.forgetting.plan import Plan, make_plan
from unlearn_core.forgetting.settings import ForgetSettings
from unlearn_core.forgetting.subject import Subject, state_sha256
from unlearn_core.nets.stack import NetworkStack


def base_and_last(ledger: Ledger | None, given: NetworkStack) -> tuple[NetworkStack, NetworkStack | None]:
    """The base, and what the last request left of it if there was one. The given network must be either of the two."""
    if ledger is None or not ledger.exists:
        return given, None
    ledger.check_model(given.state(0))
    base, last = ledger.base_state(), ledger.last_state()
    if base is None or last is None:
        return given, None
    return with_state(given, base), with_state(given, last)


def plan_request(subject: Subject, rows: NewRows, settings: ForgetSettings, ledger: Ledger | None) -> Plan:
    """The plan of a request; from the statistics that a ledger holds, only the new rows are subtracted."""
    if ledger is None:
        return make_plan(subject, rows.mask, settings)
    statistics, train = ledger.statistics(subject), subject.train
    if len(rows.new):
        statistics = statistics.without(train.features[rows.new], train.labels[rows.new])
    plan = make_plan(subject, rows.mask, settings, statistics)
    if len(rows.new):
        return plan
    reason = f"all {len(rows.already)} records were forgotten by earlier requests"
    return replace(plan, choice=Choice(None, reason), target=None)


def record(
    ledger: Ledger,
    identity: Identity,
    outcome: Outcome,
    rows: NewRows,
    certificate: Certificate,
    last: NetworkStack | None,
) -> Ledger:
    """Enter a request into the ledger, once its results are where they belong."""
    plan, base = outcome.plan, outcome.plan.subject.net
    left = outcome.deployed(last)
    left_state = None if left is None else left.state(0)
    entry = Entry(
        number=len(ledger.entries) + 1,
        time=certificate.content["made"]["time"],
        outcome=certificate.content["outcome"],
        n_asked=len(rows.asked.rows),
        n_new=len(rows.new),
        n_forget=plan.n_forget,
        proxy=plan.choice.method,
        eta_max=certificate.content["proxy"]["eta_max"],
        finalizer=plan.settings.finalizer,
        model_sha256=None if left_state is None else state_sha256(left_state),
        certificate=certificate.digest,
    )
    base_state = None if base is None else base.state(0)
    forgotten = np.flatnonzero(rows.mask).tolist()
    return ledger.append(identity, entry, forgotten, plan.statistics, base_state, left_state)
