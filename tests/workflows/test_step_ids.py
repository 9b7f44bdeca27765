"""Step ids cannot lie: whatever changes what a method runs changes the id of its step.

The dataclasses are walked field by field, so that a new field is covered without being named here.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tasks.step import Kind, Step, closure
from unlearn_core import grid, methods, preparations, recipes, run_settings
from unlearn_core.grid import ARCHITECTURES, HEADS, RESNET, RESNETS, SMALL_RESNET, Scenario, Variant
from unlearn_core.methods import Family
from unlearn_core.precision import Precision
from unlearn_core.recipes import HEAD_TRAINING, REQUEST_SCHEDULE, Stopping
from unlearn_core.run_settings import DirOnTest, ProxySettings, RunSettings
from unlearn_core.tuned import Tuned
from workflows.grid import cell_step
from workflows.sources import Source

# These say which code runs, who may ask for it, or what a reader has to know. Other code is another version of the step's
# kind.
CODE = {
    *("name", "family", "fit", "edit", "load", "settings", "prepares"),
    *("per_network", "closed_form", "scope", "auto", "paper", "notes", "vacuous", "reads_d", "done"),
}
INSTEAD_OF_NONE = {int: 7, float: 0.5, recipes.Optimization: HEAD_TRAINING, recipes.Stopping: Stopping()}


def variations(value: Any, hint: Any = None) -> Iterator[tuple[str, Any]]:
    """Every value that differs from ``value`` in one leaf, with the leaf's name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        for field in dataclasses.fields(value):
            for name, changed in variations(getattr(value, field.name), hints[field.name]):
                yield f"{field.name}.{name}".rstrip("."), dataclasses.replace(value, **{field.name: changed})
    elif isinstance(value, Mapping):
        for key, item in value.items():
            for name, changed in variations(item):
                yield f"{key}.{name}".rstrip("."), types.MappingProxyType({**value, key: changed})
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            for name, changed in variations(item):
                yield f"{i}.{name}".rstrip("."), (*value[:i], changed, *value[i + 1 :])
        if value:
            yield "longer", (*value, value[-1])
    elif isinstance(value, enum.Enum):
        yield "", next(other for other in type(value) if other is not value)
    elif isinstance(value, bool):
        yield "", not value
    elif isinstance(value, int):
        yield "", value + 1
    elif isinstance(value, float):
        yield "", value * 1.5 if value else 0.5
    elif isinstance(value, str):
        yield "", f"{value}x"
    elif value is None and hint is not None:
        inner = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        if inner and inner[0] in INSTEAD_OF_NONE:
            yield "", INSTEAD_OF_NONE[inner[0]]


def source() -> Source:
    data = Step(Kind.FEATURES, {"dataset": "cifar", "fingerprint": "f"})
    return Source("cifar", "r50", ARCHITECTURES, data, "f", 10, 50_000, 10_000, 384, True)


def steps_of(method: str, settings: RunSettings, arch: str = "mlp1") -> dict[str, str]:
    """The ids of a cell's steps by kind, and the method's by its name."""
    cell = cell_step(source(), Variant("cifar", arch, Scenario.CLASS, 0), 0, [method], settings)
    return {str(step.config.get("method", step.kind)): step.id for step in closure([cell])}


def unlearn_id(method: str, settings: RunSettings, arch: str = "mlp1") -> str:
    return steps_of(method, settings, arch)[method]


@pytest.mark.parametrize("method", methods.names())
def test_every_number_of_a_method_is_part_of_its_id(monkeypatch, method):
    line, table = methods.find(method), methods.TABLE
    n_fields = 0
    for name, changed in variations(line):
        no_eta = name == "cap" and line.family is Family.PROXY and line.closed_form
        no_training = name == "rate" and line.family is Family.EDIT and line.schedule is None
        if name.split(".")[0] in CODE or no_eta or no_training:
            continue
        preset = "original" if name.startswith("presets.original") else "paper"
        before = unlearn_id(method, RunSettings(preset=preset))
        with monkeypatch.context() as patched:
            patched.setattr(methods, "TABLE", types.MappingProxyType({**table, method: changed}))
            assert unlearn_id(method, RunSettings(preset=preset)) != before, name
        n_fields += 1
    assert n_fields >= (1 if line.family is Family.EDIT else 10)


def test_two_schedules_of_fresh_are_two_steps(monkeypatch):
    """It happened: ``least_retained`` 512 and 0 had one id, and a stale result was used."""
    before, line = unlearn_id("fresh", RunSettings()), methods.find_proxy("fresh")
    other = dataclasses.replace(line, schedule=dataclasses.replace(line.schedule, least_retained=512))
    monkeypatch.setattr(methods, "TABLE", types.MappingProxyType({**methods.TABLE, "fresh": other}))
    assert unlearn_id("fresh", RunSettings()) != before


@pytest.mark.parametrize(("name", "changed"), list(variations(REQUEST_SCHEDULE)))
def test_the_schedule_of_requests_is_part_of_the_id(monkeypatch, name, changed):
    settings = RunSettings(schedule="request")
    before = unlearn_id("lda", settings)
    monkeypatch.setattr(run_settings, "REQUEST_SCHEDULE", changed)
    assert unlearn_id("lda", settings) != before, name
    assert unlearn_id("lda", RunSettings()) == unlearn_id("lda", RunSettings(schedule="grid"))


def test_what_a_cell_is_assessed_by_is_part_of_its_audit(monkeypatch):
    before = steps_of("ga", RunSettings())
    how = preparations.PREPARATIONS[preparations.DISCRIMINANT]
    for name, changed in variations(how.constants):
        with monkeypatch.context() as patched:
            other = {
                **preparations.PREPARATIONS,
                preparations.DISCRIMINANT: dataclasses.replace(how, constants=changed),
            }
            patched.setattr(preparations, "PREPARATIONS", types.MappingProxyType(other))
            after = steps_of("ga", RunSettings())
        assert after["audit"] != before["audit"], name
        assert after["ga"] == before["ga"], name


@pytest.mark.parametrize("prepared", [name for name in preparations.PREPARATIONS if name != preparations.DISCRIMINANT])
def test_what_is_prepared_is_known_by_its_constants(monkeypatch, prepared):
    method = next(name for name in methods.names() if methods.prepared_for(name) == (prepared,))
    before = steps_of(method, RunSettings())
    how = preparations.PREPARATIONS[prepared]
    for name, changed in variations(how.constants):
        with monkeypatch.context() as patched:
            other = {**preparations.PREPARATIONS, prepared: dataclasses.replace(how, constants=changed)}
            patched.setattr(preparations, "PREPARATIONS", types.MappingProxyType(other))
            after = steps_of(method, RunSettings())
        assert after["prepared"] != before["prepared"], name
        assert after[method] != before[method], name


@pytest.mark.parametrize("method", ["ga", "newton-crossfit"])
@pytest.mark.parametrize("arch", ["mlp1", *RESNETS])
@pytest.mark.parametrize("role", ["training", "unlearning"])
def test_how_an_architecture_trains_and_unlearns_is_part_of_the_id(monkeypatch, method, arch, role):
    names = {RESNET: "RESNET", SMALL_RESNET: "SMALL_RESNET"}
    constant = f"{names.get(arch, 'HEAD')}_{role.upper()}"
    before = steps_of(method, RunSettings(), arch)
    for name, changed in variations(getattr(recipes, constant)):
        with monkeypatch.context() as patched:
            patched.setattr(recipes, constant, changed)
            after = steps_of(method, RunSettings(), arch)
        kinds = ("base", "retrain", "floor") if role == "training" else (method,)
        assert all(after[kind] != before[kind] for kind in kinds), name


@pytest.mark.parametrize("arch", HEADS[1:])
def test_the_width_of_a_head_is_part_of_its_id(monkeypatch, arch):
    before = steps_of("ga", RunSettings(), arch)
    monkeypatch.setattr(recipes, "HIDDEN_WIDTH", grid.HIDDEN_WIDTH + 1)
    assert steps_of("ga", RunSettings(), arch)["base"] != before["base"]


def test_every_setting_of_a_run_changes_the_ids_of_the_methods_that_depend_on_it():
    ids = {method: unlearn_id(method, RunSettings()) for method in methods.names()}
    other = {
        "preset": RunSettings(preset="original"),
        "tuned": RunSettings(preset="tuned", tuned=Tuned("paper", {})),
        "schedule": RunSettings(schedule="request"),
        "ridge": RunSettings(proxy=ProxySettings(ridge=0.1)),
        "shrinkage": RunSettings(proxy=ProxySettings(shrinkage="oas")),
        "cap": RunSettings(proxy=ProxySettings(cap=0.5)),
        "finalizer": RunSettings(proxy=ProxySettings(finalizer="mse")),
        "dir_on_test": RunSettings(proxy=ProxySettings(dir_on_test=DirOnTest.AS_FORGOTTEN)),
        "precision": RunSettings(precision=Precision.TF32),
    }
    fields = {f.name for kind in (RunSettings, ProxySettings) for f in dataclasses.fields(kind)}
    assert set(other) == fields - {"proxy", "training_epochs"}
    changed = {
        name: {method for method in methods.names() if unlearn_id(method, settings) != ids[method]}
        for name, settings in other.items()
    }
    gaussian = {"lda", "qda", "lda-mix", "qda-mix", "lda-2c"}
    assert changed["preset"] == set(methods.baselines())
    assert changed["tuned"] == changed["precision"] == set(methods.names())
    assert changed["schedule"] == changed["finalizer"] == set(methods.proxies())
    assert changed["ridge"] == changed["shrinkage"] == gaussian
    assert changed["cap"] == gaussian | {"probe", "fresh", "crossfit", "crossfit-net"}
    assert changed["dir_on_test"] == {"dir", "dir-2c"}
    assert steps_of("ft", RunSettings(training_epochs=3))["base"] != steps_of("ft", RunSettings())["base"]


@pytest.mark.parametrize(("arch", "precision"), [("mlp1", "tf32"), (RESNET, "tf32"), (RESNET, "bf16")])
def test_every_step_that_runs_a_network_says_its_precision(arch, precision):
    """And reads it there: a worker has no setting of its own. What no network computes is shared with float32."""
    images = dataclasses.replace(source(), sketch={"layer": "layer3", "dim": 8} if arch == RESNET else None)

    def steps(asked: str) -> dict[str, Step]:
        settings = RunSettings(precision=Precision(asked))
        cell = cell_step(images, Variant("cifar", arch, Scenario.CLASS, 0), 0, methods.names(), settings)
        return {step.id: step for step in closure([cell])}

    ours, usual = steps(precision), steps("float32")
    shared = {step.config.get("what", str(step.kind)) for step in (ours[one] for one in ours.keys() & usual.keys())}
    # networks of the folds are trained as the base is, in its arithmetic; models of the folds on features are not
    of_data = {"features", *(preparations.CROSSFIT, preparations.MOMENTS, preparations.PROBE, preparations.FLOW)}
    assert shared == ({"features", "projection"} if arch == RESNET else of_data)
    runs_a_network = [step for step in ours.values() if "base" in step.needs or "recipe" in step.config]
    assert len(runs_a_network) > len(methods.names())
    assert {step.config.get("precision") for step in runs_a_network} == {precision}
    assert all("precision" not in step.config for step in usual.values())


def test_bfloat16_is_for_resnet18_and_leaves_heads_alone():
    asked = RunSettings(precision=Precision.BF16)
    assert {method: unlearn_id(method, asked) for method in methods.names()} == {
        method: unlearn_id(method, RunSettings()) for method in methods.names()
    }


def test_methods_share_what_is_prepared():
    """The steps of all methods together prepare each thing once."""
    cell = cell_step(source(), Variant("cifar", "mlp1", Scenario.CLASS, 0), 0, methods.names(), RunSettings())
    prepared = [step.config["what"] for step in closure([cell]) if step.kind is Kind.PREPARED]
    assert sorted(prepared) == sorted({*preparations.PREPARATIONS} - {preparations.DISCRIMINANT})


@pytest.mark.parametrize("method", methods.names())
def test_identities_are_plain_json(method):
    cell = cell_step(source(), Variant("cifar", "mlp1", Scenario.CLASS, 0), 0, [method], RunSettings())
    for step in closure([cell]):
        again = json.loads(json.dumps(step.identity, allow_nan=False))
        assert json.dumps(again, sort_keys=True) == json.dumps(step.identity, sort_keys=True)


def test_networks_of_the_folds_start_from_the_weights_that_the_base_started_from():
    def prepared(initial: str) -> Step:
        images = dataclasses.replace(source(), sketch={"layer": "layer3", "dim": 8}, training={"initial": initial})
        cell = cell_step(images, Variant("cifar", RESNET, Scenario.CLASS, 0), 0, ["crossfit-net"], RunSettings())
        return cell.needs["crossfit-net"].needs[preparations.FOLD_NETWORKS]

    assert prepared("random").id == prepared("random").id != prepared("some weights").id
    assert "base" not in prepared("random").needs
