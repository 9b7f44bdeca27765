"""What ``unlearn tune`` may change of each method, as data. Light: imports no torch.

Ranges hold what can matter within a tenth of a retrain; what is no choice of the method's (what it minimises, what it
starts from) is in none. A method that is not named here is tuned by what all of its family have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from unlearn_core import methods
from unlearn_core.methods import Family
from unlearn_core.run_settings import RunSettings, WhatIsRun, what_is_run
from unlearn_core.tuned import Tuned, get_value

MOST_EPOCHS = 4
"""Over all of D_r: 8 % of a head's 50. With more, most trials would be over the budget, and none of the few left good."""
DIGITS = 3
"""Significant digits of a value: what is run is what the file says, and no seed tells more of them apart."""


@dataclass(frozen=True)
class Parameter:
    """One number to choose: between ``low`` and ``high``, whole ones if both are, or among ``choices``."""

    name: str
    paths: tuple[str, ...]
    """Where it stands in ``WhatIsRun``; below ``settings``, a field of ``ProxySettings``."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[float, ...] = ()
    relative: bool = False
    """The number is a multiple of what stands there, which may differ by architecture."""

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def rounded(self, value: float) -> float:
        return value if self.choices or self.whole else float(f"{value:.{DIGITS}g}")

    def values(self, value: float, untuned: WhatIsRun) -> dict[str, Any]:
        """By path, what the number comes to for a method that runs ``untuned`` otherwise."""
        if not self.relative:
            return dict.fromkeys(self.paths, value)
        found = {path: get_value(untuned, path) for path in self.paths}
        if value == 1:
            return found
        return {
            path: max(1, round(value * now)) if isinstance(now, int) else self.rounded(value * now)
            for path, now in found.items()
        }

    def now(self, untuned: WhatIsRun) -> float | None:
        """The number that changes nothing; None if there is none within the range."""
        part, _, name = self.paths[0].partition(".")
        found = untuned.settings.get(name) if part == "settings" else get_value(untuned, self.paths[0])
        value = 1 if self.relative else found
        inside = value in self.choices if self.choices else value is not None and self.low <= value <= self.high
        return value if inside else None


@dataclass(frozen=True)
class SearchSpace:
    """``start`` is the preset that the numbers are put into: the one whose loop is the authors', if they differ."""

    parameters: tuple[Parameter, ...]
    start: str = "paper"

    def untuned(self, method: str, arch: str) -> WhatIsRun:
        return what_is_run(method, arch, RunSettings(preset=self.start))

    def tuned(self, method: str, arch: str, numbers: Mapping[str, float]) -> Tuned:
        """What to run for one number of each parameter."""
        untuned, values = self.untuned(method, arch), {}
        for parameter in self.parameters:
            values |= parameter.values(numbers[parameter.name], untuned)
        return Tuned(self.start, values)

    def now(self, method: str, arch: str) -> dict[str, float]:
        """The method as it is, as far as the space can say it: what is tried first."""
        untuned = self.untuned(method, arch)
        found = {parameter.name: parameter.now(untuned) for parameter in self.parameters}
        return {name: value for name, value in found.items() if value is not None}


def _rate(low: float, high: float, path: str = "optimization.lr") -> Parameter:
    return Parameter("lr", (path,), low, high, log=True, relative=True)


def _epochs(high: int, path: str = "recipe.phases.0.epochs", name: str = "epochs") -> Parameter:
    return Parameter(name, (path,), 1, high)


def _batch(largest: float, sizes: int = 3) -> Parameter:
    shares = tuple(largest / 2**halved for halved in range(sizes))
    return Parameter("batch", ("optimization.batch_size",), choices=shares, relative=True)


_DECAY = Parameter("decay", ("optimization.decay",), 0.5, 1.0)
_FINE_TUNING = (_rate(0.3, 10.0), _DECAY, _batch(1.0))
"""Steps of Adam, from the architecture's own."""
_SGD = (_rate(0.03, 10.0), _DECAY, _batch(2.0))
"""From the authors' rate and batch."""
_DISTILLATION = (
    _rate(0.3, 10.0),
    _epochs(10, "schedule.epochs"),
    Parameter("batch_divisor", ("schedule.batch_divisor",), choices=(1, 2, 4)),
    Parameter("last_rate", ("schedule.last_rate",), 0.03, 1.0, log=True),
    Parameter("least_retained", ("schedule.least_retained",), choices=(0, 1024, 4096)),
)
_GAUSSIAN = (*_DISTILLATION, Parameter("ridge", ("settings.ridge",), 1e-5, 1.0, log=True))
_BASELINE = (*_FINE_TUNING, _epochs(MOST_EPOCHS))

_SHORT = (_rate(0.3, 10.0, "recipe.rate"), Parameter("averaging", ("recipe.averaging",), 0.0, 8.0))
_LAST_RATE = Parameter("last_rate", ("recipe.last_rate",), 0.03, 1.0, log=True)
_WARM = (_rate(0.3, 10.0, "recipe.rate"), _LAST_RATE, Parameter("base_share", ("recipe.base_share",), 0.1, 0.9))
_DRAWS = (
    Parameter("power", ("constants.power",), 0.1, 1.0),
    Parameter("even", ("constants.even",), 0.02, 0.5, log=True),
)

_ASCENT = "recipe.phases.0.passes.0.beside.loss.0.weight"
_RETAIN_OF_SCRUB = ("recipe.phases.0.passes.1", "recipe.phases.1.passes.0")
_TEACHER_OF_SCRUB = ("recipe.phases.0.passes.0.loss.0", *(f"{retain}.loss.0" for retain in _RETAIN_OF_SCRUB))

SPACES: Mapping[str, SearchSpace] = MappingProxyType(
    {
        # the measure of all others at every cost: epochs are no choice, and the rate must not fall towards a last one
        "short": SearchSpace((*_SHORT, _batch(1.0, sizes=4))),
        "short-same": SearchSpace((*_SHORT, _batch(1.0, sizes=4))),
        "short-small": SearchSpace(
            (*_SHORT, Parameter("batch", ("recipe.phases.0.passes.0.batch_size",), choices=(64, 128, 256)))
        ),
        "short-warm": SearchSpace(_WARM),
        "short-young": SearchSpace(
            (_rate(0.1, 3.0, "recipe.rate"), _LAST_RATE, Parameter("base_share", ("recipe.base_share",), 0.5, 1.0))
        ),
        "short-hard": SearchSpace((*_SHORT, *_DRAWS)),
        **dict.fromkeys(
            ("short-hard-warm", "short-hard-group", "short-hard-linear", "short-hard-slow", "short-hard-near"),
            SearchSpace((*_WARM, *_DRAWS)),
        ),
        "short-hard-base": SearchSpace((_rate(0.1, 10.0, "recipe.rate"), _LAST_RATE, *_DRAWS)),
        "newton-hard": SearchSpace(
            (
                _rate(0.1, 10.0, "recipe.rate"),
                _LAST_RATE,
                *(replace(p, paths=tuple(f"constants.draws.{p.name}" for _ in p.paths)) for p in _DRAWS),
                Parameter("damping", ("constants.step.damping",), 1e-8, 1e-3, log=True),
            )
        ),
        **dict.fromkeys(("lda", "qda", "lda-mix", "qda-mix", "lda-2c"), SearchSpace(_GAUSSIAN)),
        "probe": SearchSpace(
            (
                *_DISTILLATION,
                Parameter("cap", ("settings.cap",), 1.0, 64.0, log=True),
                Parameter("request_share", ("constants.request_share",), 1e-4, 0.3, log=True),
            )
        ),
        "fresh": SearchSpace(
            (
                *_DISTILLATION,
                Parameter("small_lr", ("constants.training.lr",), 1e-3, 3e-2, log=True),
                Parameter("small_epochs", ("constants.least_epochs",), 1, 5),
                Parameter("request_share", ("constants.probe.request_share",), 1e-4, 0.3, log=True),
            )
        ),
        **dict.fromkeys(
            ("crossfit", "crossfit-net"),
            SearchSpace(
                (
                    _rate(0.1, 10.0),
                    _epochs(12, "schedule.epochs"),
                    Parameter("batch_divisor", ("schedule.batch_divisor",), choices=(1, 2, 4, 8)),
                    Parameter("last_rate", ("schedule.last_rate",), 0.03, 1.0, log=True),
                    Parameter("least_retained", ("schedule.least_retained",), choices=(512, 1024, 2048)),
                )
            ),
        ),
        "newton": SearchSpace(
            (
                Parameter("damping", ("constants.damping",), 1e-8, 1e-3, log=True),
                Parameter("scale", ("constants.scale",), 0.3, 1.5),
            )
        ),
        "newton-last": SearchSpace(
            (
                Parameter("damping", ("constants.damping",), 1e-8, 1e-3, log=True),
                Parameter("scale", ("constants.scale",), 0.3, 1.5),
                # of ResNet-8 the last layer, and the last block with it
                Parameter("layers", ("constants.layers",), choices=(1, 4)),
            )
        ),
        **dict.fromkeys(
            ("newton-crossfit", "newton-crossfit-net"),
            SearchSpace(
                (
                    Parameter("damping", ("constants.newton.damping",), 1e-8, 1e-3, log=True),
                    Parameter("scale", ("constants.newton.scale",), 0.3, 1.5),
                    _rate(0.1, 10.0),
                    _epochs(12, "schedule.epochs"),
                    Parameter("batch_divisor", ("schedule.batch_divisor",), choices=(1, 2, 4, 8)),
                    Parameter("last_rate", ("schedule.last_rate",), 0.03, 1.0, log=True),
                )
            ),
        ),
        "flow": SearchSpace(()),
        "truncate": SearchSpace(()),
        "ssd": SearchSpace(
            (
                Parameter("alpha", ("constants.alpha",), 0.5, 100.0, log=True),
                Parameter("lambda", ("constants.lambda_",), 0.1, 5.0, log=True),
            )
        ),
        # with Adam the size of a lone loss says nothing: how far an ascent goes is its rate and its epochs
        "ga": SearchSpace((_rate(1e-3, 10.0), _DECAY, _batch(1.0), _epochs(20))),
        "ga-ft": SearchSpace(
            (*_FINE_TUNING, _epochs(3, name="ascent_epochs"), _epochs(MOST_EPOCHS, "recipe.phases.1.epochs", "epochs"))
        ),
        "l1-sparse": SearchSpace((*_BASELINE, Parameter("l1", ("recipe.l1",), 1e-6, 1e-2, log=True))),
        # against a weight of 0.95 on retained rows
        "neggrad+": SearchSpace((*_BASELINE, Parameter("ascent", (_ASCENT,), 0.01, 10.0, log=True, relative=True))),
        "bad-teacher": SearchSpace(
            (
                *_BASELINE,
                Parameter("least_retained", ("recipe.phases.0.passes.0.least_retained",), choices=(0, 1024, 4096)),
            )
        ),
        "rl-ft": SearchSpace((*_SGD, _epochs(MOST_EPOCHS)), start="original"),
        "salun": SearchSpace(
            (*_SGD, _epochs(MOST_EPOCHS), Parameter("saliency_share", ("recipe.saliency_share",), 0.1, 0.9)),
            start="original",
        ),
        "scrub": SearchSpace(
            (
                _rate(1.0, 300.0),  # at the authors' own nothing moves
                _DECAY,
                _batch(2.0),
                _epochs(3, name="ascent_epochs"),
                _epochs(2, "recipe.phases.1.epochs", "epochs"),
                Parameter(
                    "alpha", tuple(f"{retain}.loss.0.weight" for retain in _RETAIN_OF_SCRUB), 1e-3, 1.0, log=True
                ),
                Parameter("temperature", tuple(f"{teacher}.temperature" for teacher in _TEACHER_OF_SCRUB), 1.0, 8.0),
            ),
            start="original",
        ),
    }
)


def search_space(method: str) -> SearchSpace:
    """What may be changed of a method."""
    line = methods.find(method)
    if method in SPACES:
        return SPACES[method]
    by_family = {Family.BASELINE: _BASELINE, Family.PROXY: _DISTILLATION, Family.EDIT: ()}
    return SearchSpace(by_family[line.family])
