"""The paper's results layout: where a variant is written, what a rerun replaces, that a write is whole or not at all."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from tracking.results_tree import read_entries, tree_path, write_entries
from unlearn_core.errors import BadInput
from unlearn_core.records import (
    EpochMetrics,
    MethodRecord,
    ReferenceRecord,
    Scores,
    cell_entry,
    method_entry,
    reference_entry,
)
from unlearn_core.spec import Scenario, Variant

SCORES = Scores(0.1, 0.2, 0.1, 0.2, 0.9, 0.8, 0.5, 0.5)


def cell(seed: int, kl_f: float = 0.2) -> dict[str, Any]:
    scores = replace(SCORES, kl_f=kl_f)
    row = reference_entry(ReferenceRecord(scores, seconds=2.0), retrain_seconds=2.0)
    epoch = EpochMetrics(1, 0.5, scores)
    method = method_entry(MethodRecord("ft", [epoch], epoch, epoch, 0.5, 0.25))
    return cell_entry(seed, 5, 95, {"base": row, "retrain": row, "floor": row, "ft": method})


def variant(scenario: Scenario, key: int = 0) -> Variant:
    return Variant("cifar10", "mlp1", scenario, key)


@pytest.mark.parametrize("scenario", list(Scenario))
def test_layout(tmp_path, scenario):
    path = write_entries(tmp_path, variant(scenario, 4), "dinov2", [cell(42), cell(0)])
    assert path == tmp_path / "cifar10" / "dinov2" / f"{scenario}_mlp1_raw.json"
    document = json.loads(path.read_text())["mlp1"]
    by_key = document["results"] if scenario is Scenario.SUBCLASS else document
    assert ("meta" in document) == (scenario is Scenario.SUBCLASS)
    assert [entry["seed"] for entry in by_key["4"]] == [42, 0]
    entry = by_key["4"][0]
    assert entry["base"]["kl_f"] == entry["ft"]["best"]["kl_f"] == 0.2
    assert [epoch["epoch"] for epoch in entry["ft"]["epochs"]] == [1]
    assert entry["ft"]["best"]["rte"] == 0.25


def test_a_rerun_replaces_its_seeds_and_keeps_the_rest(tmp_path):
    write_entries(tmp_path, variant(Scenario.SUBCLASS, 0), "dinov2", [cell(42), cell(0)])
    write_entries(tmp_path, variant(Scenario.SUBCLASS, 2), "dinov2", [cell(42)])
    write_entries(tmp_path, variant(Scenario.SUBCLASS, 0), "dinov2", [cell(0, kl_f=0.7)])
    entries = read_entries(tmp_path, variant(Scenario.SUBCLASS, 0), "dinov2")
    assert [(entry["seed"], entry["base"]["kl_f"]) for entry in entries] == [(42, 0.2), (0, 0.7)]
    assert len(read_entries(tmp_path, variant(Scenario.SUBCLASS, 2), "dinov2")) == 1


def test_what_is_not_finite_is_null_and_the_file_is_strict_json(tmp_path):
    path = write_entries(tmp_path, variant(Scenario.CLASS), "dinov2", [cell(0, kl_f=math.inf)])
    refuse = lambda constant: pytest.fail(f"{constant} in the file")  # noqa: E731
    document = json.loads(path.read_text(), parse_constant=refuse)
    assert document["mlp1"]["0"][0]["ft"]["best"]["kl_f"] is None


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = write_entries(tmp_path, variant(Scenario.CLASS), "dinov2", [cell(0)])
    before = path.read_bytes()

    def full_disk(*_args):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_entries(tmp_path, variant(Scenario.CLASS), "dinov2", [cell(1)])
    assert path.read_bytes() == before


def test_missing_and_damaged_files_are_refused_by_name(tmp_path):
    with pytest.raises(BadInput, match=r"no results of cifar10/mlp1/class/0 at .*class_mlp1_raw\.json"):
        read_entries(tmp_path, variant(Scenario.CLASS), "dinov2")
    path = write_entries(tmp_path, variant(Scenario.CLASS), "dinov2", [cell(0)])
    with pytest.raises(BadInput, match="has no entry for class 8"):
        read_entries(tmp_path, variant(Scenario.CLASS, 8), "dinov2")
    path.write_text(path.read_text()[:100])
    with pytest.raises(BadInput, match=r"class_mlp1_raw\.json is not valid JSON"):
        read_entries(tmp_path, variant(Scenario.CLASS), "dinov2")
    assert tree_path(tmp_path, variant(Scenario.CLASS), "dinov2") == path
