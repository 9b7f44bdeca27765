"""Search spaces are true of the table: every path leads to a field, every value changes what is run, and it runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from unlearn_core import methods, tuned
from unlearn_core.data import load_dataset
from unlearn_core.grid import HEADS, RESNETS, LabelSpace, Scenario, Variant
from unlearn_core.methods import Family
from unlearn_core.problem import Inputs, make_cells, make_problem
from unlearn_core.references import make_scorers, train_reference
from unlearn_core.run_settings import ProxySettings, RunSettings, what_is_run
from unlearn_core.search_spaces import Parameter, search_space
from unlearn_core.tuned import TUNED, Tuned, find_tuned, get_value, put_value, read_tuned, save_tuned
from unlearn_core.unlearning import Reference, run_method


def ends(parameter: Parameter) -> list[float]:
    return list(parameter.choices) or [parameter.low, parameter.high]


@pytest.mark.parametrize("arch", [*HEADS, *RESNETS])
@pytest.mark.parametrize("method", methods.names())
def test_every_number_of_a_space_stands_in_what_is_run(method, arch):
    space = search_space(method)
    first = {parameter.name: ends(parameter)[0] for parameter in space.parameters}
    assert len(first) == len(space.parameters) >= (0 if method in methods.edits() else 3)
    for parameter in space.parameters:
        for value in ends(parameter):
            chosen = space.tuned(method, arch, first | {parameter.name: value})
            run = what_is_run(method, arch, RunSettings(preset=TUNED, tuned=chosen))
            for path in parameter.paths:
                part, _, name = path.partition(".")
                found = run.settings[name] if part == "settings" else get_value(run, path)
                assert found == chosen.values[path], path
                assert type(found) is type(chosen.values[path])
            if run.recipe is not None and run.recipe.optimization is not None:
                assert run.recipe.optimization == run.optimization, "the loop takes the recipe's own first"
            assert json.loads(json.dumps(run.config(), allow_nan=False)) == json.loads(json.dumps(run.config()))
            again = what_is_run(method, arch, RunSettings.from_config(json.loads(json.dumps(run.config()))))
            assert again.config() == run.config(), "a worker makes the same of a step"
    configs = {
        json.dumps(what_is_run(method, arch, RunSettings(preset=TUNED, tuned=space.tuned(method, arch, one))).config())
        for one in (first | {p.name: value} for p in space.parameters for value in ends(p))
    }
    assert len(configs) == bool(first) + sum(len(ends(p)) - 1 for p in space.parameters), "and each is another step"


@pytest.mark.parametrize("method", methods.names())
def test_a_method_as_it_is_lies_in_its_space(method):
    """What a space can say of the untuned method, put in, gives the untuned method there."""
    space = search_space(method)
    now, untuned = space.now(method, "mlp1"), space.untuned(method, "mlp1")
    assert now or not space.parameters
    for parameter in space.parameters:
        if parameter.name in now:
            for path, value in parameter.values(now[parameter.name], untuned).items():
                part, _, name = path.partition(".")
                assert value == (untuned.settings[name] if part == "settings" else get_value(untuned, path)), path


def test_a_baseline_that_ends_early_was_recorded_at_its_end():
    for method in methods.baselines():
        for parameter in search_space(method).parameters:
            run = search_space(method).untuned(method, "mlp1")
            if parameter.name == "epochs" and run.recipe is not None and run.recipe.record_at:
                assert set(ends(parameter)) <= set(run.recipe.record_at)


def test_paths():
    recipe = methods.find("scrub").presets["paper"]  # pyright: ignore[reportAttributeAccessIssue]
    path = "phases.0.passes.1.loss.0.weight"
    changed = put_value(recipe, path, 0.25)
    assert (get_value(recipe, path), get_value(changed, path)) == (0.5, 0.25)
    assert put_value(changed, path, 0.5) == recipe
    for wrong in ("phases.7.epochs", "phases.0.length", "phases.0.epochs.0", "phases.x"):
        with pytest.raises(KeyError):
            get_value(recipe, wrong)
        with pytest.raises(KeyError):
            put_value(recipe, wrong, 1)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(tuned, "FILE", tmp_path / "tuned.json")
    return tmp_path / "tuned.json"


def test_the_file_keeps_values_by_method_and_architecture(file):
    assert read_tuned() == {}
    save_tuned("ft", "mlp1", Tuned("paper", {"optimization.lr": 0.01}), {"trials": 3})
    save_tuned("ft", "linear", Tuned("original", {"optimization.lr": 0.1}), {"trials": 3})
    save_tuned("ft", "mlp1", Tuned("paper", {"optimization.lr": 0.02}), {"trials": 4})
    assert find_tuned("ft", "mlp1") == Tuned("paper", {"optimization.lr": 0.02})
    assert find_tuned("ft", "linear") == Tuned("original", {"optimization.lr": 0.1})
    assert find_tuned("ft", "mlp2") is None
    assert find_tuned("ga", "mlp1") is None
    assert json.loads(file.read_text())["ft"]["mlp1"]["how"] == {"trials": 4}


def test_the_repository_has_only_values_that_can_be_put_in():
    for method, by_arch in read_tuned().items():
        for arch, entry in by_arch.items():
            run = what_is_run(method, arch, RunSettings(preset=TUNED))
            assert run.tuned is not None
            assert run.tuned.config()["values"] == entry["values"]
            assert {"command", "data", "requests", "seeds", "trials", "date", "objective"} <= set(entry["how"])


def test_a_method_without_values_is_the_papers(file):
    for method in methods.names():
        paper = what_is_run(method, "mlp1", RunSettings()).config()
        assert what_is_run(method, "mlp1", RunSettings(preset=TUNED)).config() == paper


def test_what_the_user_chose_goes_before_what_was_tuned(file):
    save_tuned("lda", "mlp1", Tuned("paper", {"settings.ridge": 0.2, "schedule.epochs": 3, "optimization.lr": 0.5}), {})

    def run(schedule: str = "grid", **proxy):
        return what_is_run("lda", "mlp1", RunSettings(preset=TUNED, proxy=ProxySettings(**proxy), schedule=schedule))

    assert run().settings["ridge"] == 0.2
    assert get_value(run(), "schedule.epochs") == 3
    assert run(ridge=0.7).settings["ridge"] == 0.7
    assert "settings.ridge" not in run(ridge=0.7).config()[TUNED]["values"]
    assert get_value(run(ridge=0.7), "schedule.epochs") == 3
    request, paper = run(schedule="request"), what_is_run("lda", "mlp1", RunSettings(schedule="request"))
    assert (request.schedule, request.optimization) == (paper.schedule, paper.optimization)
    assert run(finalizer="mse").schedule is None


def test_values_reach_the_loop():
    """Numbers of every part, each seen in what came out."""
    digits = load_dataset("digits")
    problem = make_problem(Inputs(digits), LabelSpace.SUPERCLASS)
    cells = make_cells(digits, Variant("digits", "linear", Scenario.SUBCLASS, 1), [100])
    base, retrain = (train_reference(role, problem, "linear", cells, epochs=20) for role in ("base", "retrain"))
    reference = Reference(problem, "linear", cells, base, retrain, make_scorers(problem, cells, retrain))

    def last(method: str, values: dict[str, object]):
        return run_method(method, reference, RunSettings(preset=TUNED, tuned=Tuned("paper", values)))[0].last

    assert last("ft", {"recipe.phases.0.epochs": 2}).epoch == 2
    assert last("lda", {"schedule.epochs": 2}).epoch == 2
    changes = {
        "ft": {"optimization.lr": 0.02},
        "lda": {"optimization.lr": 0.02},
        "qda": {"settings.ridge": 0.9},
        "fresh": {"constants.training.lr": 0.02},
        "salun": {"recipe.saliency_share": 0.1},
        "short": {"recipe.rate": 1.0},
    }
    for method, values in changes.items():
        short = "schedule.epochs" if methods.find(method).family is Family.PROXY else "recipe.phases.0.epochs"
        before, after = last(method, {short: 1}), last(method, {short: 1, **values})
        assert before.epoch == after.epoch >= 1, method
        assert before.scores.kl_t != after.scores.kl_t, method
        assert np.isfinite(after.scores.kl_t)
