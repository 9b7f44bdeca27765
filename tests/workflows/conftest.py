"""What the tests of commands share: a Ray cluster of real processes, and a command run in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from workflows.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def ray_environment(tmp_path_factory) -> dict[str, str]:
    """The environment of every process that starts or joins a test cluster."""
    home = tmp_path_factory.mktemp("home")
    return {
        **os.environ,
        "HOME": str(home),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture(scope="session")
def cluster(ray_environment) -> Iterator[str]:
    """The address of a head node with two CPUs, in a process that is ended by its pid."""
    script = (
        "import ray, sys, time\n"
        "from ray.cluster_utils import Cluster\n"
        "c = Cluster(initialize_head=True, head_node_args={'num_cpus': 2, 'include_dashboard': False,"
        " 'object_store_memory': 200 * 2**20})\n"
        "print(c.address, flush=True)\n"
        "for line in sys.stdin:\n"
        "    word = line.split()\n"
        "    if word[0] == 'add':\n"
        "        node = c.add_node(num_cpus=int(word[1]), object_store_memory=100 * 2**20)\n"
        "    elif word[0] == 'kill':\n"
        "        c.remove_node(node, allow_graceful=False)\n"
        "    print('ok', flush=True)\n"
        "c.shutdown()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ray_environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    # not on 127.0.0.1: Ray rewrites that to this machine's own address when a driver joins, and then waits for ever
    yield ClusterHandle(process.stdout.readline().strip(), process)
    process.stdin.close()
    process.wait(timeout=60)
    process.stdout.close()


class ClusterHandle(str):
    """The address, and the strings to pull: ``add`` a node, ``kill`` the last one added."""

    process: subprocess.Popen[str]

    def __new__(cls, address: str, process: subprocess.Popen[str]):
        handle = super().__new__(cls, address)
        handle.process = process
        return handle

    def ask(self, command: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == "ok"


class Answer(NamedTuple):
    code: object
    out: str
    err: str


@pytest.fixture
def unlearn_here(capsys):
    """The command in this process, where a process of its own would show no more: exit code, output, errors."""

    def run(*arguments) -> Answer:
        capsys.readouterr()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with pytest.raises(SystemExit) as ending:
                main([str(argument) for argument in arguments])
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        said = capsys.readouterr()
        return Answer(ending.value.code, said.out, said.err)

    return run
