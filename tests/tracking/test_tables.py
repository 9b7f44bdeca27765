"""The benchmark table, on entries whose means, spreads and bold cells are worked out by hand."""

from __future__ import annotations

import pytest

from tracking.tables.benchmark import benchmark, benchmark_table
from tracking.tables.table import least, one_decimal, two_digits

KL_T, KL_F, OVER_FLOOR, ACC_T, ACC_F, COST, PREPARATION, RTE, ORACLE_KL_T, ORACLE_KL_F = range(10)


@pytest.fixture
def entries(made):
    """Two seeds at +-0.1 of the mean, so that every KL_t has a population standard deviation of 0.1.

    At the last epoch; at the oracle's, KL_f is half of it and KL_t a hundred, and accuracies are 0.
    """

    def method(name, kl_t, kl_f, acc_f, rte, acc_t=0.9, eta=0.3):
        taught = None if name == "dir" else made.target(eta)
        last = {"kl_t": kl_t, "kl_f": kl_f, "acc_t": acc_t, "acc_f": acc_f}
        return made.method(name, rte, last, taught, 2 * rte, kl_t=100.0, kl_f=kl_f / 2, acc_t=0.0, acc_f=0.0)

    def entry(seed, shift):
        return made.cell(
            seed,
            base=made.reference(1.1, kl_t=1.0 + shift, kl_f=5.0, acc_t=0.99, acc_f=1.0),
            retrain=made.reference(1.0, kl_t=0.0, kl_f=0.0, acc_t=0.95, acc_f=0.60),
            floor=made.reference(1.0, kl_t=0.2 + shift, kl_f=0.1, acc_t=0.95, acc_f=0.61),
            lda=method("lda", 1.0 + shift, 5.0, 1.0, 0.01, eta=0.0 if shift < 0 else 0.3),
            lda_2c=method("lda-2c", 0.3 + shift, 0.4, 0.65, 0.05),
            dir=method("dir", 0.5 + shift, float("inf") if shift < 0 else 2.0, 0.0, 0.05),
            ft=method("ft", 0.4 + shift, 1.0, 0.9, 0.40, acc_t=0.98),
            scrub=method("scrub", 0.35 + shift, 0.8, 0.5, 0.06),
        )

    return [entry(42, -0.1), entry(0, 0.1)]


def rows(table):
    return {row.name: row for row in table.rows}


def bold(table, column):
    return {row.name for row in table.rows if row.cells[column].bold}


def test_means_and_population_spreads(entries):
    table = rows(benchmark(entries))
    for name, mean in (("base", 1.0), ("floor", 0.2), ("lda-2c", 0.3), ("scrub", 0.35)):
        cell = table[name].cells[KL_T]
        assert (cell.value, cell.std) == (pytest.approx(mean), pytest.approx(0.1))
        assert (cell.text, cell.std_text) == (two_digits(mean), "0.10")


def test_the_oracles_epoch_has_columns_of_its_own(entries):
    table = benchmark(entries)
    headings = [column.heading for column in table.columns]
    assert headings[ORACLE_KL_T:] == ["KL_t oracle's epoch", "KL_f oracle's epoch"]
    cells = rows(table)["lda-2c"].cells
    assert [cells[i].value for i in (KL_F, ORACLE_KL_F, ORACLE_KL_T)] == pytest.approx([0.4, 0.2, 100.0])
    floor = rows(table)["floor"].cells
    assert floor[ORACLE_KL_F] == floor[KL_F], "a reference has one network"
    assert "which only the retrain can tell" in table.caption


def test_cost_and_preparation_stand_beside_the_papers_run_time(entries):
    del entries[0]["ft"]["cost"], entries[0]["ft"]["preparation"]
    table = benchmark(entries)
    assert [column.heading for column in table.columns][COST : RTE + 1] == ["cost %", "prep. %", "paper's RTE %"]
    found = rows(table)
    assert [cell.text for cell in found["scrub"].cells[COST : RTE + 1]] == ["6.0", "12", "6.0"]
    assert [cell.text for cell in found["ft"].cells[COST : RTE + 1]] == ["--", "--", "40"], "an older tree"
    assert [cell.text for cell in found["floor"].cells[COST : RTE + 1]] == ["100", "--", "100"]
    assert [cell.text for cell in found["base"].cells[COST : RTE + 1]] == ["--", "--", "--"]


def test_groups_and_order(entries):
    assert [[row.name for row in group.rows] for group in benchmark(entries).groups] == [
        ["base", "retrain", "floor"],
        ["lda", "lda-2c", "dir"],
        ["ft", "scrub"],
    ]


def test_bold_is_the_best_three_on_kl_and_the_best_elsewhere(entries):
    table = benchmark(entries)
    assert bold(table, KL_T) == {"lda-2c", "scrub", "ft"}
    assert bold(table, KL_F) == {"lda-2c", "scrub", "ft"}, "a method without a number in every seed is not ranked"
    assert bold(table, OVER_FLOOR) == set()
    assert bold(table, ACC_T) == {"ft"}
    assert bold(table, ACC_F) == {"lda-2c"}, "0.65 is closest to the retrain's 0.60"
    assert bold(table, RTE) == bold(table, COST) == {"lda"}
    assert bold(table, PREPARATION) == set(), "who prepares nothing has won nothing"


def test_over_floor_is_the_ratio_of_means(made):
    """Means of 0.4 and 0.2; the mean of the ratios 0.6/0.1 and 0.2/0.3 would be 3.3."""
    entries = [
        made.cell(seed, floor=made.reference(kl_f=floor), ft=made.method("ft", kl_f=kl_f))
        for seed, floor, kl_f in ((42, 0.1, 0.6), (0, 0.3, 0.2))
    ]
    table = rows(benchmark(entries))
    assert table["ft"].cells[OVER_FLOOR].value == pytest.approx(2.0)
    assert table["floor"].cells[OVER_FLOOR].value == pytest.approx(1.0)
    assert table["base"].cells[OVER_FLOOR].value == pytest.approx(10.0)


def test_missing_numbers_are_shown_as_missing(entries):
    table = rows(benchmark(entries))
    for name, column in (("dir", KL_F), ("dir", OVER_FLOOR), ("base", RTE), ("retrain", PREPARATION)):
        assert (table[name].cells[column].value, table[name].cells[column].text) == (None, "--")


def test_notes_say_where_nothing_was_unlearned_and_where_kl_is_infinite(entries):
    assert benchmark(entries).notes[:2] == (
        "lda: not admissible in 1 of 2 seeds, where nothing is unlearned and the base counts",
        "dir: KL_f is infinite in 1 of 2 seeds, and so is its mean",
    )


def test_a_proxy_that_never_unlearns_is_not_ranked(made):
    """It has the base's accuracy and no cost: it would win both columns by doing nothing."""
    idle = made.method("qda", rte=0.01, taught=made.target(0.0), acc_t=0.99)
    table = benchmark([made.cell(qda=idle, ft=made.method("ft", rte=0.5, acc_t=0.9))])
    assert bold(table, ACC_T) == bold(table, RTE) == {"ft"}
    assert table.notes[0].endswith("the base counts; it is not ranked")


def test_a_method_that_only_some_seeds_have_is_shown_with_those_and_not_ranked(entries):
    del entries[1]["ft"]
    table = benchmark(entries)
    ft = rows(table)["ft"]
    assert (ft.remark, ft.cells[KL_T].value, ft.cells[KL_T].std) == ("1/2", pytest.approx(0.3), 0.0)
    assert not any(cell.bold for cell in ft.cells)
    assert bold(table, ACC_T) == {"lda", "lda-2c", "dir", "scrub"}, "the best of the others, all at 0.9"
    assert "ft: only in seeds 42; its mean is over those and it is not ranked" in table.notes


@pytest.mark.parametrize(("floor", "said"), [(0.79, True), (0.81, False), (1.24, False), (1.26, True)])
def test_run_times_of_a_shared_machine_are_said_to_be_unreliable(made, floor, said):
    """The floor is the same work as the retrain: it takes the same time, or the clock is not to be trusted."""
    notes = benchmark([made.cell(floor=made.reference(rte=floor))]).notes
    assert any(note.startswith("cost and RTE are not to be relied on") for note in notes) is said


def test_what_a_reader_must_know_of_a_method_is_said_for_the_preset_that_ran(made):
    def notes(preset):
        cell = made.cell(**{name: made.method(name) for name in ("ga", "ft", "salun", "scrub")})
        cell["provenance"] = {"settings": None if preset is None else {"preset": preset}}
        return benchmark([cell]).notes

    assert [note.split(": moves next to nothing")[0] for note in notes("original")] == [
        "ga, preset original",
        "scrub, preset original",
    ]
    assert [note.split(": ")[0] for note in notes("paper")] == ["scrub, preset paper", "salun, preset paper"]
    assert notes(None) == notes("paper"), "a tree that does not say is taken for the paper's"
    assert notes("tuned") == ()


def test_cost_and_preparation_are_main_columns_and_rte_is_the_papers(entries):
    columns = benchmark(entries).columns
    assert [(columns[i].heading, columns[i].aside) for i in (COST, PREPARATION, RTE)] == [
        ("cost %", False),
        ("prep. %", False),
        ("paper's RTE %", True),
    ]


def test_without_a_retrain_nothing_is_closest_to_it(entries):
    for entry in entries:
        del entry["retrain"]
    assert bold(benchmark(entries), ACC_F) == set()
    assert bold(benchmark(entries), KL_T) == {"lda-2c", "scrub", "ft"}


def test_the_table_of_a_variant_is_named_after_it(made, entries):
    table = benchmark_table(made.variant(*entries, scenario="class", key=4))
    assert table.name == "benchmark_cifar10_r50_mlp1_class_4"
    assert table.title == "cifar10/r50/mlp1/class/4: mean ± std over 2 seeds"


def test_ties_with_the_last_of_the_least_are_among_them():
    assert least([3.0, None, 1.0, 2.0, 2.0, 5.0], 2) == [False, False, True, True, True, False]
    assert least([None, None], 3) == [False, False]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.00"), (0.294, "0.29"), (4.84, "4.8"), (9.97, "10"), (857.6, "858")]
)
def test_kl_is_printed_as_the_paper_does(value, text):
    assert two_digits(value) == text
    assert one_decimal(61.64) == "61.6"
