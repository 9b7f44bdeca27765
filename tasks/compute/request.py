"""A deletion request as a step: the command in a process of its own, so that no model's code meets another's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.cache import Cache
from tasks.step import Step
from tasks.store import Store
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.certificate import NOT_UNLEARNED

CERTIFICATE = "certificate.json"
OUTPUT = "output.txt"


def compute_request(steps: Sequence[Step], store: Store, cache: Cache) -> list[Callable[[Path], None]]:
    return [_writer(_answer(step)) for step in steps]


def _writer(said: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / OUTPUT).write_text(said, encoding="utf-8")

    return write


def _answer(step: Step) -> str:
    """What the command said; a request whose certificate is there already is not made again."""
    certificate = Path(step.hints["out"]) / CERTIFICATE
    if _is_certified(certificate, step.config["files"]):
        return "certified before\n"
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    # -P: what lies in the folder of the models must not be taken for a package of ours
    command = [sys.executable, "-P", "-m", "workflows", "forget", *step.hints["arguments"]]
    ended = subprocess.run(
        command,
        cwd=step.hints["folder"],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if ended.returncode == 0 or (ended.returncode == 1 and _is_certified(certificate, step.config["files"])):
        return ended.stdout  # 1 with a certificate: it says that the records were not unlearned
    raise BadInput(_reason(ended))


def _reason(ended: subprocess.CompletedProcess[str]) -> str:
    """Why there is no certificate: that the records were not unlearned is said as output, all else as an error."""
    outcomes = [line for line in ended.stdout.splitlines() if line.startswith(NOT_UNLEARNED)]
    if ended.returncode == 1 and outcomes:
        return outcomes[-1]
    lines = [line for line in (ended.stderr or ended.stdout).splitlines() if line.strip()]
    reason = lines[-1].removeprefix("unlearn: ") if lines else "it said nothing"
    return f"{reason} (exit code {ended.returncode})"


def _is_certified(certificate: Path, files: dict[str, str]) -> bool:
    """Whether a certificate is there, of the very files that this step is about."""
    try:
        named = json.loads(certificate.read_bytes())["certificate"]["files"]
        known = {file["sha256"] for file in named}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return set(files.values()) <= known
