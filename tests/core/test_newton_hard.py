"""Training on hard rows that goes on from a Newton step: where it starts, and what it takes for granted."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from unlearn_core import methods
from unlearn_core.data import load_dataset
from unlearn_core.edits.newton import NewtonConstants
from unlearn_core.grid import Scenario, Variant
from unlearn_core.preparations import CROSSFIT, CURVATURE, kept_as
from unlearn_core.problem import Inputs, make_cells, make_problem
from unlearn_core.references import make_scorers, train_reference
from unlearn_core.run_settings import RunSettings
from unlearn_core.unlearning import Reference, run_method

DIGITS = load_dataset("digits")
VARIANT = Variant("digits", "linear", Scenario.RANDOM, 50)
REFUSED = NewtonConstants(damping=1e-6, most_spilled=0.0)
"""No step leaves retained rows alone altogether, so that none is taken."""


@pytest.fixture(scope="module")
def reference() -> Reference:
    problem, cells = make_problem(Inputs(DIGITS), VARIANT.label_space), make_cells(DIGITS, VARIANT, [0, 1])
    base, retrain = (train_reference(role, problem, "linear", cells, epochs=40) for role in ("base", "retrain"))
    return Reference(problem, "linear", cells, base, retrain, make_scorers(problem, cells, retrain))


def last_scores(reference, method):
    return [record.last.scores for record in run_method(method, reference, RunSettings())]


def standing_still(monkeypatch, step):
    """``newton-hard`` whose training does not move."""
    line = methods.find("newton-hard")
    assert line.family is methods.Family.BASELINE
    recipe = replace(line.presets["paper"], rate=1e-12)
    still = replace(line, presets=MappingProxyType(dict.fromkeys(methods.PRESETS, recipe)), step=step)
    monkeypatch.setattr(methods, "TABLE", MappingProxyType({**methods.TABLE, "newton-hard": still}))


def test_it_starts_where_the_step_leads(reference, monkeypatch):
    standing_still(monkeypatch, NewtonConstants())
    for ours, steps in zip(last_scores(reference, "newton-hard"), last_scores(reference, "newton"), strict=True):
        assert ours.kl_f == pytest.approx(steps.kl_f, rel=1e-5)
        assert ours.kl_t == pytest.approx(steps.kl_t, rel=1e-5)


def test_it_starts_from_the_base_if_no_step_leaves_retained_rows_alone(reference, monkeypatch):
    standing_still(monkeypatch, REFUSED)
    bases = [reference.scorers[k].score(reference.base.net, k) for k in range(2)]
    for ours, base in zip(last_scores(reference, "newton-hard"), bases, strict=True):
        assert ours.kl_f == pytest.approx(base.kl_f, rel=1e-5)
        assert ours.kl_t == pytest.approx(base.kl_t, rel=1e-5)


def test_what_it_starts_from_is_preparation(reference):
    records, kept = run_method("newton-hard", reference, RunSettings()), reference.problem.prepared
    for k, record in enumerate(records):
        took = (
            kept.seconds[kept_as(CROSSFIT, "linear")] + reference.of_networks[k].seconds[kept_as(CURVATURE, "linear")]
        )
        assert record.preparation == pytest.approx(took / reference.retrain.seconds[k])
