"""Where a grid keeps its things below ``--out``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from unlearn_core.errors import BadInput, first_line


class Layout:
    """Paths and names of one grid.

    Attributes:
        plan: the identities of the steps of the last plan or run, a line each.
        tuning: what ``tune`` tried of each method, a file each.
        audits: what ``audit`` found of each variant, a file each.
        lock: who drives the folder now; there while a driver runs.
        tracked: which cells are in which MLflow store already, so that a cached rerun need not look.
        heartbeat: the MLflow writer's last sign of life; there while one writes.
        experiment: the MLflow experiment; one per grid.
        tuning_experiment: the one that has a run for every trial.
        audit_experiment: the one that has a run for every method of an audit.
    """

    def __init__(self, out: Path) -> None:
        self.out: Path = out
        self.store: Path = out / "store"
        self.results: Path = out / "results"
        self.figures: Path = out / "figures"
        self.tuning: Path = out / "tuning"
        self.audits: Path = out / "audit"
        self.failures: Path = out / "failures"
        self.status: Path = out / "status.json"
        self.lock: Path = out / "driver.lock"
        self.plan: Path = out / "plan.jsonl"
        self.tracked: Path = out / "tracked.json"
        self.heartbeat: Path = out / "mlflow-writer.json"
        self.tracking_log: Path = self.failures / "mlflow.txt"
        self.mlflow_artifacts: Path = out / "mlartifacts"
        self.experiment: str = f"unlearn-{out.resolve().name}"
        self.tuning_experiment: str = f"{self.experiment}-tuning"
        self.audit_experiment: str = f"{self.experiment}-audit"


def read_json(path: Path, default: Any) -> Any:
    """An object that this software wrote; ``default`` if it is not there."""
    if not path.exists():
        return default
    try:
        known = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is damaged ({first_line(error)}); remove it, it is made again") from error
    if not isinstance(known, dict):
        raise BadInput(f"{path} is damaged (it holds no object); remove it, it is made again")
    return known


def read_text(path: Path) -> str:
    if not path.is_file():
        raise BadInput(f"there is no file {path}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text ({error.reason}, byte {error.start}); write it as text") from error


def check_folder(out: Path, option: str = "--out") -> None:
    """Refuse, before any work is done, a folder that cannot be made or written."""
    place = out.absolute()
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise BadInput(f"cannot write to {out}: {place} is no folder that can be written; name another {option}")
