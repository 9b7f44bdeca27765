"""From a request to steps: which variants, and the DAG behind each of their cells.

Shared nodes exist once, because equal steps have equal ids: a base network per (data, architecture, label space, seed), a
retrain per (variant, seed), statistics per (data, label space), and for a ResNet a sketch per base network.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.step import Kind, Step
from unlearn_core.errors import BadInput
from unlearn_core.proxies.probe import PENALTY
from unlearn_core.spec import (
    BASELINES,
    EMPIRICAL_PROXIES,
    GAUSSIAN_PROXIES,
    PROBED_PROXIES,
    ProxySettings,
    RunSettings,
    Scenario,
    Variant,
    training_epochs,
)
from workflows.sources import Source


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
    space = variant.label_space
    network = {"arch": variant.arch, "space": str(space), "seed": seed}
    request = {"scenario": str(variant.scenario), "key": variant.key}
    training = {"epochs": settings.training_epochs or training_epochs(variant.arch), **source.training}
    data = {"features" if source.data.kind is Kind.FEATURES else "images": source.data}
    alone = source.sketch is not None

    def reference(kind: Kind, config: Mapping[str, Any]) -> Step:
        return Step(kind, config, data, hints=source.hints, alone=alone)

    base = reference(Kind.BASE, network | training)
    retrain, floor = (reference(kind, network | request | training) for kind in (Kind.RETRAIN, Kind.FLOOR))
    needs = data | {"base": base, "retrain": retrain}
    seen = _seen_by_proxies(source, data, base, network)
    unlearned = {
        method: Step(
            Kind.UNLEARN,
            network | request | {"method": method} | method_config(method, settings),
            needs | ({} if method in BASELINES else seen) | _fitted_on_all(data | seen, network, method),
            alone=alone,
        )
        for method in methods
    }
    described = {"dataset": source.name, "backbone": source.backbone, "fingerprint": source.fingerprint}
    shown = (
        flat_settings(settings) | {"training_epochs": training["epochs"]} | source.training | _sketch_settings(source)
    )
    return Step(
        Kind.AUDIT,
        described | network | request | {"settings": shown},
        needs | {"floor": floor} | unlearned,
        alone=alone,
    )


def _seen_by_proxies(source: Source, data: dict[str, Step], base: Step, network: dict[str, Any]) -> dict[str, Step]:
    """What proxies see where that is not the network's input: a sketch of the base network's layer."""
    if source.sketch is None:
        return {}
    projection = Step(Kind.PROJECTION, {**source.sketch, "size": source.dim, "draw": 0})
    layer = {"layer": source.sketch["layer"]}
    sketch = Step(Kind.SKETCH, network | layer, data | {"base": base, "projection": projection}, alone=True)
    return {"sketch": sketch}


def _fitted_on_all(needs: dict[str, Step], network: dict[str, Any], method: str) -> dict[str, Step]:
    """What a proxy knows of D before any request comes."""
    if method in GAUSSIAN_PROXIES:
        return {"statistics": Step(Kind.STATISTICS, {"space": network["space"]}, needs)}
    if method in PROBED_PROXIES:
        return {"probe_fit": Step(Kind.PROBE, {"space": network["space"], "penalty": PENALTY}, needs)}
    return {}


def _sketch_settings(source: Source) -> dict[str, Any]:
    if source.sketch is None:
        return {}
    return {"image_size": source.dim, **{f"sketch_{name}": value for name, value in source.sketch.items()}}


def method_config(method: str, settings: RunSettings) -> dict[str, Any]:
    """The settings that this method's result depends on, and no others."""
    if method in BASELINES:
        return {"preset": settings.preset}
    proxy = _proxy_json(settings.proxy)
    if method in EMPIRICAL_PROXIES:
        return {name: proxy[name] for name in ("finalizer", "dir_on_test")}
    cap = settings.proxy.cap_of(method)
    proxy["cap"] = cap if math.isfinite(cap) else str(cap)
    names = ("cap", "finalizer") if method in PROBED_PROXIES else ("ridge", "shrinkage", "cap", "finalizer")
    return {name: proxy[name] for name in names}


def flat_settings(settings: RunSettings) -> dict[str, Any]:
    return {"preset": settings.preset, **_proxy_json(settings.proxy)}


def _proxy_json(proxy: ProxySettings) -> dict[str, Any]:
    """Plain JSON; a cap that is not given is the paper's, as the settings of a run show it."""
    values: Mapping[str, Any] = dataclasses.asdict(proxy) | {"cap": 1.0 if proxy.cap is None else proxy.cap}
    return {name: str(value) if name in ("dir_on_test", "shrinkage") else value for name, value in values.items()}
