"""The front: costs, last records and ratios worked out by hand; no point is chosen with the retrain at hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tracking.figures.front import write_front
from tracking.front import BUDGETS, interpolated, over_short, places, trajectories
from tracking.summary import headline, summary
from tracking.tables.exports import WRITERS, write_table
from tracking.tables.front import front, front_summary
from tracking.tree import Tree

LINE = ((0.002, 1.0, 0.4), (0.02, 0.1, 0.1), (0.2, 0.01, 0.1))
"""short: KL_f falls by ten when the cost grows by ten; KL_t by four, and then no more."""


def trajectory(variant, method):
    return next(t for t in trajectories(variant) if t.method == method)


def raced(made, seed=42, **rows):
    """ga: KL_f 0.2 at 0.05 %, 0.02 at 0.5 %, then up to 0.3 at 5 %. fresh-like ft: 0.05 at 2 %, prepared at 30 %."""
    methods = {
        "short": made.raced("short", *LINE),
        "ga": made.raced("ga", (0.0005, 0.2, 0.2), (0.005, 0.02, 0.3), (0.05, 0.3, 0.4)),
        "ft": made.raced("ft", (0.02, 0.05, 0.05), preparation=0.3),
    }
    return made.cell(seed, **{**methods, **rows})


def place(variant, budget, measure):
    return next(p for p in places(variant) if (p.budget, p.measure) == (budget, measure))


def test_costs_are_seconds_over_the_retrains_averaged_over_seeds(made):
    slow = made.raced("ga", (0.0015, 0.4, 0.2), (0.015, 0.04, 0.2))
    fast = made.raced("ga", (0.0005, 0.2, 0.2), (0.005, 0.02, 0.2))
    points = trajectory(made.variant(made.cell(42, ga=slow), made.cell(0, ga=fast)), "ga").points
    assert [point.cost for point in points] == pytest.approx([0.001, 0.01])
    assert [point.mean("kl_f") for point in points] == pytest.approx([0.3, 0.03])


def test_a_seed_that_has_stopped_counts_with_its_last_record(made):
    long = made.raced("ga", (0.01, 0.4, 0.2), (0.02, 0.2, 0.2), (0.03, 0.1, 0.2))
    stopped = made.raced("ga", (0.01, 0.6, 0.2))
    points = trajectory(made.variant(made.cell(42, ga=long), made.cell(0, ga=stopped)), "ga").points
    assert [point.mean("kl_f") for point in points] == pytest.approx([0.5, 0.4, 0.35])
    assert [point.cost for point in points] == pytest.approx([0.01, 0.015, 0.02])


def test_within_a_budget_the_last_record_counts_and_not_the_closest(made):
    variant = made.variant(raced(made))
    assert place(variant, 0.01, "kl_f").kl == 0.02
    at_ten = place(variant, 0.1, "kl_f")
    assert (at_ten.method, at_ten.kl, at_ten.cost, at_ten.preparation) == ("ft", 0.05, 0.02, 0.3), "ga went on to 0.3"


def test_short_is_interpolated_on_two_log_axes(made):
    short = trajectory(made.variant(raced(made)), "short")
    assert interpolated(short, "kl_f", 0.001) is None, "before its first record"
    assert interpolated(short, "kl_f", 0.002) == pytest.approx(1.0)
    assert interpolated(short, "kl_f", 0.01) == pytest.approx(0.2)
    assert interpolated(short, "kl_f", 0.1) == pytest.approx(0.02)
    assert interpolated(short, "kl_t", 0.1) == pytest.approx(0.1)
    assert interpolated(short, "kl_f", 0.24) == pytest.approx(0.01), "a little beyond the last"
    assert interpolated(short, "kl_f", 0.26) is None, "what goes on training comes closer"


def test_the_ratio_is_to_short_at_the_budget(made):
    at_one = place(made.variant(raced(made)), 0.01, "kl_f")
    assert (at_one.method, at_one.short, at_one.ratio) == ("ga", pytest.approx(0.2), pytest.approx(0.1))
    assert over_short(made.variant(raced(made)), 0.01) == {
        "ga": (pytest.approx(0.1), pytest.approx(0.3 / (0.4 * (0.1 / 0.4) ** 0.69897)))
    }, "log10(5) of the way from 0.4 to 0.1"


def test_a_rival_that_trains_for_as_long_as_it_may_counts_where_the_budget_ends(made):
    """Half-way between two records on two log axes, where an edit counts with the one that it has."""
    records = ((0.003, 0.8, 0.8), (0.03, 0.2, 0.2))
    short = made.raced("short", (0.001, 9.0, 9.0), (0.1, 9.0, 9.0))
    share = math.log(0.01 / 0.003) / math.log(0.03 / 0.003)
    for method, kl in (("short-warm", 0.8 * 0.25**share), ("newton", 0.8)):
        variant = made.variant(made.cell(42, **{"short": short, method: made.raced(method, *records)}))
        found = place(variant, 0.01, "kl_f")
        assert (found.method, found.kl) == (method, pytest.approx(kl))


def test_short_is_no_rival_of_itself_and_methods_that_some_seeds_lack_are_none(made):
    entries = [raced(made, 42), raced(made, 0)]
    del entries[1]["ft"]
    variant = made.variant(*entries)
    assert {p.method for p in places(variant)} == {"ga"}
    assert {t.method for t in trajectories(variant)} == {"short", "ga"}


def test_a_proxy_that_unlearns_in_no_seed_is_not_placed_and_a_kl_that_is_infinite_wins_nothing(made):
    idle = made.method("lda", taught=made.target(0.0), kl_f=1e-9)
    cell = raced(made, lda=idle, ga=made.raced("ga", (0.0005, float("inf"), 0.2)))
    assert place(made.variant(cell), 0.001, "kl_f").method is None
    assert place(made.variant(cell), 0.001, "kl_t").method == "ga"


def texts(row):
    return [cell.text for cell in row.cells]


def test_the_table_has_a_block_for_each_variant_and_is_written_in_all_forms(made, tmp_path):
    variants = [made.variant(raced(made), scenario=scenario) for scenario in ("class", "subclass")]
    table = front(variants)
    assert [group.name for group in table.groups] == ["class/0", "subclass/0"]
    rows = {row.name: texts(row) for row in table.groups[0].rows}
    assert list(rows) == ["0.1 %", "0.3 %", "1 %", "3 %", "10 %", "base", "floor"]
    assert rows["0.1 %"][:6] == ["ga", "0.2", "0.05", "0.00", "--", "--"]
    assert rows["1 %"][:6] == ["ga", "0.02", "0.50", "0.00", "0.2", "0.1"]
    assert rows["10 %"][:6] == ["ft", "0.05", "2.0", "30", "0.02", "2.5"]
    assert rows["floor"][:6] == ["--", "0.1", "--", "--", "--", "--"]
    bold = [row.name for row in table.groups[0].rows if row.cells[5].bold]
    assert bold == ["0.3 %", "1 %", "3 %"], "0.75, a tenth, and three quarters of short's"
    for written in (table, front_summary(Tree(tuple(variants)))):
        assert written is not None
        assert [path.suffix[1:] for path in write_table(written, tmp_path)] == list(WRITERS)


def test_where_a_retrain_cut_short_was_not_measured_no_competitor_is_said_to_be(made):
    early = raced(made, short=made.raced("short", (0.0005, 1.0, 1.0), *LINE))
    tree = made.tree(made.variant(raced(made)), made.variant(early, key=2))
    table = front_summary(tree)
    assert table is not None
    said = "at 0.1 % of a retrain's cost there is no competitor in 1 of 2 variants: short's first record costs 0.2 % or more"
    for notes in (front(tree.variants).notes, table.notes):
        assert [note for note in notes if "no competitor" in note] == [f"{said} there"]


def test_a_shared_machine_is_said_beside_the_costs(made):
    shared = made.variant(raced(made, floor=made.reference(rte=2.0)))
    table = front_summary(made.tree(shared))
    assert table is not None
    for notes in (front([shared]).notes, table.notes):
        assert notes[-1].endswith("the floor, the same work as the retrain, did not take its time: subclass/0")


def test_the_summary_counts_variants_below_short_and_takes_the_median(made):
    far = raced(made, ga=made.raced("ga", (0.005, 0.8, 0.8)))
    tree = made.tree(
        made.variant(raced(made), key=0), made.variant(far, key=2), made.variant(raced(made), scenario="class")
    )
    table = front_summary(tree)
    assert table is not None
    assert [(group.name, [row.name for row in group.rows]) for group in table.groups] == [
        ("on KL_f", ["class", "subclass"]),
        ("on KL_t", ["class", "subclass"]),
    ]
    subclass = table.groups[0].rows[1]
    at = 2 * BUDGETS.index(0.01)
    assert texts(subclass)[at : at + 2] == ["1/2", "2"], "a tenth and four times: the middle is 2.05"
    assert texts(subclass)[:2] == ["--", "--"], "short has no record at 0.1 %"
    assert subclass.cells[at].value == 0.5


def test_the_summary_says_where_nothing_need_be_done_to_beat_short(made):
    tree = made.tree(made.variant(raced(made, base=made.reference(kl_f=0.001, kl_t=9.0))))
    table = front_summary(tree)
    assert table is not None
    assert table.notes[1:] == (
        "in 1 of 1 variant the base itself, which unlearns nothing, is closer on KL_f than short at any of these costs",
    )


def test_without_short_there_is_a_front_and_no_summary(made):
    cell = {name: row for name, row in raced(made).items() if name != "short"}
    tree = made.tree(made.variant(cell))
    assert front_summary(tree) is None
    assert texts(front(tree.variants).rows[2])[:6] == ["ga", "0.02", "0.50", "0.00", "--", "--"]
    assert headline(tree)[1].startswith("Nothing can be compared with short")


def test_two_sentences_that_a_colleague_understands(made):
    """KL_t of short at 1 % is 0.152, of ga 0.3."""
    tree = made.tree(made.variant(raced(made)), made.variant(raced(made), key=2))
    assert headline(tree) == (
        # it chooses short, and what it takes to choose is not in this tree
        "auto chooses a method without a retrain. At 1, 3 and 10 % of a retrain's cost it is at least as close to one as a "
        "retrain cut short at that cost (short) in 2 of 2, 2 of 2 and 2 of 2 variants on the forgotten rows (1, 1 and 1 "
        "times its KL_f in the median) and in 2 of 2, 2 of 2 and 2 of 2 variants on the test set (1, 1 and 1 times its KL_t "
        "in the median).",
    )
    assert summary(tree, ())[1:3] == (
        "Closest at 1 % of a retrain's cost: on the forgotten rows (KL_f) ga in every variant; on the test set (KL_t) ga in "
        "every variant.",
        "That is closer than a retrain simply cut short at the same cost (short) in 2 of 2 variants on the forgotten rows "
        "(0.1 times its KL_f in the median) and in 0 of 2 variants on the test set (2 times its KL_t in the median).",
    )
    dear = made.tree(made.variant(made.cell(ft=made.raced("ft", (0.5, 0.1, 0.1)))))
    assert headline(dear) == ("No method is done at 10 % of a retrain's cost or below.",)
    assert headline(made.tree(made.variant(made.cell()))) == ()


def test_the_figure_shows_every_method_the_line_of_short_and_both_references(made, tmp_path):
    variant = made.variant(raced(made, 42), raced(made, 0))
    [file] = write_front(tmp_path, variant)
    svg = file.svg.read_text()
    for shown in ("short (a retrain cut short)", "floor (a second retrain)", "base (nothing done)", "ga", "ft"):
        assert f">{shown}<" in svg
    assert file.name == "front_cifar10_r50_mlp1_subclass_0"
    assert "ft 30 % of a retrain" in file.caption
    assert "2 seeds" in file.caption


def test_no_figure_without_a_cost(made, tmp_path):
    entries = [{name: row for name, row in raced(made).items() if name != "retrain"}]
    assert write_front(tmp_path, replace(made.variant(), entries=tuple(entries))) == []
