"""The probe and auto beside the paper's proxies, on entries whose numbers are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tracking.tables.beyond import auto_beside_the_oracle, beyond_the_paper, chosen_by_auto

KL_T, KL_F, OVER_FLOOR, ORACLE, TARGET, COST, PREPARATION, RTE, WINS, P = range(10)


def proxy(made, name, kl_f, before, after, eta=1.0, rte=0.05):
    taught = replace(
        made.target(eta, kl_f=kl_f / 2), kl_net_proxy_before=before, kl_net_proxy_after=after, admissible=eta > 0
    )
    return made.method(name, kl_f=0.9 * kl_f, last={"kl_f": kl_f}, rte=rte, taught=taught, preparation=0.3)


def seeds(made, probe_loss=0.2, lda_2c_loss=0.1):
    """Two seeds: lda-2c at 1.0 and 0.5, the probe a tenth of that; qda fits badly and would be the best; floor 0.1."""
    return [
        made.cell(
            seed,
            lda_2c=proxy(made, "lda-2c", kl_f, 0.10, 0.10 + lda_2c_loss),
            qda=proxy(made, "qda", 0.01, 2.0, 9.0),
            probe=proxy(made, "probe", kl_f / 10, 0.06, 0.06 + probe_loss, eta=3.0),
        )
        for seed, kl_f in ((42, 1.0), (0, 0.5))
    ]


def rows(table):
    return {row.name: row for row in table.rows}


def test_auto_takes_the_probe_where_the_request_matters_more_to_it(made):
    entries = seeds(made)
    assert [chosen_by_auto(entry) for entry in entries] == ["probe", "probe"]
    assert [chosen_by_auto(entry) for entry in seeds(made, probe_loss=0.05)] == ["lda-2c", "lda-2c"]


def test_fresh_has_a_row_where_it_was_run_and_auto_may_take_it(made):
    entries = [entry | made.cell(entry["seed"], fresh=proxy(made, "fresh", 0.02, 0.01, 0.31)) for entry in seeds(made)]
    table = beyond_the_paper([made.variant(*entries)])
    assert table is not None
    fresh = rows(table)["fresh"]
    assert fresh.cells[KL_F].value == pytest.approx(0.02)
    assert fresh.cells[ORACLE].value == pytest.approx(entries[0]["fresh"]["best"]["kl_f"])
    assert rows(table)["auto"].cells == fresh.cells


def test_auto_unlearns_nothing_where_no_good_fit_is_admissible(made):
    entry = made.cell(lda_2c=proxy(made, "lda-2c", 1.0, 0.1, 0.05, eta=0.0), qda=proxy(made, "qda", 1.0, 2.0, 9.0))
    assert chosen_by_auto(entry) == "base"


def test_numbers_wins_and_the_paired_test(made):
    table = beyond_the_paper([made.variant(*seeds(made))])
    assert table is not None
    table = rows(table)
    assert list(table) == ["base", "floor", "lda-2c", "best paper proxy", "probe", "auto"]
    probe = table["probe"].cells
    assert probe[KL_F].value == pytest.approx(0.075)
    assert probe[KL_F].std == pytest.approx(0.025)
    assert probe[OVER_FLOOR].value == pytest.approx(0.75)
    assert probe[TARGET].value == pytest.approx(0.0375)
    assert [probe[i].value for i in (COST, PREPARATION, RTE)] == pytest.approx([5.0, 30.0, 5.0])
    assert probe[WINS].text == "2/2"
    assert probe[P].value == pytest.approx(0.0, abs=1e-9), "a tenth in both seeds: no spread at all"
    assert table["lda-2c"].cells[WINS].text == "--", "against itself"
    assert table["best paper proxy"].remark == "qda"
    assert table["auto"].remark == "probe"
    assert table["auto"].cells == probe


def test_the_p_value_is_scipys_paired_t_test_on_logarithms(made):
    values = [(1.0, 0.3), (0.5, 0.4), (0.8, 0.1)]
    entries = [
        made.cell(
            seed,
            lda_2c=proxy(made, "lda-2c", theirs, 0.1, 0.2),
            probe=proxy(made, "probe", ours, 0.06, 0.3, eta=3.0),
        )
        for seed, (theirs, ours) in enumerate(values)
    ]
    table = beyond_the_paper([made.variant(*entries)])
    assert table is not None
    theirs, ours = np.log(values).T
    assert rows(table)["probe"].cells[P].value == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)


def test_auto_beside_the_oracle(made):
    table = auto_beside_the_oracle([made.variant(*seeds(made))])
    assert table is not None
    picked, oracle, hits, auto_kl, oracle_kl, ratio = table.rows[0].cells
    assert (picked.text, oracle.text) == ("probe", "qda")
    assert hits.value == 0
    assert (auto_kl.value, oracle_kl.value) == (pytest.approx(0.075), pytest.approx(0.01))
    assert ratio.value == pytest.approx(7.5)
    assert "0 of 2 cells" in table.notes[0]


def test_trees_without_a_probe_have_no_such_table(made):
    paper = [made.variant(made.cell(lda_2c=proxy(made, "lda-2c", 1.0, 0.1, 0.2)))]
    assert beyond_the_paper(paper) is None
    assert auto_beside_the_oracle(paper) is None


def test_a_tree_without_anything_that_auto_may_choose_has_no_table_of_it(made):
    """Models of the folds alone, which no proxy without a prepared state is."""
    entries = [made.cell(seed, crossfit=proxy(made, "crossfit", 0.5, 0.1, 0.3)) for seed in (42, 0)]
    assert auto_beside_the_oracle([made.variant(*entries)]) is None
