"""Reading and showing results is light: no torch, no Ray, and MLflow only in the modules that talk to it."""

from __future__ import annotations

import json
import pkgutil
import sys

import tracking
from tests.processes import run

HEAVY = ("torch", "ray", "mlflow")
TALK_TO_MLFLOW = {"tracking.mlflow_tracker", "tracking.mlflow_writers", "tracking.model_registry"}


def loaded_by(modules: set[str]) -> list[str]:
    code = (
        f"import importlib, json, sys\nfor name in {sorted(modules)!r}: importlib.import_module(name)\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    return json.loads(run([sys.executable, "-c", code]).stdout)


def test_mlflow_is_imported_by_its_modules_only_and_torch_and_ray_by_none():
    modules = {module.name for module in pkgutil.walk_packages(tracking.__path__, "tracking.")}
    assert modules > TALK_TO_MLFLOW
    assert loaded_by(modules - TALK_TO_MLFLOW) == []
    assert loaded_by(TALK_TO_MLFLOW) == ["mlflow"]
