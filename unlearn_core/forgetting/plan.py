"""What a request would do: every proxy fitted and weighed, one chosen, its target. No weight moves yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from unlearn_core import methods
from unlearn_core.audit.divergence import mean_kl
from unlearn_core.auto import AUTO, DEFAULT_BUDGET, Candidate, Choice, choose_proxy
from unlearn_core.data.splits import checked_mask
from unlearn_core.errors import BadInput
from unlearn_core.eta import EtaSearch
from unlearn_core.finalize import LogitProcessor
from unlearn_core.forgetting.judgement import LEAST_KL
from unlearn_core.forgetting.subject import Subject
from unlearn_core.grid import RESNETS
from unlearn_core.methods import Family, Scope
from unlearn_core.proxies.covariance import Shrinkage
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.proxies.statistics import Moments
from unlearn_core.recipes import REQUEST_SCHEDULE, Optimization, Schedule, Stopping
from unlearn_core.request_kind import Verdict
from unlearn_core.run_settings import ProxySettings
from unlearn_core.target import Target, fit, make_target
from unlearn_core.within_budget import Costs, choose_within, hidden_layers

Mask = NDArray[np.bool_]
NOTHING_ANEW = Costs(least_warm=math.inf)
"""No fresh weights can be had, and no more is known."""


def known_methods() -> tuple[str, ...]:
    """What can be asked for by name."""
    return (*methods.proxies(), *methods.edits(), *methods.cut_short())


@dataclass(frozen=True)
class ForgetSettings(ProxySettings):
    """Choices that are part of the certificate. ``lr`` and ``batch_size`` None: chosen by the schedule."""

    proxy: str = AUTO
    seed: int = 0
    lr: float | None = None
    batch_size: int | None = None
    budget: float = DEFAULT_BUDGET
    """The share of a retrain's cost within which ``auto`` chooses on a prepared state."""
    stopping: Stopping = field(default_factory=Stopping)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.proxy not in (AUTO, *known_methods()):
            raise BadInput(f"unknown method {self.proxy!r}; there are {', '.join((AUTO, *known_methods()))}")
        line = None if self.proxy == AUTO else methods.find(self.proxy)
        if line is not None and line.family is not Family.PROXY and self.finalizer != "kl":
            raise BadInput(f"{self.proxy} changes the weights itself; the finalizer {self.finalizer} has nothing to do")
        of_training_points = line is not None and getattr(line, "scope", None) is Scope.TRAINING_POINTS
        if self.finalizer == "none" and of_training_points:
            raise BadInput(
                f"{self.proxy} speaks of training points only, so that a logit processor of it would forget nothing "
                "elsewhere; choose another proxy or finalizer"
            )
        if self.lr is not None and not (math.isfinite(self.lr) and self.lr > 0):
            raise BadInput(f"learning rate {self.lr} must be positive; leave it out to have one chosen")
        if not 0 < self.budget <= 1:
            raise BadInput(
                f"budget {self.budget:g} must lie in (0, 1], a share of a retrain's cost; 0.05 is the default"
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise BadInput(f"batch size {self.batch_size} must be at least 1")

    @property
    def candidates(self) -> tuple[str, ...]:
        """What ``auto`` fits and chooses from; a logit processor needs one that speaks of any point."""
        return methods.auto_candidates(Scope.ANY_POINT if self.finalizer == "none" else None)

    def distillation(self, default: Optimization) -> tuple[Schedule, Optimization]:
        """How the target is distilled into a network that unlearns by ``default`` if nothing else is asked for."""
        schedule = replace(REQUEST_SCHEDULE, stopping=self.stopping)
        if self.lr is not None:
            schedule, default = replace(schedule, rates=(1.0,)), replace(default, lr=self.lr)
        if self.batch_size is not None:
            schedule, default = replace(schedule, steps_per_epoch=None), replace(default, batch_size=self.batch_size)
        return schedule, default


@dataclass(frozen=True, eq=False)
class Weighed:
    """A proxy's target, and what can be said of it without a retrain: KL(p||P) and KL(p||P_r) over D, in nats."""

    target: Target
    search: EtaSearch
    kl_before: float
    kl_after: float

    @property
    def candidate(self) -> Candidate:
        search = self.search
        return Candidate(self.target.method, search.admissible, search.eta_max, self.kl_before, -search.slope_at_zero)


@dataclass(frozen=True)
class Unusable:
    """A proxy that cannot be fitted to this request, and why."""

    method: str
    reason: str


@dataclass(frozen=True, eq=False)
class Plan:
    """A request that is understood; if there is nothing to unlearn, ``choice`` names no method and says why.

    Attributes:
        forget: (N,) every row of the subject's that is to be forgotten, earlier requests' included.
        new: (N,) those of them that this request is the first to ask for.
        target: None if nothing is to be unlearned, or by a method that has none.
        verdict: what kind of request it is; None if nobody asked.
        otherwise: what ``auto`` takes if the chosen edit has no answer, or one that is not enough; None: nothing.
    """

    subject: Subject
    forget: Mask
    new: Mask
    settings: ForgetSettings
    weighed: tuple[Weighed, ...]
    unusable: tuple[Unusable, ...]
    choice: Choice
    target: Target | None
    verdict: Verdict | None = None
    otherwise: str | None = None

    def next_best(self, why: str) -> Plan:
        """With what comes next in the place of a method that is of no use."""
        choice = Choice(self.otherwise, f"{self.choice.method} {why}; it was chosen because {self.choice.reason}")
        return replace(self, choice=choice, otherwise=None)

    @property
    def n_forget(self) -> int:
        return int(self.forget.sum())

    @property
    def family(self) -> Family | None:
        """Of the chosen method; None if there is nothing to unlearn."""
        return None if self.choice.method is None else methods.find(self.choice.method).family

    @property
    def forget_of_all(self) -> Mask:
        """(N,) the same among all rows of D."""
        subject = self.subject
        mask = np.zeros(subject.problem.n_rows, dtype=bool)
        mask[subject.problem.train.number[self.forget]] = True
        return mask

    @property
    def chosen(self) -> Weighed | None:
        """The chosen proxy; None too for a closed form, which has no eta."""
        return next((w for w in self.weighed if w.target.method == self.choice.method), None)

    @property
    def logit_processor(self) -> LogitProcessor | None:
        """Of the chosen proxy; if ``auto`` chose one of training points only, of what a black box would get."""
        method, weighed = self.choice.method, None if self.target is None else self.chosen
        if (
            self.family is Family.PROXY
            and method is not None
            and methods.find_proxy(method).scope is Scope.TRAINING_POINTS
        ):
            weighed = self._best_for_any_point() if self.settings.proxy == AUTO else None
        if weighed is None:
            return None
        target = weighed.target
        return LogitProcessor(target.method, target.fitted.proxy, target.eta, target.lost_classes)

    def _best_for_any_point(self) -> Weighed | None:
        able = {
            w.target.method: w for w in self.weighed if methods.find_proxy(w.target.method).scope is Scope.ANY_POINT
        }
        choice = choose_proxy([w.candidate for w in able.values()]) if able else None
        return None if choice is None or choice.method is None else able[choice.method]


def make_plan(
    subject: Subject,
    forget: Mask,
    settings: ForgetSettings,
    forgotten: Moments | None = None,
    arch: str | None = None,
    verdict: Verdict | None = None,
    can_train_anew: bool = False,
    new: Mask | None = None,
    costs: Costs = NOTHING_ANEW,
    kept: float | None = None,
) -> Plan:
    """Choose a method and say what the model should become; ``auto`` fits and weighs proxies, or goes by the verdict.

    Args:
        forget: (N,) every row that is to be forgotten, earlier requests' included.
        forgotten: the moments of these rows, if they are known already.
        arch: of the network, if it has a name.
        verdict: what kind of request it is, if it is known.
        can_train_anew: whether fresh weights can be had.
        costs: what methods would take of a retrain.
        kept: the share of right answers on the records that a model without them keeps, if it is known.
        new: (N,) the rows that no earlier request asked for; None: all of them.
    """
    checked_mask(forget, "the request")
    new = forget if new is None else new
    asked, why, otherwise = settings.proxy, "asked for by name", None
    if asked == AUTO and verdict is not None and settings.finalizer == "kl":
        deep, records = arch in RESNETS, int(forget.sum())
        fitting = choose_within(verdict.kind, hidden_layers(arch), settings.budget, costs, kept, deep, records)
        if fitting is not None and (fitting.method not in methods.cut_short() or can_train_anew):
            asked = fitting.method
            can_follow = can_train_anew or fitting.runner_up not in methods.cut_short()
            otherwise = fitting.runner_up if can_follow else None
            why = (
                f"{verdict.kind}: {verdict.why}; within {100 * settings.budget:g} % of a retrain: {fitting.why} (next: "
                f"{fitting.runner_up}; a larger budget buys {fitting.more})"
            )
    if asked != AUTO and methods.find(asked).family is not Family.PROXY:
        return Plan(subject, forget, new, settings, (), (), Choice(asked, why), None, verdict, otherwise)
    request = ForgetRequest(
        subject.problem,
        forget,
        subject.train,
        settings.ridge,
        Shrinkage(settings.shrinkage),
        settings.seed,
        forgotten,
        arch,
    )
    candidates = settings.candidates if asked == AUTO else (asked,)
    if subject.whole is not None:  # the others would take the rows at hand for all of D
        candidates = tuple(name for name in candidates if not methods.reads_all_rows(name))
    candidates = tuple(name for name in candidates if name not in methods.closed_forms())
    weighed, unusable = [], []
    for method in candidates:
        try:
            weighed.append(_weigh(_target(method, request, settings)))
        except BadInput as error:
            if method == settings.proxy:
                raise
            unusable.append(Unusable(method, str(error)))
    if candidates and not weighed:
        raise BadInput(unusable[0].reason)
    choice = _choose(settings.proxy, weighed)
    target = next((w.target for w in weighed if w.target.method == choice.method), None)
    if target is None and choice.method is not None:
        target = _target(choice.method, request, settings)
    if target is not None and (asked_for := mean_kl(target.log_target[new], subject.train.log_base[new])) <= LEAST_KL:
        why = f"to {target.method} the records matter by {asked_for:.2g} nats, and {LEAST_KL:g} can be measured"
        choice, target = Choice(None, why), None
    return Plan(subject, forget, new, settings, tuple(weighed), tuple(unusable), choice, target, verdict)


def _target(method: str, request: ForgetRequest, settings: ForgetSettings) -> Target:
    return make_target(fit(method, request), request.points, request.lost_classes, settings.cap_of(method))


def _weigh(target: Target) -> Weighed:
    if target.search is None:
        raise ValueError(f"{target.method} has no eta to be weighed by")
    return Weighed(target, target.search, *target.kl_net_proxy())


def _choose(asked: str, weighed: Sequence[Weighed]) -> Choice:
    if asked == AUTO:
        return choose_proxy([w.candidate for w in weighed])
    if asked in methods.closed_forms():
        return Choice(asked, "asked for by name; it has no eta, and leaves points off the training set as they are")
    search = next(w.search for w in weighed if w.target.method == asked)
    if not search.admissible:
        return Choice(None, f"{asked}, asked for by name, is {search.reason}")
    return Choice(asked, "asked for by name")
