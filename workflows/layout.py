"""Where a grid keeps its things below ``--out``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearn_core.errors import BadInput


@dataclass(frozen=True)
class Layout:
    out: Path

    @property
    def store(self) -> Path:
        return self.out / "store"

    @property
    def results(self) -> Path:
        return self.out / "results"

    @property
    def figures(self) -> Path:
        return self.out / "figures"

    @property
    def failures(self) -> Path:
        return self.out / "failures"

    @property
    def status(self) -> Path:
        return self.out / "status.json"

    @property
    def plan(self) -> Path:
        """The identities of the steps of the last plan or run, a line each."""
        return self.out / "plan.jsonl"

    @property
    def tracked(self) -> Path:
        """Which cells are in which MLflow store already, so that a cached rerun need not look."""
        return self.out / "tracked.json"

    @property
    def mlflow_artifacts(self) -> Path:
        return self.out / "mlartifacts"

    @property
    def experiment(self) -> str:
        """The MLflow experiment: one per grid."""
        return f"unlearn-{self.out.resolve().name}"


def read_json(path: Path, default: Any) -> Any:
    return json.loads(path.read_text()) if path.exists() else default


def read_text(path: Path) -> str:
    if not path.is_file():
        raise BadInput(f"there is no file {path}")
    return path.read_text()
