"""What the MLflow writer takes and returns. Apart from it because importing mlflow takes seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearn_core.grid import Variant


@dataclass(frozen=True)
class TrackedCell:
    """A finished cell, to be written as MLflow runs.

    ``entry`` is the seed entry of the results tree; ``step_ids`` names, for every row of it, the step that made the row;
    ``settings`` is JSON, nested or flat, and becomes the parameters of every run.
    """

    variant: Variant
    seed: int
    entry: dict[str, Any]
    step_ids: Mapping[str, str]
    dataset_fingerprint: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class TrackedVariant:
    """Cells of one variant that are to be written, and all of its seeds in the results tree, for what is said over seeds."""

    variant: Variant
    backbone: str
    entries: Sequence[dict[str, Any]]
    cells: Sequence[TrackedCell]


@dataclass(frozen=True)
class TrackerReport:
    """Runs of rows: new ones, untouched ones, ones written in the place of a stale or half-written one."""

    written: int
    already_there: int
    replaced: int
    seconds: float
    """Time spent inside the tracker, opening the database included."""
    removed: int = 0
    """Runs that were there twice: an answer of the server got lost, and the request was made again."""


def default_tracking_uri(out: Path) -> str:
    """The SQLite file of an output folder."""
    return f"sqlite:///{out.absolute() / 'mlflow.db'}"
