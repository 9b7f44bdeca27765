"""How long steps will take: the mean of what the store has measured, else a count of operations over this machine's rate."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tasks.step import Kind, Step
from tasks.store import Store
from unlearn_core.baselines import baseline_recipe
from unlearn_core.spec import BASELINES, DISTILLATION, Recipe, Scenario, Visit
from workflows.grid import Source

EFFICIENCY = 0.5  # share of the GEMM rate that training and evaluation reach together


class Rates:
    """Seconds per step: measured on steps of the same kind, method, architecture and data where there are any."""

    def __init__(self, store: Store, source: Source) -> None:
        self._source: Source = source
        self._rate: float | None = None
        measured: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for kind in Kind:
            for _, done in store.records(kind):
                measured[_group(str(kind), done["identity"]["config"])].append(done["seconds"])
        self._measured: dict[tuple[str, ...], float] = {k: sum(v) / len(v) for k, v in measured.items()}

    def seconds(self, step: Step) -> tuple[float, bool]:
        """The expected seconds of a step on one worker, and whether they were measured."""
        known = self._measured.get(_group(str(step.kind), step.config))
        return (known, True) if known is not None else (self._operations(step) / self._machine_rate(), False)

    def total(self, steps: Sequence[Step]) -> float:
        return sum(self.seconds(step)[0] for step in steps)

    def _machine_rate(self) -> float:
        """Operations per second of one thread, from a tenth of a second of matrix products."""
        if self._rate is None:
            import torch

            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            a, b = torch.randn(512, 384), torch.randn(384, 256)
            count, started = 0, time.perf_counter()
            while time.perf_counter() - started < 0.1:
                torch.mm(a, b)
                count += 1
            self._rate = EFFICIENCY * count * 2 * 512 * 384 * 256 / (time.perf_counter() - started)
            torch.set_num_threads(threads)
        return self._rate

    def _operations(self, step: Step) -> float:
        source = self._source
        if step.kind is Kind.FEATURES:
            return 1e9
        if step.kind is Kind.STATISTICS:
            return 4.0 * source.n_train * source.dim**2
        from unlearn_core.nets.heads import head_widths

        widths = head_widths(step.config["arch"], source.dim, source.n_fine)
        forward = 2.0 * sum(a * b for a, b in itertools.pairwise(widths))
        if step.kind is Kind.AUDIT:
            return 3 * forward * source.n_test
        n_forget = _forgotten(step, source)
        if step.kind in (Kind.BASE, Kind.RETRAIN, Kind.FLOOR):
            return step.config["epochs"] * 3 * forward * (source.n_train - (0 if step.kind is Kind.BASE else n_forget))
        method = step.config["method"]
        recipe = baseline_recipe(method, step.config["preset"]) if method in BASELINES else DISTILLATION
        evaluation = recipe.epochs * forward * (source.n_test + n_forget)
        return 3 * forward * _visited(recipe, source.n_train, n_forget) + evaluation


def _group(kind: str, config: Mapping[str, object]) -> tuple[str, ...]:
    return (kind, *(str(config.get(name)) for name in ("arch", "space", "scenario", "method", "epochs", "finalizer")))


def _forgotten(step: Step, source: Source) -> int:
    if step.config.get("scenario") == Scenario.RANDOM:
        return int(step.config["key"])
    return source.n_train // source.n_fine


def _visited(recipe: Recipe, n_train: int, n_forget: int) -> float:
    rows = {
        Visit.ALL: n_train,
        Visit.RETAIN: n_train - n_forget,
        Visit.FORGET: n_forget,
        Visit.RETAIN_SAMPLE: n_forget,
        Visit.FORGET_AND_RETAIN_SAMPLE: 2 * n_forget,
    }
    return float(sum(phase.epochs * rows[sweep.visit] for phase in recipe.phases for sweep in phase.passes))
