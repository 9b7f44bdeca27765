"""Register what a request made in MLflow, ready to be served: from its certificate and the files that it names."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import unlearn_core
from tracking.tracked import default_tracking_uri
from unlearn_core.data.datasets import holds_images
from unlearn_core.data.feature_set import load_feature_set
from unlearn_core.data.images import load_image_file
from unlearn_core.data.labelled import LabelledSet
from unlearn_core.errors import BadInput, first_line
from unlearn_core.finalize import load_processor
from unlearn_core.forgetting.certificate import PAGE_NAME, read_certificate, verify_certificate
from unlearn_core.forgetting.model_files import load_logits, load_model
from unlearn_core.forgetting.serving import Served
from unlearn_core.forgetting.subject import LayerFeatures
from unlearn_core.nets.make import blueprint
from unlearn_core.problem import as_inputs

LOADER = "unlearn_core.forgetting.serving"
OURS = {"unlearn_core", "tasks", "tracking", "workflows", "tests", "benchmarks", "__main__"}
NEEDED: tuple[str, ...] = ("mlflow", "numpy", "safetensors", "scikit-learn", "scipy", "torch")
LAYER = re.compile(r"layer (.*) of the base model(, projected from [0-9]+ dimensions)?")
"""How a certificate says that proxies saw a layer's output."""
IN_USE = ("unlearned", "attempted", "unchanged", "base", "model")
"""Roles of the network that answers from now on; the first that there is."""


def check_name(name: str, option: str) -> None:
    if not name.strip() or set(name) & set("/:"):
        raise BadInput(f"{option} {name!r} is no name for MLflow; it is not empty and has no / or :")


def register(
    certificate: Path, name: str, tracking_uri: str | None, elsewhere: Mapping[str, Path] | None = None
) -> str:
    """Log and register the unlearned model, or the logit processor, once per name; returns what to say.

    A model that a function of the user's builds is built: their code runs.

    Args:
        certificate: of the request; it must hold, with all of its files.
        elsewhere: where the file of a role lies, if not where the certificate says.
    """
    elsewhere = elsewhere or {}
    for check in verify_certificate(certificate, elsewhere):
        if check.failed:
            raise BadInput(f"{certificate} does not hold ({check.what}: {check.detail}); nothing was registered")
    document = read_certificate(certificate)
    out, content = certificate.parent, document.content
    files = {file.role: elsewhere.get(file.role, out / file.path) for file in document.files}
    uri = tracking_uri or default_tracking_uri(out)
    try:
        served, given, row = _served(content, files)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{certificate} lacks what is served ({type(error).__name__}: {first_line(error)})") from error
    if served.net is None and served.processor is None:
        return "not registered: there is nothing to unlearn, so the black box answers as it did"
    # mlflow takes seconds to load
    from tracking.model_registry import REFUSALS, ServableModel, example_rows, find_version, register_model

    example = example_rows(given)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary, "served")
        folder.mkdir()
        served.save(folder, row)
        shutil.copy(certificate, folder)
        model = ServableModel(
            LOADER,
            folder,
            [Path(unlearn_core.__path__[0]), *_code(served.architecture)],
            _requirements(served.architecture),
            example,
            served(example),
        )
        pages = [page for page in (out / PAGE_NAME,) if page.is_file()]
        tags = {"certificate": document.digest}
        try:
            known = find_version(name, tags, uri)
            address = known or register_model(
                name,
                model,
                [certificate, *pages],
                _metrics(content),
                {**tags, "outcome": content["outcome"]},
                uri,
                None if tracking_uri else out / "mlartifacts",
            )
        except REFUSALS as error:
            raise BadInput(
                f"{out} is written, but MLflow at {uri} refuses the model ({first_line(error)}); mend that, then: "
                f"{_command(certificate, name, tracking_uri)}"
            ) from error
    before = " already" if known else ""
    return f"registered{before}: {address} in {uri}\nserve it: {_serving_command(address, uri)}"


def _command(certificate: Path, name: str, tracking_uri: str | None) -> str:
    """What registers it, once that is possible."""
    words = ["unlearn", "register", str(certificate), "--name", name]
    return shlex.join([*words, *(["--tracking-uri", tracking_uri] if tracking_uri else [])])


def _served(
    content: Mapping[str, Any], files: Mapping[str, Path]
) -> tuple[Served, NDArray | dict[str, NDArray], NDArray | None]:
    """What answers from now on, what it is asked with, and one input of the network."""
    load = load_image_file if holds_images(str(files["data"])) else load_feature_set
    data = load(files["data"], needs_test=False)
    seen = load_feature_set(files["features"], needs_test=False).train_x if "features" in files else data.train_x
    processor = load_processor(files["processor"]) if "processor" in files else None
    if "logits" in files:
        logits = load_logits(files["logits"], len(data.train_y), None).train
        return Served(None, None, processor), {"logits": logits.astype(np.float64), "features": seen}, None
    architecture = content["model"]["kind"]
    sample = as_inputs(data.train_x[:2])
    weights = next(files[role] for role in IN_USE if role in files)
    net = load_model(weights, blueprint(architecture), sample).net
    layer = LAYER.fullmatch(content["data"]["features"])
    source = None if layer is None or processor is None else LayerFeatures.of(net, layer.group(1), sample)
    inputs = _network_inputs(data)
    served = Served(net, architecture, processor, source)
    if processor is not None and "features" in files:
        return served, {"inputs": inputs, "features": seen}, inputs[0]
    return served, inputs, inputs[0]


def _network_inputs(data: LabelledSet) -> NDArray:
    """Rows in the type that networks read."""
    x = data.train_x
    return x if x.dtype == np.uint8 else x.astype(np.float32, copy=False)


def _serving_command(address: str, uri: str) -> str:
    """A line for the shell; MLflow starts its server by name, so that it must be on the path as well."""
    scripts = Path(sys.executable).parent
    found = shutil.which("mlflow")
    path = "" if found is not None and Path(found).parent == scripts else f"PATH={shlex.quote(str(scripts))}:$PATH "
    where = f"MLFLOW_TRACKING_URI={shlex.quote(uri)}"
    return f"{path}{where} mlflow models serve -m {shlex.quote(address)} --env-manager local"


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


def _metrics(content: Mapping[str, Any]) -> dict[str, float]:
    accuracy, moved = content["accuracy"], content["divergence"]["base_to_unlearned"]
    known = {
        "n_forget": content["request"]["n_forget"],
        "retained_accuracy_before": accuracy["before"]["retained"],
        "retained_accuracy": accuracy["after"]["retained"],
        "heldout_accuracy": accuracy["after"]["heldout"],
        "kl_base_unlearned_forget": moved["forget"],
        "kl_base_unlearned_heldout": moved["heldout"],
    }
    return {name: float(value) for name, value in known.items() if value is not None}
