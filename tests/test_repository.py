"""The repository as a whole: its packages are its own, its torch pair matches, its README is true."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.commands import unlearn
from tests.processes import run

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("package", ["unlearn_core", "tasks", "tracking", "workflows"])
def test_packages_lie_in_this_repository(package):
    """``tracking`` and ``workflows`` are common names: an installed stranger would shadow ours silently."""
    module = importlib.import_module(package)
    assert module.__file__ is not None
    assert Path(module.__file__).resolve().is_relative_to(ROOT)


def test_tests_have_no_init_files():
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_tests_start_processes_in_one_place():
    """``tests.processes`` ends what it starts, within limits."""
    imports = re.compile(r"^\s*(import|from) subprocess\b", re.MULTILINE)
    found = {path.name for path in (ROOT / "tests").rglob("*.py") if imports.search(path.read_text())}
    assert found == {"processes.py"}


def test_weights_are_written_in_one_place():
    """``save_safetensors`` takes any memory format, as networks on GPUs have it; safetensors itself does not."""
    packages = ("unlearn_core", "tasks", "tracking", "workflows")
    files = (path for package in packages for path in (ROOT / package).rglob("*.py"))
    found = {path.relative_to(ROOT).as_posix() for path in files if re.search(r"\bsave_file\b", path.read_text())}
    assert found == {"unlearn_core/data/weights.py"}


def test_all_that_is_installed_for_the_project_is_constrained():
    """By name; torch names its CUDA libraries exactly itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.M)
    }
    extras = project["optional-dependencies"]
    texts = (*project["dependencies"], *extras["dev"], *extras["docs"])
    wanted = [Requirement(text) for text in texts if not text.startswith(project["name"])]  # dev has docs
    pulled: dict[str, set[str]] = {}
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name.startswith(("nvidia-", "cuda-", "triton")) or (name in pulled and requirement.extras <= pulled[name]):
            continue
        pulled[name] = pulled.get(name, set()) | requirement.extras
        wanted += [
            needed
            for needed in map(Requirement, metadata.requires(name) or ())
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *pulled[name]))
        ]
    assert len(pulled) > len(project["dependencies"])
    assert set(pulled) - pinned == set()


def test_torch_and_torchvision_are_one_pair_that_works():
    torch = importlib.import_module("torch")
    ops = importlib.import_module("torchvision.ops")
    boxes = torch.tensor([[0.0, 0, 1, 1], [0, 0, 1, 1], [5, 5, 6, 6]])
    assert ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist() == [0, 2]


def test_records_and_specs_load_without_torch():
    modules = ("records", "methods", "problem", "target", "grid", "recipes", "auto")
    imports = ", ".join(f"unlearn_core.{name}" for name in modules)
    code = f"import sys, tracking.tables.benchmark, {imports}; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-c", code], ROOT).returncode == 0


def test_the_readme_names_commands_and_files_that_exist():
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make (\w+)", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for path in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / path).exists(), path
    names = ("run", "grid", "plan", "features", "tune", "report", "ui", "prepare", "forget", "verify")
    known = "".join(unlearn(name, "--help").stdout for name in names)
    for option in set(re.findall(r"--[a-z][a-z-]+", text)):
        assert option in known, option
