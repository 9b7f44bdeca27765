"""A real worker of a real Ray falls ill: it may open no more files. Its steps run elsewhere, and it is named."""

from __future__ import annotations

import re
import sys

import pytest

from tests.processes import run

SCRIPT = """
import re, resource, sys
from pathlib import Path
from tasks.executor import execute
from tasks.ray_backend import Placement, RayBackend, ray_session
from tasks.state import State
from tasks.step import Kind, Step
with ray_session(None) as watch:
    backend = RayBackend(Path(sys.argv[1]), Placement(workers=2, cpus=1, gpus=0.0), watch)
    while len(backend.idle()) < 2:
        backend.wait(1.0)
    steps = [Step(Kind.PROJECTION, {"layer": "layer3", "size": 32, "dim": 4, "draw": draw}) for draw in range(30)]
    warm = State(steps[:8])  # both have computed something: what follows is not their first import
    execute(warm, backend, lambda step: None, lambda state: None)
    pid = int(re.match(r"process (\\d+) on ", backend.name(backend.idle()[0]))[1])
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0))
    state = State(steps[8:])
    execute(state, backend, lambda step: None, lambda state: None)
    print("failed", len(state.failures), "done", len(state.done), "sick", pid, flush=True)
    print(*state.set_aside, sep="\\n", flush=True)
    backend.close()
"""


@pytest.mark.slow
def test_a_worker_that_can_open_no_file_is_set_aside(ray_environment, tmp_path):
    ended = run([sys.executable, "-c", SCRIPT, tmp_path / "store"], environment=ray_environment)
    assert ended.returncode == 0, ended.stderr
    counts, *set_aside = ended.stdout.splitlines()
    sick = re.fullmatch(r"failed 0 done 22 sick (\d+)", counts)
    assert sick, ended.stdout
    assert len(set_aside) == 1
    assert set_aside[0].startswith(f"process {sick[1]} on "), set_aside
    assert "is set aside, and a new one starts: steps failed on it that succeeded elsewhere" in set_aside[0]
    assert "OSError" in set_aside[0]
