"""Whole runs into MLflow: through its client to a server, or many at once into a database of its own format.

MLflow's client takes five calls and some eight transactions for a run. Where the store is a database, the same rows are
written in one transaction for many runs; a test holds that MLflow reads the same from both.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported; clusters are often offline
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")  # about a minute; the queue then tries again later
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # a line for every run would bury a job's log

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LifecycleStage, Metric, Param, RunStatus, SourceType
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.store.tracking.dbmodels import models as tables
from mlflow.utils.uri import append_to_uri_path
from sqlalchemy import insert, select

from tracking.run_summary import DESCRIPTION

if TYPE_CHECKING:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

FINISHED = RunStatus.to_string(RunStatus.FINISHED)
CONTEXT = InputTag("mlflow.data.context", "unlearning")
PAGE = 1000


@dataclass(frozen=True)
class NewRun:
    """A run as a whole, to be written once."""

    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Sequence[Metric] = ()
    dataset: Dataset | None = None
    seconds: float = 0.0
    """MLflow's "duration"."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Artifacts, by their file's name."""
    files: Sequence[Path] = ()
    """More of them."""


@dataclass(frozen=True)
class KnownRun:
    """A run in MLflow, as far as it must be found again."""

    run_id: str
    finished: bool
    tags: Mapping[str, str]


class Writer(Protocol):
    def known(self) -> Iterable[KnownRun]:
        """All runs of the experiment that are not deleted."""
        ...

    def create(self, runs: Sequence[NewRun], written: Callable[[], None] = lambda: None) -> list[str]:
        """Write them, finished; returns their ids. ``written`` is called for each once it is there."""
        ...


def writer_for(client: MlflowClient, experiment_id: str) -> Writer:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # warns; ``quiet_migration`` is for that

    store = client._tracking_client.store
    if isinstance(store, SqlAlchemyStore):
        return DatabaseWriter(client, store, experiment_id)
    return ClientWriter(client, experiment_id)


class ClientWriter:
    """One run after another, through MLflow's client."""

    def __init__(self, client: MlflowClient, experiment_id: str) -> None:
        self._client: MlflowClient = client
        self._experiment_id: str = experiment_id

    def known(self) -> Iterable[KnownRun]:
        token: str | None = None
        while True:
            page = self._client.search_runs([self._experiment_id], max_results=PAGE, page_token=token)
            for run in page:
                yield KnownRun(run.info.run_id, run.info.status == FINISHED, run.data.tags)
            token = page.token
            if not token:
                return

    def create(self, runs: Sequence[NewRun], written: Callable[[], None] = lambda: None) -> list[str]:
        return [self._create(run, written) for run in runs]

    def _create(self, new: NewRun, written: Callable[[], None]) -> str:
        start, end = _times(new)
        run = self._client.create_run(self._experiment_id, start, dict(new.tags), new.name)
        run_id = run.info.run_id
        assert run.info.artifact_uri is not None  # a run just created has one
        _write_artifacts(new, run.info.artifact_uri, self._client.tracking_uri)
        if new.dataset is not None:
            self._client.log_inputs(run_id, datasets=[DatasetInput(new.dataset, [CONTEXT])])
        self._client.log_batch(run_id, new.metrics, [Param(name, value) for name, value in new.params.items()])
        self._client.set_terminated(run_id, FINISHED, end)
        written()
        return run_id


class DatabaseWriter:
    """All runs in one transaction: none of them is ever half there."""

    def __init__(self, client: MlflowClient, store: SqlAlchemyStore, experiment_id: str) -> None:
        self._store: SqlAlchemyStore = store
        self._uri: str = client.tracking_uri
        self._experiment_id: int = int(experiment_id)
        self._artifacts: str = client.get_experiment(experiment_id).artifact_location

    def known(self) -> Iterable[KnownRun]:
        """By their tags alone: thousands of runs have hundreds of thousands of metrics."""
        run, tag = tables.SqlRun, tables.SqlTag
        active = (run.experiment_id == self._experiment_id, run.lifecycle_stage == LifecycleStage.ACTIVE)
        tags: dict[str, dict[str, str]] = {}
        with self._store.ManagedSessionMaker(read_only=True) as session:
            runs = session.execute(select(run.run_uuid, run.status).where(*active)).all()
            wanted = select(tag.run_uuid, tag.key, tag.value).join(run, run.run_uuid == tag.run_uuid)
            for run_id, key, value in session.execute(wanted.where(*active, tag.key != DESCRIPTION)):
                tags.setdefault(run_id, {})[key] = value
        for run_id, status in runs:
            yield KnownRun(run_id, status == FINISHED, tags.get(run_id, {}))

    def create(self, runs: Sequence[NewRun], written: Callable[[], None] = lambda: None) -> list[str]:
        ids = [uuid.uuid4().hex for _ in runs]
        places = [append_to_uri_path(self._artifacts, run_id, "artifacts") for run_id in ids]
        for run, place in zip(runs, places, strict=True):
            _write_artifacts(run, place, self._uri)
        with self._store.ManagedSessionMaker(read_only=False) as session:
            data_sets = self._data_sets(session, [run.dataset for run in runs if run.dataset])
            rows: dict[Any, list[dict[str, Any]]] = {}
            for run, run_id, place in zip(runs, ids, places, strict=True):
                for table, row in self._rows(run, run_id, place, data_sets):
                    rows.setdefault(table, []).append(row)
            for table, some in rows.items():  # runs first, to which the others refer
                session.execute(insert(table.__table__), some)
        for _ in ids:
            written()
        return ids

    def _data_sets(self, session: Any, wanted: Sequence[Dataset]) -> dict[tuple[str, str], str]:
        """Their ids in the database; new ones are added."""
        table = tables.SqlDataset
        found: dict[tuple[str, str], str] = {}
        for item in wanted:
            key = (item.name, item.digest)
            if key in found:
                continue
            same = (table.experiment_id == self._experiment_id, table.name == item.name, table.digest == item.digest)
            known = session.execute(select(table.dataset_uuid).where(*same)).scalar()
            found[key] = known or uuid.uuid4().hex
            if known is None:
                session.execute(
                    insert(table.__table__),
                    {
                        "dataset_uuid": found[key],
                        "experiment_id": self._experiment_id,
                        "name": item.name,
                        "digest": item.digest,
                        "dataset_source_type": item.source_type,
                        "dataset_source": item.source,
                        "dataset_schema": item.schema,
                        "dataset_profile": item.profile,
                    },
                )
        return found

    def _rows(
        self, run: NewRun, run_id: str, place: str, data_sets: Mapping[tuple[str, str], str]
    ) -> Iterable[tuple[Any, dict[str, Any]]]:
        start, end = _times(run)
        yield (
            tables.SqlRun,
            {
                "run_uuid": run_id,
                "name": run.name,
                "source_type": SourceType.to_string(SourceType.UNKNOWN),
                "source_name": "",
                "entry_point_name": "",
                "source_version": "",
                "user_id": "unknown",
                "status": FINISHED,
                "start_time": start,
                "end_time": end,
                "lifecycle_stage": LifecycleStage.ACTIVE,
                "artifact_uri": place,
                "experiment_id": self._experiment_id,
            },
        )
        for key, value in {**run.tags, "mlflow.runName": run.name}.items():
            yield tables.SqlTag, {"run_uuid": run_id, "key": key, "value": value}
        for key, value in run.params.items():
            yield tables.SqlParam, {"run_uuid": run_id, "key": key, "value": value}
        latest: dict[str, Metric] = {}
        for metric in {_of_metric(m): m for m in run.metrics}.values():
            yield tables.SqlMetric, {"run_uuid": run_id, **_metric_row(metric)}
            known = latest.get(metric.key)
            if known is None or _of_metric(known)[1:] < _of_metric(metric)[1:]:
                latest[metric.key] = metric
        for metric in latest.values():
            yield tables.SqlLatestMetric, {"run_uuid": run_id, **_metric_row(metric)}
        if run.dataset is not None:
            input_id = uuid.uuid4().hex
            yield (
                tables.SqlInput,
                {
                    "input_uuid": input_id,
                    "source_type": "DATASET",
                    "source_id": data_sets[run.dataset.name, run.dataset.digest],
                    "destination_type": "RUN",
                    "destination_id": run_id,
                    "step": 0,
                },
            )
            yield tables.SqlInputTag, {"input_uuid": input_id, "name": CONTEXT.key, "value": CONTEXT.value}


def _of_metric(metric: Metric) -> tuple[str, int, int, float]:
    """Its name and, the latest last, what MLflow orders its values by."""
    return metric.key, metric.step, metric.timestamp, metric.value


def _metric_row(metric: Metric) -> dict[str, Any]:
    return {
        "key": metric.key,
        "value": metric.value,
        "timestamp": metric.timestamp,
        "step": metric.step,
        "is_nan": False,
    }


def _times(run: NewRun) -> tuple[int, int]:
    """Start and end, in ms, chosen so that MLflow's duration is the run's own, not the time of writing it."""
    end = int(time.time() * 1000)
    return end - round(1000 * run.seconds), end


def _write_artifacts(run: NewRun, place: str, tracking_uri: str) -> None:
    if not (run.texts or run.files):
        return
    repository = get_artifact_repository(place, tracking_uri)
    for path in run.files:
        repository.log_artifact(str(path))
    with TemporaryDirectory() as folder:
        for name, text in run.texts.items():
            path = Path(folder, name)
            path.write_text(text)
            repository.log_artifact(str(path))
