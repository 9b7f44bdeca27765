"""``benchmarks.closeness`` on a small grid: it trains nothing, and its table counts what it says."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.closeness import Measured, coverage_table, kinds_table, main
from unlearn_core import training
from unlearn_core.closeness import Closeness
from unlearn_core.data import load_dataset, save_feature_set
from unlearn_core.request_kind import RequestKind


def measured(low: float, estimate: float, high: float, floor: float, retrain: float) -> Measured:
    return Measured("mlp1", 50, "after", Closeness(estimate, low, high, {}, 1), {"floor": floor, "retrain": retrain})


def test_coverage_and_errors_by_hand():
    cells = [
        measured(0.1, 0.2, 0.3, 0.25, 0.1),  # within
        measured(0.1, 0.2, 0.3, 0.05, 0.05),  # below
        measured(0.1, 0.2, 0.3, 0.31, 0.2),  # above
        measured(0.1, 0.2, 0.3, 0.31, 0.35),  # both above
    ]
    line, total = (list(row.values()) for row in coverage_table(cells))
    assert line == ["mlp1", 50, "after", 4, "0.200", "0.230", "-0.030", "25%", "50%", "0.175", "75%"]
    assert total[:4] == ["all", "", "after", 4]


def test_shares_of_kinds_by_hand():
    found = {"random 50": Counter({RequestKind.EXCHANGEABLE: 3, RequestKind.GROUP: 1})}
    assert list(kinds_table(found)[0].values()) == ["random 50", 4, "0.0%", "75.0%", "25.0%", "0.0%"]


@pytest.mark.slow
def test_it_asks_the_networks_of_a_grid_and_trains_none(unlearn_here, tmp_path, capsys, monkeypatch):
    features = tmp_path / "digits.npz"
    save_feature_set(features, load_dataset("digits"))
    chosen = ("--features", features, "--arch", "mlp1", "--seeds", 0, "--epochs", 50, "--methods", "newton-crossfit")
    run = ("--local", "--no-tracking", "--out", tmp_path / "run")
    for scenario, key in (("random", 30), ("class", 0), ("subclass", 0)):
        answer = unlearn_here("grid", *chosen, "--scenario", scenario, "--key", key, *run)
        assert answer.code == 0, answer.err
    capsys.readouterr()

    def refuse(*_arguments, **_more):
        raise AssertionError("a network is trained")

    monkeypatch.setattr(training, "train", refuse)
    asked = ("--arch", "mlp1", "--seeds", "0", "--records", "30", "40", "--draws", "40")
    main(["--features", str(features), "--out", str(tmp_path / "run"), *asked])
    said = capsys.readouterr().out
    assert said.count("| mlp1 | 30 |") == 2, "before and after"
    assert "| class | 5 | 100.0% |" in said
    assert "Not in the store: 1 floor, 1 retrain." in said, "of 40 records there is none"
    [shares] = [line for line in said.splitlines() if line.startswith("| random 30 ")]
    taken_for_exchangeable = float(shares.split("|")[4].strip(" %"))
    assert taken_for_exchangeable > 70  # 95 % of 40 draws, by four standard deviations
