"""Register what a request made in MLflow, ready to be served."""

from __future__ import annotations

import argparse
import importlib
import shlex
import shutil
import sys
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
OURS = {"unlearn_core", "tasks", "tracking", "workflows", "tests", "benchmarks", "__main__"}
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
            _requirements(architecture),
            example,
            served(example),
        )
        try:
            address = register_model(
                arguments.register,
                model,
                [arguments.out / FILE_NAME, arguments.out / "certificate.html"],
                _metrics(outcome),
                {"outcome": outcome.judgement.outcome},
                uri,
                None if arguments.tracking_uri else arguments.out / "mlartifacts",
            )
        except MlflowException as error:
            reason = str(error).splitlines()[0]
            raise BadInput(f"{arguments.out} is written, but MLflow at {uri} refuses the model ({reason})") from error
    return f"registered: {address} in {uri}\nserve it: {_serving_command(address, uri)}"


def _serving_command(address: str, uri: str) -> str:
    """A line for the shell; MLflow starts its server by name, so that it must be on the path as well."""
    scripts = Path(sys.executable).parent
    found = shutil.which("mlflow")
    path = "" if found is not None and Path(found).parent == scripts else f"PATH={shlex.quote(str(scripts))}:$PATH "
    where = f"MLFLOW_TRACKING_URI={shlex.quote(uri)}"
    return f"{path}{where} mlflow models serve -m {shlex.quote(address)} --env-manager local"


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
    """The file or package that a factory lies in, and what of the same folder it has imported; nothing that is installed."""
    if architecture is None or ":" not in architecture or architecture.startswith(("timm:", "hf:")):
        return []
    module = importlib.import_module(architecture.partition(":")[0].partition(".")[0])
    place = Path(module.__path__[0]) if hasattr(module, "__path__") else Path(str(module.__file__))
    if place.is_relative_to(sysconfig.get_paths()["purelib"]):
        return []
    tops = {name.partition(".")[0] for name in sys.modules} - OURS
    beside = (place.parent / f"{top}{suffix}" for top in sorted(tops) for suffix in ("", ".py"))
    imported = [path for path in beside if path != place and path.exists() and _is_loaded(path)]
    return [place, *imported]


def _is_loaded(path: Path) -> bool:
    """Whether the module of this name is the one that lies here."""
    module = sys.modules.get(path.stem)
    places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    return str(path) in places


def _requirements(architecture: str | None) -> list[str]:
    library = {"timm:": ("timm", "torchvision"), "hf:": ("transformers",)}
    more = [name for prefix, names in library.items() if (architecture or "").startswith(prefix) for name in names]
    return [f"{name}=={metadata.version(name)}" for name in (*NEEDED, *more)]


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
