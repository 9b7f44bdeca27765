"""The tutorials: their commands run one after the other, and print what is shown."""

from __future__ import annotations

import contextlib
import doctest
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest

from tests.commands import unlearn
from tests.processes import Ended, run

ROOT = Path(__file__).resolve().parent.parent.parent
FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
WAITS = re.compile(r"^waiting for MLflow: .*\n", re.MULTILINE)
"""Said every few seconds until MLflow has written: on a busy machine, and on others never."""


def typed(command: str, folder: Path) -> Ended:
    """What becomes of a line of a shell; ``unlearn`` and ``python`` run in this process, which has loaded torch."""
    program, *words = shlex.split(command)
    if program == "unlearn":
        if words[0] == "sync":  # in one process, MLflow goes on with the database that was removed
            folder = shutil.copytree(folder, folder.parent / "moved")
        return unlearn(*words, cwd=folder)
    if program == "python":
        [script] = words
        with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            runpy.run_path(script, run_name="__main__")
        return Ended(0, "", "")
    return run(["sh", "-c", command], folder)


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", ["grid", "request"])
def test_a_tutorial_says_what_its_commands_print(tutorial, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    checker, checked = doctest.OutputChecker(), 0
    for fence in FENCE.finditer((ROOT / "docs" / "tutorials" / f"{tutorial}.md").read_text()):
        if title := re.search(r'title="([\w.]+)"', fence["kind"]):
            (folder / title[1]).write_text(fence["body"])
        elif fence["kind"] == "console":
            for part in re.split(r"^\$ ", fence["body"], flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                ended = typed(command, folder)
                assert ended.returncode == 0, ended.stderr
                said = WAITS.sub("", ended.stdout)
                assert checker.check_output(shown, said, SHOWN), f"$ {command}\n{said}"
                checked += 1
    assert checked >= 4
