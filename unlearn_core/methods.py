"""Every method in one table, with all that its results depend on. Light: imports no torch.

A method is a file and a line here. A proxy's file has a function that fits it to a ``ForgetRequest``, a baseline's its
recipes, an edit's a function from an ``EditRequest`` to a network. Look methods up through the functions below, when they
are needed: a test may add a line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
from unlearn_core.preparations import CROSSFIT, CURVATURE, FLOW, FOLD_NETWORKS, IMPORTANCES, MOMENTS, PROBE, YOUNG
from unlearn_core.proxies import crossfit, empirical, fresh, probe
from unlearn_core.proxies.doubled import lda_2c
from unlearn_core.proxies.gaussian import Components, GaussianProxy, fit_gaussian
from unlearn_core.proxies.mixture import lda_mix, qda_mix
from unlearn_core.proxies.naive import lda, qda
from unlearn_core.proxies.points import Proxy
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.recipes import (
    PAPER_SCHEDULE,
    Recipe,
    Schedule,
    Start,
)

PRESETS: tuple[str, ...] = ("paper", "original")
"""Every baseline has a recipe for each. A third preset, ``tuned``, puts values into one of them, and into proxies."""


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
    step: newton.NewtonConstants | None = None
    """The Newton step that it takes before it trains; None: it takes none."""
    from_young: bool = False
    """Whether it starts from a young network in the place of the base."""
    family: Literal[Family.BASELINE] = Family.BASELINE

    @property
    def prepares(self) -> tuple[str, ...]:
        """What of ``preparations.PREPARATIONS`` it starts from."""
        needed = {CROSSFIT: self.draws is not None, CURVATURE: self.step is not None, YOUNG: self.from_young}
        return tuple(name for name, needs_it in needed.items() if needs_it)

    @property
    def starts_fresh(self) -> bool:
        """Whether it starts from weights that no record ever reached."""
        recipe = self.presets["paper"]
        return recipe.start is not Start.BASE and recipe.base_share == 0

    @property
    def constants(self) -> DoubtConstants | StepThenRows | None:
        """What its result depends on beside its recipe."""
        return self.draws if self.step is None else StepThenRows(self.draws, self.step)


@dataclass(frozen=True)
class StepThenRows:
    """The constants of a baseline that takes a Newton step first."""

    draws: DoubtConstants | None
    step: newton.NewtonConstants


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


def _cut_short(
    name: str,
    recipe: Recipe,
    draws: DoubtConstants | None = None,
    step: newton.NewtonConstants | None = None,
    from_young: bool = False,
) -> BaselineMethod:
    """The same in every preset, and no method of the paper."""
    presets = MappingProxyType(dict.fromkeys(PRESETS, recipe))
    return BaselineMethod(name, presets, paper=False, draws=draws, step=step, from_young=from_young)


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
    _cut_short("short-young", short.YOUNG, from_young=True),
    _cut_short("short-hard", short.HARD, DoubtConstants()),
    _cut_short("short-hard-warm", short.HARD_WARM, DoubtConstants()),
    _cut_short("short-hard-group", short.HARD_GROUP, DoubtConstants()),
    _cut_short("short-hard-linear", short.HARD_LINEAR, DoubtConstants()),
    _cut_short("short-hard-slow", short.HARD_SLOW, DoubtConstants()),
    _cut_short("short-hard-near", short.HARD_NEAR, DoubtConstants()),
    _cut_short("short-hard-base", short.HARD_FROM_BASE, DoubtConstants()),
    _cut_short("newton-hard", short.HARD_FROM_STEP, DoubtConstants(), newton.NewtonConstants()),
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
