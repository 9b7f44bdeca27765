"""Register what a request made in MLflow, ready to be served."""

from __future__ import annotations

import argparse
import importlib
import shutil
import sysconfig
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

import unlearn_core
from tracking.tracked import default_tracking_uri
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.certificate import FILE_NAME
from unlearn_core.forgetting.content import Outcome
from unlearn_core.forgetting.forget import Forgotten
from unlearn_core.forgetting.serving import Served
from workflows.deletion import Files

LOADER = "unlearn_core.forgetting.serving"
NEEDED: tuple[str, ...] = ("mlflow", "numpy", "safetensors", "scikit-learn", "scipy", "torch")


def register(files: Files, result: Forgotten, arguments: argparse.Namespace) -> str:
    """Log and register the unlearned model, or the logit processor; returns what to say."""
    # mlflow takes seconds to load
    from mlflow.exceptions import MlflowException

    from tracking.model_registry import ServableModel, example_rows, register_model

    net, outcome = result.deployed, result.outcome
    processor = result.logit_processor if outcome.processed else None
    if net is None and processor is None:
        return "not registered: there is nothing to unlearn, so the black box answers as it did"
    architecture = None if files.model is None else files.model.blueprint.name
    layer = None if processor is None else outcome.plan.subject.feature_source
    served = Served(net, architecture, processor, layer)
    example = example_rows(_inputs(files, outcome, served))
    uri = arguments.tracking_uri or default_tracking_uri(arguments.out)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary, "served")
        folder.mkdir()
        served.save(folder, None if net is None else _network_inputs(files)[0])
        shutil.copy(arguments.out / FILE_NAME, folder)
        model = ServableModel(
            LOADER,
            folder,
            [Path(unlearn_core.__path__[0]), *_code(architecture)],
            _requirements(),
            example,
            served(example),
        )
        try:
            address = register_model(
                arguments.register,
                model,
                [arguments.out / FILE_NAME, arguments.out / "certificate.html"],
                _metrics(outcome),
                {"outcome": "unlearned" if outcome.unlearned else "nothing to unlearn"},
                uri,
                None if arguments.tracking_uri else arguments.out / "mlartifacts",
            )
        except MlflowException as error:
            reason = str(error).splitlines()[0]
            raise BadInput(f"{arguments.out} is written, but MLflow at {uri} refuses the model ({reason})") from error
    return f"registered: {address} in {uri}\nserve it: mlflow models serve -m {address} --env-manager local"


def _network_inputs(files: Files) -> NDArray:
    """Rows in the type that networks read."""
    x = files.data.train_x
    return x if x.dtype == np.uint8 else x.astype(np.float32, copy=False)


def _inputs(files: Files, outcome: Outcome, served: Served) -> NDArray | dict[str, NDArray]:
    """What the served model is asked with."""
    train = outcome.plan.subject.train
    if served.net is None:
        return {"logits": train.base_logits, "features": train.features}
    if served.processor is not None and "features" in files.places:
        return {"inputs": _network_inputs(files), "features": train.features}
    return _network_inputs(files)


def _code(architecture: str | None) -> list[Path]:
    """The file or package that a factory lies in, unless it is installed."""
    if architecture is None or ":" not in architecture:
        return []
    module = importlib.import_module(architecture.partition(":")[0].partition(".")[0])
    place = Path(module.__path__[0]) if hasattr(module, "__path__") else Path(str(module.__file__))
    installed = place.is_relative_to(sysconfig.get_paths()["purelib"])
    return [] if installed else [place]


def _requirements() -> list[str]:
    return [f"{name}=={metadata.version(name)}" for name in NEEDED]


def _metrics(outcome: Outcome) -> dict[str, float]:
    measured = outcome.measured
    known = {
        "n_forget": float(outcome.plan.n_forget),
        "retained_accuracy_before": measured.before.retained,
        "retained_accuracy": measured.after.retained,
        "heldout_accuracy": measured.after.heldout,
        "kl_base_unlearned_forget": measured.from_base.forget,
        "kl_base_unlearned_heldout": measured.from_base.heldout,
    }
    return {name: value for name, value in known.items() if value is not None and np.isfinite(value)}
