"""How long steps will take: the mean of what the store has measured, else a count of operations over a rate.

Two rates: this machine's, from a moment of matrix products, and a GPU's, from a model that is stated where it is used.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from tasks.step import Kind, Step
from tasks.store import Store
from unlearn_core.grid import RESNET, SMALL_RESNET, Scenario, head_widths
from unlearn_core.preparations import CROSSFIT, CURVATURE, PROBE
from unlearn_core.recipes import (
    Pass,
    Recipe,
    Visit,
    training_optimization,
    training_recipe,
)
from unlearn_core.run_settings import RunSettings, what_is_run
from workflows.sources import Source

EFFICIENCY = 0.5  # share of the GEMM rate that training and evaluation reach together
ROWS_PER_UPDATE = 16  # an optimiser's pass over the weights of a head takes about as long as so many rows' gradients
PER_PIXEL = {RESNET: 3.6e9 / 224**2, SMALL_RESNET: 6.1e3}
"""Operations of a forward pass for every pixel: ResNet-18 makes 1.8 GMAC at 224 x 224, the small one 3.1 MMAC at 32 x 32."""


SAMPLED = 1000
"""Steps of each kind whose times are read: ids are hashes, so that the first ones by name are a fair sample."""
ALIKE = ("arch", "space", "scenario", "method", "what", "epochs", "finalizer", "schedule_name")
"""Steps of a kind that have these in common take about as long."""


@dataclass(frozen=True)
class GpuModel:
    """A data-centre GPU of the paper's kind, roughly: what large batches reach, and what no batch goes below."""

    operations_per_second: float = 5e12
    seconds_per_update: float = 1e-3

    def __str__(self) -> str:
        return (
            f"{self.operations_per_second / 1e12:.0f} TFLOP/s sustained, and at least "
            f"{1e3 * self.seconds_per_update:.0f} ms for every update of a network's weights"
        )

    def seconds(self, work: Work) -> float:
        return max(work.operations / self.operations_per_second, work.updates * self.seconds_per_update)


@dataclass(frozen=True)
class Work:
    """What a step does: floating-point operations, and updates of weights."""

    operations: float
    updates: float = 0.0


class Rates:
    """Seconds per step: measured on steps of the same kind, method, architecture and data where there are any."""

    def __init__(self, store: Store, sources: Sequence[Source]) -> None:
        self._sources: dict[str, Source] = {source.data.id: source for source in sources}
        self._images: dict[str, Source] = {
            source.data.needs["images"].id: source for source in sources if "images" in source.data.needs
        }
        self._rate: float | None = None
        self._known: dict[str, tuple[float, bool]] = {}  # by shape: seeds take equally long
        measured: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for kind in Kind:
            for _, done in store.records(kind, SAMPLED):
                measured[_group(str(kind), done["identity"]["config"])].append(done["seconds"])
        self._measured: dict[tuple[str, ...], float] = {k: sum(v) / len(v) for k, v in measured.items()}

    def seconds(self, step: Step) -> tuple[float, bool]:
        """The expected seconds of a step on one worker, and whether they were measured."""
        shape = step.shape
        if shape not in self._known:
            self._known[shape] = self._estimate(step)
        return self._known[shape]

    def _estimate(self, step: Step) -> tuple[float, bool]:
        known = self._measured.get(_group(str(step.kind), step.config))
        return (known, True) if known is not None else (self.work(step).operations / self._machine_rate(), False)

    def total(self, steps: Sequence[Step]) -> float:
        return sum(self.seconds(step)[0] for step in steps)

    def _machine_rate(self) -> float:
        """Operations per second of one thread, from a tenth of a CPU second of products: the same on a busy machine."""
        if self._rate is None:
            rng = np.random.default_rng(0)
            a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((512, 384), (384, 256)))
            with threadpool_limits(1):
                count, started = 0, time.process_time()
                while time.process_time() - started < 0.1:
                    _ = a @ b
                    count += 1
            self._rate = EFFICIENCY * count * 2 * 512 * 384 * 256 / (time.process_time() - started)
        return self._rate

    def work(self, step: Step) -> Work:
        """What a step does, by count."""
        if step.kind in (Kind.IMAGES, Kind.FEATURES, Kind.PROJECTION):
            return Work(1e9)
        if step.kind is Kind.SHARD:
            return Work(self._backbone_forward(step) * (step.config["stop"] - step.config["start"]))
        data = step.needs.get("features") or step.needs["images"]
        source = self._sources.get(data.id) or self._images[data.id]
        if step.kind is Kind.RESIZED:
            return Work(1e3 * (source.n_train + source.n_test) * step.config["size"] ** 2)
        if step.kind is Kind.PREPARED:
            dim = source.dim if source.sketch is None else source.sketch["dim"]
            if step.config["what"] in (CROSSFIT, CURVATURE):  # about as much as 8 epochs of training
                return Work(24 * _forward(source, step.config["arch"]) * source.n_train)
            # the probe has a curvature for each class
            blocks = 4 * source.n_fine if step.config["what"] == PROBE else 1
            return Work(4.0 * blocks * source.n_train * dim**2)
        forward = _forward(source, step.config["arch"])
        if step.kind is Kind.SKETCH:
            return Work(forward * (source.n_train + source.n_test))
        if step.kind is Kind.AUDIT or (step.kind is Kind.ANSWERS and step.config["method"] in ("base", "retrain")):
            return Work(3 * forward * source.n_test)
        n_forget = _forgotten(step, source)
        arch = step.config["arch"]
        if step.kind in (Kind.BASE, Kind.RETRAIN, Kind.FLOOR):
            visit = Visit.ALL if step.kind is Kind.BASE else Visit.RETAIN
            recipe, batch = training_recipe(visit, step.config["epochs"]), training_optimization(arch).batch_size
            visited = _visited(recipe, source.n_train, n_forget)
            return Work(3 * forward * visited, visited / batch)
        if (training := _training_of(step, n_forget)) is None:
            return Work(forward * (source.n_test + 4 * n_forget))
        recipe, batch = training
        visited = _visited(recipe, source.n_train, n_forget)
        evaluation = recipe.epochs * forward * (source.n_test + n_forget)
        return Work(3 * forward * visited + evaluation, visited / batch)

    def _backbone_forward(self, shard: Step) -> float:
        from unlearn_core.data.backbones import BackboneSpec, forward_operations

        return forward_operations(BackboneSpec.from_identity(shard.config["backbone"]))


def _forward(source: Source, arch: str) -> float:
    """Operations of one row's forward pass."""
    if arch in PER_PIXEL:
        return PER_PIXEL[arch] * source.dim**2
    return 2.0 * sum(a * b for a, b in itertools.pairwise(head_widths(arch, source.dim, source.n_fine)))


def _group(kind: str, config: Mapping[str, object]) -> tuple[str, ...]:
    return (kind, *(str(config.get(name)) for name in ALIKE))


def _forgotten(step: Step, source: Source) -> int:
    if step.config.get("scenario") == Scenario.RANDOM:
        return int(step.config["key"])
    return source.n_train // source.n_fine


def _training_of(step: Step, n_forget: int) -> tuple[Recipe, int] | None:
    """The recipe that a method trains by, and its batch size; None if it does not train."""
    method, settings = step.config["method"], RunSettings.from_config(step.config)
    run = what_is_run(method, step.config["arch"], settings)
    if run.optimization is None:
        return None
    if run.recipe is not None:
        return run.recipe, run.optimization.batch_size
    recipe, how = (run.schedule or settings.schedule_of(method)).build(run.optimization, n_forget)
    return recipe, how.batch_size


def counted_cost(step: Step, source: Source) -> float:
    """What a method's training takes by count, over its retrain's: rows visited, and for every update some rows more.

    The same number everywhere, whatever the machine; a proxy's fit is not in it.
    """
    n_forget, retrain = _forgotten(step, source), step.needs["retrain"].config
    ours = _training_of(step, n_forget)
    if ours is None:
        return 0.0
    theirs = training_recipe(Visit.RETAIN, retrain["epochs"]), training_optimization(retrain["arch"]).batch_size
    count, counts = (
        sum(
            phase.epochs * (rows + ROWS_PER_UPDATE * math.ceil(rows / (sweep.batch_size or batch)))
            for phase in recipe.phases
            for sweep in phase.passes
            if (rows := _rows(sweep, source.n_train, n_forget))
        )
        for recipe, batch in (ours, theirs)
    )
    return count / counts


def _rows(sweep: Pass, n_train: int, n_forget: int) -> int:
    sample = sweep.retained(n_forget, n_train - n_forget)
    visited = {
        Visit.ALL: n_train,
        Visit.RETAIN: n_train - n_forget,
        Visit.RETAIN_DRAWN: n_train - n_forget,
        Visit.FORGET: n_forget,
        Visit.RETAIN_SAMPLE: sample,
        Visit.FORGET_AND_RETAIN_SAMPLE: n_forget + sample,
        Visit.FORGET_AND_30_PERCENT: n_forget + sample,
    }[sweep.visit]
    return visited if sweep.beside is None else 2 * visited  # a pass beside another one has batches of about its size


def _visited(recipe: Recipe, n_train: int, n_forget: int) -> float:
    return float(
        sum(phase.epochs * _rows(sweep, n_train, n_forget) for phase in recipe.phases for sweep in phase.passes)
    )
