"""The attacker's audit of a request: shadows of the model, unlearned as it was, attacked beside shadows that never saw the
records.

What is attacked is the procedure: networks of the same architecture on the same data for the same records, each unlearned by
the method and the settings that the request ended with. The attacks are those of ``unlearn audit``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from unlearn_core import methods
from unlearn_core.audit.answers import Answers, Member, answers_of, stacked
from unlearn_core.audit.attack import FIRST_SHADOW, MOST_ROWS, attack_floor, attack_networks, check_shadows
from unlearn_core.audit.rows import draw_rows
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.anew import TrainingSettings, train_anew
from unlearn_core.forgetting.audit_block import ABOUT
from unlearn_core.forgetting.content import Outcome
from unlearn_core.forgetting.open_request import OpenRequest
from unlearn_core.forgetting.plan import ForgetSettings, Plan, make_plan
from unlearn_core.methods import Family
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.make import Blueprint
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.preparations import PREPARATIONS, Given, Kept, Per
from unlearn_core.references import weights_seed

STACKED = 8
"""Heads that train as one, as in a grid; other networks train one at a time."""
FIT = "gaussian"

Unlearn = Callable[[NetworkStack, int], NetworkStack | None]
"""What a shadow's base, a stack of one, becomes under its seed; None: it stays as it is."""
Done = Callable[[int, int], None]
"""Called with how many shadows are done, and of how many."""


@dataclass(frozen=True, kw_only=True)
class AuditSettings(TrainingSettings):
    """``shadows`` pairs of base and retrain; of each kind of rows at most ``rows`` are asked about."""

    shadows: int
    rows: int = MOST_ROWS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shadows(self.shadows, in_pairs=False)

    @staticmethod
    def check(settings: ForgetSettings) -> None:
        """Refuse a request that makes no network."""
        if settings.finalizer == "none":
            raise BadInput("an audit needs networks, and --finalizer none makes none; use kl or mse")


def can_be_audited(request: OpenRequest, outcome: Outcome) -> bool:
    """Not if the request left the model as an earlier one had made it: that is not this request's procedure."""
    return outcome.net is not None or request.last is None


def audit_request(request: OpenRequest, outcome: Outcome, settings: AuditSettings, done: Done) -> dict[str, Any]:
    """What a certificate says of it, as plain JSON values."""
    plan, how = outcome.plan, request.blueprint
    if how is None:
        raise ValueError("this was to be refused at the beginning")
    method = None if outcome.net is None else plan.choice.method
    unlearn = _leave if method is None else partial(_unlearn, request, plan, method)
    return {**ABOUT, "method": method, **attack_shadows(plan, how, settings, unlearn, done)}


def attack_shadows(
    plan: Plan, how: Blueprint, settings: AuditSettings, unlearn: Unlearn, done: Done = lambda _n, _of: None
) -> dict[str, Any]:
    """Train shadows, unlearn their bases, and attack bases and unlearned networks beside retrains."""
    started, subject, forget = time.perf_counter(), plan.subject, plan.forget_of_all
    problem = replace(subject.all_rows, heldout=subject.problem.heldout)
    n_heldout = 0 if problem.heldout is None else len(problem.heldout)
    rows = draw_rows(np.flatnonzero(forget), problem.n_rows, n_heldout, settings.rows)
    training, last = settings.of(how), FIRST_SHADOW + settings.shadows
    size = STACKED if isinstance(subject.net, HeadStack) else 1
    answers: dict[str, list[Answers]] = {"base": [], "unlearned": [], "retrain": []}
    left_alone = 0
    for first in range(FIRST_SHADOW, last, size):
        seeds = range(first, min(first + size, last))
        base, retrain = (
            train_anew(subject, how, role, [weights_seed(s, role) for s in seeds], seeds, forget, training).net
            for role in ("base", "retrain")
        )
        for k, seed in enumerate(seeds):
            made = unlearn(base.select([k]), seed)
            left_alone += made is None
            unlearned = (base, k) if made is None else (made, 0)
            networks: Mapping[str, Member] = {"base": (base, k), "unlearned": unlearned, "retrain": (retrain, k)}
            for name, network in networks.items():
                answers[name].append(answers_of(network, networks["retrain"], problem, rows))
        done(seeds[-1] + 1 - FIRST_SHADOW, settings.shadows)
    retrained = stacked(answers.pop("retrain"))
    results = {"floor": attack_floor(retrained, False, FIT)}
    results |= {name: attack_networks(stacked(said), retrained, False, FIT) for name, said in answers.items()}
    for found in results.values():
        del found["ulira"]["curve"]  # of 49 numbers, which nobody reads in a certificate
    return {
        "shadows": settings.shadows,
        "first_shadow": FIRST_SHADOW,
        "left_alone": left_alone,
        "rows": {part: len(getattr(rows, part)) for part in ("forget", "retain", "test")},
        "fit": FIT,
        "optimization": asdict(training[0]),
        "epochs": training[1],
        "results": results,
        "seconds": time.perf_counter() - started,
    }


def _leave(_base: NetworkStack, _seed: int) -> None:
    """The request ended with the model as it was."""


def _unlearn(request: OpenRequest, plan: Plan, method: str, base: NetworkStack, seed: int) -> NetworkStack | None:
    """Another base unlearned as the plan's was; what is prepared of a network is prepared of this one."""
    subject = plan.subject.of_network(base)
    whole, of_network = subject.all_rows, Kept()
    removed = () if request.state is None else request.state.removed
    gone = np.isin(np.arange(whole.n_rows), removed) if len(removed) else None
    for name in methods.prepared_for(method):
        its_own = PREPARATIONS[name].per is Per.NETWORK
        kept = of_network if its_own else whole.prepared
        kept.get(name, Given(whole, request.arch, base if its_own else None, removed=gone))
    settings = replace(plan.settings, seed=seed)
    again = replace(plan, subject=subject, settings=settings)
    if plan.family is Family.PROXY:
        asked = replace(settings, proxy=method)
        again = make_plan(subject, plan.forget, asked, arch=request.arch, new=plan.new)
    if again.choice.method is None:
        return None
    return replace(request, subject=subject, last=None, of_network=of_network).finalize(again, base).net
