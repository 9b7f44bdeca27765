"""What a run may be asked for, and what a method then runs: settings and tuned values put into its line. No torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from unlearn_core.errors import BadInput
from unlearn_core.methods import PRESETS, Family, find, find_proxy
from unlearn_core.precision import Precision, precision_config
from unlearn_core.recipes import (
    REQUEST_SCHEDULE,
    Optimization,
    Recipe,
    Schedule,
    optimization_of,
    unlearning_optimization,
)
from unlearn_core.tuned import TUNED, Tuned, find_tuned

FINALIZERS: tuple[str, ...] = ("kl", "mse", "none")
"""How a target is written into the network: distilled, by least squares into the last layer, or not at all: a logit
processor applies it at inference."""
SCHEDULES: tuple[str, ...] = ("grid", "request")
SHRINKAGES: tuple[str, ...] = ("ridge", "ledoit-wolf", "oas")


class DirOnTest(StrEnum):
    """What ``dir`` and ``dir-2c`` say about test points, which the empirical measure has never seen."""

    BASE = "base"
    """The base network's own output: the closed form taken literally."""
    AS_FORGOTTEN = "as-forgotten"
    """Test points of the forgotten class or subclass count as forgotten, as in the paper's target rows."""


@dataclass(frozen=True)
class ProxySettings:
    """Choices that are part of a proxy's record."""

    ridge: float = 1e-3
    shrinkage: str = "ridge"
    cap: float | None = None
    """The largest eta; None: the method's own, the paper's 1 for the paper's proxies."""
    finalizer: str = "kl"
    dir_on_test: DirOnTest = DirOnTest.BASE

    def __post_init__(self) -> None:
        for what, value, known in (
            ("finalizer", self.finalizer, FINALIZERS),
            ("shrinkage", self.shrinkage, SHRINKAGES),
        ):
            if value not in known:
                raise BadInput(f"unknown {what} {value!r}; there are {', '.join(known)}")
        if not (math.isfinite(self.ridge) and self.ridge >= 0):
            raise BadInput(f"ridge {self.ridge} must be a number of at least 0; 1e-3 is the default")
        if self.cap is not None and not self.cap > 0:
            raise BadInput(f"cap {self.cap} must be positive; the paper's is 1, inf is no limit")

    def cap_of(self, method: str) -> float:
        return find_proxy(method).cap if self.cap is None else self.cap


@dataclass(frozen=True)
class RunSettings:
    """Everything about a run that is not its variant, seed or method."""

    training_epochs: int | None = None
    """None: the paper's for each architecture."""
    preset: str = "paper"
    proxy: ProxySettings = field(default_factory=ProxySettings)
    schedule: str = "grid"
    """``grid``: each proxy's own schedule; ``request``: what ``forget`` runs, with its stopping rule."""
    tuned: Tuned | None = None
    """What to run in the preset ``tuned``; None: what its file has for each method."""
    precision: Precision = Precision.FLOAT32
    """The arithmetic of networks on GPUs."""

    def __post_init__(self) -> None:
        presets = (*PRESETS, TUNED)
        for what, value, known in (("preset", self.preset, presets), ("schedule", self.schedule, SCHEDULES)):
            if value not in known:
                raise BadInput(f"unknown {what} {value!r}; there are {', '.join(known)}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RunSettings:
        """The settings of one method, from what ``WhatIsRun.config`` made of them."""
        proxy: dict[str, Any] = {name: config[name] for name in ("ridge", "shrinkage", "finalizer") if name in config}
        if "cap" in config:
            proxy["cap"] = float(config["cap"])  # "inf" is no number in JSON
        if "dir_on_test" in config:
            proxy["dir_on_test"] = DirOnTest(config["dir_on_test"])
        return cls(
            preset=config.get("preset", "paper"),
            proxy=ProxySettings(**proxy),
            schedule=config.get("schedule_name", "grid"),
            tuned=Tuned(**config[TUNED]) if TUNED in config else None,
            precision=Precision(config.get("precision", Precision.FLOAT32)),
        )

    def of(self, method: str, arch: str) -> RunSettings:
        """The same for one method: with its tuned values, or as in ``paper`` if it has none.

        A setting that the user chose goes before a tuned one, and values for a proxy's own schedule are for that alone.
        """
        tuned = self.tuned
        if tuned is None and self.preset == TUNED:
            tuned = find_tuned(method, arch)
        if tuned is None:
            return replace(self, preset="paper") if self.preset == TUNED else self
        distils = find(method).family is not Family.PROXY or (self.proxy.finalizer == "kl" and self.schedule == "grid")
        values, proxy = {}, self.proxy
        for path, value in tuned.values.items():
            part, _, name = path.partition(".")
            if part == "settings":
                if getattr(proxy, name) not in (getattr(ProxySettings(), name), value):
                    continue
                proxy = replace(proxy, **{name: value})
            elif part in ("schedule", "optimization") and not distils:
                continue
            values[path] = value
        return replace(self, preset=TUNED, proxy=proxy, tuned=Tuned(tuned.start, values))

    def schedule_of(self, method: str) -> Schedule:
        return REQUEST_SCHEDULE if self.schedule == "request" else find_proxy(method).schedule


@dataclass(frozen=True)
class WhatIsRun:
    """All that a method's result depends on beside data, network, request and seed: exactly this is hashed into step ids.

    ``settings`` are the user's choices that matter to the method; the rest is what they and the table come to.
    """

    settings: Mapping[str, Any]
    optimization: Optimization | None = None
    recipe: Recipe | None = None
    schedule: Schedule | None = None
    constants: Any = None
    tuned: Tuned | None = None
    """The values that all of it holds already, for whoever is to make it again."""

    def config(self) -> dict[str, Any]:
        """As plain JSON values."""
        rest = {
            name: dataclasses.asdict(value)
            for name in ("optimization", "recipe", "schedule", "constants")
            if (value := getattr(self, name)) is not None
        }
        return {**self.settings, **rest} | ({} if self.tuned is None else {TUNED: self.tuned.config()})


def what_is_run(method: str, arch: str, settings: RunSettings) -> WhatIsRun:
    """What ``method`` runs on a network of an architecture under some settings."""
    run = _in_float32(method, arch, settings)
    return replace(run, settings={**run.settings, **precision_config(arch, settings.precision)})


def _in_float32(method: str, arch: str, settings: RunSettings) -> WhatIsRun:
    settings, line = settings.of(method, arch), find(method)
    tuned = settings.tuned or Tuned(settings.preset, {})
    if line.family is Family.BASELINE:
        recipe = tuned.put("recipe", line.presets[tuned.start])
        untuned = optimization_of(recipe, arch)
        how = tuned.put("optimization", untuned)
        if how != untuned:
            recipe = replace(recipe, optimization=how)
        constants = tuned.put("constants", line.constants)
        return WhatIsRun({"preset": settings.preset}, how, recipe, constants=constants, tuned=settings.tuned)
    constants, own = tuned.put("constants", line.constants), unlearning_optimization(arch)
    how = tuned.put("optimization", replace(own, lr=line.rate * own.lr))
    if line.family is Family.EDIT:
        if line.schedule is None:
            return WhatIsRun({}, constants=constants, tuned=settings.tuned)
        schedule = tuned.put("schedule", line.schedule)
        return WhatIsRun({}, how, schedule=schedule, constants=constants, tuned=settings.tuned)
    chosen = {name: getattr(settings.proxy, name) for name in line.settings}
    if not line.closed_form:
        cap = settings.proxy.cap_of(method)
        chosen["cap"] = cap if math.isfinite(cap) else str(cap)  # JSON has no infinity
    chosen["finalizer"] = settings.proxy.finalizer
    if line.sample is not None:
        chosen["sample"] = line.sample
    schedule = None
    if settings.proxy.finalizer == "kl":
        chosen["schedule_name"] = settings.schedule
        schedule = tuned.put("schedule", settings.schedule_of(method))
    return WhatIsRun(
        chosen,
        how,
        schedule=schedule,
        constants=constants,
        tuned=settings.tuned,
    )
