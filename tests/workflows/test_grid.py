"""From a request to steps: the paper's keys, shared nodes, and what changes which step."""

from __future__ import annotations

from collections import Counter

import pytest

from tasks.step import Kind, Step, closure
from unlearn_core import methods
from unlearn_core.errors import BadInput
from unlearn_core.grid import HEADS, SEEDS, Scenario
from unlearn_core.run_settings import ProxySettings, RunSettings
from workflows.grid import cell_step, choose_variants
from workflows.sources import Source, feature_source


def source(n_fine=10, n_train=50_000, has_superclass=True) -> Source:
    data = Step(Kind.FEATURES, {"dataset": "cifar", "fingerprint": "f" * 64}, hints={"source": "/data/cifar.npz"})
    return Source("cifar", "dinov2", HEADS, data, "f" * 64, n_fine, n_train, 10_000, 384, has_superclass)


def cells(variants, settings=None, chosen=None, seeds=SEEDS):
    chosen = methods.paper_methods() if chosen is None else chosen
    return [cell_step(source(), v, s, chosen, settings or RunSettings()) for v in variants for s in seeds]


@pytest.mark.parametrize(("n_fine", "labels"), [(10, (0, 2, 4, 6, 8)), (100, (0, 20, 40, 60, 80))])
def test_keys_are_the_papers(n_fine, labels):
    assert source(n_fine).keys(Scenario.CLASS) == source(n_fine).keys(Scenario.SUBCLASS) == labels
    assert source(n_fine).keys(Scenario.RANDOM) == (1, 50, 500, 5000)
    assert source(n_train=1437).keys(Scenario.RANDOM) == (1, 50, 500)


def test_the_head_grid_of_one_data_set_and_what_is_shared():
    variants = choose_variants(source(), HEADS, list(Scenario), None)
    assert len(variants) == 3 * (5 + 5 + 4)
    targets = cells(variants)
    counts = Counter(str(step.kind) for step in closure(targets))
    assert counts == {
        "features": 1,
        "prepared": 2,  # fine labels and superclasses
        "base": 3 * 2 * 5,  # architecture, label space, seed
        "retrain": 42 * 5,
        "floor": 42 * 5,
        "unlearn": 42 * 5 * 13,
        "audit": 42 * 5,
    }


def test_a_setting_changes_the_steps_that_depend_on_it_and_no_others():
    variants = choose_variants(source(), ["mlp1"], [Scenario.CLASS], [0])
    first = {step.id: step for step in closure(cells(variants, seeds=(0,)))}
    other = closure(cells(variants, RunSettings(proxy=ProxySettings(ridge=0.1)), seeds=(0,)))
    changed = {step.config.get("method", str(step.kind)) for step in other if step.id not in first}
    assert changed == {"lda", "qda", "lda-mix", "qda-mix", "lda-2c", "audit"}
    original = closure(cells(variants, RunSettings(preset="original"), seeds=(0,)))
    assert {s.config.get("method", str(s.kind)) for s in original if s.id not in first} == {
        "ft", "ga", "ga-ft", "rl-ft", "scrub", "salun", "audit",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("scenario", "key", "message"),
    [
        (Scenario.CLASS, 12, "class key 12 does not exist: cifar has labels 0..9; nearest are 7, 8, 9"),
        (
            Scenario.RANDOM,
            50_000,
            "random key 50000 does not exist: cifar has 50000 rows; the grid's keys are 1, 50, 500",
        ),
        (Scenario.RANDOM, 0, "random key 0 does not exist"),
    ],
)
def test_keys_that_do_not_exist_are_refused_with_the_nearest(scenario, key, message):
    with pytest.raises(BadInput, match=message):
        choose_variants(source(), ["mlp1"], [scenario], [key])


def test_without_superclasses_the_subclass_scenario_is_left_out_or_refused():
    bare = source(has_superclass=False)
    assert {v.scenario for v in choose_variants(bare, ["mlp1"], list(Scenario), None)} == {"class", "random"}
    with pytest.raises(BadInput, match="no 'superclass' array"):
        choose_variants(bare, ["mlp1"], [Scenario.SUBCLASS], None)


def test_a_data_set_is_known_by_its_content():
    first, again = feature_source("digits"), feature_source("digits")
    assert first.data.id == again.data.id
    assert first.n_train == 1437
