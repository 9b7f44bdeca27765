"""Every method in one table, with all that its results depend on. Light: imports no torch.

A method is a file and a line here. A proxy's file has a function that fits it to a ``ForgetRequest``, a baseline's its
recipes, an edit's a function from an ``EditRequest`` to a network. Look methods up through the functions below, when they
are needed: a test may add a line.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from numpy.typing import NDArray

from unlearn_core.baselines import bad_teacher, ft, ga, ga_ft, l1_sparse, neggrad_plus, rl_ft, salun, scrub, short
from unlearn_core.doubt import DoubtConstants
from unlearn_core.edits import flow, newton, newton_crossfit, newton_last, ssd, truncate
from unlearn_core.edits.flow_path import FlowConstants
from unlearn_core.edits.request import EditRequest
from unlearn_core.errors import BadInput
from unlearn_core.precision import Precision, precision_config
from unlearn_core.preparations import CROSSFIT, CURVATURE, FLOW, FOLD_NETWORKS, IMPORTANCES, MOMENTS, PROBE
from unlearn_core.proxies import crossfit, empirical, fresh, probe
from unlearn_core.proxies.doubled import lda_2c
from unlearn_core.proxies.gaussian import Components, GaussianProxy, fit_gaussian
from unlearn_core.proxies.mixture import lda_mix, qda_mix
from unlearn_core.proxies.naive import lda, qda
from unlearn_core.proxies.points import Proxy
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.recipes import (
    PAPER_SCHEDULE,
    REQUEST_SCHEDULE,
    Optimization,
    Recipe,
    Schedule,
    Start,
    optimization_of,
    unlearning_optimization,
)
from unlearn_core.tuned import TUNED, Tuned, find_tuned

FINALIZERS: tuple[str, ...] = ("kl", "mse", "none")
"""How a target is written into the network: distilled, by least squares into the last layer, or not at all: a logit
processor applies it at inference."""
PRESETS: tuple[str, ...] = ("paper", "original")
"""Every baseline has a recipe for each. A third preset, ``tuned``, puts values into one of them, and into proxies."""
SCHEDULES: tuple[str, ...] = ("grid", "request")
SHRINKAGES: tuple[str, ...] = ("ridge", "ledoit-wolf", "oas")


class Family(StrEnum):
    PROXY = "proxy"
    """Predicts how the posteriors shift; the shift is then written into the network."""
    BASELINE = "baseline"
    """Trains the network further, by a recipe."""
    EDIT = "edit"
    """Changes the weights in one step."""


class Scope(StrEnum):
    ANY_POINT = "any point"
    TRAINING_POINTS = "training points"
    """Shifts the training points alone: a network generalises what it is taught there, a logit processor cannot."""


@dataclass(frozen=True)
class ProxyMethod:
    """A proxy. ``fit(request, constants)`` gives a ``Proxy``."""

    name: str
    fit: Callable[[ForgetRequest, Any], Proxy]
    constants: Any = None
    """A frozen dataclass of the method's own numbers, or None."""
    prepares: str | None = None
    """What of ``preparations.PREPARATIONS`` it starts from."""
    settings: tuple[str, ...] = ()
    """The fields of ``ProxySettings`` that its result depends on, beside the finalizer."""
    closed_form: bool = False
    """Its target is written down, without eta."""
    cap: float = 1.0
    """The largest eta, unless the settings say another."""
    schedule: Schedule = PAPER_SCHEDULE
    rate: float = 1.0
    """Of its distillation, in units of the architecture's own learning rate."""
    sample: int | None = None
    """It is asked about the records and so many retained rows, or as many as there are records; None: about all of D."""
    scope: Scope = Scope.ANY_POINT
    per_network: bool = False
    """Its fit or signal reads the network's logits, or draws by the cell's seed, so that cells cannot share it."""
    vacuous: bool = False
    """On the records P is the network itself, so that it is admissible with eta 1 whatever P_r says, noise included."""
    load: Callable[[Mapping[str, NDArray]], Proxy] | None = None
    """Makes the proxy again from the arrays of a logit processor's file; None: it cannot be one."""
    auto: bool = False
    """Whether ``auto`` may choose it for a deletion request."""
    paper: bool = True
    family: Literal[Family.PROXY] = Family.PROXY


@dataclass(frozen=True)
class BaselineMethod:
    """A gradient method: its recipe as the paper runs it (``paper``) and as its authors published it (``original``)."""

    name: str
    presets: Mapping[str, Recipe]
    paper: bool = True
    notes: Mapping[str, str] = field(default_factory=dict)
    """By preset, what a reader of its numbers has to know."""
    draws: DoubtConstants | None = None
    """How its passes draw rows by what models of the folds say of them; None: it asks no such models."""
    family: Literal[Family.BASELINE] = Family.BASELINE

    @property
    def prepares(self) -> tuple[str, ...]:
        """What of ``preparations.PREPARATIONS`` it starts from."""
        return () if self.draws is None else (CROSSFIT,)


@dataclass(frozen=True)
class EditMethod:
    """A change of weights. ``edit(request, constants)`` gives a network, a stack of one; None if it has no answer."""

    name: str
    edit: Callable[[EditRequest, Any], Any]
    constants: Any = None
    prepares: tuple[str, ...] = ()
    """What of ``preparations.PREPARATIONS`` it starts from."""
    schedule: Schedule | None = None
    """Of the training that it ends in; None: it trains nothing."""
    rate: float = 1.0
    """Of that training, in units of the architecture's own learning rate."""
    reads_d: bool = False
    """Whether it reads all of D; others read the records and a few retained rows."""
    done: str = "in one step, without training"
    """How it went, in words."""
    paper: bool = False
    family: Literal[Family.EDIT] = Family.EDIT


Method = ProxyMethod | BaselineMethod | EditMethod


def gaussian(name: str, components: Callable[[ForgetRequest], Components]) -> ProxyMethod:
    """The line of a Gaussian proxy: a function from a request's moments to its components."""
    return ProxyMethod(
        name,
        partial(fit_gaussian, components),
        prepares=MOMENTS,
        settings=("ridge", "shrinkage"),
        load=GaussianProxy.from_arrays,
        auto=True,
    )


def _baseline(
    name: str,
    paper: Recipe,
    original: Recipe,
    in_paper: bool = True,
    note_on_paper: str | None = None,
    note_on_original: str | None = None,
) -> BaselineMethod:
    given = {"paper": note_on_paper, "original": note_on_original}
    notes = {preset: note for preset, note in given.items() if note is not None}
    presets = {"paper": paper, "original": original}
    return BaselineMethod(name, MappingProxyType(presets), in_paper, MappingProxyType(notes))


def _cut_short(name: str, recipe: Recipe, draws: DoubtConstants | None = None) -> BaselineMethod:
    """The same in every preset, and no method of the paper."""
    return BaselineMethod(name, MappingProxyType(dict.fromkeys(PRESETS, recipe)), paper=False, draws=draws)


def _table(*lines: Method) -> Mapping[str, Method]:
    return MappingProxyType({line.name: line for line in lines})


_EMPIRICAL: Mapping[str, Any] = {
    "settings": ("dir_on_test",),
    "closed_form": True,
    "scope": Scope.TRAINING_POINTS,
}

_CROSSFIT: Mapping[str, Any] = {
    "schedule": crossfit.SCHEDULE,
    "rate": crossfit.RATE,
    "sample": crossfit.SAMPLE,
    "scope": Scope.TRAINING_POINTS,
    "per_network": True,
    "vacuous": True,
    "paper": False,
}

TABLE: Mapping[str, Method] = _table(
    gaussian("lda", lda),
    gaussian("qda", qda),
    gaussian("lda-mix", lda_mix),
    gaussian("qda-mix", qda_mix),
    gaussian("lda-2c", lda_2c),
    ProxyMethod("dir", partial(empirical.fit_empirical, doubled=False), **_EMPIRICAL),
    ProxyMethod("dir-2c", partial(empirical.fit_empirical, doubled=True), **_EMPIRICAL),
    ProxyMethod(
        "probe",
        probe.fit_probe,
        probe.ProbeConstants(),
        prepares=PROBE,
        # twice what requests of 50 records and more were seen to reach; only ones that change next to nothing go beyond
        cap=32.0,
        load=probe.ProbeProxy.from_arrays,
        auto=True,
        paper=False,
    ),
    ProxyMethod(
        "fresh",
        fresh.fit_fresh,
        fresh.FreshConstants(),
        prepares=PROBE,
        schedule=fresh.SCHEDULE,
        scope=Scope.TRAINING_POINTS,
        per_network=True,
        vacuous=True,
        auto=True,
        paper=False,
    ),
    ProxyMethod("crossfit", crossfit.fit_crossfit, prepares=CROSSFIT, **_CROSSFIT),
    ProxyMethod(
        "crossfit-net", partial(crossfit.fit_crossfit, folds=FOLD_NETWORKS), prepares=FOLD_NETWORKS, **_CROSSFIT
    ),
    EditMethod("newton", newton.step, newton.NewtonConstants(), (CURVATURE,)),
    EditMethod(
        "newton-crossfit",
        newton_crossfit.edit,
        newton_crossfit.NewtonCrossFitConstants(),
        (CURVATURE, CROSSFIT),
        newton_crossfit.SCHEDULE,
        newton_crossfit.RATE,
        done=newton_crossfit.DONE,
    ),
    EditMethod(
        "newton-crossfit-net",
        partial(newton_crossfit.edit, folds=FOLD_NETWORKS),
        newton_crossfit.NewtonCrossFitConstants(),
        (CURVATURE, FOLD_NETWORKS),
        newton_crossfit.SCHEDULE,
        newton_crossfit.RATE,
        done=newton_crossfit.DONE,
    ),
    EditMethod("newton-last", newton_last.step, newton_last.NewtonLastConstants(), (CURVATURE,)),
    EditMethod("flow", flow.edit, FlowConstants(), (FLOW,), reads_d=True, done=flow.DONE),
    EditMethod("truncate", truncate.truncate, truncate.TruncateConstants()),
    EditMethod("ssd", ssd.edit, ssd.SsdConstants(), (IMPORTANCES,)),
    _baseline("ft", ft.PAPER, ft.ORIGINAL),
    _baseline("ga", ga.PAPER, ga.ORIGINAL, note_on_original=ga.NOTE_ON_ORIGINAL),
    _baseline("ga-ft", ga_ft.PAPER, ga_ft.ORIGINAL),
    _baseline("rl-ft", rl_ft.PAPER, rl_ft.ORIGINAL, note_on_paper=rl_ft.NOTE_ON_PAPER),
    _baseline(
        "scrub",
        scrub.PAPER,
        scrub.ORIGINAL,
        note_on_paper=scrub.NOTE_ON_PAPER,
        note_on_original=scrub.NOTE_ON_ORIGINAL,
    ),
    _baseline("salun", salun.PAPER, salun.ORIGINAL, note_on_paper=rl_ft.NOTE_ON_PAPER),
    _baseline("l1-sparse", l1_sparse.PAPER, l1_sparse.ORIGINAL, in_paper=False),
    _baseline("neggrad+", neggrad_plus.PAPER, neggrad_plus.ORIGINAL, in_paper=False),
    _baseline("bad-teacher", bad_teacher.PAPER, bad_teacher.ORIGINAL, in_paper=False),
    _cut_short("short", short.SHORT),
    _cut_short("short-small", short.SMALL),
    _cut_short("short-warm", short.WARM),
    _cut_short("short-same", short.SAME),
    _cut_short("short-hard", short.HARD, DoubtConstants()),
    _cut_short("short-hard-warm", short.HARD_WARM, DoubtConstants()),
    _cut_short("short-hard-group", short.HARD_GROUP, DoubtConstants()),
    _cut_short("short-hard-linear", short.HARD_LINEAR, DoubtConstants()),
)


def find(name: str) -> Method:
    if name not in TABLE:
        raise BadInput(f"unknown method {name!r}; there are {', '.join(TABLE)}")
    return TABLE[name]


def find_proxy(name: str) -> ProxyMethod:
    line = TABLE.get(name)
    if line is None or line.family is not Family.PROXY:
        raise BadInput(f"unknown proxy {name!r}; there are {', '.join(proxies())}")
    return line


def names() -> tuple[str, ...]:
    """All methods: proxies, edits, baselines."""
    return tuple(TABLE)


def proxies() -> tuple[str, ...]:
    return tuple(name for name, line in TABLE.items() if line.family is Family.PROXY)


def baselines() -> tuple[str, ...]:
    return tuple(name for name, line in TABLE.items() if line.family is Family.BASELINE)


def cut_short() -> tuple[str, ...]:
    """The baselines that train anew on what is left, and not for long."""
    return tuple(name for name in TABLE if is_cut_short(name))


def is_cut_short(name: str) -> bool:
    """Of one method, by its own line: a report asks a hundred thousand times."""
    line = TABLE.get(name)
    if line is None or line.family is not Family.BASELINE:
        return False
    return all(recipe.start is Start.FRESH for recipe in line.presets.values())


def edits() -> tuple[str, ...]:
    return tuple(name for name, line in TABLE.items() if line.family is Family.EDIT)


def prepared_for(name: str) -> tuple[str, ...]:
    """What of ``preparations.PREPARATIONS`` a method starts from."""
    line = find(name)
    if line.family is not Family.PROXY:
        return line.prepares
    return () if line.prepares is None else (line.prepares,)


def learns_from_folds(name: str) -> bool:
    """Whether the network is taught what models of the folds say; one that only draws rows by it is not."""
    return CROSSFIT in prepared_for(name) and find(name).family is not Family.BASELINE


def reads_all_rows(name: str) -> bool:
    """Whether a proxy is fitted to rows of D, and not to statistics or answers alone; no edit and no baseline is meant."""
    line = TABLE.get(name)
    return line is not None and line.family is Family.PROXY and line.prepares not in (MOMENTS, CROSSFIT, FOLD_NETWORKS)


def note_on(name: str, preset: str) -> str | None:
    """What a table under ``preset`` has to say beside a method's numbers."""
    line = find(name)
    return line.notes.get(preset) if line.family is Family.BASELINE else None


def closed_forms() -> tuple[str, ...]:
    """The proxies without eta: ``dir`` and ``dir-2c``."""
    return tuple(name for name in proxies() if find_proxy(name).closed_form)


def auto_candidates(scope: Scope | None = None) -> tuple[str, ...]:
    """What ``auto`` fits and chooses from; with a scope, those of that scope alone."""
    lines = (find_proxy(name) for name in proxies())
    return tuple(line.name for line in lines if line.auto and scope in (None, line.scope))


def paper_methods() -> tuple[str, ...]:
    """The paper's seven proxies and six baselines."""
    return tuple(name for name, line in TABLE.items() if line.paper)


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
        draws = tuned.put("constants", line.draws)
        return WhatIsRun({"preset": settings.preset}, how, recipe, constants=draws, tuned=settings.tuned)
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
