"""Results as MLflow runs: a projection of the store, so that deleting the database loses nothing.

One run per variant, below it one run per seed and row: base, retrain, floor and every method. One process writes; it needs
no lock, and it finds again what it or an earlier run of it wrote by the tags variant, seed, method and ``step_id``.
"""

from __future__ import annotations

import json
import logging
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported; clusters are often offline
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # a line for every run would bury a job's log

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LifecycleStage, Metric, Param, Run
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from tracking.entries import COUNTS, REFERENCES, TARGET, WHOLE
from tracking.tracked import TrackedCell, TrackerReport
from tracking.tree import flat
from unlearn_core.errors import BadInput
from unlearn_core.grid import Variant
from unlearn_core.methods import ProxySettings

SETTINGS = {field.name for field in fields(ProxySettings)}
TARGET_PARAMS = [name for name, kind in TARGET.items() if name in SETTINGS or kind in (str, bool | None)]
"""What is a parameter of a proxy's run: its settings and what is no number; all else is a metric."""
DIGEST_LENGTH = 36  # what MLflow's table of data sets holds
PAGE = 1000
FINISHED = "FINISHED"
PARENT = "mlflow.parentRunId"

RowId = tuple[str, str, str]
"""Variant, seed and method, as written in the tags of a run."""


@dataclass(frozen=True)
class _Row:
    """A run of a row in the database. Parent: the run of the variant, which a person may have deleted meanwhile."""

    run_id: str
    step_id: str
    parent: str | None
    finished: bool


class MlflowTracker:
    """Writes cells into one experiment. ``artifact_root`` is for a new experiment's files; None: the server chooses."""

    def __init__(self, tracking_uri: str, experiment: str, artifact_root: Path | None = None) -> None:
        self._seconds = 0.0
        self._written = self._already_there = self._replaced = 0
        self._variants: dict[str, str] = {}  # variant -> run id
        self._rows: defaultdict[RowId, list[_Row]] = defaultdict(list)
        self._trials: dict[str, Run] = {}  # by trial_id
        self._grid: str | None = None
        with self._timed(), quiet_migration():
            _create_database(tracking_uri)
            self._client = MlflowClient(tracking_uri, registry_uri=tracking_uri)
            self._experiment_id = self._find_or_create_experiment(experiment, artifact_root)
            self._remember_runs()

    def log_cell(self, cell: TrackedCell) -> None:
        """Write the rows of a cell that are not there yet, in full; what an interrupted call left is replaced."""
        rows = {name: row for name, row in cell.entry.items() if isinstance(row, dict)}
        if missing := sorted(rows.keys() - cell.step_ids.keys()):
            raise BadInput(f"{cell.variant} seed {cell.seed}: no step id for {', '.join(missing)}")
        with self._timed():
            parent = self._variant_run(cell.variant)
            for name, row in rows.items():
                self._log_row(cell, name, row, parent)

    def log_trial(self, name: str, trial_id: str, params: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Write a trial of a tuning, unless it is there; what an interrupted call left is replaced."""
        with self._timed():
            if (known := self._trials.get(trial_id)) is not None:
                if known.info.status == FINISHED:
                    return
                self._client.delete_run(known.info.run_id)
            run = self._client.create_run(
                self._experiment_id, tags={"kind": "trial", "trial_id": trial_id}, run_name=name
            )
            self._client.log_batch(
                run.info.run_id,
                metrics=[Metric(metric, value, 0, 0) for metric, value in metrics.items()],
                params=[Param(param, str(value)) for param, value in params.items()],
            )
            self._client.set_terminated(run.info.run_id)

    def log_artifact(self, path: Path) -> None:
        """Attach a file to the run of the grid itself."""
        with self._timed():
            self._client.log_artifact(self._grid_run(), str(path))

    def log_folder(self, path: Path) -> None:
        """Attach a folder with all that is in it, such as a report, to the run of the grid itself."""
        with self._timed():
            self._client.log_artifacts(self._grid_run(), str(path), artifact_path=path.name)

    def _grid_run(self) -> str:
        if self._grid is None:
            self._grid = self._create_finished("grid", {"kind": "grid"})
        return self._grid

    def report(self) -> TrackerReport:
        return TrackerReport(self._written, self._already_there, self._replaced, self._seconds)

    def _find_or_create_experiment(self, name: str, artifact_root: Path | None) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            location = None if artifact_root is None else artifact_root.absolute().as_uri()
            return self._client.create_experiment(name, artifact_location=location)
        if found.lifecycle_stage != LifecycleStage.ACTIVE:
            raise BadInput(f"MLflow experiment {name!r} was deleted; restore it or choose another name")
        return found.experiment_id

    def _remember_runs(self) -> None:
        for run in self._all_runs():
            tags = run.data.tags
            match tags.get("kind"):
                case "grid":
                    self._grid = self._finished(run)
                case "variant":
                    self._variants[_variant_of(tags)] = self._finished(run)
                case "trial":
                    self._trials[tags["trial_id"]] = run
                case "reference" | "method":
                    known = self._rows[_variant_of(tags), tags["seed"], tags["method"]]
                    finished = run.info.status == FINISHED
                    known.append(_Row(run.info.run_id, tags["step_id"], tags.get(PARENT), finished))
                case _:  # a person's own run in this experiment
                    pass

    def _all_runs(self) -> Iterator[Run]:
        token: str | None = None
        while True:
            page = self._client.search_runs([self._experiment_id], max_results=PAGE, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _finished(self, run: Run) -> str:
        """Its id. A run that was interrupted between being created and being ended is ended now."""
        if run.info.status != FINISHED:
            self._client.set_terminated(run.info.run_id)
        return run.info.run_id

    def _variant_run(self, variant: Variant) -> str:
        name = str(variant)
        if name not in self._variants:
            self._variants[name] = self._create_finished(name, {"kind": "variant", **_variant_tags(variant)})
        return self._variants[name]

    def _create_finished(self, name: str, tags: dict[str, str]) -> str:
        run_id = self._client.create_run(self._experiment_id, run_name=name, tags=tags).info.run_id
        self._client.set_terminated(run_id)
        return run_id

    def _log_row(self, cell: TrackedCell, name: str, row: Mapping[str, Any], parent: str) -> None:
        known = self._rows[str(cell.variant), str(cell.seed), name]
        wanted = (cell.step_ids[name], parent, True)
        if any((run.step_id, run.parent, run.finished) == wanted for run in known):
            self._already_there += 1
            return
        replaces = bool(known)
        while known:
            self._client.delete_run(known[-1].run_id)
            known.pop()
        tags = {
            "kind": "reference" if name in REFERENCES else "method",
            **_variant_tags(cell.variant),
            "seed": str(cell.seed),
            "method": name,
            "step_id": cell.step_ids[name],
            PARENT: parent,
        }
        # start and end are chosen so that MLflow's "duration" is the time of the step, not of this function
        end = int(time.time() * 1000)
        start = end - _milliseconds(row.get("seconds"))
        run = self._client.create_run(self._experiment_id, start, tags, run_name=f"{name} seed {cell.seed}")
        run_id = run.info.run_id
        known.append(_Row(run_id, cell.step_ids[name], parent, finished=False))
        self._write_text(run, json.dumps(row, indent=1, allow_nan=False), "entry.json")
        self._client.log_inputs(run_id, datasets=[_dataset_input(cell)])
        self._client.log_batch(run_id, metrics=_metrics(row), params=_params(cell, row))  # MLflow splits long batches
        self._client.set_terminated(run_id, FINISHED, end)
        known[:] = [replace(known[-1], finished=True)]
        self._replaced += replaces
        self._written += not replaces

    def _write_text(self, run: Run, text: str, name: str) -> None:
        """``client.log_text`` without its reading of the run, which would be a tenth of the time per row."""
        assert run.info.artifact_uri is not None  # a run just created has one
        repository = get_artifact_repository(run.info.artifact_uri, self._client.tracking_uri)
        with TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.write_text(text)
            repository.log_artifact(str(path))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - started


def _variant_tags(variant: Variant) -> dict[str, str]:
    return {
        "dataset": variant.dataset,
        "arch": variant.arch,
        "scenario": str(variant.scenario),
        "key": str(variant.key),
    }


def _variant_of(tags: Mapping[str, str]) -> str:
    return f"{tags['dataset']}/{tags['arch']}/{tags['scenario']}/{tags['key']}"


def _dataset_input(cell: TrackedCell) -> DatasetInput:
    dataset = Dataset(
        name=cell.variant.dataset,
        digest=cell.dataset_fingerprint[:DIGEST_LENGTH],
        source_type="fingerprint",
        source=json.dumps({"fingerprint": cell.dataset_fingerprint}),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "unlearning")])


def _params(cell: TrackedCell, row: Mapping[str, Any]) -> list[Param]:
    target = row.get("target", {})
    values = {
        **flat(cell.settings),
        **{name: cell.entry[name] for name in COUNTS if name != "seed" and name in cell.entry},
        **{name: target[name] for name in TARGET_PARAMS if target.get(name) is not None},
    }
    return [Param(name, value if isinstance(value, str) else json.dumps(value)) for name, value in values.items()]


def _metrics(row: Mapping[str, Any]) -> list[Metric]:
    """The history; then one number each for the best and last epoch, the cost and the target.

    A metric's timestamp is the method's own clock, so that the same cell always gives the same metrics. Its step is the
    epoch. MLflow knows whole steps only: if records lie within epochs, it is the record's place, and the epoch a metric.
    """
    epochs = row.get("epochs", ())
    whole = all(float(epoch["epoch"]).is_integer() for epoch in epochs)
    metrics = [
        Metric(name, value, _milliseconds(epoch["seconds"]), int(epoch["epoch"]) if whole else place)
        for place, epoch in enumerate(epochs, start=1)
        for name, value in _numbers(epoch).items()
        if not (whole and name == "epoch")
    ]
    return metrics + [Metric(name, value, 0, 0) for name, value in _summary(row).items()]


def _summary(row: Mapping[str, Any]) -> dict[str, float]:
    if "epochs" not in row:
        return _numbers(row)
    best = {name: value for name, value in _numbers(row["best"]).items() if name != "rte"}
    target = {name: value for name, value in row.get("target", {}).items() if name not in TARGET_PARAMS}
    numbers = {
        **{name: row.get(name) for name in WHOLE},
        "total_seconds": row["seconds"],
        **{f"last_{name}": row["last"][name] for name in ("kl_t", "kl_f")},
        **{f"best_{name}": value for name, value in best.items()},
        **{f"target_{name}": value for name, value in target.items()},
        **{f"target_bound_{name}": value for name, value in (target.get("bound") or {}).items()},
    }
    return _numbers(numbers)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Without null, which stands for an infinite or undefined number, and without what is no number."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _milliseconds(seconds: float | None) -> int:
    return round(1000 * (seconds or 0.0))


def _create_database(uri: str) -> None:
    """Make a new SQLite file whole and then put it in its place: a process killed meanwhile leaves none, not half of one."""
    path = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    MlflowClient(f"sqlite:///{fresh}").search_experiments(max_results=1)  # opening it makes its tables
    os.replace(fresh, path)


@contextmanager
def quiet_migration() -> Iterator[None]:
    """Opening a new database reports every table on stderr, and mlflow 3.17's models warn under SQLAlchemy 2.1."""
    loggers = [logging.getLogger(name) for name in ("mlflow.store.db.utils", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The ``noload`` loader strategy", DeprecationWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
