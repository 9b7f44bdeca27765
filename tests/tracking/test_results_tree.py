"""The paper's results layout: where a variant is written, what a rerun replaces, that a write is whole or not at all."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tracking.tree import read_entries, read_tree, tree_path
from tracking.tree_writer import write_entries
from unlearn_core.errors import BadInput
from unlearn_core.grid import Scenario, Variant
from unlearn_core.records import (
    EpochMetrics,
    MethodRecord,
    ReferenceRecord,
    Scores,
    cell_entry,
    method_entry,
    reference_entry,
)

SCORES = Scores(0.1, 0.2, 0.1, 0.2, 0.9, 0.8, 0.5, 0.5)


def cell(seed: int, kl_f: float = 0.2) -> dict[str, Any]:
    scores = replace(SCORES, kl_f=kl_f)
    row = reference_entry(ReferenceRecord(scores, seconds=2.0), retrain_seconds=2.0)
    epoch = EpochMetrics(1, 0.5, scores)
    method = method_entry(MethodRecord("ft", [epoch], epoch, epoch, 0.5, 0.25, 0.25, 0.0))
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


def tree_of(root, *cells, scenario=Scenario.SUBCLASS) -> Path:
    return write_entries(root, variant(scenario), "r50", cells)


def test_a_tree_is_read_in_the_order_of_the_grid_with_every_entry_as_written(tmp_path):
    wanted = [
        (Variant(dataset, arch, scenario, key), backbone)
        for dataset in ("cifar10", "cifar100")
        for backbone in ("dinov2", "r50")
        for arch in ("linear", "mlp1", "mlp2")
        for scenario in (Scenario.CLASS, Scenario.SUBCLASS, Scenario.RANDOM)
        for key in (0, 2, 10)
    ]
    for v, backbone in reversed(wanted):
        write_entries(tmp_path, v, backbone, [cell(42, kl_f=v.key), cell(0)])
    tree = read_tree(tmp_path)
    assert [(v.variant, v.backbone) for v in tree.variants] == wanted
    assert all(v.complete and v.entries == (cell(42, kl_f=v.variant.key), cell(0)) for v in tree.variants)
    assert tree.problems == ()
    assert [len(family) for family in tree.families()] == [9] * 12
    assert tree.variants[0].name == "cifar10/dinov2/linear/class/0"


@pytest.mark.parametrize(
    ("damage", "key", "what"),
    [
        (
            lambda cells: cells[1]["retrain"].pop("kl_f"),
            "[1].retrain.kl_f",
            "missing",
        ),
        (lambda cells: cells[1].pop("floor"), "[1].floor", "missing"),
        (
            lambda cells: cells[0]["ft"]["best"].update(kl_t="0.2"),
            "[0].ft.best.kl_t",
            "'0.2' should be a valid number",
        ),
        (lambda cells: cells[0]["ft"].update(rte=None), "[0].ft.rte", "None should be a valid number"),
        (lambda cells: cells[0]["ft"].pop("last"), "[0].ft.last", "missing"),
        (
            lambda cells: cells[0]["ft"]["epochs"][0].update(acc_t=True),
            "[0].ft.epochs[0].acc_t",
            "True should be a valid number",
        ),
        (lambda cells: cells[0]["ft"].update(epochs=[]), "[0].ft.epochs", "List should have at least 1 item"),
        (lambda cells: cells[0].update(sft={}), "[0].sft", "unknown method; there are lda, qda"),
        (lambda cells: cells[1].pop("ft"), "[1].ft", "missing; 1 of 2 seeds have it"),
        (lambda cells: cells[1].update(seed=42), "[1]", r"seed 42 again; the entry at mlp1.results.0[0] counts"),
        (lambda cells: cells[1].update(n_forget=6), "[1].n_forget", "6 in seed 0, but 5 in seeds 42"),
        (lambda cells: cells[1].pop("n_retain"), "[1].n_retain", "missing"),
        (lambda cells: cells[1].update(provenance=3), "[1].provenance", "3 should be a valid dictionary"),
        (lambda cells: cells.append("seed 7"), "[2]", "'seed 7' is not a seed entry"),
    ],
)
def test_what_is_wrong_is_said_by_its_key_and_the_rest_is_there(tmp_path, damage, key, what):
    path = tree_of(tmp_path, cell(42), cell(0))
    tree_of(tmp_path, cell(42), cell(0), scenario=Scenario.CLASS)
    document = json.loads(path.read_text())
    damage(document["mlp1"]["results"]["0"])
    path.write_text(json.dumps(document))
    tree = read_tree(tmp_path)
    problem = tree.problems[0]
    assert problem.file == Path("cifar10/r50/subclass_mlp1_raw.json")
    assert problem.key == f"mlp1.results.0{key}"
    assert problem.what.startswith(what)
    untouched, damaged = tree.variants
    assert untouched.complete
    assert not damaged.complete
    assert damaged.problems == tree.problems
    assert damaged.entries_with("base"), "what is left of it can still be used"
    assert all(
        set(entry) <= {"seed", "n_forget", "n_retain", "base", "retrain", "floor", "ft"} for entry in damaged.entries
    )


def test_a_row_that_is_not_whole_is_left_out_and_its_entry_kept(tmp_path):
    broken = cell(0)
    del broken["ft"]["best"]["kl_f"], broken["ft"]["best"]["kl_t"]
    tree_of(tmp_path, cell(42), broken)
    tree = read_tree(tmp_path)
    assert ["ft" in entry for entry in tree.variants[0].entries] == [True, False]
    assert tree.variants[0].seeds == (42, 0)
    assert [str(problem) for problem in tree.problems] == [
        "cifar10/r50/subclass_mlp1_raw.json: mlp1.results.0[1].ft.best.kl_t: missing (and 1 more in this row)"
    ]


def test_infinite_numbers_are_null_and_no_problem_but_literal_nan_is(tmp_path):
    path = tree_of(tmp_path, cell(42, kl_f=math.inf))
    assert read_tree(tmp_path).problems == ()
    path.write_text(path.read_text().replace("null", "NaN"))
    assert {problem.key.rpartition(".")[2] for problem in read_tree(tmp_path).problems} == {"kl_f"}


def test_seeds_from_other_data_or_settings_are_said(tmp_path):
    def made_from(seed, fingerprint, settings):
        return cell(seed) | {
            "provenance": {"fingerprint": fingerprint, "settings": settings, "versions": {"torch": seed}}
        }

    usual, same, other = {"epochs": 50, "cap": 1}, {"cap": 1, "epochs": 50}, {"epochs": 20, "cap": 1}
    cells = [("ab", usual), ("ab", same), ("cd", usual), ("ab", other)]
    tree_of(tmp_path, *(made_from(seed, *made) for seed, made in zip((42, 0, 1, 2), cells, strict=True)), cell(3))
    tree = read_tree(tmp_path)
    assert [(problem.key, problem.what) for problem in tree.problems] == [
        ("mlp1.results.0[4].provenance", "missing; 4 of 5 seeds have it"),
        ("mlp1.results.0[2].provenance.fingerprint", '"cd" in seed 1, but "ab" in seeds 42, 0, 2'),
        ("mlp1.results.0[3].provenance.settings.epochs", "20 in seed 2, but 50 in seeds 42, 0, 1"),
    ]
    assert tree.variants[0].methods == ("ft",), "provenance is no row"


def test_a_variant_with_fewer_seeds_than_the_others_is_incomplete(tmp_path):
    for key in (0, 2, 4):
        write_entries(tmp_path, variant(Scenario.CLASS, key), "r50", [cell(42), cell(0), *([cell(1)] if key else [])])
    write_entries(tmp_path, variant(Scenario.CLASS, 6), "r50", [cell(seed) for seed in (42, 0, 1, 7)])
    tree = read_tree(tmp_path)
    assert [v.complete for v in tree.variants] == [False, True, True, True], "seed 7 is an extra of one variant"
    assert [(p.key, p.what) for p in tree.problems] == [("mlp1.0", "no seed 1, which 3 of 4 variants have")]


def test_a_file_that_is_cut_off_anywhere_is_one_problem_and_the_others_are_read(tmp_path):
    path = tree_of(tmp_path, cell(42))
    tree_of(tmp_path, cell(42), scenario=Scenario.RANDOM)
    whole = path.read_text()
    for end in range(0, len(whole), 97):
        path.write_text(whole[:end])
        tree = read_tree(tmp_path)
        assert [v.variant.scenario for v in tree.variants] == ["random"]
        (problem,) = tree.problems
        assert (problem.file.name, problem.key) == (path.name, "")
        assert problem.what.startswith("not valid JSON")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "cifar10/r50/sub_mlp1_raw.json",
            "{}",
            ": not named SCENARIO_ARCH_raw.json; scenarios are class, subclass, random",
        ),
        ("cifar10/r50/notes.json", "{}", ": not named SCENARIO_ARCH_raw.json; scenarios are class, subclass, random"),
        ("cifar10/r50/class_vit_raw.json", "{}", ": unknown architecture 'vit'; there are linear, mlp1"),
        (
            "cifar10/r50/class_mlp2_raw.json",
            "[]",
            ": mlp2: missing; it should hold a list of seed entries for every key",
        ),
        ("cifar10/r50/subclass_mlp2_raw.json", '{"mlp2": {"0": []}}', ": mlp2.results: missing; it should hold"),
        ("cifar10/r50/class_mlp2_raw.json", '{"mlp2": {"a": []}}', ": mlp2.a: not a class or a number of rows"),
        ("cifar10/r50/class_mlp2_raw.json", '{"mlp2": {"0": []}}', ": mlp2.0: no list of seed entries"),
        ("cifar10/r50/class_mlp2_raw.json", '{"mlp2": {}, "mlp1": {}}', ": mlp1: does not belong into a file of mlp2"),
        ("cifar10/r50/class_mlp2_raw.json", "\udcff", ": not valid JSON ('utf-8' codec can't decode"),
    ],
)
def test_files_that_are_not_of_a_tree_are_said(tmp_path, name, text, problem):
    tree_of(tmp_path, cell(42))
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    tree = read_tree(tmp_path)
    assert len(tree.variants) == 1
    assert str(tree.problems[0]).startswith(name + problem)


def test_a_folder_without_results_is_refused(tmp_path):
    for root in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BadInput, match=rf"{root} holds no results .*; give the results of a run"):
            read_tree(root)
