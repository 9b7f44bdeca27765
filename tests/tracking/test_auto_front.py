"""``auto`` at a budget: the rule by hand, numbers by hand, and a choice that sees no retrain and no test label."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest

from tracking.auto_front import AUTO_BUDGETS, assessment_cost, auto_choice, auto_places, kinds_found
from tracking.figures.auto import AUTO_LABEL, SHORT_LABEL, auto_figure, write_auto
from tracking.tables.auto_front import auto_summary
from tracking.tree import Tree
from unlearn_core import methods
from unlearn_core.grid import ARCHITECTURES, Scenario
from unlearn_core.request_kind import RequestKind
from unlearn_core.within_budget import (
    Costs,
    choose_within,
    flow_cost,
    least_warm_cost,
    least_young_cost,
    newton_crossfit_cost,
    young_pays,
)

GROUP, SCATTERED, CLASS = RequestKind.GROUP, RequestKind.EXCHANGEABLE, RequestKind.WHOLE_CLASS
STEP = 0.007
"""What a Newton step costs."""


@pytest.mark.parametrize(
    ("kind", "hidden", "budget", "step_cost", "expected"),
    [
        (CLASS, 1, 0.003, None, "truncate"),
        (CLASS, 1, 0.01, None, "short-hard-warm"),
        (CLASS, 1, 0.1, None, "short-hard-warm"),
        (CLASS, 2, 0.003, None, "short-hard-warm"),
        (CLASS, 2, 0.1, None, "short-warm"),
        (CLASS, 0, 0.003, None, "short-hard-near"),
        (CLASS, 0, 0.03, None, "short-hard-near"),
        (SCATTERED, 1, 0.01, STEP, "newton"),
        (SCATTERED, 1, 0.05, STEP, "short-hard-warm"),
        (SCATTERED, 1, 0.1, STEP, "short-warm"),
        (SCATTERED, 1, 0.003, STEP, "short-hard-warm"),
        (SCATTERED, 2, 0.01, STEP, "short-hard-warm"),
        (SCATTERED, 2, 0.1, STEP, "short-warm"),
        (SCATTERED, 0, 0.01, STEP, "newton"),
        (SCATTERED, 0, 0.003, STEP, "short-hard-base"),
        (SCATTERED, 0, 0.1, STEP, "newton-hard"),
        (GROUP, 0, 0.003, STEP, "short-hard-linear"),
        (GROUP, 0, 0.1, STEP, "short-hard-slow"),
        (GROUP, 1, 0.003, STEP, "short-small"),
        (GROUP, 1, 0.06, None, "short-hard"),
        (GROUP, 1, 0.1, None, "short"),
        (GROUP, 2, 0.003, STEP, "short"),
        (GROUP, 2, 0.01, STEP, "short-hard"),
        (GROUP, 2, 0.1, STEP, "short"),
    ],
)
def test_the_rule(kind, hidden, budget, step_cost, expected):
    choice = choose_within(kind, hidden, budget, Costs(step_cost))
    assert choice is not None
    assert choice.method == expected
    assert {choice.method, choice.runner_up} <= set(methods.names())
    assert choice.runner_up != choice.method
    assert choice.why
    assert choice.more


@pytest.mark.parametrize(
    ("hidden", "budget", "expected"),
    [
        (1, 0.005, "newton"),
        (1, 0.01, "newton-crossfit"),
        (1, 0.1, "short-warm"),
        (2, 0.005, "short-hard-warm"),
        (2, 0.01, "newton-crossfit"),
        (2, 0.03, "short-warm"),
    ],
)
def test_scattered_rows_are_taught_from_where_the_step_ends_if_that_is_affordable(hidden, budget, expected):
    """1000 of 50,000 rows: three epochs over them and 2048 retained rows, at twice the price of training, and the step."""
    cost = newton_crossfit_cost(1000, 50_000, 50)
    assert cost == pytest.approx((4 * 1000 + 2 * 3 * (1000 + 2048)) / (50 * 49_000))
    choice = choose_within(SCATTERED, hidden, budget, Costs(0.002, cost))
    assert choice is not None
    assert choice.method == expected
    assert newton_crossfit_cost(1000, 1_000_000, 50) < cost / 20, "a share of a retrain that grows with D"


@pytest.mark.parametrize(
    ("hidden", "records", "expected", "runner_up"),
    [
        (2, 1, "short-hard-warm", "newton"),
        (2, 9, "short-hard-warm", "newton"),
        (2, 10, "newton-crossfit", "short-hard-warm"),
        (1, 1, "newton-crossfit", "newton"),
    ],
)
def test_few_records_are_not_taught_to_deeper_heads(hidden, records, expected, runner_up):
    """What models without a single record say of it is another model's answer, and two deeper heads differ too much."""
    choice = choose_within(SCATTERED, hidden, 0.01, Costs(0.001, 0.005), records=records)
    assert choice is not None
    assert (choice.method, choice.runner_up) == (expected, runner_up)
    later = choose_within(SCATTERED, hidden, 0.1, Costs(0.001, 0.005), records=records)
    assert later is not None
    assert later.runner_up == ("newton" if expected == "short-hard-warm" else "newton-crossfit"), (
        "nor as a second choice"
    )


@pytest.mark.parametrize(
    ("kind", "budget", "expected"),
    [
        (SCATTERED, 0.019, "newton"),
        (SCATTERED, 0.02, "newton-hard"),
        (SCATTERED, 0.1, "newton-hard"),
        (GROUP, 0.079, "short-hard-linear"),
        (GROUP, 0.08, "short-hard-slow"),
        (CLASS, 0.01, "short-hard-near"),
        (CLASS, 0.1, "short-hard-near"),
    ],
)
def test_what_a_linear_head_gets_below_the_cost_of_its_path(kind, budget, expected):
    choice = choose_within(kind, 0, budget, Costs(0.003, least_warm=0.002, path=0.15))
    assert choice is not None
    assert choice.method == expected
    assert choice.more.startswith("newton-hard, from 2.0% on" if expected == "newton" else "flow, from 15.0% on")
    dear = choose_within(SCATTERED, 0, 0.05, Costs(0.06, least_warm=0.002))
    assert dear is not None
    assert dear.method == "short-hard-near", "a step that cannot be paid for is none to start from"


@pytest.mark.parametrize(
    ("budget", "few", "many"),
    [
        (0.01, "newton", "short-hard-base"),
        (0.02, "newton-hard", "short-hard-near"),
        (0.1, "newton-hard", "short-hard-near"),
    ],
)
def test_a_linear_head_takes_no_step_away_from_thousands_of_scattered_records(budget, few, many):
    """It would change the others, too, and be refused, after its cost."""
    for records, expected in ((1999, few), (2000, many)):
        choice = choose_within(SCATTERED, 0, budget, Costs(0.003, least_warm=0.002), records=records)
        assert choice is not None
        assert choice.method == expected
        assert ("would change the others" in choice.why) == (records == 2000)


def test_a_linear_head_that_can_take_no_step_is_never_trained_from_fresh_weights_for_a_moment():
    """As many steps from fresh weights are hundreds of times as far from a retrain as the network is."""
    choice = choose_within(SCATTERED, 0, 0.001, Costs(0.003, least_warm=0.002))
    assert choice is not None
    assert choice.method == "short-hard-base"


def test_scattered_rows_get_an_edit_if_no_network_can_be_trained_anew():
    for hidden in (0, 1, 2):
        for budget in (0.001, 0.005, 0.01, 0.1):
            choice = choose_within(SCATTERED, hidden, budget, Costs(0.001, 0.008, math.inf))
            assert choice is not None
            assert choice.method not in methods.cut_short()


@pytest.mark.parametrize("kind", [CLASS, SCATTERED, GROUP])
def test_a_linear_head_follows_its_path_as_soon_as_that_is_affordable(kind):
    costs = Costs(STEP, path=0.08)
    chosen, before = (choose_within(kind, 0, budget, costs, kept=0.98) for budget in (0.08, 0.079))
    assert chosen is not None
    assert chosen.method == "flow"
    assert before is not None
    assert before.method != "flow"
    assert before.more == "flow, from 8.0% on"
    assert flow_cost(205_600, 2, 45_000, 50) == pytest.approx(0.7 * 205_600 / (50 * 45_000))
    assert flow_cost(276_640, 10, 45_000, 50) == pytest.approx(1.2 * 276_640 / (50 * 45_000))


def test_a_class_of_little_data_loses_its_output():
    """40 steps in batches of 512 are 20 epochs of 1,000 rows; of 45,000 rows 10 do, a ninth of an epoch."""
    least = least_warm_cost(1000, 50, 512)
    assert least == pytest.approx(20 / 50)
    assert least_warm_cost(45_000, 50, 512) == pytest.approx(10 / 88 / 50)
    for hidden in (0, 1, 2):
        for cost in (least, math.inf):  # infinite: no network can be trained anew
            choice = choose_within(CLASS, hidden, 0.02, Costs(least_warm=cost))
            scattered = choose_within(SCATTERED, hidden, 0.5, Costs(0.02, 0.2, cost))
            assert scattered is not None
            assert scattered.method not in methods.cut_short()
            assert choice is not None
            assert choice.method == "truncate"


@pytest.mark.parametrize(
    ("hidden", "kept", "budget", "expected"),
    [
        (1, 0.98, 0.003, "short-hard-group"),
        (1, 0.98, 0.01, "short-hard-group"),
        (1, 0.98, 0.03, "short-hard"),
        (1, 0.98, 0.1, "short-hard"),
        (2, 0.98, 0.003, "short-hard-group"),
        (2, 0.98, 0.01, "short-hard"),
        (2, 0.98, 0.03, "short"),
        (0, 0.98, 0.03, "short-hard-linear"),
        (0, 0.5, 0.01, "short-hard-linear"),
        (1, 0.5, 0.003, "short-small"),
        (1, 0.94, 0.01, "short-hard"),
        (1, 0.5, 0.1, "short"),
        (2, 0.5, 0.003, "short"),
        (2, 0.5, 0.1, "short"),
        (1, None, 0.003, "short-small"),
    ],
)
def test_a_group_that_the_others_stand_for_starts_from_a_share_of_the_base(hidden, kept, budget, expected):
    choice = choose_within(GROUP, hidden, budget, Costs(STEP), kept=kept)
    assert choice is not None
    assert choice.method == expected
    assert (f"{kept:.0%}" in choice.why) if kept is not None else "knows" not in choice.why
    without = choose_within(GROUP, hidden, 0.003, Costs(STEP, least_warm=0.4), kept=kept)
    assert without is not None
    assert without.method == ("short" if hidden == 2 else "short-small"), "too few rows for the steps that it takes"


@pytest.mark.parametrize(
    ("kind", "budget", "expected"),
    [
        (CLASS, 0.01, "truncate"),
        (GROUP, 0.01, "short"),
        (SCATTERED, 0.01, "newton-last"),
        (CLASS, 0.05, "short-warm"),
        (GROUP, 0.05, "short-warm"),
        (SCATTERED, 0.05, "short-warm"),
    ],
)
def test_the_rule_for_networks_that_were_trained_end_to_end(kind, budget, expected):
    """40 steps in batches of 128 are an epoch of 5,000 rows, a twenty-fifth of ResNet-8's."""
    least = least_warm_cost(5000, 25, 128, deep=True)
    assert least == pytest.approx(0.04)
    choice = choose_within(kind, 1, budget, Costs(STEP, None, least), deep=True)
    assert choice is not None
    assert choice.method == expected
    assert {choice.method, choice.runner_up} <= set(methods.names())
    assert choice.runner_up != choice.method
    never = choose_within(kind, 1, budget, Costs(STEP, None, math.inf), deep=True)
    assert never is not None
    assert never.method != "short-warm", "no network can be trained anew"


@pytest.mark.parametrize("kind", [CLASS, GROUP, SCATTERED])
def test_a_young_network_is_where_deep_networks_start_from_if_one_is_prepared(kind):
    """Three steps of a thousand."""
    young = least_young_cost(5000, 25, 128)
    assert young == pytest.approx(0.003)
    costs = Costs(STEP, None, least_warm_cost(5000, 25, 128, deep=True), young=young)
    for budget in (0.003, 0.03, 0.5):
        choice = choose_within(kind, 1, budget, costs, deep=True)
        assert choice is not None
        assert choice.method == "short-young"
    before = choose_within(kind, 1, 0.0029, costs, deep=True)
    assert before is not None
    edits = {CLASS: "truncate", SCATTERED: "newton-last"}
    assert before.method == edits.get(kind, "short-young"), "a group has no edit to fall back on"
    if kind in edits:
        assert before.more == "short-young, from 0.3% on"


@pytest.mark.parametrize(
    ("kind", "hidden", "budget", "expected"),
    [
        (CLASS, 2, 0.003, "short-young"),
        (CLASS, 2, 0.005, "short-hard-warm"),
        (CLASS, 1, 0.003, "truncate"),
        (SCATTERED, 2, 0.003, "short-young"),
        (SCATTERED, 2, 0.009, "newton-crossfit"),
        (SCATTERED, 1, 0.003, "newton"),
        (GROUP, 2, 0.003, "short-hard-group"),
        (GROUP, 1, 0.003, "short-hard-group"),
    ],
)
def test_a_head_with_two_hidden_layers_goes_on_from_a_young_network_for_little(kind, hidden, budget, expected):
    costs = Costs(0.001, 0.008, least_warm=0.002, young=0.0007)
    choice = choose_within(kind, hidden, budget, costs, kept=0.99)
    assert choice is not None
    assert choice.method == expected
    assert choice.runner_up != choice.method
    without = choose_within(kind, hidden, budget, replace(costs, young=None), kept=0.99)
    assert without is not None
    assert without.method != "short-young"
    if expected == "short-young" and kind is SCATTERED:
        many = choose_within(kind, hidden, 0.009, replace(costs, taught=0.03))
        assert many is not None
        assert many.method == "short-young"


def test_a_young_network_is_prepared_for_who_has_use_for_it():
    assert [arch for arch in (*ARCHITECTURES, None) if young_pays(arch)] == ["mlp2", "resnet18", "resnet8"]


def test_an_unknown_kind_is_left_to_the_proxies():
    assert choose_within(RequestKind.UNKNOWN, 1, 0.05, Costs()) is None
    assert choose_within(RequestKind.UNKNOWN, 1, 0.05, Costs(), deep=True) is None


def subclass(made, **rows):
    """short: KL_f 1 at 0.2 %, and a tenth of it for every ten times the cost."""
    short = made.raced("short", (0.002, 1.0, 0.4), (0.02, 0.1, 0.1), (0.2, 0.01, 0.1))
    newton = made.raced("newton", (0.005, 0.04, 0.02))
    variant = made.variant(made.cell(42, **{"short": short, "newton": newton, **rows}))
    return replace(variant, variant=replace(variant.variant, scenario=Scenario.SUBCLASS))


def test_auto_is_looked_up_once_it_has_chosen(made):
    variant = subclass(made)
    found = {(p.budget, p.measure): p for p in auto_places(variant)}
    for budget in AUTO_BUDGETS:
        choice = found[budget, "kl_f"].choice
        assert choice == auto_choice(variant, budget)
    trained = found[0.1, "kl_f"]
    assert (trained.choice.method, trained.kl) == ("short", pytest.approx(0.02)), "to the end of the budget"
    assert trained.over_short == pytest.approx(1.0)
    assert found[0.003, "kl_f"].kl is None, "short-small was not run"
    assert found[0.1, "kl_f"].oracle == pytest.approx(0.02)
    assert found[0.01, "kl_f"].oracle == pytest.approx(0.04)


def test_the_choice_depends_on_neither_the_retrain_nor_test_labels(made):
    """Whatever is compared with the retrain, or with test labels, is changed in every record: the same choice."""
    variant = subclass(made)
    entries = copy.deepcopy(variant.entries)
    seen = {"cost", "epoch"}  # what the step took

    def spoil(value):
        if isinstance(value, dict):
            return {
                key: spoil(item) if isinstance(item, dict | list) or key in seen else 0.123
                for key, item in value.items()
            }
        return [spoil(item) for item in value] if isinstance(value, list) else value

    spoiled = tuple(
        {key: spoil(item) if key not in ("seed", "n_forget", "n_retain") else item for key, item in entry.items()}
        for entry in entries
    )
    other = replace(variant, entries=spoiled)
    assert other.entries != variant.entries
    for budget in AUTO_BUDGETS:
        assert auto_choice(other, budget) == auto_choice(variant, budget)


def test_what_it_takes_to_assess_a_request_is_part_of_its_cost(made):
    """The retrain takes 10 s. With 0.5 s gone of the second that 10 % are, ``short`` trains for 5 %; its rival, for 10 %."""
    entry = made.cell(42, short=made.raced("short", (0.002, 1.0, 0.4), (0.02, 0.1, 0.1), (0.2, 0.01, 0.1)))
    variant = made.variant({**entry, "assessed_as": "group", "assessment_seconds": 0.5})
    assert assessment_cost(variant) == pytest.approx(0.05)
    found = {(p.budget, p.measure): p for p in auto_places(variant)}
    place = found[0.1, "kl_f"]
    assert (place.choice.method, place.kl, place.short) == ("short", pytest.approx(0.04), pytest.approx(0.02))
    assert place.over_short == pytest.approx(2.0)
    assert found[0.03, "kl_f"].kl is None, "nothing is left"
    assert assessment_cost(made.variant(entry)) == 0.0, "an older tree does not say"
    table = auto_summary(Tree((variant,), ()))
    assert table is not None
    assert "5 % in the median" in table.notes[-3]
    said = "\n".join(table.notes)
    assert "at 10 % auto hands out short itself in 1 of 1 variants, at most 2 times as far" in said
    assert "at 3 % 1 of 1 variants are not compared: in 1 what auto chose takes more" in said
    assert "at 10 % 1 of 1 variants are not compared" not in said
    free = {(p.budget, p.measure): p.over_short for p in auto_places(variant, assessed=False)}
    assert free[0.1, "kl_f"] == pytest.approx(1.0)
    known = [budget for budget in AUTO_BUDGETS if free[budget, "kl_f"] is not None]
    assert f"1 of 1 at {100 * known[-1]:g} %" in table.notes[-2]
    assert kinds_found([variant, made.variant({**entry, "assessed_as": "exchangeable"})]) == (1, 2)


def test_the_table_counts_what_was_run(made):
    table = auto_summary(Tree((subclass(made),), ()))
    assert table is not None
    [row] = table.groups[0].rows
    assert [cell.text for cell in row.cells[-4:]] == ["1/1", "1", "1", "1"]


def test_the_figure_draws_what_is_known_over_the_floor(made, tmp_path):
    """short has KL_f 0.002 over its cost, and three times that in the second variant; the floor is at 0.1. ``auto`` takes
    it, less the 1 % of a retrain that assessing took, once 0.6 % is left."""
    line = ((0.002, 1.0, 0.4), (0.02, 0.1, 0.1), (0.2, 0.01, 0.1))
    entries = (
        made.cell(42, short=made.raced("short", *((cost, times * kl_f, kl_t) for cost, kl_f, kl_t in line)))
        for times in (1, 3)
    )
    told = {"assessed_as": "group", "assessment_seconds": 0.1}
    variants = [made.variant({**entry, **told}, key=key) for key, entry in enumerate(entries)]
    [axes] = auto_figure(variants).axes
    short, auto = (
        next(line for line in axes.lines if line.get_label() == label) for label in (SHORT_LABEL, AUTO_LABEL)
    )
    costs, overs = (np.asarray(values, dtype=float) for values in short.get_data())
    assert overs == pytest.approx(2 * 2 / costs)
    assert (costs.min(), costs.max()) == (pytest.approx(1.65, abs=0.1), pytest.approx(12))
    costs, overs = (np.asarray(values, dtype=float) for values in auto.get_data())
    assert overs == pytest.approx(2 * 2 / (costs - 1))
    [file] = write_auto(tmp_path, variants)
    assert "2 variants" in file.caption
    assert file.svg.exists()
    alone = made.variant(made.cell(42, newton=made.raced("newton", (0.005, 0.04, 0.02))))
    assert write_auto(tmp_path, [alone]) == []
