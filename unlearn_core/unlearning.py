"""Run one method on the cells of a variant and score it after every epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core import methods
from unlearn_core.audit.divergence import log_probabilities
from unlearn_core.audit.scoring import Scorer
from unlearn_core.clock import Stopwatch
from unlearn_core.doubt import chances
from unlearn_core.edits import newton
from unlearn_core.edits.newton import NewtonConstants
from unlearn_core.edits.request import EditRequest
from unlearn_core.finalize import Lesson, distil, distil_until_done, least_squares
from unlearn_core.methods import BaselineMethod, EditMethod, Family, ProxyMethod
from unlearn_core.nets.make import fresh_network, mixed, stored_network
from unlearn_core.nets.stack import NetworkStack, State
from unlearn_core.preparations import CROSSFIT, PREPARATIONS, PROBE, YOUNG, Given, Kept, Per, kept_as
from unlearn_core.problem import Cell, Problem
from unlearn_core.proxies.covariance import Shrinkage
from unlearn_core.proxies.empirical import NOWHERE
from unlearn_core.proxies.points import Points
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.recipes import Recipe, Start, Toward
from unlearn_core.records import EpochMetrics, MethodRecord, TargetRecord, best_epoch
from unlearn_core.references import Trained, weights_seed
from unlearn_core.run_settings import DirOnTest, RunSettings, WhatIsRun, what_is_run
from unlearn_core.seeding import derive_seed
from unlearn_core.target import Fitted, Target, fit, make_target
from unlearn_core.training import Member, train, warm_up

Array = NDArray[np.float64]
Progress = Callable[[float], None]
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
    pretrained: State | None = None
    """What the base's body started from, if it was not drawn: a retrain cut short starts there too."""
    of_networks: Sequence[Kept] = ()
    """What was prepared of each cell's base; nothing yet if empty."""

    def __post_init__(self) -> None:
        if not self.of_networks:
            object.__setattr__(self, "of_networks", tuple(Kept() for _ in self.cells))
        if not len(self.cells) == self.base.net.n_members == self.retrain.net.n_members == len(self.scorers):
            raise ValueError("each cell needs one base, one retrain and one scorer")

    def base_logits(self, member: int, inputs: torch.Tensor) -> Array:
        return self.base.net.logits(member, inputs).double().cpu().numpy()

    def prepared(self, name: str | None, member: int) -> tuple[Any, float]:
        """Something that a method starts from, and the seconds that it took, whoever computed it."""
        if name is None:
            return None, 0.0
        of_network = PREPARATIONS[name].per is Per.NETWORK
        kept = self.of_networks[member] if of_network else self.problem.prepared
        net = self.base.net if of_network else None
        value = kept.get(name, Given(self.problem, self.arch, net, member, pretrained=self.pretrained))
        if name == PROBE:
            _ = self.problem.probe_inputs
        return value, kept.seconds[kept_as(name, self.arch)]


def run_method(
    method: str, reference: Reference, settings: RunSettings, progress: Progress | None = None
) -> list[MethodRecord]:
    """One record per cell; the base networks are left untouched."""
    warm_up()
    line, run = methods.find(method), what_is_run(method, reference.arch, settings)
    if line.family is Family.BASELINE:
        return _run_baseline(line, reference, run, progress)
    if line.family is Family.EDIT:
        return _run_edit(line, reference, run, progress)
    return _run_proxy(line, reference, settings.of(method, reference.arch), run, progress)


def _run_baseline(
    line: BaselineMethod, reference: Reference, run: WhatIsRun, progress: Progress | None
) -> list[MethodRecord]:
    rows, base, recipe = reference.problem.train, reference.base.net, run.recipe
    if recipe is None or run.optimization is None:
        raise ValueError(f"{line.name} is a baseline without a recipe")
    epochs: list[list[EpochMetrics]] = [[] for _ in reference.cells]
    draws, step = (run.constants, None) if line.step is None else (run.constants.draws, run.constants.step)
    folds, _ = reference.prepared(None if draws is None else CROSSFIT, 0)
    prepared = [_all_prepared(line, reference, k) for k in range(len(reference.cells))]
    seconds = 0.0
    for training in recipe.trainings:
        watch = Stopwatch(base.device)
        with watch.running():
            drawn = None if draws is None else torch.from_numpy(chances(folds.log_q, rows.labels, draws))
            members = [
                Member(
                    cell.seed,
                    "unlearn",
                    rows.label_tensor,
                    torch.from_numpy(cell.forget),
                    soft,
                    drawn,
                )
                for cell, soft in zip(reference.cells, _teachers(line.name, recipe, reference), strict=True)
            ]
            old = _network_before(line, reference, step, [values for values, _ in prepared])
            student = _start(line.name, recipe, reference, old)
            last = training.record_at[-1] if training.record_at else None
            history = _History(student, reference.scorers, [0.0] * len(members), watch, progress, last)
            train(student, rows.inputs, members, training, run.optimization, history.end_epoch)
        seconds = watch.seconds / len(members)  # of the last one: nobody who wants it makes the others
        for found, added in zip(epochs, history.members, strict=True):
            found += added
    return [
        _method_record(line.name, found, seconds, reference.retrain.seconds[k], preparation_seconds=prepared[k][1])
        for k, found in enumerate(epochs)
    ]


def _teachers(method: str, recipe: Recipe, reference: Reference) -> list[dict[Toward, torch.Tensor]]:
    """For every cell, the logits that the recipe's terms are about."""
    base, inputs = reference.base.net, reference.problem.train.inputs
    needed = {term.toward for term in recipe.terms} - {Toward.LABELS}
    if not needed:
        return [{} for _ in reference.cells]
    competent = [base.logits(k, inputs) for k in range(base.n_members)]
    if Toward.TWO_TEACHERS not in needed:
        return [{Toward.TEACHER: logits} for logits in competent]
    untrained = _untrained(method, reference)
    teachers = []
    for k, cell in enumerate(reference.cells):
        forgotten = torch.from_numpy(np.flatnonzero(cell.forget)).to(base.device)
        both = competent[k].index_copy(0, forgotten, untrained.logits(k, inputs, forgotten))
        teachers.append({Toward.TEACHER: competent[k], Toward.TWO_TEACHERS: both})
    return teachers


def _untrained(method: str, reference: Reference, pretrained: State | None = None) -> NetworkStack:
    """For every cell, weights of the method's own draw."""
    return _drawn([derive_seed(cell.seed, method, "weights") for cell in reference.cells], reference, pretrained)


def _drawn(seeds: Sequence[int], reference: Reference, pretrained: State | None) -> NetworkStack:
    """For every cell, weights drawn from its seed."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return fresh_network(
        reference.arch, reference.problem.train.inputs, reference.base.net.n_classes, generators, pretrained
    )


def _network_before(
    line: BaselineMethod,
    reference: Reference,
    step: NewtonConstants | None,
    prepared: Sequence[Mapping[str, Any]],
) -> NetworkStack:
    """For every cell, the network of which a recipe's start has a share: the base, after a Newton step, or a young one."""
    if line.from_young:
        states = [values[YOUNG].state() for values in prepared]
        return stored_network(reference.arch, states, reference.base.net.device)
    return reference.base.net if step is None else _stepped(reference, step, prepared)


def _stepped(reference: Reference, constants: NewtonConstants, prepared: Sequence[Mapping[str, Any]]) -> NetworkStack:
    """Every cell's base after a Newton step away from its records, or as it is if no step leaves retained rows alone."""
    base, states = reference.base.net, []
    for k, cell in enumerate(reference.cells):
        request = EditRequest(reference.problem, cell.forget, base, k, prepared[k], cell.seed)
        moved = newton.step(request, constants)
        states.append(base.state(k) if moved is None else moved.state(0))
    return stored_network(reference.arch, states, base.device)


def _start(method: str, recipe: Recipe, reference: Reference, base: NetworkStack) -> NetworkStack:
    """The network that a recipe trains: a copy of the base, or fresh weights with a share of the base's mixed in.

    ``base`` is what it is taken for: a young network in its place, or where a Newton step leads from it.
    """
    if recipe.start is Start.BASE:
        return base.select(range(base.n_members))
    if recipe.start is Start.INITIAL:
        seeds = [weights_seed(cell.seed, "retrain") for cell in reference.cells]
        return _drawn(seeds, reference, reference.pretrained)
    fresh = _untrained(method, reference, reference.pretrained)
    if recipe.base_share == 0.0:
        return fresh
    states = [
        mixed(fresh, base, k, recipe.base_share, reference.problem.lost_classes(cell.forget))
        for k, cell in enumerate(reference.cells)
    ]
    return stored_network(reference.arch, states, base.device)


def _run_edit(line: EditMethod, reference: Reference, run: WhatIsRun, progress: Progress | None) -> list[MethodRecord]:
    records = []
    for k, cell in enumerate(reference.cells):
        prepared, preparation = _all_prepared(line, reference, k)
        watch = Stopwatch(reference.base.net.device)
        with watch.running():
            asked = (reference.problem, cell.forget, reference.base.net, k)
            request = EditRequest(*asked, prepared, cell.seed, run.schedule, run.optimization)
            edited = line.edit(request, run.constants)
        net, member, epoch = (reference.base.net, k, 0) if edited is None else (edited, 0, 1)
        epochs = [EpochMetrics(epoch, watch.seconds, reference.scorers[k].score(net, member))]
        retrain_seconds = reference.retrain.seconds[k]
        records.append(
            _method_record(line.name, epochs, watch.seconds, retrain_seconds, preparation_seconds=preparation)
        )
        if progress is not None:
            progress(epoch)
    return records


def _all_prepared(line: EditMethod | BaselineMethod, reference: Reference, member: int) -> tuple[dict[str, Any], float]:
    """What a method starts from, by name, and the seconds that all of it took."""
    found = {name: reference.prepared(name, member) for name in line.prepares}
    return {name: value for name, (value, _) in found.items()}, sum(seconds for _, seconds in found.values())


def _method_record(
    method: str,
    epochs: Sequence[EpochMetrics],
    seconds: float,
    retrain_seconds: float,
    target: TargetRecord | None = None,
    preparation_seconds: float = 0.0,
) -> MethodRecord:
    cost = seconds / retrain_seconds
    preparation = preparation_seconds / retrain_seconds
    return MethodRecord(method, epochs, best_epoch(epochs), epochs[-1], seconds, cost, cost, preparation, target)


class _History:
    """Scores every member after every epoch, which is nobody's cost."""

    def __init__(
        self,
        student: NetworkStack,
        scorers: Sequence[Scorer],
        before: Sequence[float],
        watch: Stopwatch,
        progress: Progress | None,
        last: float | None = None,
    ) -> None:
        self.student: NetworkStack = student
        self.scorers: Sequence[Scorer] = scorers
        self.before: Sequence[float] = before
        self.watch: Stopwatch = watch
        self.progress: Progress | None = progress
        self.last: float | None = last
        self.members: list[list[EpochMetrics]] = [[] for _ in scorers]

    def end_epoch(self, epoch: float, _seconds: float) -> bool:
        """Whether this was the last record that is asked for."""
        seconds = self.watch.seconds / len(self.scorers)
        with self.watch.paused():
            for k, scorer in enumerate(self.scorers):
                scores = scorer.score(self.student, k)
                self.members[k].append(EpochMetrics(epoch, self.before[k] + seconds, scores))
            if self.progress is not None:
                self.progress(epoch)
        return epoch == self.last


@dataclass(frozen=True, eq=False)
class _Timed:
    """One cell's target and the seconds that it took: computed within the timed part, described outside it.

    ``problem`` and ``forget`` are the rows that it speaks of: D, or a part of it.
    """

    target: Target
    problem: Problem
    forget: NDArray[np.bool_]
    seconds: float


Ended = tuple[Sequence[EpochMetrics], float]
"""The epochs of one cell and the seconds of all of it."""


def _run_proxy(
    line: ProxyMethod, reference: Reference, settings: RunSettings, run: WhatIsRun, progress: Progress | None
) -> list[MethodRecord]:
    _, preparation = reference.prepared(line.prepares, 0)
    timed = _make_targets(line, reference, settings, run)
    records = [_target_record(reference, k, one, settings) for k, one in enumerate(timed)]
    active = [k for k, one in enumerate(timed) if one.target.unlearns]
    ended: dict[int, Ended] = {}
    if active and settings.proxy.finalizer == "kl":
        ended = _finalize_kl(reference, {k: timed[k] for k in active}, run, progress)
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
        retrain_seconds = reference.retrain.seconds[k]
        results.append(_method_record(line.name, epochs, seconds, retrain_seconds, records[k], preparation))
    return results


def _make_targets(line: ProxyMethod, reference: Reference, settings: RunSettings, run: WhatIsRun) -> list[_Timed]:
    timed = []
    fits: dict[tuple[bytes, int], tuple[Fitted, float]] = {}
    for k, cell in enumerate(reference.cells):
        watch = Stopwatch(reference.problem.device)
        key = (cell.forget.tobytes(), cell.seed if line.per_network else 0)
        with watch.running():
            problem, forget = reference.problem, cell.forget
            if line.sample is not None:
                problem, forget = problem.part(forget, line.sample)
            points = problem.training_points(reference.base_logits(k, problem.train.inputs))
            # what cells share must not depend on one's network: a proxy that reads it says so in the table
            seen = points if line.per_network else problem.training_points(None)
            proxy, arch = settings.proxy, reference.arch
            request = ForgetRequest(
                problem, forget, seen, proxy.ridge, Shrinkage(proxy.shrinkage), cell.seed, arch=arch
            )
            if shared := fits.get(key):  # cells with one forget set share the fit, and each is charged for it
                fitted, fit_seconds = shared
            else:
                before = watch.seconds
                fitted = fit(line.name, request, run.constants)
                fit_seconds = 0.0
                fits[key] = (fitted, watch.seconds - before)
            target = make_target(fitted, points, request.lost_classes, settings.proxy.cap_of(line.name))
            _ = target.log_target
        timed.append(_Timed(target, problem, forget, watch.seconds + fit_seconds))
    return timed


def _finalize_kl(
    reference: Reference, timed: dict[int, _Timed], run: WhatIsRun, progress: Progress | None
) -> dict[int, Ended]:
    assert run.schedule is not None  # who distils has one
    if run.schedule.stopping is not None:
        return {k: _distil_until_done(reference, k, one, run, progress) for k, one in timed.items()}
    if all(one.problem is reference.problem for one in timed.values()):
        return _distil(reference, timed, run, progress)
    ended = {}
    for k, one in timed.items():  # each on rows of its own: they are no stack
        ended |= _distil(reference, {k: one}, run, progress)
    return ended


def _lesson(reference: Reference, k: int, timed: _Timed) -> Lesson:
    return Lesson(reference.cells[k].seed, timed.forget, timed.target.log_target)


def _distil_until_done(reference: Reference, k: int, timed: _Timed, run: WhatIsRun, progress: Progress | None) -> Ended:
    assert run.schedule is not None
    assert run.optimization is not None
    watch = Stopwatch(reference.base.net.device)
    with watch.running():
        base = reference.base.net.select([k])
        lesson = _lesson(reference, k, timed)
        rows, heldout = timed.problem.train, reference.problem.heldout
        done = distil_until_done(base, rows, lesson, run.schedule, run.optimization, heldout)
    seconds, epoch = timed.seconds + watch.seconds, done.best_epoch or 0
    if progress is not None:
        progress(epoch)
    return [EpochMetrics(epoch, seconds, reference.scorers[k].score(done.net or base, 0))], seconds


def _distil(
    reference: Reference, timed: dict[int, _Timed], run: WhatIsRun, progress: Progress | None
) -> dict[int, Ended]:
    """All cells as one stack, on the rows that they share."""
    assert run.schedule is not None
    assert run.optimization is not None
    active = list(timed)
    watch = Stopwatch(reference.base.net.device)
    with watch.running():
        student = reference.base.net.select(active)
        before, scorers = [timed[k].seconds for k in active], [reference.scorers[k] for k in active]
        history = _History(student, scorers, before, watch, progress)
        rows, lessons = timed[active[0]].problem.train, [_lesson(reference, k, timed[k]) for k in active]
        distil(student, rows, lessons, run.schedule, run.optimization, history.end_epoch)
    seconds = watch.seconds / len(active)
    return {k: (history.members[i], timed[k].seconds + seconds) for i, k in enumerate(active)}


def _finalize_mse(reference: Reference, k: int, timed: _Timed) -> Ended:
    watch = Stopwatch(reference.problem.device)
    with watch.running():
        student = least_squares(reference.base.net, k, timed.problem.train.inputs, timed.target)
    seconds = timed.seconds + watch.seconds
    return [EpochMetrics(1, seconds, reference.scorers[k].score(student, 0))], seconds


def _target_record(reference: Reference, k: int, timed: _Timed, settings: RunSettings) -> TargetRecord:
    """Describe one target: outside the timed part, because none of it is needed to unlearn."""
    target, problem, proxy = timed.target, timed.problem, settings.proxy
    points = _test_points(reference, k, settings)
    scores = reference.scorers[k].score_arrays(target.on(points), target.log_target[timed.forget])
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
