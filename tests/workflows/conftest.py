"""What the tests of commands share: a Ray cluster of real processes, and a command run in this one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.commands import unlearn
from tests.processes import Running, running, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session", autouse=True)
def databases(new_databases_are_copies: None) -> None:
    """Commands make one wherever they track."""


@pytest.fixture(scope="session")
def ray_environment(tmp_path_factory) -> dict[str, str]:
    """The environment of every process that starts or joins a test cluster."""
    home = tmp_path_factory.mktemp("home")
    return {
        **os.environ,
        "HOME": str(home),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # Ray has workers give way to all else, and there are other tests
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture(scope="session")
def cluster(ray_environment) -> Iterator[str]:
    """The address of a head node with two CPUs; the cluster ends with its input, or when asked to."""
    script = (
        "import signal, sys\n"
        "from ray.cluster_utils import Cluster\n"
        "c = Cluster(initialize_head=True, head_node_args={'num_cpus': 2, 'include_dashboard': False,"
        # nobody reads its logs and it does not grow: two processes less that look around as long as it stands
        " 'include_log_monitor': False, 'no_monitor': True, 'object_store_memory': 200 * 2**20})\n"
        "signal.signal(signal.SIGTERM, lambda *_: (c.shutdown(), sys.exit()))\n"
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
    with running([sys.executable, "-c", script], environment=ray_environment) as process:
        # not on 127.0.0.1: Ray rewrites that to this machine's own address when a driver joins, and then waits for ever
        wait_until(lambda: "\n" in process.stdout, "a Ray cluster", process)
        yield ClusterHandle(process.stdout.splitlines()[0], process)
        process.stdin.close()
        process.wait()


class ClusterHandle(str):
    """The address, and the strings to pull: ``add`` a node, ``kill`` the last one added."""

    process: Running

    def __new__(cls, address: str, process: Running):
        handle = super().__new__(cls, address)
        handle.process = process
        return handle

    def ask(self, command: str) -> None:
        answered = self.process.stdout.count("ok\n")
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        wait_until(lambda: self.process.stdout.count("ok\n") > answered, f"'{command}' to be done", self.process)


class Answer(NamedTuple):
    code: object
    out: str
    err: str


@pytest.fixture
def unlearn_here() -> Callable[..., Answer]:
    """The command in this process: exit code, output, errors."""
    return lambda *arguments: Answer(*unlearn(*arguments))
