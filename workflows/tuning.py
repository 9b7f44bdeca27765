"""Choose a method's settings on requests that are in no grid: Optuna asks, the executor runs, the store remembers.

Nothing of a study is kept but its steps. The same command makes it again from its seed: what was tried comes again in the
same order, and what was computed is found. So that this holds on any machine with any number of workers, trials are
asked for in batches of one size and told in their order, and the sampler sees nothing that was timed: KL, and a cost by
count. Measured seconds decide only which of the trials may win.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tasks.files import ENTRY
from tasks.step import Step, hash_of
from tasks.store import Store
from unlearn_core.errors import BadInput
from unlearn_core.grid import Scenario, Variant
from unlearn_core.run_settings import RunSettings
from unlearn_core.search_spaces import Parameter, SearchSpace, search_space
from unlearn_core.tuned import TUNED, save_tuned
from workflows.grid import cell_step
from workflows.rates import counted_cost
from workflows.sources import Source

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

DEVELOPMENT_SEEDS = (100, 101, 102)
LABEL = 1
"""The class, and the subclass, to forget: the grid has even ones of ten, and every twentieth of a hundred."""
RANDOM_ROWS = 1000
BUDGET = 0.1
"""The most that a method may cost, as a share of a retrain."""
PENALTY = 2.0
"""For every e-fold over the budget: more than what any e-fold of cost was seen to gain in log KL."""
LEAST_KL, MOST_KL = 1e-6, 1e3
"""An infinite or undefined KL counts as the most."""
BATCH = 4
STARTUP_TRIALS = 8
SAMPLER_SEED = 0


def development_variants(source: Source, archs: Sequence[str]) -> list[Variant]:
    """Class 1, subclass 1 and 1000 random rows; a tenth of the rows if there are fewer than ten thousand."""
    rows = min(RANDOM_ROWS, source.n_train // 10)
    if rows in source.keys(Scenario.RANDOM):
        rows -= 1
    keys = {Scenario.CLASS: LABEL, Scenario.SUBCLASS: LABEL, Scenario.RANDOM: rows}
    if not source.has_superclass:
        del keys[Scenario.SUBCLASS]
    if source.n_fine <= LABEL or rows < 1:
        raise BadInput(f"{source.name} is too small to tune on: {source.n_train} rows, {source.n_fine} labels")
    return [Variant(source.name, arch, scenario, key) for arch in archs for scenario, key in keys.items()]


@dataclass(frozen=True)
class Cell:
    """What one method made of one development cell; None: infinite, undefined, or its step failed."""

    variant: str
    seed: int
    kl_f: float | None
    kl_t: float | None
    cost: float | None
    counted: float


@dataclass(frozen=True)
class Trial:
    """One choice of a method's settings. The means over the cells are geometric for KL."""

    number: int
    values: Mapping[str, float]
    cells: Sequence[Cell]
    id: str = ""
    """Names it for good: the hash of what it runs."""

    @property
    def kl_f(self) -> float:
        return math.exp(fmean(_log_kl(cell.kl_f) for cell in self.cells))

    @property
    def kl_t(self) -> float:
        return math.exp(fmean(_log_kl(cell.kl_t) for cell in self.cells))

    @property
    def objective(self) -> float:
        """The mean of (log KL_f + log KL_t) / 2 at the last epoch."""
        return fmean((_log_kl(cell.kl_f) + _log_kl(cell.kl_t)) / 2 for cell in self.cells)

    @property
    def cost(self) -> float:
        """As measured; infinite if a step failed."""
        return fmean(math.inf if cell.cost is None else cell.cost for cell in self.cells)

    @property
    def counted(self) -> float:
        return fmean(cell.counted for cell in self.cells)

    @property
    def told(self) -> float:
        """What the sampler is told: rising smoothly where the count is over the budget, and the same on every machine."""
        return self.objective + penalty(self.counted)

    def entry(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "trial": self.number,
            "id": self.id,
            "values": dict(self.values),
            "objective": self.objective,
            "kl_f": self.kl_f,
            "kl_t": self.kl_t,
            "cost": self.cost if math.isfinite(self.cost) else None,
            "counted_cost": self.counted,
            "told": self.told,
            "cells": [dataclasses.asdict(cell) for cell in self.cells],
        }


def penalty(cost: float) -> float:
    return PENALTY * max(0.0, math.log(cost / BUDGET)) if cost > 0 else 0.0


def _log_kl(value: float | None) -> float:
    return math.log(MOST_KL if value is None else min(max(value, LEAST_KL), MOST_KL))


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The closest within the measured budget; if none is, the one that is least far over it for what it reaches."""
    within = [trial for trial in trials if trial.cost <= BUDGET]
    return min(within or trials, key=lambda trial: (trial.objective + penalty(trial.cost), trial.number))


@dataclass(frozen=True, eq=False)
class Tuning:
    """One method on the development requests of some data sets, for the architectures that are tuned together."""

    method: str
    parts: Sequence[tuple[Source, Sequence[Variant]]]
    seeds: Sequence[int] = DEVELOPMENT_SEEDS
    training_epochs: int | None = None

    @property
    def space(self) -> SearchSpace:
        return search_space(self.method)

    @property
    def archs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(variant.arch for _, variants in self.parts for variant in variants))

    def steps(self, values: Mapping[str, float]) -> list[tuple[Source, Variant, Step]]:
        """The steps of a trial; what they need, such as base and retrain, is shared by all trials."""
        found = []
        for source, variants in self.parts:
            for variant in variants:
                tuned = self.space.tuned(self.method, variant.arch, values)
                settings = RunSettings(self.training_epochs, TUNED, tuned=tuned)
                cells = (cell_step(source, variant, seed, [self.method], settings) for seed in self.seeds)
                found += [(source, variant, cell.needs[self.method]) for cell in cells]
        return found

    def measure(self, number: int, values: Mapping[str, float], store: Store) -> Trial:
        """A trial from its steps in the store; one that is not there failed."""

        def cell(source: Source, variant: Variant, step: Step) -> Cell:
            place = str(variant), step.config["seed"]
            kl_f = kl_t = cost = None
            if store.has(step):
                entry = store.read_json(step, ENTRY)
                kl_f, kl_t, cost = entry["last"]["kl_f"], entry["last"]["kl_t"], entry["cost"]
            return Cell(*place, kl_f, kl_t, cost, counted_cost(step, source))

        steps = self.steps(values)
        return Trial(number, values, [cell(*step) for step in steps], hash_of([step.id for _, _, step in steps]))

    def run(
        self,
        n_trials: int,
        store: Store,
        compute: Callable[[Sequence[Step], str], None],
        keep: Callable[[Sequence[Trial]], None],
    ) -> list[Trial]:
        """All trials, in order.

        Args:
            compute: brings steps into the store; is given those of all trials so far, and what to call them.
            keep: takes the trials so far after every batch.
        """
        study, space = _new_study(), self.space
        study.enqueue_trial(space.now(self.method, self.archs[0]))
        distributions = {parameter.name: _distribution(parameter) for parameter in space.parameters}
        trials: list[Trial] = []
        steps: list[Step] = []
        while len(trials) < n_trials:
            asked = [study.ask(distributions) for _ in range(min(BATCH, n_trials - len(trials)))]
            values = [{p.name: p.rounded(one.params[p.name]) for p in space.parameters} for one in asked]
            steps += [step for chosen in values for _, _, step in self.steps(chosen)]
            compute(steps, f"{self.method}: trials 1 to {len(trials) + len(asked)} of {n_trials}")
            for one, chosen in zip(asked, values, strict=True):
                trial = self.measure(len(trials), chosen, store)
                study.tell(one, trial.told)
                trials.append(trial)
            keep(trials)
        return trials

    def entry(self, trials: Sequence[Trial]) -> dict[str, Any]:
        """What was tried, as plain JSON values; the same after an interruption as without one."""
        best = best_trial(trials)
        return {
            "method": self.method,
            "archs": list(self.archs),
            **self._made_on(),
            "start": self.space.start,
            "space": [dataclasses.asdict(parameter) for parameter in self.space.parameters],
            "sampler": {"name": "TPE", "seed": SAMPLER_SEED, "startup": STARTUP_TRIALS, "batch": BATCH},
            "budget": BUDGET,
            "best": {name: value for name, value in best.entry().items() if name != "cells"},
            "trials": [trial.entry() for trial in trials],
        }

    def save(self, trials: Sequence[Trial], date: str) -> Trial:
        """Put the best values into the preset ``tuned``."""
        best = best_trial(trials)
        command = f"unlearn tune --method {self.method} --trials {len(trials)} --arch {','.join(self.archs)}"
        found = {name: value for name, value in best.entry().items() if name not in ("id", "values", "told", "cells")}
        how = {
            "command": command,
            "date": date,
            **self._made_on(),
            "trials": len(trials),
            "budget": BUDGET,
            "within_budget": best.cost <= BUDGET,
            **found,
        }
        for arch in self.archs:
            save_tuned(self.method, arch, self.space.tuned(self.method, arch, best.values), how)
        return best

    def _made_on(self) -> dict[str, Any]:
        return {
            "data": {source.name: source.fingerprint for source, _ in self.parts},
            "requests": [str(variant) for _, variants in self.parts for variant in variants],
            "seeds": list(self.seeds),
            "training_epochs": self.training_epochs,
        }


def _new_study() -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # the trials of a batch are asked for before any of them is told: the liar keeps them apart
    sampler = optuna.samplers.TPESampler(
        seed=SAMPLER_SEED, multivariate=True, constant_liar=True, n_startup_trials=STARTUP_TRIALS
    )
    return optuna.create_study(sampler=sampler)


def _distribution(parameter: Parameter) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.choices:
        return CategoricalDistribution(parameter.choices)
    if parameter.whole:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)
