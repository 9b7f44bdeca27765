"""Results as MLflow runs: what a cell becomes, that logging it twice changes nothing, that nothing half-written stays.

The databases are real SQLite files, read back through MLflow's own client.
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, Metric, Run
from mlflow.exceptions import MlflowException

from tracking import heartbeat, mlflow_tracker
from tracking.mlflow_tracker import MlflowTracker, links
from tracking.mlflow_writers import ClientWriter, DatabaseWriter, NewRun, Writer, writer_for
from tracking.tracked import TrackedCell, TrackedVariant, TrackerReport, default_tracking_uri
from tracking.tree_writer import write_entries
from unlearn_core.errors import BadInput
from unlearn_core.grid import Scenario, Variant
from unlearn_core.records import (
    EpochMetrics,
    MethodRecord,
    ReferenceRecord,
    Scores,
    TargetRecord,
    cell_entry,
    method_entry,
    reference_entry,
)

VARIANT = Variant("cifar10", "mlp1", Scenario.SUBCLASS, 0)
FINGERPRINT = "f" * 64
SETTINGS = {"preset": "paper", "training_epochs": 50, "proxy": {"ridge": 1e-3, "cap": 1.0}, "seeds": [42, 0]}
EPOCHS = 20
ROWS = ["base", "retrain", "floor", "lda-2c", "ft"]


def scores(epoch: int = 0, kl_t: float | None = None) -> Scores:
    return Scores(1.0 / (1 + epoch) if kl_t is None else kl_t, 0.5 / (1 + epoch), 0.1, 0.2, 0.9, 0.8, 0.5, 0.6)


def method(name: str, target: TargetRecord | None = None) -> MethodRecord:
    """Twenty epochs of falling KL; KL_t is infinite in the third."""
    epochs = [EpochMetrics(e, 0.25 * e, scores(e, math.inf if e == 3 else None)) for e in range(1, EPOCHS + 1)]
    return MethodRecord(name, epochs, epochs[-1], epochs[-1], 5.0, 0.5, 0.6, 0.25, target)


def cell(seed: int = 42, step: str = "step", settings: dict[str, Any] = SETTINGS) -> TrackedCell:
    target = TargetRecord(
        eta_max=0.75,
        admissible=True,
        reason="root of h",
        kl_net_proxy_before=0.4,
        kl_net_proxy_after=math.inf,
        h_curve=[(0.0, 0.0), (0.75, -0.1)],
        scores=scores(9),
        bound={"measured": 0.01, "total": 0.04},
        proxy_seconds=0.1,
        ridge=1e-3,
        shrinkage="ridge",
        cap=1.0,
        finalizer="kl",
        dir_on_test="base",
    )
    rows = {
        **{name: reference_entry(ReferenceRecord(scores(), 10.0), 10.0) for name in ("base", "retrain", "floor")},
        "lda-2c": method_entry(method("lda-2c", target)),
        "ft": method_entry(method("ft")),
    }
    step_ids = {name: f"{step}-{name}-{seed}" for name in ROWS}
    return TrackedCell(VARIANT, seed, cell_entry(seed, 5, 95, rows), step_ids, FINGERPRINT, settings)


def variant(*cells: TrackedCell) -> TrackedVariant:
    """All seeds of the variant, as the results tree has them."""
    entries = [
        item.entry | {"provenance": {"step": json.dumps(sorted(item.step_ids.values()))}}
        for item in {item.seed: item for item in cells}.values()
    ]
    return TrackedVariant(VARIANT, "r50", entries, cells)


def all_runs(client: MlflowClient) -> list[Run]:
    experiment = client.get_experiment_by_name("grid")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], max_results=1000))


def only(client: MlflowClient, **tags: str) -> Run:
    """The run of a seed's row, if a method is given without a kind."""
    found = [run for run in all_runs(client) if tags.items() <= run.data.tags.items()]
    [run] = [run for run in found if "kind" in tags or run.data.tags["kind"] != "mean"]
    return run


def data_inputs(run: Run) -> list[DatasetInput]:
    assert run.inputs is not None
    return run.inputs.dataset_inputs


def data_sets(run: Run) -> list[Dataset]:
    return [item.dataset for item in data_inputs(run)]


def content(client: MlflowClient) -> dict[str, Any]:
    """All that is said about each run but its random id and the time of writing."""
    runs = all_runs(client)
    names = {run.info.run_id: run.info.run_name for run in runs}
    parent = "mlflow.parentRunId"
    return {
        f"{names.get(run.data.tags.get(parent, ''))} > {run.info.run_name}": (
            run.info.status,
            run.data.params,
            {tag: value for tag, value in run.data.tags.items() if tag != parent},
            {
                name: [(m.step, m.timestamp, m.value) for m in client.get_metric_history(run.info.run_id, name)]
                for name in run.data.metrics
            },
            [(dataset.name, dataset.digest) for dataset in data_sets(run)],
        )
        for run in runs
    }


@pytest.fixture(scope="module")
def empty(tmp_path_factory, new_databases_are_copies: None) -> Path:
    """A migrated database without an experiment of ours, to be copied."""
    folder = tmp_path_factory.mktemp("empty")
    MlflowTracker(default_tracking_uri(folder), "template")
    return folder / "mlflow.db"


@pytest.fixture
def uri(empty, tmp_path) -> str:
    shutil.copy(empty, tmp_path / "mlflow.db")
    return default_tracking_uri(tmp_path)


@pytest.fixture
def track(uri, tmp_path) -> Callable[..., TrackerReport]:
    """Logs cells with a tracker of its own, as a rerun does."""

    def log(*cells: TrackedCell) -> TrackerReport:
        tracker = MlflowTracker(uri, "grid", tmp_path / "artifacts")
        if cells:
            tracker.log_variant(variant(*cells))
        return tracker.report()

    return log


@pytest.fixture(scope="module")
def logged(empty, tmp_path_factory) -> MlflowClient:
    """Two seeds of one variant and a file of the grid; for tests that only read."""
    folder = tmp_path_factory.mktemp("logged")
    shutil.copy(empty, folder / "mlflow.db")
    tracker = MlflowTracker(default_tracking_uri(folder), "grid", folder / "artifacts")
    tracker.log_variant(variant(cell(42), cell(0)))
    (folder / "table.md").write_text("| a |")
    tracker.log_artifact(folder / "table.md")
    return MlflowClient(default_tracking_uri(folder))


def below(client: MlflowClient, parent: Run) -> list[Run]:
    return [run for run in all_runs(client) if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]


def test_one_run_per_variant_below_it_one_per_row_and_below_that_one_per_seed(logged):
    parent = only(logged, kind="variant")
    assert parent.info.run_name == "cifar10/mlp1/subclass/0"
    variant_tags = {"dataset": "cifar10", "arch": "mlp1", "scenario": "subclass", "key": "0"}
    assert variant_tags.items() <= parent.data.tags.items()
    means = below(logged, parent)
    assert sorted(str(run.info.run_name) for run in means) == sorted(ROWS)
    assert {run.data.tags["kind"] for run in means} == {"mean"}
    children = [child for run in means for child in below(logged, run)]
    assert all(child.data.tags["method"] == run.info.run_name for run in means for child in below(logged, run))
    assert sorted((run.data.tags["seed"], run.data.tags["method"]) for run in children) == sorted(
        (seed, row) for seed in ("42", "0") for row in ROWS
    )
    for run in children:
        tags = run.data.tags
        assert variant_tags.items() <= tags.items()
        assert tags["step_id"] == f"step-{tags['method']}-{tags['seed']}"
        assert tags["kind"] == ("method" if tags["method"] in {"lda-2c", "ft"} else "reference")
    assert {run.info.status for run in all_runs(logged)} == {"FINISHED"}


def test_the_history_has_every_finite_epoch(logged):
    run = only(logged, method="lda-2c", seed="42")
    entry = cell(42).entry["lda-2c"]
    for name in ("kl_f", "kl_t", "kl_t_reverse", "kl_f_reverse", "acc_t", "acc_f", "mia_auc", "seconds"):
        history = logged.get_metric_history(run.info.run_id, name)
        wanted = {epoch["epoch"]: epoch[name] for epoch in entry["epochs"] if epoch[name] is not None}
        assert {metric.step: metric.value for metric in history} == wanted
        assert len(history) == EPOCHS - (name == "kl_t")  # the infinite one


def test_records_within_an_epoch_are_steps_by_their_place(uri):
    """MLflow's steps are integers: a record at half an epoch would fall on another's."""
    tracked = cell(42)
    for place, record in enumerate(tracked.entry["ft"]["epochs"], start=1):
        record["epoch"] = place / 4
    MlflowTracker(uri, "grid").log_variant(variant(tracked))
    client = MlflowClient(uri)
    run = only(client, method="ft", seed="42").info.run_id
    assert {m.step: m.value for m in client.get_metric_history(run, "epoch")} == {
        place: place / 4 for place in range(1, EPOCHS + 1)
    }
    assert [m.step for m in client.get_metric_history(run, "kl_f")] == list(range(1, EPOCHS + 1))


def test_trees_of_older_versions_have_no_cost_to_log(uri):
    tracked = cell(42)
    del tracked.entry["ft"]["cost"], tracked.entry["ft"]["preparation"]
    MlflowTracker(uri, "grid").log_variant(variant(tracked))
    metrics = only(MlflowClient(uri), method="ft", seed="42").data.metrics
    assert "rte" in metrics
    assert not {"cost", "preparation"} & metrics.keys()


def test_best_last_cost_and_target_are_single_numbers(logged):
    run = only(logged, method="lda-2c", seed="42")
    metrics, entry = run.data.metrics, cell(42).entry["lda-2c"]
    assert metrics["best_epoch"] == EPOCHS
    assert metrics["best_kl_t"] == metrics["last_kl_t"] == entry["last"]["kl_t"]
    assert metrics["last_kl_f"] == entry["last"]["kl_f"]
    assert (metrics["rte"], metrics["total_seconds"]) == (0.5, 5.0)
    assert (metrics["cost"], metrics["preparation"]) == (0.6, 0.25)
    assert (metrics["target_eta_max"], metrics["target_kl_net_proxy_before"]) == (0.75, 0.4)
    assert metrics["target_kl_f"] == entry["target"]["kl_f"]
    assert metrics["target_bound_total"] == 0.04
    assert "target_kl_net_proxy_after" not in metrics  # infinite
    assert not [name for name in only(logged, method="ft", seed="42").data.metrics if name.startswith("target")]
    base = only(logged, method="base", seed="42").data.metrics
    assert (base["kl_t"], base["seconds"], base["rte"]) == (1.0, 10.0, 1.0)


def test_duration_is_that_of_the_step(logged):
    info = only(logged, method="base", seed="42").info
    assert info.end_time is not None
    assert info.end_time == info.start_time + 10_000


def test_settings_and_the_proxys_choices_are_parameters(logged):
    params = only(logged, method="lda-2c", seed="42").data.params
    assert params["proxy.ridge"] == "0.001"
    assert (params["preset"], params["training_epochs"], params["seeds"]) == ("paper", "50", "[42, 0]")
    assert (params["ridge"], params["cap"], params["finalizer"], params["admissible"]) == ("0.001", "1.0", "kl", "true")
    assert params["n_forget"] == "5"
    assert "finalizer" not in only(logged, method="ft", seed="42").data.params


def test_the_data_set_is_an_input_with_its_fingerprint(logged):
    for row in ROWS:
        [dataset] = data_sets(only(logged, method=row, seed="0"))
        assert (dataset.name, dataset.digest) == ("cifar10", FINGERPRINT[:36])
        assert json.loads(dataset.source) == {"fingerprint": FINGERPRINT}


def test_the_row_is_an_artifact(logged, tmp_path):
    for row in ("base", "lda-2c"):
        run = only(logged, method=row, seed="0")
        path = logged.download_artifacts(run.info.run_id, "entry.json", str(tmp_path))
        assert json.loads(Path(path).read_text()) == cell(0).entry[row]


def test_files_of_the_grid_are_on_one_run_of_its_own(uri, tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
        MlflowTracker(uri, "grid", tmp_path / "artifacts").log_artifact(tmp_path / name)
    client = MlflowClient(uri)
    grid = only(client, kind="grid")
    assert [file.path for file in client.list_artifacts(grid.info.run_id)] == ["a.txt", "b.txt"]
    assert (tmp_path / "artifacts" / grid.info.run_id / "artifacts" / "a.txt").read_text() == "a.txt"


def test_a_rerun_writes_nothing(track, uri):
    first = track(cell(42), cell(0))
    assert (first.written, first.already_there, first.replaced) == (10, 0, 0)
    assert first.seconds > 0
    before = {run.info.run_id for run in all_runs(MlflowClient(uri))}
    again = track(cell(42), cell(0))
    assert (again.written, again.already_there, again.replaced) == (0, 10, 0)
    assert {run.info.run_id for run in all_runs(MlflowClient(uri))} == before


@pytest.mark.parametrize("status", ["RUNNING", "FAILED"])
def test_a_half_written_run_is_replaced(track, uri, status):
    track(cell(42))
    client = MlflowClient(uri)
    whole = content(client)
    finished = only(client, method="ft", seed="42")
    tags = {tag: value for tag, value in finished.data.tags.items() if tag != "mlflow.runName"}
    client.delete_run(finished.info.run_id)
    half = client.create_run(finished.info.experiment_id, tags=tags, run_name=finished.info.run_name)
    client.log_metric(half.info.run_id, "kl_t", 0.5, step=1)
    if status != "RUNNING":
        client.set_terminated(half.info.run_id, status)
    report = track(cell(42))
    assert (report.written, report.already_there, report.replaced) == (0, 4, 1)
    assert content(client) == whole
    assert only(client, method="ft", seed="42").info.run_id != half.info.run_id


def test_a_write_that_fails_is_made_good_by_the_same_tracker(uri, tmp_path):
    tracker = MlflowTracker(uri, "grid", tmp_path / "artifacts")
    bad = cell(42)
    bad.entry["floor"]["mia_auc"] = math.nan  # no valid entry: refused after the runs above have been written
    with pytest.raises(ValueError, match="Out of range float values"):
        tracker.log_variant(variant(bad))
    tracker.log_variant(variant(cell(42)))
    report = tracker.report()
    assert (report.written, report.already_there, report.replaced) == (5, 0, 0)
    runs = all_runs(MlflowClient(uri))
    assert len(runs) == 1 + 5 + 5
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_another_step_replaces_the_run_of_the_old_recipe(track, uri):
    track(cell(42), cell(0))
    new = cell(42)
    new = replace(new, step_ids={**new.step_ids, "ft": "other"})
    report = track(new, cell(0))
    assert (report.written, report.already_there, report.replaced) == (0, 9, 1)
    client = MlflowClient(uri)
    assert only(client, method="ft", seed="42").data.tags["step_id"] == "other"
    assert len(all_runs(client)) == 1 + 5 + 10


@pytest.mark.parametrize(("kind", "gone"), [("variant", 1), ("mean", 5), ("mean", 2), ("mean", 1)])
def test_rows_move_below_new_runs_if_a_person_deleted_the_old_ones(track, uri, kind, gone):
    """Or if a writer was killed when it had written some of them."""
    track(cell(42))
    client = MlflowClient(uri)
    before = content(client)
    for run in [run for run in all_runs(client) if run.data.tags["kind"] == kind][:gone]:
        client.delete_run(run.info.run_id)
    report = track(cell(42))
    assert (report.written, report.already_there, report.replaced) == (0, 5, 0)
    assert content(client) == before


def test_another_seed_gives_new_means_above_the_rows_that_stay(track, uri):
    track(cell(42))
    kept = only(MlflowClient(uri), method="ft", seed="42").info.run_id
    tracker = MlflowTracker(uri, "grid")
    tracker.log_variant(replace(variant(cell(42), cell(0)), cells=[cell(0)]))
    client = MlflowClient(uri)
    assert only(client, kind="variant").data.metrics["seeds"] == 2
    assert kept in {run.info.run_id for run in below(client, only(client, kind="mean", method="ft"))}
    assert len(all_runs(client)) == 1 + 5 + 10


def test_rows_that_a_cell_no_longer_has_are_deleted(track, uri):
    track(cell(42))
    new = cell(42, "new")
    del new.entry["ft"]
    track(new)
    assert {run.data.tags["method"] for run in all_runs(MlflowClient(uri)) if "seed" in run.data.tags} == {*ROWS} - {
        "ft"
    }


def test_a_variants_run_has_means_and_spreads_over_seeds(uri):
    """KL_f of ft at its last epoch is 0.1 in one seed and 0.3 in the other."""
    low, high = cell(42), cell(0)
    low.entry["ft"]["last"]["kl_f"], high.entry["ft"]["last"]["kl_f"] = 0.1, 0.3
    MlflowTracker(uri, "grid").log_variant(variant(low, high))
    metrics = only(MlflowClient(uri), kind="variant").data.metrics
    assert metrics["kl_f/ft"] == pytest.approx(0.2)
    assert metrics["kl_f_std/ft"] == pytest.approx(0.1)
    assert metrics["cost_percent/ft"] == pytest.approx(60)
    assert metrics["seeds"] == 2
    lda = low.entry["lda-2c"]["last"]["kl_f"]
    assert metrics["kl_f/best"] == metrics["kl_f/lda-2c"] == float(f"{lda:.4g}"), (
        "as many digits as a table should show"
    )
    assert only(MlflowClient(uri), kind="variant").data.tags["best_method"] == "lda-2c"


def test_a_variants_run_can_be_read_without_a_click_and_found_by_its_tags(logged, tmp_path):
    run = only(logged, kind="variant")
    described = run.data.tags["mlflow.note.content"]
    assert described.startswith(
        "**closest at the last epoch: all 2 alike**: KL_f 0.024, KL_t 0.048 nats, cost 60 % of a retrain; **floor**: KL_f"
    )
    assert "| lda-2c |" in described
    assert "| floor |" in described
    assert len(described) <= 8000
    names = {Path(file.path).name for file in logged.list_artifacts(run.info.run_id)}
    assert {"benchmark_cifar10_r50_mlp1_subclass_0.md", "front_cifar10_r50_mlp1_subclass_0.png"} <= names
    [dataset] = data_sets(run)
    assert dataset.digest == FINGERPRINT[:36]
    experiment = logged.get_experiment(run.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    views = {tag for tag in experiment.tags if tag.startswith("mlflow.sharedViewState.")}
    assert views == {"mlflow.sharedViewState.variants", "mlflow.sharedViewState.methods-cifar10-mlp1-subclass-0"}


def test_a_methods_run_has_its_mean_curve_over_cost(uri):
    """Two seeds whose KL_f differ by 0.2 at every epoch; a retrain takes 10 s."""
    low, high = cell(42), cell(0)
    for record in high.entry["ft"]["epochs"]:
        record["kl_f"] += 0.2
    MlflowTracker(uri, "grid").log_variant(variant(low, high))
    client = MlflowClient(uri)
    run = only(client, kind="mean", method="ft").info.run_id
    curve = {m.step: m.value for m in client.get_metric_history(run, "kl_f")}
    assert curve == pytest.approx({e: 0.5 / (1 + e) + 0.1 for e in range(1, EPOCHS + 1)})
    spread = {m.step: m.value for m in client.get_metric_history(run, "kl_f_std")}
    assert spread == pytest.approx(dict.fromkeys(range(1, EPOCHS + 1), 0.1))
    cost = {m.step: m.value for m in client.get_metric_history(run, "cost_percent")}
    assert cost == pytest.approx({e: 100 * 0.25 * e / 10 for e in range(1, EPOCHS + 1)})


def test_the_grids_run_says_what_the_tree_says_and_links_lead_to_what_is_there(uri, tmp_path):
    tracker = MlflowTracker(uri, "grid", tmp_path / "artifacts")
    tracker.log_variant(variant(cell(42)))
    write_entries(tmp_path / "results", VARIANT, "r50", [cell(42).entry])
    for _ in range(2):
        tracker.log_grid(tmp_path / "results")
    client = MlflowClient(uri)
    run = only(client, kind="grid")
    assert (run.data.metrics["variants"], run.data.metrics["cells"]) == (1, 1)
    assert len(client.get_metric_history(run.info.run_id, "variants")) == 1, "what did not change is not written again"
    assert "Claims on these results" in run.data.tags["mlflow.note.content"]
    shown = links(uri, "grid")
    assert list(shown) == ["all variants", f"methods of the newest variant, {VARIANT}", "the grid as a whole"]
    assert all(link.startswith(f"#/experiments/{run.info.experiment_id}/runs") for link in shown.values())


def test_a_database_is_written_as_mlflows_own_client_writes_it(uri, tmp_path):
    """The client is the oracle: all that MLflow reads is the same, but for ids and the time of writing."""
    client = MlflowClient(uri)
    points = [Metric("kl_f", 0.5 / step, 10 * step, step) for step in range(1, 4)]
    points += [Metric("kl_f", 0.5, 10, 1), Metric("cost", 2.0, 0, 0), Metric("cost", 1.0, 5, 0)]
    dataset = Dataset("d", "1" * 36, "fingerprint", "{}")
    tags = {"kind": "method", "mlflow.note.content": "a | b"}
    run = NewRun("ft", tags, {"a": "1", "b": "x"}, points, dataset, 3.0, {"entry.json": "{}"})
    read = []
    for kind in (ClientWriter, DatabaseWriter):
        place = client.create_experiment(kind.__name__, artifact_location=(tmp_path / kind.__name__).as_uri())
        writer = writer_for(client, place)
        assert isinstance(writer, DatabaseWriter)
        if kind is ClientWriter:
            writer = ClientWriter(client, place)
        ids = [*writer.create([run]), *writer.create([run, replace(run, dataset=None, metrics=())])]
        runs = [client.get_run(run_id) for run_id in ids]
        assert {known.run_id for known in writer.known()} == {*ids}
        read.append(
            [
                (
                    one.data.to_dictionary(),
                    {
                        m: [(p.step, p.timestamp, p.value) for p in client.get_metric_history(i, m)]
                        for m in ("kl_f", "cost")
                    },
                    [vars(dataset) for dataset in data_sets(one)],
                    [(tag.key, tag.value) for item in data_inputs(one) for tag in item.tags],
                    [file.path for file in client.list_artifacts(i)],
                    (one.info.end_time or 0) - one.info.start_time,
                    (one.info.status, one.info.lifecycle_stage, one.info.run_name, one.info.user_id),
                )
                for i, one in zip(ids, runs, strict=True)
            ]
        )
        assert len(client.search_runs([place], "metrics.cost = 1 and params.a = '1' and tags.kind = 'method'")) == 2
    assert read[0] == read[1]


def test_the_same_runs_come_back_after_deleting_the_database(track, uri, empty, tmp_path):
    track(cell(42), cell(0))
    before = content(MlflowClient(uri))
    assert len(before) == 1 + 5 + 10
    # emptied in place, because MLflow keeps the file open as long as the process lives
    with closing(sqlite3.connect(empty)) as source, closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        source.backup(database)
    with pytest.raises(AssertionError):
        all_runs(MlflowClient(uri))
    track(cell(42), cell(0))
    assert content(MlflowClient(uri)) == before


def test_more_settings_than_one_batch_takes(track, uri):
    many = {f"option{i}": i for i in range(250)}
    track(cell(42, settings=many))
    run = only(MlflowClient(uri), method="lda-2c", seed="42")
    assert many.items() <= {name: int(value) for name, value in run.data.params.items() if "option" in name}.items()
    assert len(MlflowClient(uri).get_metric_history(run.info.run_id, "kl_f")) == EPOCHS


def test_a_row_without_its_step_is_refused_before_anything_is_written(track, uri):
    incomplete = replace(cell(42), step_ids={"base": "1", "retrain": "2", "floor": "3"})
    with pytest.raises(BadInput, match="cifar10/mlp1/subclass/0 seed 42: no step id for ft, lda-2c"):
        track(incomplete)
    assert all_runs(MlflowClient(uri)) == []


def test_a_deleted_experiment_is_refused(track, uri):
    track()
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("grid")
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    with pytest.raises(BadInput, match="experiment 'grid' was deleted; restore it"):
        track()


@pytest.mark.parametrize("kind", [ClientWriter, DatabaseWriter])
def test_signs_of_life_count_the_runs_that_are_there(kind, uri, tmp_path, monkeypatch):
    """All of them, whether they were written now or before: a server's one by one, a database's all at once."""
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.0)
    beats: list[int] = []
    monkeypatch.setattr(heartbeat, "write_atomically", lambda file, text: beats.append(json.loads(text)["settled"]))
    monkeypatch.setattr(mlflow_tracker, "writer_for", lambda client, place: _writer(kind, client, place))
    for expected in ({*range(11)} if kind is ClientWriter else {0, 10}, {0, 10}):
        beats.clear()
        tracker = MlflowTracker(uri, "grid", tmp_path / "artifacts", tmp_path / "beat.json")
        assert beats, "it answered before anything was written"
        assert not any(beats)
        tracker.log_variant(variant(cell(42), cell(0)))
        assert {*beats} == expected, "two seeds of five rows"
        assert beats == sorted(beats)


def _writer(kind: type, client: MlflowClient, place: str) -> Writer:
    return ClientWriter(client, place) if kind is ClientWriter else writer_for(client, place)


def test_a_sign_of_life_is_read_as_it_was_written_and_a_damaged_one_is_none(tmp_path):
    file = tmp_path / "beat.json"
    assert heartbeat.read_beat(file) is None
    beat = heartbeat.Heartbeat(file)
    beat.settled = 3
    beat.answered()
    found = heartbeat.read_beat(file)
    assert found is not None
    assert found.settled == 3
    beat.settled = 4
    beat.answered()
    assert heartbeat.read_beat(file) == found, "not at every answer: a shared folder would not like that"
    for content in ("", "[]", "{}", '{"answered": null, "settled": 1}'):
        file.write_text(content)
        assert heartbeat.read_beat(file) is None


def test_an_error_of_the_database_is_raised_and_not_printed_as_well(uri, tmp_path, capfd):
    """A full disk is one line of the command's; MLflow would print two tracebacks before it."""
    tracker = MlflowTracker(uri, "grid", tmp_path / "artifacts")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("drop table experiment_tags")
        database.commit()
    capfd.readouterr()
    with pytest.raises(MlflowException, match="experiment_tags"):
        tracker.log_variant(variant(cell(42)))
    assert capfd.readouterr() == ("", "")
