"""From a request to steps: which variants, and the DAG behind each of their cells.

Shared nodes exist once, because equal steps have equal ids: a base network per (data, architecture, label space, seed), a
retrain per (variant, seed), statistics per (data, label space), and for a ResNet a sketch per base network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.step import FOLDS, N_FORGET, Kind, Step
from unlearn_core import methods
from unlearn_core.errors import BadInput
from unlearn_core.grid import RESNET, Scenario, Variant
from unlearn_core.methods import Family
from unlearn_core.precision import Precision, precision_config
from unlearn_core.preparations import CROSSFIT, DISCRIMINANT, PREPARATIONS, Per, prepared_config
from unlearn_core.recipes import training_config, training_epochs
from unlearn_core.run_settings import RunSettings, what_is_run
from unlearn_core.tuned import TUNED
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


def cell_step(
    source: Source,
    variant: Variant,
    seed: int,
    chosen: Sequence[str],
    settings: RunSettings,
    pool: int | None = None,
) -> Step:
    """The audit step of a cell, with everything that it needs behind it.

    ``pool`` is for the shadows of an audit: of how many rows a random request is drawn from.
    """
    space = variant.label_space
    numbers = precision_config(variant.arch, settings.precision)
    network = {"arch": variant.arch, "space": str(space), "seed": seed, **numbers}
    request: dict[str, Any] = {"scenario": str(variant.scenario), "key": variant.key}
    if pool is not None:
        request["pool"] = pool
    epochs = settings.training_epochs or training_epochs(variant.arch)
    data = {"features" if source.data.kind is Kind.FEATURES else "images": source.data}
    alone = source.sketch is not None
    n_forget = source.n_forget(variant)
    size = {} if n_forget is None else {N_FORGET: n_forget}

    def reference(kind: Kind, config: Mapping[str, Any], hints: dict[str, Any]) -> Step:
        training = training_config(variant.arch, str(kind), epochs) | source.training
        return Step(kind, {**config, **training}, data, hints=hints, alone=alone)

    base = reference(Kind.BASE, network, source.hints)
    retrain, floor = (reference(kind, network | request, source.hints | size) for kind in (Kind.RETRAIN, Kind.FLOOR))
    needs = data | {"base": base, "retrain": retrain}
    seen = _seen_by_proxies(source, data, base, network)
    unlearned = {
        method: _unlearn_step(source, variant, method, settings, network | request, needs, seen, size)
        for method in chosen
    }
    described = {"dataset": source.name, "backbone": source.backbone, "fingerprint": source.fingerprint}
    shown = flat_settings(settings) | {"training_epochs": epochs} | source.training | _sketch_settings(source)
    if settings.preset == TUNED:
        shown["untuned"] = [method for method in chosen if settings.of(method, variant.arch).preset != TUNED]
    assessed = {"assessed_by": prepared_config(DISCRIMINANT, variant.arch)}
    return Step(
        Kind.AUDIT,
        described | network | request | {"settings": shown} | assessed,
        needs | {"floor": floor} | unlearned | _assessed_from(unlearned, alone),
        alone=alone,
    )


def _assessed_from(unlearned: Mapping[str, Step], deep: bool) -> dict[str, Step]:
    """The models of folds, if some method of a head starts from them: nothing is prepared to assess a cell alone."""
    folds = [step.needs[CROSSFIT] for step in unlearned.values() if CROSSFIT in step.needs]
    return {FOLDS: folds[0]} if folds and not deep else {}


def _unlearn_step(
    source: Source,
    variant: Variant,
    method: str,
    settings: RunSettings,
    cell: Mapping[str, Any],
    needs: dict[str, Step],
    seen: dict[str, Step],
    size: dict[str, int],
) -> Step:
    run = what_is_run(method, variant.arch, settings)
    # whoever starts afresh starts as the base did, from weights that may have been given
    fresh = run.recipe is not None and run.recipe.trains_anew
    return Step(
        Kind.UNLEARN,
        {**cell, "method": method, **run.config(), **(source.training if fresh else {})},
        needs | _needs_of_method(source, method, needs, seen, cell),
        hints=source.hints | size if fresh else size,
        alone=source.sketch is not None,
    )


def _seen_by_proxies(source: Source, data: dict[str, Step], base: Step, network: dict[str, Any]) -> dict[str, Step]:
    """What proxies see where that is not the network's input: a sketch of the base network's layer."""
    if source.sketch is None:
        return {}
    # the paper's network needs no name: it was the only one
    named = {} if network["arch"] == RESNET else {"arch": network["arch"]}
    projection = Step(Kind.PROJECTION, {**source.sketch, **named, "size": source.dim, "draw": 0})
    layer = {"layer": source.sketch["layer"]}
    sketch = Step(Kind.SKETCH, network | layer, data | {"base": base, "projection": projection}, alone=True)
    return {"sketch": sketch}


def _needs_of_method(
    source: Source, method: str, needs: dict[str, Step], seen: dict[str, Step], cell: Mapping[str, Any]
) -> dict[str, Step]:
    """What a proxy sees, and what was prepared before any request came."""
    data = {role: step for role, step in needs.items() if role in ("features", "images")}
    found = dict(seen) if methods.find(method).family is Family.PROXY else {}
    for name in methods.prepared_for(method):
        how, config = PREPARATIONS[name], {"space": cell["space"], **prepared_config(name, cell["arch"])}
        numbers = {name: cell[name] for name in ("seed", "precision") if name in cell}
        of, hints = seen, {}
        if how.per is Per.NETWORK:
            config, of = config | numbers, {"base": needs["base"]}
        elif how.of_inputs:  # it trains networks as the base was trained, of no seed of the grid's
            del numbers["seed"]
            config, of, hints = config | numbers | source.training, {}, source.hints
        found[name] = Step(Kind.PREPARED, config, data | of, hints)
    return found


def _sketch_settings(source: Source) -> dict[str, Any]:
    if source.sketch is None:
        return {}
    return {"image_size": source.dim, **{f"sketch_{name}": value for name, value in source.sketch.items()}}


def flat_settings(settings: RunSettings) -> dict[str, Any]:
    """The settings of a run as its results show them; a cap that is not given is the paper's."""
    proxy = dataclasses.asdict(settings.proxy)
    cap = {"cap": 1.0 if settings.proxy.cap is None else settings.proxy.cap}
    schedule = {} if settings.schedule == "grid" else {"schedule": settings.schedule}
    numbers = {} if settings.precision is Precision.FLOAT32 else {"precision": str(settings.precision)}
    dir_on_test = {"dir_on_test": str(settings.proxy.dir_on_test)}
    return {"preset": settings.preset, **proxy, **cap, **schedule, **dir_on_test, **numbers}
