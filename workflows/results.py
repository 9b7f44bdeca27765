"""Finished cells into the results tree and MLflow. Both are projections: ``sync`` makes them again from the store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tasks.files import ENTRY
from tasks.step import Kind, Step
from tasks.store import DONE, Store
from tracking.files import write_atomically
from tracking.results_tree import write_entries
from tracking.tracked import TrackedCell, TrackerReport, default_tracking_uri
from unlearn_core.spec import Scenario, Variant
from workflows.layout import Layout, read_json

BACKLOG = 64
"""Cells that may wait for the MLflow writer before the driver waits for it."""


class Recorder:
    """Takes finished audit steps; one writer, on Ray an actor of its own, so that no worker ever waits for MLflow."""

    def __init__(self, layout: Layout, tracking_uri: str | None, track: bool = True) -> None:
        self.layout: Layout = layout
        self.store: Store = Store(layout.store)
        self.uri: str = tracking_uri or default_tracking_uri(layout.out)
        self.track: bool = track
        self.tracked: set[str] = set(read_json(layout.tracked, {}).get(self.uri, []))
        self._tracker: Any = None
        self._on_ray: bool = False
        self._pending: list[tuple[str, Any]] = []
        self._waited: float = 0.0

    def use_ray(self, on_ray: bool) -> None:
        self._on_ray = on_ray

    def record(self, cells: Iterable[Step]) -> None:
        """Put cells whose audit is in the store into the tree and, unless they are there already, into MLflow."""
        self.record_stored([(step.id, self.store.path(step), step.identity) for step in cells])

    def record_stored(self, cells: Sequence[tuple[str, Path, dict[str, Any]]]) -> None:
        by_variant: dict[tuple[Variant, str], list[dict[str, Any]]] = {}
        for step_id, directory, identity in cells:
            cell = _tracked_cell(step_id, directory, identity)
            entry = cell.entry | {"provenance": _provenance(step_id, directory, identity["config"])}
            by_variant.setdefault((cell.variant, identity["config"]["backbone"]), []).append(entry)
            if self.track and step_id not in self.tracked:
                self._send(step_id, cell)
        for (variant, backbone), entries in by_variant.items():
            write_entries(self.layout.results, variant, backbone, entries)

    def finish(self) -> str:
        """Wait for the writer; a line on what it did and what that cost."""
        if self._tracker is None:
            return "MLflow: nothing new" if self.track else "MLflow: not tracked"
        started = time.perf_counter()
        self._drain(0)
        report: TrackerReport
        if self._on_ray:
            import ray

            report = ray.get(self._tracker.report.remote())
            ray.kill(self._tracker)
        else:
            report = self._tracker.report()
        self._waited += time.perf_counter() - started
        known = read_json(self.layout.tracked, {})
        write_atomically(self.layout.tracked, json.dumps(known | {self.uri: sorted(self.tracked)}))
        return (
            f"MLflow: {report.written} runs written, {report.already_there} there already, {report.replaced} replaced; "
            f"{report.seconds:.1f} s in the writer, {self._waited:.1f} s waited for"
        )

    def _send(self, step_id: str, cell: TrackedCell) -> None:
        if self._tracker is None:
            self._tracker = self._make_tracker()
        if not self._on_ray:
            self._tracker.log_cell(cell)
            self.tracked.add(step_id)
            return
        self._pending.append((step_id, self._tracker.log_cell.remote(cell)))
        started = time.perf_counter()
        self._drain(BACKLOG)
        self._waited += time.perf_counter() - started

    def _drain(self, allowed: int) -> None:
        import ray

        while len(self._pending) > allowed:
            step_id, ref = self._pending.pop(0)
            ray.get(ref)
            self.tracked.add(step_id)

    def _make_tracker(self) -> Any:
        from tracking.mlflow_tracker import MlflowTracker

        # a server keeps artifacts where it was told to; a database alone needs a place
        artifacts = None if self.uri.startswith(("http://", "https://")) else self.layout.mlflow_artifacts
        arguments = (self.uri, self.layout.experiment, artifacts)
        if not self._on_ray:
            return MlflowTracker(*arguments)
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # beside the driver: the default database is a file there
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return ray.remote(MlflowTracker).options(num_cpus=0, scheduling_strategy=here).remote(*arguments)


def sync(layout: Layout, tracking_uri: str | None) -> tuple[int, str]:
    """Make the results tree and MLflow again from the store alone; how many cells, and what the writer did."""
    recorder = Recorder(layout, tracking_uri)
    recorder.tracked = set()
    stored = list(recorder.store.records(Kind.AUDIT))
    stored.sort(key=lambda record: record[1]["finished"])  # where a cell was run twice, the later run counts
    recorder.record_stored([(directory.name, directory, done["identity"]) for directory, done in stored])
    return len(stored), recorder.finish()


def _provenance(step_id: str, directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    """How an entry was made, so that a report needs nothing but the tree."""
    done = json.loads((directory / DONE).read_text())
    return {
        "step": step_id,
        "fingerprint": config["fingerprint"],
        "settings": config["settings"],
        "versions": done.get("versions"),
    }


def _tracked_cell(step_id: str, directory: Path, identity: dict[str, Any]) -> TrackedCell:
    config, needs = identity["config"], identity["needs"]
    return TrackedCell(
        variant=Variant(config["dataset"], config["arch"], Scenario(config["scenario"]), config["key"]),
        seed=config["seed"],
        entry=json.loads((directory / ENTRY).read_text()),
        step_ids={row: needs[row] for row in needs if row not in ("features", "statistics")},
        dataset_fingerprint=config["fingerprint"],
        settings=config["settings"],
    )


def log_report(layout: Layout, tracking_uri: str | None, folder: Path) -> str:
    """Attach a report to the run of the grid itself; a line on what was done."""
    uri = tracking_uri or default_tracking_uri(layout.out)
    if tracking_uri is None and not Path(uri.removeprefix("sqlite:///")).exists():
        return "MLflow: the grid has no database, so the report is logged nowhere"
    from tracking.mlflow_tracker import MlflowTracker

    artifacts = None if uri.startswith(("http://", "https://")) else layout.mlflow_artifacts
    tracker = MlflowTracker(uri, layout.experiment, artifacts)
    tracker.log_folder(folder)
    return f"MLflow: the report is an artifact of the run 'grid' in experiment '{layout.experiment}'"
