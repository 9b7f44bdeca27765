"""Edits and the cross-fit in a grid: steps like any other; what is prepared is shared, and counted."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tasks.store import DONE
from unlearn_core.preparations import CROSSFIT, CURVATURE, IMPORTANCES


@pytest.mark.parametrize(("scenario", "key"), [("random", 50), ("class", 2)])
def test_edits_and_crossfit_run_in_a_grid_on_what_is_prepared_once(unlearn_here, tmp_path, scenario, key):
    out = tmp_path / "out"
    chosen = ("--dataset", "digits", "--arch", "mlp1", "--scenario", scenario, "--key", key, "--seeds", "0,1")
    methods = "newton,crossfit,newton-crossfit,truncate,ssd"
    how = ("--epochs", 5, "--methods", methods, "--local", "--no-tracking", "--out", out)
    answer = unlearn_here("grid", *chosen, *how)
    assert answer.code == 0, answer.err
    found = [json.loads(path.read_text())["identity"] for path in out.rglob(f"steps/prepared/*/{DONE}")]
    prepared = Counter(identity["config"]["what"] for identity in found)
    assert prepared == {CROSSFIT: 1, CURVATURE: 2, IMPORTANCES: 2}, "once for all seeds, or once for each network"
    entries = json.loads(next((out / "results").rglob("*_raw.json")).read_text())["mlp1"][str(key)]
    assert len(entries) == 2
    for entry in entries:
        assert all(entry[name]["preparation"] > 0 for name in ("newton", "crossfit", "ssd"))
        assert entry["truncate"]["preparation"] == 0
        both = entry["newton"]["preparation"] + entry["crossfit"]["preparation"]
        assert entry["newton-crossfit"]["preparation"] == pytest.approx(both)
        assert [len(entry[name]["epochs"]) for name in methods.split(",")] == [1, 6, 1, 1, 1]
        # truncation takes whole classes; of scattered rows it says nothing, and the base stays
        same = entry["truncate"]["last"]["kl_f"] == pytest.approx(entry["base"]["kl_f"], rel=1e-9)
        assert same == (scenario == "random")
