"""Run one method on the cells of a variant and score it after every epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core import methods
from unlearn_core.audit.divergence import log_probabilities
from unlearn_core.audit.scoring import Scorer
from unlearn_core.clock import clock_for
from unlearn_core.finalize import Lesson, distil, distil_until_done, least_squares
from unlearn_core.methods import BaselineMethod, DirOnTest, Family, ProxyMethod, RunSettings
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.problem import Cell, Problem
from unlearn_core.proxies.covariance import Shrinkage
from unlearn_core.proxies.empirical import NOWHERE
from unlearn_core.proxies.points import Points
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.recipes import Toward, unlearning_optimization
from unlearn_core.records import EpochMetrics, MethodRecord, TargetRecord, best_epoch
from unlearn_core.references import Trained
from unlearn_core.target import Fitted, Target, fit, make_target
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

    def base_logits(self, member: int, inputs: torch.Tensor) -> Array:
        return self.base.net.logits(member, inputs).double().cpu().numpy()


def run_method(
    method: str, reference: Reference, settings: RunSettings, progress: Progress | None = None
) -> list[MethodRecord]:
    """One record per cell; the base networks are left untouched."""
    line = methods.find(method)
    if line.family is Family.BASELINE:
        return _run_baseline(line, reference, settings, progress)
    return _run_proxy(line, reference, settings, progress)


def _run_baseline(
    line: BaselineMethod, reference: Reference, settings: RunSettings, progress: Progress | None
) -> list[MethodRecord]:
    rows, base = reference.problem.train, reference.base.net
    recipe, optimization = line.presets[settings.preset], unlearning_optimization(reference.arch)
    needs_teacher = any(t.toward is Toward.TEACHER for p in recipe.phases for s in p.passes for t in s.loss)
    now = clock_for(base.device)
    started = now()
    members = [
        Member(
            cell.seed,
            "unlearn",
            rows.label_tensor,
            torch.from_numpy(cell.forget),
            {Toward.TEACHER: base.logits(k, rows.inputs)} if needs_teacher else {},
        )
        for k, cell in enumerate(reference.cells)
    ]
    prepared = (now() - started) / len(members)
    student = base.select(range(base.n_members))
    history = _History(student, reference.scorers, [prepared] * len(members), progress)
    seconds = train(student, rows.inputs, members, recipe, optimization, history.end_epoch)
    return [
        _method_record(line.name, epochs, prepared + seconds, reference.retrain.seconds[k])
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
class _Timed:
    """One cell's target and the seconds that it took: computed within the timed part, described outside it."""

    target: Target
    seconds: float


Ended = tuple[Sequence[EpochMetrics], float]
"""The epochs of one cell and the seconds of all of it."""


def _run_proxy(
    line: ProxyMethod, reference: Reference, settings: RunSettings, progress: Progress | None
) -> list[MethodRecord]:
    timed = _make_targets(line, reference, settings)
    records = [_target_record(reference, k, one, settings) for k, one in enumerate(timed)]
    active = [k for k, one in enumerate(timed) if one.target.unlearns]
    ended: dict[int, Ended] = {}
    if active and settings.proxy.finalizer == "kl":
        ended = _finalize_kl(reference, {k: timed[k] for k in active}, settings, progress)
    elif active:
        for k in active:
            ended[k] = (
                _finalize_mse(reference, k, timed[k])
                if settings.proxy.finalizer == "mse"
                else (
                    [EpochMetrics(1, timed[k].seconds, records[k].scores)],
                    timed[k].seconds,
                )  # the target, at inference
            )
        if progress is not None:
            progress(1)
    results = []
    for k, one in enumerate(timed):
        if k in ended:
            epochs, seconds = ended[k]
        else:  # nothing is unlearned: the model is the base
            scores = reference.scorers[k].score(reference.base.net, k)
            epochs, seconds = [EpochMetrics(0, one.seconds, scores)], one.seconds
        results.append(_method_record(line.name, epochs, seconds, reference.retrain.seconds[k], records[k]))
    return results


def _make_targets(line: ProxyMethod, reference: Reference, settings: RunSettings) -> list[_Timed]:
    problem, timed = reference.problem, []
    now = clock_for(problem.device)
    if line.prepares is not None:  # once per (features, label space): not part of a request's time
        problem.prepare(line.prepares)
        if line.prepares == methods.PROBE:
            _ = problem.probe_inputs
    fits: dict[tuple[bytes, int], tuple[Fitted, float]] = {}
    for k, cell in enumerate(reference.cells):
        started = now()
        points = problem.training_points(reference.base_logits(k, problem.train.inputs))
        seconds = now() - started
        # what cells share must not depend on one's network: a proxy that reads it says so in the table
        seen = points if line.per_network else problem.training_points(None)
        request = ForgetRequest(
            problem, cell.forget, seen, settings.proxy.ridge, Shrinkage(settings.proxy.shrinkage), cell.seed
        )
        key = (cell.forget.tobytes(), cell.seed if line.per_network else 0)
        if key not in fits:  # cells with one forget set share the fit, and each is charged for it
            started = now()
            fitted = fit(line.name, request)
            fits[key] = (fitted, now() - started)
        fitted, fit_seconds = fits[key]
        started = now()
        target = make_target(fitted, points, request.lost_classes, settings.proxy.cap_of(line.name))
        _ = target.log_target
        timed.append(_Timed(target, seconds + fit_seconds + now() - started))
    return timed


def _finalize_kl(
    reference: Reference, timed: dict[int, _Timed], settings: RunSettings, progress: Progress | None
) -> dict[int, Ended]:
    rows, active = reference.problem.train, list(timed)
    schedule = settings.schedule_of(timed[active[0]].target.method)
    how = unlearning_optimization(reference.arch)
    cells = [reference.cells[k] for k in active]
    lessons = [
        Lesson(cell.seed, cell.forget, timed[k].target.log_target) for k, cell in zip(active, cells, strict=True)
    ]
    if schedule.stopping is not None:
        ended = {}
        for k, lesson in zip(active, lessons, strict=True):
            base, seconds = reference.base.net.select([k]), timed[k].seconds
            done = distil_until_done(base, rows, lesson, schedule, how)
            scores = reference.scorers[k].score(done.net or base, 0)
            seconds += done.seconds
            ended[k] = ([EpochMetrics(done.best_epoch or 0, seconds, scores)], seconds)
            if progress is not None:
                progress(done.best_epoch or 0)
        return ended
    student = reference.base.net.select(active)
    prepared = [timed[k].seconds for k in active]
    history = _History(student, [reference.scorers[k] for k in active], prepared, progress)
    seconds = distil(student, rows, lessons, schedule, how, history.end_epoch)
    return {k: (history.members[i], timed[k].seconds + seconds) for i, k in enumerate(active)}


def _finalize_mse(reference: Reference, k: int, timed: _Timed) -> Ended:
    now = clock_for(reference.problem.device)
    started = now()
    student = least_squares(reference.base.net, k, reference.problem.train.inputs, timed.target)
    seconds = timed.seconds + now() - started
    return [EpochMetrics(1, seconds, reference.scorers[k].score(student, 0))], seconds


def _target_record(reference: Reference, k: int, timed: _Timed, settings: RunSettings) -> TargetRecord:
    """Describe one target: outside the timed part, because none of it is needed to unlearn."""
    target, problem, proxy = timed.target, reference.problem, settings.proxy
    points = _test_points(reference, k, settings)
    scores = reference.scorers[k].score_arrays(target.on(points), target.log_target[reference.cells[k].forget])
    search, before, after, bound = target.search, None, None, None
    if search is not None:
        posteriors = target.posteriors()
        before, after = target.kl_net_proxy(posteriors)
        log_retrain = log_probabilities(reference.retrain.net.logits(k, problem.train.inputs).double().cpu().numpy())
        bound = target.bound(log_retrain, posteriors)
    return TargetRecord(
        eta_max=None if search is None else search.eta_max,
        admissible=None if search is None else search.admissible,
        reason="closed form: no eta" if search is None else search.reason,
        kl_net_proxy_before=before,
        kl_net_proxy_after=after,
        h_curve=target.h_curve(),
        scores=scores,
        bound=bound,
        proxy_seconds=timed.seconds,
        ridge=proxy.ridge,
        shrinkage=proxy.shrinkage,
        cap=proxy.cap_of(target.method),
        finalizer=proxy.finalizer,
        dir_on_test=proxy.dir_on_test.value,
    )


def _test_points(reference: Reference, k: int, settings: RunSettings) -> Points:
    """The test rows; those of a class or subclass that is forgotten entirely may count as forgotten."""
    test, gone = reference.problem.test, None
    if settings.proxy.dir_on_test is DirOnTest.AS_FORGOTTEN:
        gone = np.where(reference.cells[k].test_of_forgotten, test.labels, NOWHERE)
    return Points(test.seen, reference.base_logits(k, test.inputs), as_forgotten=gone)
