"""What is computed once, before any request comes: of the data, for an architecture, or of one network. Light.

Whatever is prepared holds plain arrays, which is how it is stored: its fields, or what its ``arrays`` gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unlearn_core import crossfit, fold_networks, kept_answers, young
from unlearn_core.edits import flow_path, newton, ssd
from unlearn_core.edits.flow_path import FLOW
from unlearn_core.grid import HIDDEN_LAYERS, HIDDEN_WIDTH
from unlearn_core.proxies import probe, statistics

if TYPE_CHECKING:
    from unlearn_core.nets.stack import NetworkStack, State
    from unlearn_core.problem import Problem

Arrays = Mapping[str, NDArray]

MOMENTS, PROBE, CROSSFIT, CURVATURE, IMPORTANCES = "moments", "probe", "crossfit", "curvature", "importances"
FOLD_NETWORKS, DISCRIMINANT, YOUNG = "fold-networks", "discriminant", "young"


class Per(StrEnum):
    """What a preparation depends on beside its constants."""

    DATA = "data"
    ARCHITECTURE = "architecture"
    """Data and the shape of the network, not its weights."""
    NETWORK = "network"


@dataclass(frozen=True, eq=False)
class Given:
    """What a preparation is computed from; one member of ``net`` if it is of a network."""

    problem: Problem
    arch: str | None = None
    net: NetworkStack | None = None
    member: int = 0
    removed: NDArray[np.bool_] | None = None
    """(N,) True for rows that earlier requests removed: no fold model and no curvature may see them. Statistics hold them,
    because who uses these subtracts the records himself."""
    pretrained: State | None = None
    """What the body of a network that is trained anew starts from, if it is not drawn."""

    @property
    def hidden(self) -> tuple[int, ...]:
        """The hidden layers of a head that stands in for the network on what proxies see."""
        return (HIDDEN_WIDTH,) * HIDDEN_LAYERS.get(self.arch or "", 1)

    @property
    def network(self) -> NetworkStack:
        if self.net is None:
            raise ValueError("this is prepared of a network, and none is given")
        return self.net


@dataclass(frozen=True)
class Pieces:
    """How something is computed in pieces, apart from each other: joined, they are what it is at once, to the bit."""

    count: Callable[[Any], int]
    """By the constants."""
    compute: Callable[[Given, Any, int], Any]
    load: Callable[[Arrays], Any]
    join: Callable[[Given, Any, Sequence[Any]], Any]


@dataclass(frozen=True)
class Preparation:
    compute: Callable[[Given, Any], Any]
    load: Callable[[Arrays], Any]
    constants: Any = None
    per: Per = Per.DATA
    pieces: Pieces | None = None
    of_inputs: bool = False
    """It trains networks on what networks read; of images, where proxies see a layer, no base network is needed for it."""


def _of_rows(compute: Callable[..., Any]) -> Callable[[Given, Any], Any]:
    def of_rows(given: Given, constants: Any) -> Any:
        rows = given.problem.train
        return compute(rows.seen, rows.labels, given.problem.n_classes, constants)

    return of_rows


def _fields_of(kind: type) -> Callable[[Arrays], Any]:
    def load(arrays: Arrays) -> Any:
        return kind(**{name: value if value.ndim else value.item() for name, value in arrays.items()})

    return load


def _folds(given: Given, constants: crossfit.CrossFitConstants) -> crossfit.Folds:
    rows, n_classes = given.problem.train, given.problem.n_classes
    return crossfit.Folds(rows.seen, rows.labels, n_classes, given.hidden, constants, given.removed)


_FOLD_MODELS = Pieces(
    lambda constants: constants.folds,
    lambda given, constants, k: _folds(given, constants).train([k])[0],
    _fields_of(crossfit.FoldModel),
    lambda given, constants, models: _folds(given, constants).joined(models),
)

PREPARATIONS: Mapping[str, Preparation] = MappingProxyType(
    {
        MOMENTS: Preparation(_of_rows(statistics.moments_of_all), _fields_of(statistics.Moments)),
        DISCRIMINANT: Preparation(
            lambda given, constants: kept_answers.discriminant_of_all(given.problem.moments, constants),
            _fields_of(kept_answers.Discriminant),
            kept_answers.DiscriminantConstants(),
        ),
        PROBE: Preparation(_of_rows(probe.fit_probe_of_all), _fields_of(probe.ProbeFit), probe.ProbeConstants()),
        CROSSFIT: Preparation(
            lambda given, constants: crossfit.cross_fit(_folds(given, constants)),
            _fields_of(crossfit.CrossFit),
            crossfit.CrossFitConstants(),
            Per.ARCHITECTURE,
            _FOLD_MODELS,
        ),
        FOLD_NETWORKS: Preparation(
            fold_networks.train_fold_networks,
            _fields_of(fold_networks.OutOfFold),
            fold_networks.FoldNetworkConstants(),
            Per.ARCHITECTURE,
            of_inputs=True,
        ),
        YOUNG: Preparation(
            young.train_young, young.YoungNetwork, young.YoungConstants(), Per.ARCHITECTURE, of_inputs=True
        ),
        FLOW: Preparation(
            flow_path.prepare, _fields_of(flow_path.FlowPath), flow_path.FlowConstants(), Per.ARCHITECTURE
        ),
        CURVATURE: Preparation(newton.prepare, newton.load, newton.CurvatureConstants(), Per.NETWORK),
        IMPORTANCES: Preparation(ssd.prepare, ssd.load, ssd.ImportanceConstants(), Per.NETWORK),
    }
)


def prepared_config(name: str, arch: str | None) -> dict[str, Any]:
    """What identifies a preparation beside data, label space and network, as plain JSON values."""
    how = PREPARATIONS[name]
    constants = {} if how.constants is None else {"constants": dataclasses.asdict(how.constants)}
    return {"what": name} | constants | ({} if how.per is Per.DATA else {"arch": arch})


def arrays_of(value: Any) -> dict[str, NDArray]:
    """Something prepared as the arrays that its ``load`` reads."""
    if hasattr(value, "arrays"):
        return dict(value.arrays())
    return {field.name: np.asarray(getattr(value, field.name)) for field in dataclasses.fields(value)}


@dataclass(frozen=True, eq=False)
class Kept:
    """What was prepared, by name, and the seconds that it took. What is missing is computed at its first use."""

    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def get(self, name: str, given: Given) -> Any:
        key = kept_as(name, given.arch)
        if key not in self.values:
            from unlearn_core.clock import Stopwatch

            how = PREPARATIONS[name]
            watch = Stopwatch() if given.net is None else Stopwatch(given.net.device)
            with watch.running():
                self.values[key] = how.compute(given, how.constants)
            self.seconds[key] = watch.seconds
        return self.values[key]


def kept_as(name: str, arch: str | None) -> str:
    """The name within ``Kept``: what depends on the architecture is kept for each."""
    return f"{name}/{arch}" if PREPARATIONS[name].per is Per.ARCHITECTURE and arch else name
