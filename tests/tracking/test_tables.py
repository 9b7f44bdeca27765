"""The benchmark table, on entries whose means, spreads and bold cells are worked out by hand."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tracking.tables import benchmark, one_decimal, render, two_digits
from unlearn_core.spec import Scenario, Variant

KL_T, KL_LAST, KL_F, ACC_T, ACC_F, RTE = range(6)


def block(kl_t, kl_f, acc_t, acc_f, rte=None):
    return {"kl_t": kl_t, "kl_f": kl_f, "acc_t": acc_t, "acc_f": acc_f, "rte": rte}


def method(kl_t, kl_f, acc_f, rte, last=9.0, acc_t=0.9, eta=None):
    return {
        "best": block(kl_t, kl_f, acc_t, acc_f, rte),
        "last": block(last, 9.0, 0.1, 0.1),
        "target": {"eta_max": eta},
    }


def entry(seed, shift):
    """Two seeds at +-0.1 of the mean, so that every KL_t has a population standard deviation of 0.1."""
    return {
        "seed": seed,
        "base": block(1.0 + shift, 5.0, 0.99, 1.0, rte=1.1),
        "retrain": block(0.0, 0.0, 0.95, 0.60, rte=1.0),
        "floor": block(0.2 + shift, 0.1, 0.95, 0.61, rte=1.0),
        "lda": method(1.0 + shift, 5.0, 1.0, 0.01, eta=0.0 if shift < 0 else 0.3),
        "lda-2c": method(0.3 + shift, 0.4, 0.65, 0.05, eta=0.3),
        "dir": method(0.5 + shift, None if shift < 0 else 2.0, 0.0, 0.05),
        "ft": method(0.4 + shift, 1.0, 0.9, 0.40, acc_t=0.98),
        "scrub": method(0.35 + shift, 0.8, 0.5, 0.06, last=90.0),
    }


ENTRIES = [entry(42, -0.1), entry(0, 0.1)]


def rows():
    table = benchmark(ENTRIES)
    return {row.name: row for group in (table.references, *table.methods) for row in group}


def test_means_and_population_spreads():
    table = rows()
    for name, mean in (("base", 1.0), ("floor", 0.2), ("lda-2c", 0.3), ("scrub", 0.35)):
        spread = table[name].cells[KL_T]
        assert spread is not None
        assert (spread.mean, spread.std) == (pytest.approx(mean), pytest.approx(0.1))


def test_groups_and_order():
    table = benchmark(ENTRIES)
    assert [row.name for row in table.references] == ["base", "retrain", "floor"]
    assert [[row.name for row in group] for group in table.methods] == [["lda", "lda-2c", "dir"], ["ft", "scrub"]]


def test_bold_is_the_best_three_on_kl_and_the_best_elsewhere():
    table = rows()
    bold = lambda column: {name for name, row in table.items() if row.bold[column]}  # noqa: E731
    assert bold(KL_T) == {"lda-2c", "scrub", "ft"}
    assert bold(KL_F) == {"lda-2c", "scrub", "ft"}, "a method without a number in every seed is not ranked"
    assert bold(ACC_T) == {"ft"}
    assert bold(ACC_F) == {"lda-2c"}, "0.65 is closest to the retrain's 0.60"
    assert bold(RTE) == {"lda"}


def test_missing_numbers_are_shown_as_missing():
    table = rows()
    assert table["dir"].cells[KL_F] is None
    assert table["base"].cells[RTE] is None
    assert table["retrain"].cells[KL_LAST] is None


def test_seeds_where_nothing_was_unlearned_are_said():
    assert benchmark(ENTRIES).notes == (
        "lda: not admissible in 1 of 2 seeds, where nothing is unlearned and the base counts",
    )


def test_methods_that_not_every_seed_ran_are_left_out():
    partial = [dict(ENTRIES[0]), {k: v for k, v in ENTRIES[1].items() if k != "ft"}]
    assert [row.name for row in benchmark(partial).methods[1]] == ["scrub"]


def test_the_rendered_table_fits_a_terminal_of_80_columns():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(benchmark(ENTRIES), Variant("digits", "mlp1", Scenario.SUBCLASS, 0), 2))
    text = console.export_text()
    assert "lda-2c" in text
    assert "0.30±0.10" in text
    assert "…" not in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.00"), (0.294, "0.29"), (4.84, "4.8"), (9.97, "10"), (857.6, "858")]
)
def test_kl_is_printed_as_the_paper_does(value, text):
    assert two_digits(value) == text
    assert one_decimal(61.64) == "61.6"
