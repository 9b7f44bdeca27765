"""What a request would do: every proxy fitted and weighed, one chosen, its target. No weight moves yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unlearn_core.audit.divergence import log_probabilities, mean_kl
from unlearn_core.auto import Candidate, Choice, choose_proxy
from unlearn_core.data.splits import checked_mask
from unlearn_core.errors import BadInput
from unlearn_core.eta import EtaSearch, find_eta_max, h_curve
from unlearn_core.finalizers.logit_processor import LogitProcessor
from unlearn_core.forgetting.settings import AUTO, ForgetSettings
from unlearn_core.forgetting.statistics import Statistics
from unlearn_core.forgetting.subject import Part, Subject
from unlearn_core.proxies import (
    EmpiricalProxy,
    FittedProxy,
    ForgetRequest,
    Proxy,
    Shrinkage,
    fit_gaussian,
    fit_proxy,
)
from unlearn_core.proxies.probe import ProbeFit, fit_probe_of_all
from unlearn_core.proxies.training_rows import training_posteriors, training_signal
from unlearn_core.spec import EMPIRICAL_PROXIES, GAUSSIAN_PROXIES, PROBED_PROXIES, TRAINING_POINT_PROXIES
from unlearn_core.target import floor_lost_classes, log_target

KL_ROUNDING = 1e-15  # of two equal models it may be rounded to this, and to just below zero

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Weighed:
    """A fitted proxy with an eta, and what can be said of it without a retrain.

    Attributes:
        signal: (N, C) on the training rows.
        kl_before, kl_after: KL(p||P) and KL(p||P_r) over the training rows, in nats.
    """

    proxy: Proxy
    signal: Array
    search: EtaSearch
    kl_before: float
    kl_after: float

    @property
    def candidate(self) -> Candidate:
        search = self.search
        return Candidate(self.proxy.method, search.admissible, search.eta_max, self.kl_before, -search.slope_at_zero)


@dataclass(frozen=True)
class Unusable:
    """A proxy that cannot be fitted to this request, and why."""

    method: str
    reason: str


@dataclass(frozen=True, eq=False)
class Change:
    """KL in nats on forgotten, retained and held-out rows, KL(p||q) of what the context names."""

    forget: float
    retain: float
    heldout: float | None


@dataclass(frozen=True, eq=False)
class Target:
    """What the unlearned model should say: (N, C) log probabilities on the training rows and on the held-out ones."""

    train: Array
    heldout: Array | None


@dataclass(frozen=True, eq=False)
class Plan:
    """A request that is understood. ``target`` is None where there is nothing to unlearn; ``choice`` says why."""

    subject: Subject
    forget: Mask
    settings: ForgetSettings
    weighed: tuple[Weighed, ...]
    unusable: tuple[Unusable, ...]
    choice: Choice
    target: Target | None
    statistics: Statistics

    @property
    def n_forget(self) -> int:
        return int(self.forget.sum())

    @property
    def chosen(self) -> Weighed | None:
        """The chosen proxy; None too for the empirical ones, which have no eta."""
        return next((w for w in self.weighed if w.proxy.method == self.choice.method), None)

    @property
    def lost_classes(self) -> Mask:
        """(C,) the classes without a retained row."""
        labels = self.subject.train.labels[~self.forget]
        return np.bincount(labels, minlength=self.subject.n_classes) == 0

    @property
    def logit_processor(self) -> LogitProcessor | None:
        """Of the chosen proxy; where ``auto`` chose one of training points only, of what a black box would get."""
        weighed = None if self.target is None else self.chosen
        if self.choice.method in TRAINING_POINT_PROXIES:
            weighed = self._best_for_any_point() if self.settings.proxy == AUTO else None
        return None if weighed is None else LogitProcessor(weighed.proxy, weighed.search.eta_max, self.lost_classes)

    def _best_for_any_point(self) -> Weighed | None:
        able = {w.proxy.method: w for w in self.weighed if w.proxy.method not in TRAINING_POINT_PROXIES}
        choice = choose_proxy([w.candidate for w in able.values()]) if able else None
        return None if choice is None or choice.method is None else able[choice.method]

    def h_curve(self) -> list[tuple[float, float]]:
        """(eta, h(eta)) of the chosen proxy, to a little beyond eta_max."""
        if self.chosen is None:
            return []
        end = max(1.0, 1.1 * self.chosen.search.eta_max)
        return h_curve(self.subject.train.logits, self.chosen.signal, end)

    def change(self) -> Change | None:
        """KL(base||target): how much the request changes what the model says."""
        return None if self.target is None else self.divergence(base_posteriors(self.subject), self.target)

    def divergence(self, p: Target, q: Target) -> Change:
        """KL(p||q) of two models on the three kinds of rows."""
        heldout = None if p.heldout is None or q.heldout is None else _kl(p.heldout, q.heldout)
        return Change(
            _kl(p.train[self.forget], q.train[self.forget]), _kl(p.train[~self.forget], q.train[~self.forget]), heldout
        )


def _kl(log_p: Array, log_q: Array) -> float:
    kl = mean_kl(log_p, log_q)
    return kl if kl > KL_ROUNDING else 0.0


def base_posteriors(subject: Subject) -> Target:
    """What the base model itself says."""
    heldout = None if subject.heldout is None else log_probabilities(subject.heldout.logits)
    return Target(log_probabilities(subject.train.logits), heldout)


def make_plan(subject: Subject, forget: Mask, settings: ForgetSettings, statistics: Statistics | None = None) -> Plan:
    """Fit and weigh every proxy, choose one, and say what the model should become.

    Args:
        forget: (N,) every row that is to be forgotten, earlier requests' included.
        statistics: of D and of ``forget``; computed here if not given.
    """
    checked_mask(forget, "the request")
    train = subject.train
    if statistics is None:
        statistics = Statistics.of(train.features, train.labels, subject.n_classes).without(
            train.features[forget], train.labels[forget]
        )
    named = () if settings.proxy in (AUTO, *EMPIRICAL_PROXIES) else (settings.proxy,)
    methods = dict.fromkeys((*settings.candidates, *named))
    weigh = _Weigher(subject, forget, settings, statistics)
    weighed, unusable = [], []
    for method in methods:
        try:
            weighed.append(weigh(method))
        except BadInput as error:
            if method == settings.proxy:
                raise
            unusable.append(Unusable(method, str(error)))
    if not weighed:
        raise BadInput(unusable[0].reason)
    choice = _choose(settings.proxy, weighed)
    plan = Plan(subject, forget, settings, tuple(weighed), tuple(unusable), choice, None, statistics)
    return plan if choice.method is None else replace(plan, target=_target(plan, choice.method))


class _Weigher:
    """Fits proxies to one request, and says of each what can be said without a retrain."""

    def __init__(self, subject: Subject, forget: Mask, settings: ForgetSettings, statistics: Statistics) -> None:
        self.subject: Subject = subject
        self.forget: Mask = forget
        self.settings: ForgetSettings = settings
        self.statistics: Statistics = statistics
        self.log_base: Array = log_probabilities(subject.train.logits)

    def __call__(self, method: str) -> Weighed:
        train, proxy = self.subject.train, self._fit(method)
        signal = training_signal(proxy, train.features, train.logits)
        posteriors = training_posteriors(proxy, train.features, train.logits)
        before, after = (mean_kl(self.log_base, log_q) for log_q in posteriors)
        return Weighed(proxy, signal, find_eta_max(train.logits, signal, self.settings.cap_of(method)), before, after)

    def _fit(self, method: str) -> FittedProxy:
        train, settings, shrinkage = self.subject.train, self.settings, Shrinkage(self.settings.shrinkage)
        if method in GAUSSIAN_PROXIES and self.statistics.forgotten is not None:
            total, forgotten = self.statistics.total, self.statistics.forgotten
            request = ForgetRequest(
                train.features, train.labels, self.forget, total, forgotten, settings.ridge, shrinkage
            )
            return fit_gaussian(method, request)
        return fit_proxy(
            method,
            train.features,
            train.labels,
            self.forget,
            self.subject.n_classes,
            settings.ridge,
            shrinkage,
            self.statistics.total,
            self._probe if method in PROBED_PROXIES else None,
            seed=settings.seed,
        )

    @cached_property
    def _probe(self) -> ProbeFit:
        train = self.subject.train
        return fit_probe_of_all(train.features, train.labels, self.subject.n_classes)


def _choose(asked: str, weighed: Sequence[Weighed]) -> Choice:
    if asked == AUTO:
        return choose_proxy([w.candidate for w in weighed])
    if asked in EMPIRICAL_PROXIES:
        return Choice(asked, "asked for by name; it has no eta, and leaves points off the training set as they are")
    search = next(w.search for w in weighed if w.proxy.method == asked)
    if not search.admissible:
        return Choice(None, f"{asked}, asked for by name, is {search.reason}")
    return Choice(asked, "asked for by name")


def _target(plan: Plan, method: str) -> Target:
    subject, lost = plan.subject, plan.lost_classes
    if method in EMPIRICAL_PROXIES:
        train = subject.train
        proxy = fit_proxy(method, train.features, train.labels, plan.forget, subject.n_classes)
        if not isinstance(proxy, EmpiricalProxy):
            raise TypeError(f"{method} is no empirical proxy")
        on_train = floor_lost_classes(proxy.log_target(train.logits, proxy.training_membership), train.logits, lost)
        return Target(on_train, base_posteriors(subject).heldout)
    chosen = plan.chosen
    if chosen is None:
        raise ValueError(f"{method} was not weighed")
    eta = chosen.search.eta_max

    def on(part: Part, signal: Array) -> Array:
        return floor_lost_classes(log_target(part.logits, signal, eta), part.logits, lost)

    heldout = subject.heldout
    return Target(
        on(subject.train, chosen.signal),
        None if heldout is None else on(heldout, chosen.proxy.signal(heldout.features)),
    )
