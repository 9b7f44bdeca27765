"""Finished cells into the results tree and MLflow. Both are projections: ``sync`` makes them again from the store."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.files import ENTRY
from tasks.local_backend import LocalActor
from tasks.step import Kind, Step
from tasks.store import DONE, Store
from tracking.audits import read_audits
from tracking.tracked import TrackedCell, TrackedVariant, default_tracking_uri
from tracking.tree import tree_path
from tracking.tree_writer import TreeWriter
from unlearn_core.errors import BadInput
from unlearn_core.grid import Scenario, Variant
from unlearn_core.records import without_nonfinite
from unlearn_core.writing import write_atomically
from workflows.layout import Layout, read_json
from workflows.tracking_queue import Parcel, TrackingQueue
from workflows.tracking_watch import Tell, telling

if TYPE_CHECKING:
    from tasks.ray_backend import RayActor
    from tracking.mlflow_tracker import MlflowTracker

ENDS = ((1, "low"), (2, "high"))
"""Of an interval in an audit: value, low, high."""
Place = tuple[Variant, str]
"""A variant and the backbone of its features."""
StoredCell = tuple[str, Path, dict[str, Any]]
"""The id, the directory and the identity of an audit step."""


class Recorder:
    """Takes finished audit steps; one writer, on Ray an actor of its own, so that no worker ever waits for MLflow."""

    def __init__(self, layout: Layout, tracking_uri: str | None, track: bool = True) -> None:
        self.layout: Layout = layout
        self.store: Store = Store(layout.store)
        self.uri: str = tracking_uri or default_tracking_uri(layout.out)
        self.track: bool = track
        self.tracked: set[str] = set(_known_cells(layout).get(self.uri, []))
        self.behind: bool = False
        """Whether MLflow lacks something at the end."""
        self._queue: TrackingQueue = TrackingQueue(self._open_writer, layout.tracking_log)
        self.place: str = re.sub(r"(://[^/:@]*):[^/@]*@", r"\1:...@", self.uri)
        """The tracking URI for people: a password stays out of logs."""
        self._starting: Future[LocalActor | RayActor] | None = None
        self._on_ray: bool = False
        self._tree: TreeWriter = TreeWriter(layout.results)
        self._expected: defaultdict[Place, set[str]] = defaultdict(set)
        self._expected_in: Counter[Path] = Counter()
        """Cells that are still to come, by the file of the tree that they go into."""
        self._unsent: defaultdict[Place, dict[str, StoredCell]] = defaultdict(dict)
        self._n_to_track: int = 0

    def use_ray(self) -> None:
        self._on_ray = True

    def start_writer(self) -> None:
        """Load MLflow and open its store while steps are computed, if there will be something to write."""
        coming = any(step_id not in self.tracked for ids in self._expected.values() for step_id in ids)
        if self.track and coming and self._starting is None:
            threads = ThreadPoolExecutor(1, thread_name_prefix="mlflow")
            self._starting = threads.submit(self._start_tracker)
            threads.shutdown(wait=False)  # the thread ends once the writer is there

    def expect(self, cells: Iterable[Step]) -> None:
        """MLflow gets a variant once all of these of its cells are recorded, or at the end."""
        for step in cells:
            place = _place(step.config)
            if step.id not in self._expected[place]:
                self._expected[place].add(step.id)
                self._expected_in[self._file(place)] += 1

    def record(self, cells: Iterable[Step]) -> None:
        """Put cells whose audit is in the store into the tree and, unless they are there already, into MLflow."""
        self._record(self._stored(cells))

    def record_all(self, cells: Iterable[Step]) -> None:
        """The same for all cells of a grid of which nothing is left to compute."""
        self.record_stored(self._stored(cells))

    def record_stored(self, cells: Sequence[StoredCell]) -> None:
        """The same, of cells that were found in the store."""
        self._queue.announce(_count_runs(cell for cell in cells if cell[0] not in self.tracked))
        with self._queue.blocking():
            self._record(cells)

    def _stored(self, cells: Iterable[Step]) -> list[StoredCell]:
        steps = list(cells)
        for step in steps:
            self.store.await_result(step)
        return [(step.id, self.store.path(step), step.identity) for step in steps]

    def _record(self, cells: Sequence[StoredCell]) -> None:
        """File by file and variant by variant, so that memory holds one file's cells and not those of a whole grid."""
        by_file: dict[Path, dict[Place, list[StoredCell]]] = {}
        for cell in cells:
            place = _place(cell[2]["config"])
            by_file.setdefault(self._file(place), {}).setdefault(place, []).append(cell)
        for file, places in by_file.items():
            for place, stored in places.items():
                self._put_into_tree(place, file, stored)
            complete = not self._expected_in[file]
            if complete:  # before MLflow, which may have troubles of its own
                self.write_tree()
            for place in places:
                if not self._expected[place]:
                    self._send(place)
            if complete:
                self._tree.close(*next(iter(places)))
        self._queue.pump()
        self.write_due()

    def _put_into_tree(self, place: Place, file: Path, cells: Sequence[StoredCell]) -> None:
        for step_id, directory, identity in cells:
            cell = _tracked_cell(directory, identity)
            entry = cell.entry | {"provenance": _provenance(step_id, directory, identity["config"])}
            self._tree.add(*place, [entry])
            if step_id in self._expected[place]:
                self._expected[place].discard(step_id)
                self._expected_in[file] -= 1
            if self.track and step_id not in self.tracked:
                self._unsent[place][step_id] = (step_id, directory, identity)
                self._n_to_track += 1

    @contextlib.contextmanager
    def telling(self, tell: Tell) -> Iterator[None]:
        """Have someone told, while the block runs, what is waited for if MLflow keeps the driver waiting or falls behind."""
        self.layout.heartbeat.unlink(missing_ok=True)  # of a driver that was stopped
        watch = telling(self._queue, self.layout.heartbeat, self.place, tell)
        with watch if self.track else contextlib.nullcontext():
            yield

    def look_after_writer(self) -> None:
        """Take MLflow's answers and send it more, also while no cell ends; not in this process, which would wait for it."""
        if self._on_ray:
            self._queue.pump()

    def write_due(self) -> None:
        """Write what has waited long enough into the tree."""
        self._tree.write_due()

    def write_tree(self) -> None:
        """Write all that waits into the tree."""
        self._tree.write_all()

    def _file(self, place: Place) -> Path:
        return tree_path(self.layout.results, *place)

    def finish(self) -> str:
        """Send what is left and wait for the writer; a line on what it did and what that cost."""
        self.write_tree()
        for place in list(self._unsent):
            self._send(place)
        done = self._queue.finish({"log_grid": [self.layout.results]})
        self.layout.heartbeat.unlink(missing_ok=True)
        if done is None:
            return "MLflow: nothing new" if self.track else "MLflow: not tracked"
        known = _known_cells(self.layout)
        cells = sorted(self.tracked | self._queue.confirmed)
        write_atomically(self.layout.tracked, json.dumps(known | {self.uri: cells}))
        if done.report is None:
            self.behind = True
            return (
                f"MLflow fell behind: {done.missing} cells are not there ({done.trouble}; {self.layout.tracking_log}); "
                f"catch up with: {self._catch_up()}"
            )
        report = done.report
        removed = f", {report.removed} doubles removed" if report.removed else ""
        return (
            f"MLflow: {report.written} runs written, {report.already_there} there already, {report.replaced} replaced"
            f"{removed}; {report.seconds:.1f} s in the writer, {done.waited:.1f} s waited for"
        )

    @property
    def lacking(self) -> str | None:
        """What MLflow lacks of the cells that were recorded, and how it gets them; None if it lacks nothing."""
        n_cells = self._n_to_track - len(self._queue.confirmed)
        return f"cells that MLflow lacks: {n_cells}; catch up with: {self._catch_up()}" if n_cells > 0 else None

    def _catch_up(self) -> str:
        where = "" if self.uri == default_tracking_uri(self.layout.out) else f" --tracking-uri {self.place}"
        return f"unlearn sync --out {self.layout.out}{where}"

    def _send(self, place: Place) -> None:
        """The cells of a variant that MLflow lacks, with all seeds that the tree has of it."""
        if not (cells := self._unsent.pop(place, None)):
            return

        def load() -> TrackedVariant:
            stored = [_tracked_cell(folder, identity) for _, folder, identity in cells.values()]
            return TrackedVariant(*place, self._tree.entries(*place), stored)

        self._queue.add(Parcel(frozenset(cells), load, _count_runs(cells.values())))

    def _open_writer(self) -> LocalActor | RayActor:
        """The one that was started ahead; another one if that failed, or died."""
        ahead, self._starting = self._starting, None
        return self._start_tracker() if ahead is None else ahead.result()

    def _start_tracker(self) -> LocalActor | RayActor:
        self.layout.heartbeat.unlink(missing_ok=True)  # of another writer; before MLflow is loaded, which takes seconds
        arguments = (
            self.uri,
            self.layout.experiment,
            _artifacts(self.layout, self.uri),
            self.layout.heartbeat.absolute(),
        )
        if self._on_ray:
            from tasks.ray_backend import RayActor

            return RayActor("tracking.mlflow_tracker:MlflowTracker", *arguments)
        from tracking.mlflow_tracker import MlflowTracker

        return LocalActor(MlflowTracker, *arguments)


def _known_cells(layout: Layout) -> dict[str, list[str]]:
    """By tracking URI, the cells that MLflow has. Only saves looking: a damaged file is the same as none."""
    try:
        known = read_json(layout.tracked, {})
    except BadInput:
        return {}
    return {
        uri: cells
        for uri, cells in known.items()
        if isinstance(cells, list) and all(isinstance(cell, str) for cell in cells)
    }


def open_tracker(layout: Layout, tracking_uri: str | None, experiment: str) -> MlflowTracker:
    """The MLflow writer in this process."""
    from tracking.mlflow_tracker import MlflowTracker

    uri = tracking_uri or default_tracking_uri(layout.out)
    return MlflowTracker(uri, experiment, _artifacts(layout, uri))


def _artifacts(layout: Layout, uri: str) -> Path | None:
    """A server keeps artifacts where it was told to; a database alone needs a place."""
    return None if uri.startswith(("http://", "https://")) else layout.mlflow_artifacts


def sync(layout: Layout, tracking_uri: str | None, tell: Tell = lambda line: None) -> tuple[int, str, bool]:
    """Make the results tree and MLflow again from the store alone; how many cells, what the writer did, whether all.

    If a cell was run twice, the later run counts. ``tell`` is told what is waited for.
    """
    recorder = Recorder(layout, tracking_uri)
    recorder.tracked = set()
    latest: dict[tuple[Place, int], StoredCell] = {}
    for directory, done in sorted(recorder.store.records(Kind.AUDIT), key=lambda record: record[1]["finished"]):
        config = done["identity"]["config"]
        latest[_place(config), config["seed"]] = (directory.name, directory, done["identity"])
    with recorder.telling(tell):
        recorder.record_stored(list(latest.values()))
        said = recorder.finish()
    if (report := layout.out / "report").is_dir() and latest and not recorder.behind:
        said = f"{said}\n{log_report(layout, tracking_uri, report)}"
    return len(latest), said, not recorder.behind


def log_trials(tracker: MlflowTracker, tuning: Mapping[str, Any], trials: Iterable[Mapping[str, Any]]) -> None:
    """Trials of a tuning, all as ``tune`` writes them into its file."""
    for trial in trials:
        metrics = {name: value for name, value in trial.items() if isinstance(value, float)}
        params = {"method": tuning["method"], "archs": ",".join(tuning["archs"]), **trial["values"]}
        tracker.log_trial(f"{tuning['method']} trial {trial['trial']}", trial["id"], params, metrics)


def sync_trials(layout: Layout, tracking_uri: str | None) -> int:
    """Make the runs of all trials again from the files that ``tune`` wrote; how many there are."""
    tunings = {file: json.loads(file.read_text()) for file in sorted(layout.tuning.glob("*.json"))}
    for file, tuning in tunings.items():
        if any("id" not in trial for trial in tuning["trials"]):
            raise BadInput(
                f"{file} does not name its trials; run its 'unlearn tune' again, which computes nothing twice"
            )
    if tunings:
        tracker = open_tracker(layout, tracking_uri, layout.tuning_experiment)
        for tuning in tunings.values():
            log_trials(tracker, tuning, tuning["trials"])
    return sum(len(tuning["trials"]) for tuning in tunings.values())


def log_audit(tracker: MlflowTracker, audit: Mapping[str, Any]) -> None:
    """A run for every row of an audit, as ``audit`` writes it into its file."""
    shared = {name: audit[name] for name in ("dataset", "arch", "scenario", "key", "shadows", "fit", "epochs")}
    params = shared | {"preset": audit["settings"]["preset"]}
    for name, row in audit["results"].items():
        attack = row["ulira"].items()
        metrics = {f"ulira_{key}": value[0] for key, value in attack if key != "curve"}
        metrics |= {f"ulira_{key}_{end}": value[i] for key, value in attack if key != "curve" for i, end in ENDS}
        metrics |= {f"klom_{part}_{key}": value for part, found in row["klom"].items() for key, value in found.items()}
        metrics |= {key: value for key, value in row.get("scores", {}).items() if value is not None}
        metrics |= {f"n_{key}": value for key in ("drawn", "picked") if (value := row.get("stein", {}).get(key))}
        tracker.log_trial(f"{audit['scenario']}/{audit['key']} {name}", row["id"], params | {"method": name}, metrics)


def sync_audits(layout: Layout, tracking_uri: str | None) -> int:
    """Make the runs of all audits again from the files that ``audit`` wrote; how many audits there are."""
    audits, problems = read_audits(layout.audits)
    if problems:
        raise BadInput(f"{layout.audits}: {problems[0]}")
    if audits:
        tracker = open_tracker(layout, tracking_uri, layout.audit_experiment)
        for audit in audits:
            log_audit(tracker, audit.entry)
    return len(audits)


def _provenance(step_id: str, directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    """How an entry was made, so that a report needs nothing but the tree."""
    done = json.loads((directory / DONE).read_text())
    return {
        "step": step_id,
        "fingerprint": config["fingerprint"],
        "settings": without_nonfinite(config["settings"]),  # a cap may be infinite
        "versions": done.get("versions"),
    }


def _place(config: Mapping[str, Any]) -> Place:
    return Variant(config["dataset"], config["arch"], Scenario(config["scenario"]), config["key"]), config["backbone"]


def _rows(identity: Mapping[str, Any]) -> dict[str, str]:
    """The rows of a cell, each of which is a run in MLflow, and the steps that they come from."""
    return {row: step_id for row, step_id in identity["needs"].items() if row not in ("features", "images")}


def _count_runs(cells: Iterable[StoredCell]) -> int:
    return sum(len(_rows(identity)) for _, _, identity in cells)


def _tracked_cell(directory: Path, identity: dict[str, Any]) -> TrackedCell:
    config = identity["config"]
    return TrackedCell(
        variant=_place(config)[0],
        seed=config["seed"],
        entry=json.loads((directory / ENTRY).read_text()),
        step_ids=_rows(identity),
        dataset_fingerprint=config["fingerprint"],
        settings=config["settings"],
    )


def log_report(layout: Layout, tracking_uri: str | None, folder: Path) -> str:
    """Attach a report to the run of the grid itself; a line on what was done."""
    uri = tracking_uri or default_tracking_uri(layout.out)
    if tracking_uri is None and not Path(uri.removeprefix("sqlite:///")).exists():
        return "MLflow: the grid has no database, so the report is logged nowhere"
    tracker = open_tracker(layout, uri, layout.experiment)
    tracker.log_grid(layout.results)
    tracker.log_folder(folder)
    return f"MLflow: the report is an artifact of the run 'grid' in experiment '{layout.experiment}'"
