"""Models in MLflow's registry: a signature, an input example, and the certificate beside them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported; clusters are often offline
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # a bar for each of three small copies

import mlflow
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.models import infer_signature
from numpy.typing import NDArray

from tracking.mlflow_tracker import quiet_migration

EXPERIMENT = "unlearn-forget"
EXAMPLE_ROWS = 2
REFUSALS = (MlflowException, OSError)
"""What a server or a database that cannot be used ends in."""


@dataclass(frozen=True, eq=False)
class ServableModel:
    """What a served model is made of.

    Attributes:
        loader: the module whose ``_load_pyfunc`` makes it from a folder.
        folder: that folder.
        code: packages and modules that it imports, copied along.
        requirements: what it needs installed.
        example, answer: a few inputs and the model's own answer to them.
    """

    loader: str
    folder: Path
    code: Sequence[Path]
    requirements: Sequence[str]
    example: NDArray | Mapping[str, NDArray]
    answer: NDArray


def find_version(name: str, tags: Mapping[str, str], tracking_uri: str) -> str | None:
    """The address of a version that was registered before by a run with these tags."""
    with _talking_to(tracking_uri):
        client, experiment = mlflow.MlflowClient(), mlflow.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            return None
        wanted = " and ".join(f"tags.{tag} = '{value}'" for tag, value in tags.items())
        for run in client.search_runs([experiment.experiment_id], wanted):
            for version in client.search_model_versions(f"run_id = '{run.info.run_id}'"):
                if version.name == name:
                    return f"models:/{name}/{version.version}"
    return None


def register_model(
    name: str,
    model: ServableModel,
    certificate: Sequence[Path],
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
    tracking_uri: str,
    artifact_root: Path | None,
) -> str:
    """Log a model, register it, and return its address, ``models:/NAME/VERSION``.

    Args:
        certificate: files that become artifacts of the run.
        artifact_root: the folder for the files of a new experiment; None: the server chooses.
    """
    with _talking_to(tracking_uri), _run(f"forget for {name}", artifact_root, tags):
        mlflow.log_metrics(dict(metrics))
        for path in certificate:
            mlflow.log_artifact(str(path))
        version = _log(name, model)
    return f"models:/{name}/{version}"


def _log(name: str, model: ServableModel) -> str:
    """Log the model into the active run; returns its version in the registry."""
    info = mlflow.pyfunc.log_model(
        name="model",
        loader_module=model.loader,
        data_path=str(model.folder),
        code_paths=[str(path) for path in model.code],
        pip_requirements=list(model.requirements),
        signature=infer_signature(_plain(model.example), model.answer),
        input_example=_plain(model.example),
        registered_model_name=name,
    )
    return str(info.registered_model_version)


def example_rows(values: Mapping[str, NDArray] | NDArray) -> NDArray | dict[str, NDArray]:
    """The first rows, for the input example."""
    if isinstance(values, Mapping):
        return {name: np.asarray(value[:EXAMPLE_ROWS]) for name, value in values.items()}
    return np.asarray(values[:EXAMPLE_ROWS])


def _plain(example: NDArray | Mapping[str, NDArray]) -> Any:
    return dict(example) if isinstance(example, Mapping) else example


def _experiment(artifact_root: Path | None) -> str:
    found = mlflow.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return found.experiment_id
    return mlflow.create_experiment(EXPERIMENT, None if artifact_root is None else artifact_root.absolute().as_uri())


@contextmanager
def _run(name: str, artifact_root: Path | None, tags: Mapping[str, str]) -> Iterator[None]:
    """A run that is marked as failed if anything inside it raises."""
    with mlflow.start_run(experiment_id=_experiment(artifact_root), run_name=name, tags=dict(tags)):
        yield


@contextmanager
def _talking_to(tracking_uri: str) -> Iterator[None]:
    """Sets MLflow's process-wide address for the time of a call, and silences its reports of every step."""
    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    logger = logging.getLogger("mlflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with quiet_migration():
            mlflow.set_tracking_uri(tracking_uri)
            mlflow.set_registry_uri(tracking_uri)
            yield
    finally:
        logger.setLevel(level)
        mlflow.set_tracking_uri(before[0])
        mlflow.set_registry_uri(before[1])
