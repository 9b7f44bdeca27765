"""Run one method on the cells of a variant and score it after every epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.audit.bounds import tight_bound
from unlearn_core.audit.divergence import log_probabilities, mean_kl
from unlearn_core.audit.scoring import Scorer
from unlearn_core.baselines import baseline_recipe
from unlearn_core.clock import clock_for
from unlearn_core.errors import BadInput
from unlearn_core.eta import EtaSearch, find_eta_max, h_curve, mean_lse_shift
from unlearn_core.finalizers import FINALIZERS
from unlearn_core.finalizers.distill import distillation_member
from unlearn_core.finalizers.least_squares import fit_last_layer_shift
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.problem import Cell, Problem
from unlearn_core.proxies import EmpiricalProxy, FittedProxy, Shrinkage, fit_proxy
from unlearn_core.proxies.empirical import NOWHERE, Membership
from unlearn_core.proxies.training_rows import training_posteriors, training_signal
from unlearn_core.records import EpochMetrics, MethodRecord, Scores, TargetRecord, best_epoch
from unlearn_core.references import Trained
from unlearn_core.spec import (
    BASELINES,
    FRESH,
    GAUSSIAN_PROXIES,
    METHODS,
    PROBED_PROXIES,
    PROXIES,
    DirOnTest,
    ProxySettings,
    RunSettings,
    Toward,
    distillation_of,
    unlearning_optimization,
)
from unlearn_core.target import finite_shift, floor_lost_classes, log_target
from unlearn_core.training import Member, train

Array = NDArray[np.float64]
Progress = Callable[[int], None]
"""Called after every epoch with its number."""


@dataclass(frozen=True, eq=False)
class Reference:
    """What a method is run on and measured against: the cells with their base and retrain."""

    problem: Problem
    arch: str
    cells: Sequence[Cell]
    base: Trained
    retrain: Trained
    scorers: Sequence[Scorer]

    def __post_init__(self) -> None:
        if not len(self.cells) == self.base.net.n_members == self.retrain.net.n_members == len(self.scorers):
            raise ValueError("each cell needs one base, one retrain and one scorer")
        if self.problem.sketch is not None and len(self.cells) != 1:
            raise ValueError("a sketch belongs to one base network")


def run_method(
    method: str, reference: Reference, settings: RunSettings, progress: Progress | None = None
) -> list[MethodRecord]:
    """One record per cell; the base networks are left untouched."""
    if method in PROXIES:
        return _run_proxy(method, reference, settings.proxy, progress)
    if method in BASELINES:
        return _run_baseline(method, reference, settings.preset, progress)
    raise BadInput(f"unknown method {method!r}; there are {', '.join(METHODS)}")


def _run_baseline(method: str, reference: Reference, preset: str, progress: Progress | None) -> list[MethodRecord]:
    problem, base = reference.problem, reference.base.net
    recipe, optimization = baseline_recipe(method, preset), unlearning_optimization(reference.arch)
    needs_teacher = any(t.toward is Toward.TEACHER for p in recipe.phases for s in p.passes for t in s.loss)
    now = clock_for(problem.device)
    started = now()
    members = [
        Member(
            cell.seed,
            "unlearn",
            problem.train_labels,
            torch.from_numpy(cell.forget),
            {Toward.TEACHER: base.logits(k, problem.train_inputs)} if needs_teacher else {},
        )
        for k, cell in enumerate(reference.cells)
    ]
    prepared = (now() - started) / len(members)
    student = base.select(range(base.n_members))
    history = _History(student, reference.scorers, [prepared] * len(members), progress)
    seconds = train(student, problem.train_inputs, members, recipe, optimization, history.end_epoch)
    return [
        _method_record(method, epochs, prepared + seconds, reference.retrain.seconds[k])
        for k, epochs in enumerate(history.members)
    ]


def _method_record(
    method: str,
    epochs: Sequence[EpochMetrics],
    seconds: float,
    retrain_seconds: float,
    target: TargetRecord | None = None,
) -> MethodRecord:
    return MethodRecord(method, epochs, best_epoch(epochs), epochs[-1], seconds, seconds / retrain_seconds, target)


class _History:
    """Scores every member after every epoch."""

    def __init__(
        self, student: NetworkStack, scorers: Sequence[Scorer], prepared: Sequence[float], progress: Progress | None
    ) -> None:
        self.student: NetworkStack = student
        self.scorers: Sequence[Scorer] = scorers
        self.prepared: Sequence[float] = prepared
        self.progress: Progress | None = progress
        self.members: list[list[EpochMetrics]] = [[] for _ in scorers]

    def end_epoch(self, epoch: int, seconds: float) -> None:
        for k, scorer in enumerate(self.scorers):
            scores = scorer.score(self.student, k)
            self.members[k].append(EpochMetrics(epoch, self.prepared[k] + seconds, scores))
        if self.progress is not None:
            self.progress(epoch)


@dataclass(frozen=True, eq=False)
class _Target:
    """One cell's target: computed within the timed part, described outside it."""

    proxy: FittedProxy
    logits: Array
    signal: Array | None
    search: EtaSearch | None
    log_target: Array
    lost_classes: NDArray[np.bool_]
    seconds: float

    @property
    def unlearns(self) -> bool:
        return self.search is None or self.search.eta_max > 0


def _run_proxy(
    method: str, reference: Reference, settings: ProxySettings, progress: Progress | None
) -> list[MethodRecord]:
    if settings.finalizer not in FINALIZERS:
        raise BadInput(f"unknown finalizer {settings.finalizer!r}; there are {', '.join(FINALIZERS)}")
    targets = _make_targets(method, reference, settings)
    records = [_target_record(reference, k, target, settings) for k, target in enumerate(targets)]
    active = [k for k, target in enumerate(targets) if target.unlearns]
    histories: dict[int, tuple[Sequence[EpochMetrics], float]] = {}
    if active:
        finalize = {"kl": _finalize_kl, "mse": _finalize_mse, "none": _finalize_none}[settings.finalizer]
        histories = finalize(reference, {k: targets[k] for k in active}, records, progress)
    results = []
    for k, target in enumerate(targets):
        if k in histories:
            epochs, seconds = histories[k]
        else:  # nothing is unlearned: the model is the base
            scores = reference.scorers[k].score(reference.base.net, k)
            epochs, seconds = [EpochMetrics(0, target.seconds, scores)], target.seconds
        results.append(_method_record(method, epochs, seconds, reference.retrain.seconds[k], records[k]))
    return results


def _make_targets(method: str, reference: Reference, settings: ProxySettings) -> list[_Target]:
    problem, targets = reference.problem, []
    now = clock_for(problem.device)
    # cached per (features, label space): not part of a request's time
    moments = problem.moments if method in GAUSSIAN_PROXIES else None
    probe, probe_inputs = (problem.probe, problem.probe_inputs) if method in PROBED_PROXIES else (None, None)
    fits: dict[tuple[bytes, int], tuple[FittedProxy, Array | None, float]] = {}
    for k, cell in enumerate(reference.cells):
        started = now()
        logits = reference.base.net.logits(k, problem.train_inputs).double().cpu().numpy()
        seconds = now() - started
        key = (cell.forget.tobytes(), cell.seed if method == FRESH else 0)
        if key not in fits:  # cells with one forget set share the fit, and each is charged for it
            started = now()
            proxy = fit_proxy(
                method,
                problem.proxy_train,
                problem.labels,
                cell.forget,
                problem.n_classes,
                settings.ridge,
                Shrinkage(settings.shrinkage),
                moments,
                probe,
                probe_inputs,
                cell.seed,
            )
            empirical = isinstance(proxy, EmpiricalProxy)
            signal = None if empirical else training_signal(proxy, problem.proxy_train, logits)
            fits[key] = (proxy, signal, now() - started)
        proxy, signal, fit_seconds = fits[key]
        seconds += fit_seconds
        started = now()
        search = None
        if isinstance(proxy, EmpiricalProxy):
            target = proxy.log_target(logits, proxy.training_membership)
        elif signal is not None:
            search = find_eta_max(logits, signal, settings.cap_of(method))
            target = log_target(logits, signal, search.eta_max)
        else:
            raise AssertionError("unreachable: every other proxy has a signal")
        retained = np.bincount(problem.labels[~cell.forget], minlength=problem.n_classes)
        lost = retained == 0
        target = floor_lost_classes(target, logits, lost)
        targets.append(_Target(proxy, logits, signal, search, target, lost, seconds + now() - started))
    return targets


def _finalize_kl(
    reference: Reference, targets: dict[int, _Target], records: Sequence[TargetRecord], progress: Progress | None
) -> dict[int, tuple[Sequence[EpochMetrics], float]]:
    problem, active = reference.problem, list(targets)
    student = reference.base.net.select(active)
    members = [
        distillation_member(
            reference.cells[k].seed, problem.train_labels, reference.cells[k].forget, targets[k].log_target
        )
        for k in active
    ]
    history = _History(student, [reference.scorers[k] for k in active], [targets[k].seconds for k in active], progress)
    n_forget = int(reference.cells[0].forget.sum())
    recipe, how = distillation_of(targets[active[0]].proxy.method, reference.arch, n_forget)
    seconds = train(student, problem.train_inputs, members, recipe, how, history.end_epoch)
    return {k: (history.members[i], targets[k].seconds + seconds) for i, k in enumerate(active)}


def _finalize_mse(
    reference: Reference, targets: dict[int, _Target], records: Sequence[TargetRecord], progress: Progress | None
) -> dict[int, tuple[Sequence[EpochMetrics], float]]:
    base, results = reference.base.net, {}
    now = clock_for(reference.problem.device)
    for k, target in targets.items():
        started = now()
        phi = base.penultimate(k, reference.problem.train_inputs).double().cpu().numpy()
        eta = target.search.eta_max if target.search else 0.0
        shift = finite_shift(target.logits, target.log_target, target.signal, eta)
        student = base.with_shifted_last_layer(k, *fit_last_layer_shift(phi, shift))
        seconds = target.seconds + now() - started
        scores = reference.scorers[k].score(student, 0)
        results[k] = ([EpochMetrics(1, seconds, scores)], seconds)
    if progress is not None:
        progress(1)
    return results


def _finalize_none(
    reference: Reference, targets: dict[int, _Target], records: Sequence[TargetRecord], progress: Progress | None
) -> dict[int, tuple[Sequence[EpochMetrics], float]]:
    """The logit processor is the target itself, at inference."""
    if progress is not None:
        progress(1)
    return {k: ([EpochMetrics(1, target.seconds, records[k].scores)], target.seconds) for k, target in targets.items()}


def _target_record(reference: Reference, k: int, target: _Target, settings: ProxySettings) -> TargetRecord:
    """Describe one target: outside the timed part, because none of it is needed to unlearn."""
    scores = _score_target(reference, k, target, settings)
    common = {
        "scores": scores,
        "proxy_seconds": target.seconds,
        "ridge": settings.ridge,
        "shrinkage": settings.shrinkage,
        "cap": settings.cap_of(target.proxy.method),
        "finalizer": settings.finalizer,
        "dir_on_test": settings.dir_on_test.value,
    }
    search, signal = target.search, target.signal
    if search is None or signal is None:
        return TargetRecord(
            eta_max=None,
            admissible=None,
            reason="closed form: no eta",
            kl_net_proxy_before=None,
            kl_net_proxy_after=None,
            h_curve=(),
            bound=None,
            **common,
        )
    log_base = log_probabilities(target.logits)
    log_proxy, log_retain_proxy = training_posteriors(target.proxy, reference.problem.proxy_train, target.logits)
    before, after = mean_kl(log_base, log_proxy), mean_kl(log_base, log_retain_proxy)
    log_retrain = log_probabilities(
        reference.retrain.net.logits(k, reference.problem.train_inputs).double().cpu().numpy()
    )
    h = mean_lse_shift(search.eta_max, target.logits, signal)
    bound = tight_bound(search.eta_max, h, log_base, log_retrain, log_proxy, log_retain_proxy)
    return TargetRecord(
        eta_max=search.eta_max,
        admissible=search.admissible,
        reason=search.reason,
        kl_net_proxy_before=before,
        kl_net_proxy_after=after,
        h_curve=h_curve(target.logits, signal, end=max(1.0, 1.1 * search.eta_max)),
        bound={**dataclasses.asdict(bound), "measured": mean_kl(log_retrain, target.log_target)},
        **common,
    )


def _score_target(reference: Reference, k: int, target: _Target, settings: ProxySettings) -> Scores:
    """The target as a model: on forget rows it is known, on test rows the proxy says."""
    problem, cell = reference.problem, reference.cells[k]
    test_logits = reference.base.net.logits(k, problem.test_inputs).double().cpu().numpy()
    if isinstance(target.proxy, EmpiricalProxy):
        test_labels = problem.data.test_labels(problem.space)
        unseen = np.full(len(test_labels), NOWHERE)
        gone = unseen
        if settings.dir_on_test is DirOnTest.AS_FORGOTTEN:
            gone = np.where(cell.test_of_forgotten, test_labels, NOWHERE)
        on_test = target.proxy.log_target(test_logits, Membership(unseen, gone))
    else:
        eta = target.search.eta_max if target.search else 0.0
        on_test = log_target(test_logits, target.proxy.signal(problem.proxy_test), eta)
    on_test = floor_lost_classes(on_test, test_logits, target.lost_classes)
    return reference.scorers[k].score_arrays(on_test, target.log_target[cell.forget])
