"""Results as MLflow runs: a projection of the store, so that deleting the database loses nothing.

One run per variant with its numbers over seeds; below it one per row (base, retrain, floor and every method) with its mean
curve; below that one per seed. One process writes; it needs no lock, and it finds again what it or an earlier one wrote by
the tags variant, seed, method and ``step_id``.
"""

from __future__ import annotations

import json
import logging
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported; clusters are often offline

from mlflow import MlflowClient
from mlflow.entities import Dataset, LifecycleStage, Metric

from tracking.claims import judge_all
from tracking.entries import COUNTS, REFERENCES, TARGET, WHOLE
from tracking.figures.evolution import evolution_figure
from tracking.figures.front import write_front
from tracking.heartbeat import Answering, Heartbeat
from tracking.mlflow_views import (
    EXPERIMENT_TAGS,
    VARIANTS,
    VIEW,
    methods_key,
    methods_link,
    methods_view,
    run_link,
    variants_link,
    variants_view,
)
from tracking.mlflow_writers import KnownRun, NewRun, Writer, writer_for
from tracking.run_summary import (
    DESCRIPTION,
    RunSummary,
    digest,
    grid_description,
    grid_summary,
    row_summaries,
    rows_of,
    variant_description,
    variant_summary,
)
from tracking.tables.benchmark import benchmark_table
from tracking.tables.exports import write_table
from tracking.tracked import TrackedCell, TrackedVariant, TrackerReport
from tracking.tree import TreeVariant, flat, read_tree
from unlearn_core.errors import BadInput
from unlearn_core.grid import Scenario, Variant
from unlearn_core.run_settings import ProxySettings

SETTINGS = {field.name for field in fields(ProxySettings)}
TARGET_PARAMS = [name for name, kind in TARGET.items() if name in SETTINGS or kind in (str, bool | None)]
"""What is a parameter of a proxy's run: its settings and what is no number; all else is a metric."""
DIGEST_LENGTH = 36  # what MLflow's table of data sets holds
PARENT = "mlflow.parentRunId"
SOURCE: Mapping[str, str] = {"mlflow.source.name": "unlearn", "mlflow.source.type": "LOCAL"}

DATABASE_LOGGER = "mlflow.store.db.utils"
"""Prints a database's error, such as a full disk, with its traceback, and then raises it: whoever catches it says it."""

RowId = tuple[str, str]
"""Seed and method, as written in the tags of a run."""


class MlflowTracker:
    """Writes variants into one experiment.

    Args:
        artifact_root: for a new experiment's files; None: the server chooses.
        heartbeat: a file for signs of life, for whoever waits.
    """

    def __init__(
        self, tracking_uri: str, experiment: str, artifact_root: Path | None = None, heartbeat: Path | None = None
    ) -> None:
        self._seconds = 0.0
        self._heartbeat: Heartbeat = Heartbeat(heartbeat)
        self._written = self._already_there = self._replaced = self._removed = 0
        self._variants: defaultdict[str, list[KnownRun]] = defaultdict(list)
        self._means: defaultdict[str, list[KnownRun]] = defaultdict(list)  # by variant
        self._rows: defaultdict[str, defaultdict[RowId, list[KnownRun]]] = defaultdict(lambda: defaultdict(list))
        self._trials: dict[str, KnownRun] = {}  # by trial_id
        self._grid: str | None = None
        logging.getLogger(DATABASE_LOGGER).setLevel(logging.CRITICAL)
        self._heartbeat.answered(count=True)  # all is loaded: what is waited for from here on is MLflow's
        with self._timed(), quiet_migration():
            _create_database(tracking_uri)
            client = Answering(MlflowClient(tracking_uri, registry_uri=tracking_uri), self._heartbeat.answered)
            self._client: MlflowClient = cast(MlflowClient, client)
            self._experiment_id = self._find_or_create_experiment(experiment, artifact_root)
            self._writer: Writer = writer_for(self._client, self._experiment_id)
            self._remember_runs()

    def log_variant(self, tracked: TrackedVariant) -> None:
        """Write the rows that are not there yet, and all above them if they have changed; what is stale is replaced."""
        for cell in tracked.cells:
            rows = [name for name, row in cell.entry.items() if isinstance(row, dict)]
            if missing := sorted({*rows} - cell.step_ids.keys()):
                raise BadInput(f"{cell.variant} seed {cell.seed}: no step id for {', '.join(missing)}")
        with self._timed():
            variant = TreeVariant(tracked.variant, tracked.backbone, tuple(tracked.entries))
            parents = self._write_summaries(variant, _dataset(tracked.cells[0]))
            rows = self._rows[str(tracked.variant)]
            for (_, method), runs in rows.items():
                runs[:] = [self._moved(run, parents[method]) for run in runs]
            self._write_rows(tracked.cells, rows, parents)

    def _write_summaries(self, variant: TreeVariant, dataset: Dataset) -> defaultdict[str, str]:
        """The run of the variant and those of its rows; the id of the run that each row's seeds belong below."""
        name, said = str(variant.variant), digest(variant)
        known, means = self._variants[name], self._means[name]
        current = next((run for run in known if run.finished and run.tags.get("summary") == said), None)
        # a writer may have been killed between two of them
        whole = sorted(run.tags.get("method", "") for run in means) == sorted(rows_of(variant))
        if current is not None and whole and all(_below(run, current) and run.finished for run in means):
            self._keep_only(current, known)
            return defaultdict(lambda: current.run_id, {run.tags["method"]: run.run_id for run in means})
        stale = [*known, *means]
        for run in stale:
            self._client.delete_run(run.run_id)
        known.clear()
        means.clear()
        known.append(self._write_variant(variant, dataset, said))
        parent = known[0].run_id
        tags = {"kind": "mean", **_variant_tags(variant.variant), PARENT: parent, **SOURCE}
        new = [
            NewRun(row.name, {**tags, "method": row.name, **row.tags}, metrics=_summary_metrics(row), dataset=dataset)
            for row in row_summaries(variant)
        ]
        for run, run_id in zip(new, self._writer.create(new), strict=True):
            means.append(KnownRun(run_id, True, run.tags))
        return defaultdict(lambda: parent, {run.tags["method"]: run.run_id for run in means})

    def _write_variant(self, variant: TreeVariant, dataset: Dataset, said: str) -> KnownRun:
        summary, place = variant_summary(variant), variant.variant
        self._client.set_experiment_tag(self._experiment_id, VIEW + methods_key(place), methods_view(place))
        links = f"[Its methods over cost]({methods_link(self._experiment_id, place)})\n"
        tags = {
            "kind": "variant",
            **_variant_tags(place),
            "backbone": variant.backbone,
            "summary": said,
            DESCRIPTION: variant_description(variant, links),
            **summary.tags,
            **SOURCE,
        }
        with TemporaryDirectory() as folder:
            # one picture is enough to look at: reports have it as an SVG, too
            figures = write_front(Path(folder), variant, ("png",)) or evolution_figure(
                Path(folder), variant.entries, variant.name, "evolution"
            )
            files = [*write_table(benchmark_table(variant), Path(folder)), *(figure.png for figure in figures)]
            [run_id] = self._writer.create(
                [NewRun(str(place), tags, metrics=_summary_metrics(summary), dataset=dataset, files=files)]
            )
        return KnownRun(run_id, True, tags)

    def _moved(self, run: KnownRun, parent: str) -> KnownRun:
        if run.tags.get(PARENT) == parent:
            return run
        self._client.set_tag(run.run_id, PARENT, parent)
        return replace(run, tags={**run.tags, PARENT: parent})

    def _write_rows(
        self, cells: Sequence[TrackedCell], rows: defaultdict[RowId, list[KnownRun]], parents: Mapping[str, str]
    ) -> None:
        """All new ones in one go; rows that a cell no longer has are deleted."""
        new: list[tuple[RowId, NewRun]] = []
        replaced = 0
        for cell in cells:
            for at in [at for at in rows if at[0] == str(cell.seed) and at[1] not in cell.entry]:
                for run in rows.pop(at):
                    self._client.delete_run(run.run_id)
            for name, row in cell.entry.items():
                if not isinstance(row, dict):
                    continue
                at = (str(cell.seed), name)
                known = rows[at]
                wanted = (run for run in known if run.finished and run.tags["step_id"] == cell.step_ids[name])
                if (there := next(wanted, None)) is not None:
                    self._already_there += 1
                    self._settle()
                    self._keep_only(there, known)
                    continue
                for run in known:
                    self._client.delete_run(run.run_id)
                replaced += bool(known)
                known.clear()
                new.append((at, _row_run(cell, name, row, parents[name])))
        ids = self._writer.create([run for _, run in new], self._settle)
        for (at, run), run_id in zip(new, ids, strict=True):
            rows[at].append(KnownRun(run_id, True, run.tags))
        self._heartbeat.answered(count=True)
        self._replaced += replaced
        self._written += len(new) - replaced

    def _settle(self) -> None:
        self._heartbeat.settled += 1

    def _keep_only(self, kept: KnownRun, known: list[KnownRun]) -> None:
        """Delete all others. MLflow's client repeats a request whose answer got lost, and then there are two runs."""
        for run in known:
            if run.run_id != kept.run_id:
                self._client.delete_run(run.run_id)
                self._removed += 1
        known[:] = [kept]

    def log_trial(self, name: str, trial_id: str, params: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Write a trial of a tuning, unless it is there; what an interrupted call left is replaced."""
        with self._timed():
            if (known := self._trials.get(trial_id)) is not None:
                if known.finished:
                    return
                self._client.delete_run(known.run_id)
            tags = {"kind": "trial", "trial_id": trial_id, **SOURCE}
            values = {param: str(value) for param, value in params.items()}
            points = [Metric(metric, value, 0, 0) for metric, value in metrics.items()]
            self._writer.create([NewRun(name, tags, values, points)])

    def log_grid(self, results: Path) -> None:
        """What a whole results tree says, on the run of the grid itself; unchanged numbers are not written again."""
        with self._timed():
            tree = read_tree(results)
            claims = judge_all(tree)
            links = f"[All variants]({variants_link(self._experiment_id)})\n"
            run = self._client.get_run(self._grid_run())
            if run.data.tags.get(DESCRIPTION) != (said := grid_description(tree, claims, links)):
                self._client.set_tag(run.info.run_id, DESCRIPTION, said)
            now = int(time.time() * 1000)  # the latest of a metric's values is the one that counts
            counts = [
                Metric(n, v, now, 0) for n, v, _ in grid_summary(tree, claims).metrics if run.data.metrics.get(n) != v
            ]
            if counts:
                self._client.log_batch(run.info.run_id, counts)

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
            [self._grid] = self._writer.create([NewRun("grid", {"kind": "grid", **SOURCE})])
        return self._grid

    def report(self) -> TrackerReport:
        return TrackerReport(self._written, self._already_there, self._replaced, self._seconds, self._removed)

    def _find_or_create_experiment(self, name: str, artifact_root: Path | None) -> str:
        tags = {**EXPERIMENT_TAGS, VIEW + VARIANTS: variants_view()}
        found = self._client.get_experiment_by_name(name)
        if found is None:
            location = None if artifact_root is None else artifact_root.absolute().as_uri()
            return self._client.create_experiment(name, artifact_location=location, tags=tags)
        if found.lifecycle_stage != LifecycleStage.ACTIVE:
            raise BadInput(f"MLflow experiment {name!r} was deleted; restore it or choose another name")
        for tag, value in tags.items():
            if found.tags.get(tag) != value:
                self._client.set_experiment_tag(found.experiment_id, tag, value)
        return found.experiment_id

    def _remember_runs(self) -> None:
        grids: list[KnownRun] = []
        trials: defaultdict[str, list[KnownRun]] = defaultdict(list)
        for run in self._writer.known():
            tags = run.tags
            match tags.get("kind"):
                case "grid":
                    if not run.finished:  # interrupted between being created and being ended
                        self._client.set_terminated(run.run_id)
                    grids.append(run)
                case "variant":
                    self._variants[_variant_of(tags)].append(run)
                case "mean":
                    self._means[_variant_of(tags)].append(run)
                case "trial":
                    trials[tags["trial_id"]].append(run)
                case "reference" | "method":
                    self._rows[_variant_of(tags)][tags["seed"], tags["method"]].append(run)
                case _:  # a person's own run in this experiment
                    pass
        for runs in (grids, *trials.values()):
            runs.sort(key=lambda run: not run.finished)
            if runs:
                self._keep_only(runs[0], runs)
        self._grid = grids[0].run_id if grids else None
        self._trials = {trial: runs[0] for trial, runs in trials.items()}

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - started


def links(tracking_uri: str, experiment: str) -> dict[str, str]:
    """What to look at first, by what it shows: parts of the address after the server's own."""
    with quiet_migration():
        client = MlflowClient(tracking_uri, registry_uri=tracking_uri)
        found = client.get_experiment_by_name(experiment)
    if found is None:
        return {}
    place = found.experiment_id
    shown = {"all variants": variants_link(place)}
    for run in client.search_runs([place], "tags.kind = 'variant'", max_results=1, order_by=["start_time DESC"]):
        key = run.data.tags
        variant = Variant(key["dataset"], key["arch"], Scenario(key["scenario"]), int(key["key"]))
        shown[f"methods of the newest variant, {variant}"] = methods_link(place, variant)
    for run in client.search_runs([place], "tags.kind = 'grid'", max_results=1):
        pages = [file.path for file in client.list_artifacts(run.info.run_id, "report")]
        page = next((path for path in pages if path.endswith(".html")), "")
        shown["the report" if page else "the grid as a whole"] = run_link(place, run.info.run_id, page)
    return shown


def _below(run: KnownRun, parent: KnownRun) -> bool:
    return run.tags.get(PARENT) == parent.run_id


def _summary_metrics(summary: RunSummary) -> list[Metric]:
    return [Metric(name, value, 0, step) for name, value, step in summary.metrics]


def _row_run(cell: TrackedCell, name: str, row: Mapping[str, Any], parent: str) -> NewRun:
    tags = {
        "kind": "reference" if name in REFERENCES else "method",
        **_variant_tags(cell.variant),
        "seed": str(cell.seed),
        "method": name,
        "step_id": cell.step_ids[name],
        PARENT: parent,
        **SOURCE,
    }
    return NewRun(
        f"{name} seed {cell.seed}",
        tags,
        _params(cell, row),
        _metrics(row),
        _dataset(cell),
        row.get("seconds") or 0.0,
        {"entry.json": json.dumps(row, indent=1, allow_nan=False)},
    )


def _variant_tags(variant: Variant) -> dict[str, str]:
    return {
        "variant": str(variant),
        "dataset": variant.dataset,
        "arch": variant.arch,
        "scenario": str(variant.scenario),
        "key": str(variant.key),
    }


def _variant_of(tags: Mapping[str, str]) -> str:
    return f"{tags['dataset']}/{tags['arch']}/{tags['scenario']}/{tags['key']}"


def _dataset(cell: TrackedCell) -> Dataset:
    return Dataset(
        name=cell.variant.dataset,
        digest=cell.dataset_fingerprint[:DIGEST_LENGTH],
        source_type="fingerprint",
        source=json.dumps({"fingerprint": cell.dataset_fingerprint}),
    )


def _params(cell: TrackedCell, row: Mapping[str, Any]) -> dict[str, str]:
    target = row.get("target", {})
    values = {
        **flat(cell.settings),
        **{name: cell.entry[name] for name in COUNTS if name != "seed" and name in cell.entry},
        **{name: target[name] for name in TARGET_PARAMS if target.get(name) is not None},
    }
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


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
    """Make a new SQLite file whole and then put it in its place: a process killed meanwhile leaves none, not half of one.

    What it leaves beside, ``NAME.PID.new``, is removed by the next one.
    """
    path = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///"):
        return
    for left in path.parent.glob(f"{path.name}.*.new*"):
        pid = left.name.removeprefix(f"{path.name}.").partition(".")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            left.unlink(missing_ok=True)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    MlflowClient(f"sqlite:///{fresh}").search_experiments(max_results=1)  # opening it makes its tables
    os.replace(fresh, path)


@contextmanager
def quiet_migration() -> Iterator[None]:
    """Opening a new database reports every table on stderr, and mlflow 3.17's models warn under SQLAlchemy 2.1."""
    loggers = [logging.getLogger(name) for name in (DATABASE_LOGGER, "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(max(logger.level, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The ``noload`` loader strategy", DeprecationWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
