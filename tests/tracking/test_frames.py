"""Frames hold what the tree holds, one row per variant, seed and method."""

from __future__ import annotations

import math

import polars as pl
import pytest

from tracking.frames import EPOCHS, ROWS, frames
from tracking.tree import read_tree


@pytest.fixture
def tree(made, tmp_path):
    def cells(shift):
        return [
            made.cell(
                seed,
                n_forget=69,
                lda=made.method("lda", kl_f=0.1 + shift, last={"kl_f": 0.7}, taught=made.target(0.25, kl_f=math.inf)),
                dir=made.method("dir", kl_f=0.1),
                ft=made.method("ft", rte=0.5, kl_f=math.inf),
            )
            for seed in (42, 0)
        ]

    made.write(tmp_path, made.variant(*cells(0.0), scenario="class"), made.variant(*cells(0.3), scenario="random"))
    return read_tree(tmp_path)


def test_one_row_per_variant_seed_and_row_with_the_declared_types(tree):
    rows = frames(tree).rows
    assert rows.schema == pl.Schema(ROWS)
    assert rows.height == 2 * 2 * 6
    assert rows.unique(["dataset", "backbone", "arch", "scenario", "key", "seed", "method"]).height == rows.height
    kinds = dict(rows.select("method", "kind").unique().iter_rows())
    assert kinds == {
        "base": "reference",
        "retrain": "reference",
        "floor": "reference",
        "lda": "proxy",
        "dir": "proxy",
        "ft": "baseline",
    }


def test_best_last_target_bound_and_queries_of_a_proxy(tree):
    """KL 0.7 at the last epoch needs 0.998 ln 999 / 0.7 queries at alpha = 1e-3 [app:stein]."""
    row = frames(tree).rows.row(by_predicate=_owned("class", 42, "lda"), named=True)
    expected = {
        "n_forget": 69,
        "n_retain": 900,
        "complete": True,
        "best_epoch": 1,
        "best_kl_f": 0.1,
        "last_epoch": 2,
        "last_kl_f": 0.7,
        "target_eta_max": 0.25,
        "target_admissible": True,
        "target_kl_f": None,
        "target_finalizer": "kl",
        "bound_tight_bound": 0.4,
        "stein_n_f_at_0.001": 10,
        "stein_indistinguishable_at_0.001": False,
        "cost": 0.1,
        "preparation": 0.0,
    }
    assert {name: row[name] for name in expected} == expected


def test_null_where_a_row_has_no_such_number(tree):
    rows = frames(tree).rows
    reference = rows.row(by_predicate=_owned("class", 0, "floor"), named=True)
    assert (reference["best_kl_f"], reference["seconds"], reference["rte"]) == (0.1, 10.0, 1.0)
    assert reference["best_epoch"] is reference["best_seconds"] is reference["last_kl_t"] is None
    assert reference["target_eta_max"] is None
    baseline = rows.row(by_predicate=_owned("class", 0, "ft"), named=True)
    assert (baseline["rte"], baseline["best_kl_f"], baseline["stein_n_f_at_0.001"]) == (0.5, None, None)
    assert rows.filter(method="dir")["target_eta_max"].null_count() == 4


def test_a_tree_of_an_older_version_has_no_costs(made, tmp_path):
    cell = made.cell(ft=made.method("ft"))
    del cell["ft"]["cost"], cell["ft"]["preparation"]
    made.write(tmp_path, made.variant(cell))
    tree = read_tree(tmp_path)
    assert tree.problems == ()
    rows = frames(tree).rows.filter(method="ft")
    assert (rows["rte"].item(), rows["cost"].item(), rows["preparation"].item()) == (0.1, None, None)


def test_an_epoch_may_be_a_fraction(made, tmp_path):
    made.write(tmp_path, made.variant(made.cell(ft=made.raced("ft", (0.01, 0.5, 0.5), (0.02, 0.4, 0.4)))))
    tree = read_tree(tmp_path)
    assert tree.problems == ()
    assert frames(tree).epochs["epoch"].to_list() == [0.25, 0.5]


def test_one_row_per_epoch_of_every_method(tree):
    epochs = frames(tree).epochs
    assert epochs.schema == pl.Schema(EPOCHS)
    assert epochs.height == 2 * 2 * 3 * 2
    of_lda = epochs.filter(_owned("random", 42, "lda")).sort("epoch")
    assert of_lda["kl_f"].to_list() == [0.4, 0.7]


def test_rows_of_an_incomplete_variant_are_marked(made, tmp_path):
    broken = made.cell(0, ft=made.method("ft"))
    del broken["ft"]["rte"]
    cells = [made.cell(42, ft=made.method("ft")), broken]
    made.write(tmp_path, made.variant(*cells), made.variant(cells[0], key=2))
    rows = frames(read_tree(tmp_path)).rows
    assert rows.filter(key=0, method="ft")["seed"].to_list() == [42]
    assert not rows.filter(key=0)["complete"].any()


def _owned(scenario, seed, method):
    return (pl.col("scenario") == scenario) & (pl.col("seed") == seed) & (pl.col("method") == method)
