"""From a request to steps: which variants, and the DAG behind each of their cells.

Shared nodes exist once, because equal steps have equal ids: a base network per (data, architecture, label space, seed), a
retrain per (variant, seed), statistics per (data, label space).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.step import Kind, Step
from unlearn_core.data.datasets import load_dataset
from unlearn_core.data.feature_set import FeatureSet, fingerprint
from unlearn_core.errors import BadInput
from unlearn_core.spec import (
    BASELINES,
    EMPIRICAL_PROXIES,
    GAUSSIAN_PROXIES,
    LabelSpace,
    ProxySettings,
    RunSettings,
    Scenario,
    Variant,
)

KEYS_PER_SCENARIO = 5
RANDOM_SIZES: tuple[int, ...] = (1, 50, 500, 5000)  # app:experiments_setup


@dataclass(frozen=True)
class Source:
    """A data set as the planner sees it: what it is, not where; ``place`` tells workers where to read it."""

    name: str
    place: str
    fingerprint: str
    backbone: str
    n_fine: int
    n_train: int
    n_test: int
    dim: int
    has_superclass: bool

    def keys(self, scenario: Scenario) -> tuple[int, ...]:
        """The grid's keys: five evenly spaced labels ({0, 2, .., 8} of 10, {0, 20, .., 80} of 100), or sizes that fit."""
        if scenario is Scenario.RANDOM:
            return tuple(size for size in RANDOM_SIZES if size < self.n_train)
        count = min(KEYS_PER_SCENARIO, self.n_fine)
        return tuple(self.n_fine // count * i for i in range(count))


def open_source(name_or_path: str) -> Source:
    """Load and check a data set, and fingerprint it."""
    features: FeatureSet = load_dataset(name_or_path)
    place = str(Path(name_or_path).resolve()) if name_or_path.endswith(".npz") else name_or_path
    return Source(
        name=features.name,
        place=place,
        fingerprint=fingerprint(features),
        backbone=features.backbone,
        n_fine=features.n_fine,
        n_train=len(features.train_y),
        n_test=len(features.test_y),
        dim=features.dim,
        has_superclass=features.superclass is not None,
    )


def choose_variants(
    source: Source, archs: Sequence[str], scenarios: Sequence[Scenario], keys: Sequence[int] | None
) -> list[Variant]:
    """The chosen part of the grid on one data set; a key that a scenario cannot have is refused with the nearest ones."""
    chosen: list[Variant] = []
    for scenario in scenarios:
        if scenario is Scenario.SUBCLASS and not source.has_superclass:
            if len(scenarios) > 1:
                continue
            raise BadInput(f"{source.name} has no 'superclass' array, which the subclass scenario needs")
        for key in source.keys(scenario) if keys is None else keys:
            _check_key(source, scenario, key)
        wanted = source.keys(scenario) if keys is None else keys
        chosen += [Variant(source.name, arch, scenario, key) for arch in archs for key in wanted]
    return chosen


def _check_key(source: Source, scenario: Scenario, key: int) -> None:
    if scenario is Scenario.RANDOM:
        if not 1 <= key < source.n_train:
            raise BadInput(
                f"random key {key} does not exist: {source.name} has {source.n_train} rows; the grid's keys are "
                f"{_listed(source.keys(scenario))}"
            )
    elif not 0 <= key < source.n_fine:
        near = sorted(range(source.n_fine), key=lambda label: abs(label - key))[:3]
        raise BadInput(
            f"{scenario} key {key} does not exist: {source.name} has labels 0..{source.n_fine - 1}; nearest are "
            f"{_listed(sorted(near))}"
        )


def _listed(values: Sequence[int]) -> str:
    return ", ".join(str(value) for value in values)


def cell_step(source: Source, variant: Variant, seed: int, methods: Sequence[str], settings: RunSettings) -> Step:
    """The audit step of a cell, with everything that it needs behind it."""
    features = Step(
        Kind.FEATURES,
        {"dataset": source.name, "fingerprint": source.fingerprint},
        hints={"source": source.place},
    )
    space = variant.label_space
    network = {"arch": variant.arch, "space": str(space), "seed": seed}
    request = {"scenario": str(variant.scenario), "key": variant.key}
    training = {"epochs": settings.training_epochs}
    base = Step(Kind.BASE, network | training, {"features": features})
    retrain, floor = (
        Step(kind, network | request | training, {"features": features}) for kind in (Kind.RETRAIN, Kind.FLOOR)
    )
    needs = {"features": features, "base": base, "retrain": retrain}
    unlearned = {
        method: Step(
            Kind.UNLEARN,
            network | request | {"method": method} | method_config(method, settings),
            needs | _statistics(features, space, method),
        )
        for method in methods
    }
    described = {"dataset": source.name, "backbone": source.backbone, "fingerprint": source.fingerprint}
    return Step(
        Kind.AUDIT,
        described | network | request | {"settings": flat_settings(settings)},
        needs | {"floor": floor} | unlearned,
    )


def _statistics(features: Step, space: LabelSpace, method: str) -> dict[str, Step]:
    if method not in GAUSSIAN_PROXIES:
        return {}
    return {"statistics": Step(Kind.STATISTICS, {"space": str(space)}, {"features": features})}


def method_config(method: str, settings: RunSettings) -> dict[str, Any]:
    """The settings that this method's result depends on, and no others."""
    if method in BASELINES:
        return {"preset": settings.preset}
    proxy = _proxy_json(settings.proxy)
    if method in EMPIRICAL_PROXIES:
        return {name: proxy[name] for name in ("finalizer", "dir_on_test")}
    return {name: proxy[name] for name in ("ridge", "shrinkage", "cap", "finalizer")}


def flat_settings(settings: RunSettings) -> dict[str, Any]:
    return {"training_epochs": settings.training_epochs, "preset": settings.preset, **_proxy_json(settings.proxy)}


def _proxy_json(proxy: ProxySettings) -> dict[str, Any]:
    values: Mapping[str, Any] = dataclasses.asdict(proxy)
    return {name: str(value) if name in ("dir_on_test", "shrinkage") else value for name, value in values.items()}
