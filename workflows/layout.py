"""Where a grid keeps its things below ``--out``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unlearn_core.errors import BadInput


class Layout:
    """Paths and names of one grid.

    Attributes:
        plan: the identities of the steps of the last plan or run, a line each.
        tuning: what ``tune`` tried of each method, a file each.
        tracked: which cells are in which MLflow store already, so that a cached rerun need not look.
        experiment: the MLflow experiment; one per grid.
    """

    def __init__(self, out: Path) -> None:
        self.out: Path = out
        self.store: Path = out / "store"
        self.results: Path = out / "results"
        self.figures: Path = out / "figures"
        self.tuning: Path = out / "tuning"
        self.failures: Path = out / "failures"
        self.status: Path = out / "status.json"
        self.plan: Path = out / "plan.jsonl"
        self.tracked: Path = out / "tracked.json"
        self.mlflow_artifacts: Path = out / "mlartifacts"
        self.experiment: str = f"unlearn-{out.resolve().name}"


def read_json(path: Path, default: Any) -> Any:
    return json.loads(path.read_text()) if path.exists() else default


def read_text(path: Path) -> str:
    if not path.is_file():
        raise BadInput(f"there is no file {path}")
    return path.read_text()
