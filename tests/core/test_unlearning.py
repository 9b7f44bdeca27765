"""Whole cells on digits: every method moves the student and none the teacher; records are complete and reproducible."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from unlearn_core import methods
from unlearn_core.data import load_dataset
from unlearn_core.finalize import LogitProcessor, fit_last_layer_shift
from unlearn_core.grid import Scenario, Variant
from unlearn_core.methods import Family
from unlearn_core.nets.heads import HeadStack
from unlearn_core.problem import Inputs, make_cells, make_problem
from unlearn_core.proxies.points import Points
from unlearn_core.recipes import Toward
from unlearn_core.records import EpochMetrics, Scores, best_epoch, method_entry
from unlearn_core.references import make_scorers, reference_records, train_reference
from unlearn_core.run_settings import DirOnTest, ProxySettings, RunSettings, what_is_run
from unlearn_core.seeding import derive_seed
from unlearn_core.target import fit_proxy
from unlearn_core.unlearning import Reference, _teachers, run_method

GAUSSIAN = tuple(name for name in methods.proxies() if methods.find_proxy(name).prepares == methods.MOMENTS)

EPOCHS = 15
UNANSWERED = ("truncate", "flow")
"""What has no answer to a subclass of mlp1: one is for whole classes, one for linear heads (see test_flow.py)."""


def make_reference(scenario, key, seeds=(42, 0), arch="mlp1") -> Reference:
    features = load_dataset("digits")
    variant = Variant("digits", arch, scenario, key)
    problem = make_problem(Inputs(features), variant.label_space)
    cells = make_cells(features, variant, seeds)
    base, retrain = (train_reference(role, problem, arch, cells, EPOCHS) for role in ("base", "retrain"))
    return Reference(problem, arch, cells, base, retrain, make_scorers(problem, cells, retrain))


@pytest.fixture(scope="module")
def subclass() -> Reference:
    return make_reference(Scenario.SUBCLASS, 0)


@pytest.fixture(scope="module")
def forgotten_class() -> Reference:
    return make_reference(Scenario.CLASS, 3)


@pytest.fixture(scope="module")
def random() -> Reference:
    return make_reference(Scenario.RANDOM, 50)


@pytest.fixture(scope="module")
def random_alone() -> Reference:
    """The second cell of ``random`` in a stack of its own."""
    return make_reference(Scenario.RANDOM, 50, seeds=(0,))


MEASURED = ("seconds", "rte", "cost", "preparation", "proxy_seconds")


def timeless(record):
    """A record without its measured seconds."""
    text = json.dumps(dataclasses.asdict(record))
    document = json.loads(text)

    def strip(value):
        if isinstance(value, dict):
            return {
                k: strip(v)
                for k, v in value.items()
                if k not in ("seconds", "rte", "cost", "preparation", "proxy_seconds")
            }
        return [strip(item) for item in value] if isinstance(value, list) else value

    return strip(document)


@pytest.mark.parametrize("preset", ["paper", "original"])
@pytest.mark.parametrize("method", methods.names())
def test_every_method_moves_the_student_and_none_the_teacher(subclass, method, preset):
    before = [subclass.base.net.state(k) for k in range(2)]
    records = run_method(method, subclass, RunSettings(preset=preset))
    for k, record in enumerate(records):
        after = subclass.base.net.state(k)
        assert all(torch.equal(before[k][name], after[name]) for name in after)
        base = subclass.scorers[k].score(subclass.base.net, k)
        idle = method in UNANSWERED if record.target is None else record.target.eta_max == 0
        assert (record.best.scores == base) == idle
        line = methods.find(method)
        marks = line.presets[preset].record_at if line.family is Family.BASELINE else ()
        expected = sorted(set(marks)) if marks else range(1, len(record.epochs) + 1)
        found = [epoch.epoch for epoch in record.epochs]
        assert found == [0] if idle else set(found) <= set(expected)
        assert found[-1] == (0 if idle else max(expected))
        assert record.best in record.epochs
        assert record.last == record.epochs[-1]


@pytest.mark.parametrize("method", methods.names())
def test_the_same_cell_twice_and_alone_gives_the_same_bits(random, random_alone, method):
    first = run_method(method, random, RunSettings())
    again = run_method(method, random, RunSettings())
    assert [timeless(r) for r in first] == [timeless(r) for r in again]
    assert timeless(run_method(method, random_alone, RunSettings())[0]) == timeless(first[1])


def test_references(subclass):
    floor = train_reference("floor", subclass.problem, "mlp1", subclass.cells, EPOCHS)
    base, retrain, second = (
        reference_records(trained, subclass.scorers) for trained in (subclass.base, subclass.retrain, floor)
    )
    for k in range(2):
        assert retrain[k].scores.kl_t == retrain[k].scores.kl_f == 0.0
        assert 0 < second[k].scores.kl_f < base[k].scores.kl_f
        assert base[k].scores.acc_f > 0.98


@pytest.mark.parametrize("method", GAUSSIAN)
@pytest.mark.parametrize("name", ["subclass", "random"])
def test_target_records_satisfy_the_theory(request, name, method):
    reference = request.getfixturevalue(name)
    for record in run_method(method, reference, RunSettings()):
        target = record.target
        assert target is not None
        assert target.bound is not None
        assert target.kl_net_proxy_before is not None
        assert target.kl_net_proxy_after is not None
        assert target.admissible == (target.kl_net_proxy_before < target.kl_net_proxy_after)
        assert target.bound["measured"] == pytest.approx(target.bound["decomposition"], abs=1e-9)
        assert target.bound["measured"] == pytest.approx(target.bound["tight_bound"] + target.bound["h"], abs=1e-9)
        assert target.bound["measured"] <= target.bound["tight_bound"] + 1e-9
        assert len(target.h_curve) >= 24
        assert target.h_curve[0] == (0.0, 0.0)


def test_forgetting_a_class_unlearns_it_with_every_proxy(forgotten_class):
    # three have models of their own say where the rows go; the others agree that the rest of the posterior stays
    alike = [method for method in methods.proxies() if method not in ("fresh", "crossfit", "crossfit-net")]
    runs = {method: run_method(method, forgotten_class, RunSettings()) for method in alike}
    for k in range(2):
        base = forgotten_class.scorers[k].score(forgotten_class.base.net, k)
        for method, records in runs.items():
            target = records[k].target
            assert target is not None
            assert math.isfinite(target.scores.kl_f)
            assert target.scores.kl_f == pytest.approx(runs["dir"][k].target.scores.kl_f, abs=1e-6)  # pyright: ignore
            assert records[k].best.scores.kl_f < 0.5 * base.kl_f, method
            assert records[k].best.scores.acc_f < 0.1


def test_dir_on_test_points_is_the_base_unless_asked_otherwise(subclass):
    base = subclass.scorers[0].score(subclass.base.net, 0)
    literal = run_method("dir-2c", subclass, RunSettings())[0].target
    paper = run_method("dir-2c", subclass, RunSettings(proxy=ProxySettings(dir_on_test=DirOnTest.AS_FORGOTTEN)))[
        0
    ].target
    assert literal is not None
    assert paper is not None
    assert literal.scores.kl_t == pytest.approx(base.kl_t, abs=1e-9)
    assert paper.scores.kl_t < 0.8 * base.kl_t
    assert literal.scores.kl_f == paper.scores.kl_f


@pytest.mark.parametrize("method", methods.proxies())
def test_least_squares_and_the_logit_processor(subclass, forgotten_class, method):
    for reference in (subclass, forgotten_class):
        for finalizer in ("mse", "none"):
            settings = RunSettings(proxy=ProxySettings(finalizer=finalizer))
            record = run_method(method, reference, settings)[0]
            assert record.target is not None
            if record.target.eta_max == 0:
                continue
            assert len(record.epochs) == 1
            if finalizer == "none":
                assert record.best.scores == record.target.scores
            elif method == "dir" and reference is subclass:
                assert record.best.scores.acc_f < 0.1, "dir annihilates the forget set"
            elif method != "crossfit":  # rows of a class vouch for each other
                base = reference.scorers[0].score(reference.base.net, 0)
                assert record.best.scores.kl_f < base.kl_f


def test_least_squares_is_the_minimiser():
    rng = np.random.default_rng(0)
    phi, shift = rng.normal(size=(200, 7)) + 3, rng.normal(size=(200, 4))
    weight, bias = fit_last_layer_shift(phi, shift)
    design = np.column_stack([phi, np.ones(200)])
    solution = np.linalg.solve(design.T @ design, design.T @ shift)
    np.testing.assert_allclose(np.vstack([weight, bias]), solution, atol=1e-10)


def test_the_logit_processor_shifts_a_black_box(data):
    proxy = fit_proxy("lda-2c", data.x, data.y, data.forget, 3)
    processor = LogitProcessor("lda-2c", proxy, 0.4, np.zeros(3, dtype=bool))
    shifted = processor(data.logits, data.x) - data.logits - 0.4 * proxy.signal(Points(data.x))
    np.testing.assert_allclose(shifted, np.repeat(shifted[:, :1], 3, axis=1), atol=1e-9)


def scores(kl_f: float) -> Scores:
    return Scores(0.1, kl_f, 0.1, kl_f, 0.9, 0.5, 0.5, 0.5)


def test_the_best_epoch_is_the_first_with_the_least_kl_f():
    epochs = [EpochMetrics(i + 1, float(i), scores(kl)) for i, kl in enumerate([math.nan, 0.3, 0.2, 0.2, math.inf])]
    assert best_epoch(epochs).epoch == 3
    assert best_epoch(epochs[:1]).epoch == 1


def test_entries_hold_null_for_what_is_not_finite(subclass):
    record = run_method("dir", subclass, RunSettings())[0]
    assert record.target is not None
    assert math.isinf(record.target.scores.kl_f), "dir leaves no mass on the label, so KL from the retrain is infinite"
    entry = method_entry(record)
    assert entry["target"]["kl_f"] is None
    assert json.loads(json.dumps(entry, allow_nan=False)) == entry


def test_the_bad_teacher_is_a_network_of_its_own_draw_on_forgotten_rows_alone(random):
    recipe = what_is_run("bad-teacher", "mlp1", RunSettings()).recipe
    assert recipe is not None
    inputs, found = random.problem.train.inputs, _teachers("bad-teacher", recipe, random)
    for k, (cell, soft) in enumerate(zip(random.cells, found, strict=True)):
        generator = torch.Generator().manual_seed(derive_seed(cell.seed, "bad-teacher", "weights"))
        untrained = HeadStack.initialise((64, 256, random.problem.n_classes), [generator])
        both, forget = soft[Toward.TWO_TEACHERS], torch.from_numpy(cell.forget)
        assert torch.equal(both[~forget], random.base.net.logits(k, inputs)[~forget])
        torch.testing.assert_close(both[forget], untrained.logits(0, inputs)[forget], rtol=0, atol=1e-5)
    assert not torch.equal(found[0][Toward.TWO_TEACHERS][:1], found[1][Toward.TWO_TEACHERS][:1])
