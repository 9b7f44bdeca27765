"""A driver and its cluster: refused within a minute, lost within a minute, on loopback only; always one line."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tasks.ray_session import Servers, _children, limited
from tests.commands import unlearn
from tests.processes import free_port, run, running, wait_until
from unlearn_core.errors import BadInput

GRID = (
    "--dataset", "digits", "--arch", "linear", "--scenario", "class", "--key", "0,1,2,3", "--seeds", "0,42",
    "--methods", "lda-2c,ga", "--epochs", "50", "--no-tracking",
)  # fmt: skip


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:{port}", r"no Ray answers at 127.0.0.1:{port} (Connection refused); check host and port"),
        ("ray://127.0.0.1:{port}", r"no Ray answers at ray://127.0.0.1:{port} (Connection refused)"),
        ("no.such.host.invalid:6379", "no Ray answers at no.such.host.invalid:6379 ("),
        (
            "auto",
            "--address auto is for a command that runs as a Ray job ('ray job submit'); elsewhere give the head's",
        ),
        ("head", "--address head is no HOST:PORT; give the head's, such as 10.0.0.1:6379"),
    ],
)
def test_a_cluster_that_is_not_there_is_refused_at_once(tmp_path, monkeypatch, address, said):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    port = free_port()
    ended = unlearn("grid", *GRID, "--out", tmp_path, "--address", address.format(port=port))
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert said.format(port=port) in ended.stderr


def listening(pids: list[int]) -> set[str]:
    """The addresses that processes listen on, as the kernel has them."""
    sockets = set()
    for pid in pids:
        try:
            sockets |= {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
        except OSError:
            continue
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                found.add(words[1].partition(":")[0])
    return found


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.mark.slow
def test_a_local_ray_listens_on_loopback_only_and_a_driver_that_lost_it_ends_and_says_how_to_resume(
    tmp_path, ray_environment
):
    out = tmp_path / "grid"
    # it must not have ended before its raylet is killed, on a busy machine either
    long = (*("0" if word == "0,1,2,3" else word for word in GRID), "--epochs", "300")
    command = [sys.executable, "-m", "workflows", "grid", *long, "--out", out, "--workers", "2"]
    with running(command, environment=ray_environment) as driver:
        wait_until(lambda: driver.started("ray::Worker"), "a worker", driver)
        found = listening(driver.marked())
        assert found
        assert found <= LOOPBACK
        [raylet] = driver.started("raylet")
        os.kill(raylet, signal.SIGKILL)
        assert driver.wait() != 0
        assert "rerun the same command to resume" in driver.stderr
        assert "Traceback" not in driver.stderr
    ended = run(command, environment=ray_environment, seconds=600)
    assert ended.returncode == 0, ended.stderr
    assert " 0 failed" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("server", "said"), [("gcs_server", "its GCS died"), ("raylet", "its raylet died")])
def test_a_driver_whose_ray_dies_while_it_starts_ends_with_one_line(tmp_path, ray_environment, server, said):
    """Ray itself would wait for a minute, and then end the driver in its own words."""
    command = [sys.executable, "-m", "workflows", "grid", *GRID, "--out", tmp_path / "grid", "--workers", "1"]
    with running(command, environment=ray_environment) as driver:
        wait_until(lambda: driver.started("raylet"), "a raylet, which the driver then waits for", driver)
        [victim] = driver.started(server)
        os.kill(victim, signal.SIGKILL)
        assert driver.wait() == 2
        assert "Traceback" not in driver.stderr
        line = driver.stderr.splitlines()[-1]  # Ray may have said before what it waits for
        assert line.startswith("unlearn: a local Ray did not start")
        assert "rerun the same command to resume" in line
        assert line.endswith(f"({said})")


def test_a_server_that_died_is_noticed(tmp_path):
    """By its name among the processes that this one started, whoever asked after it first."""
    pretended = tmp_path / "gcs_server"
    pretended.symlink_to(shutil.which("sleep") or pytest.skip("there is no `sleep`"))
    with running([pretended, "600"]) as earlier:
        wait_until(lambda: any(name == "gcs_server" for _, name, _ in _children()), "its name", earlier)
        servers = Servers()
        earlier.send_signal(signal.SIGKILL)
        earlier.wait()
        assert servers.lost() is None, "one of an earlier Ray"
        with running([pretended, "600"]) as server:
            wait_until(lambda: any(name == "gcs_server" for _, name, _ in _children()), "its name", server)
            assert servers.lost() is None
            server.send_signal(signal.SIGKILL)
            wait_until(servers.lost, "its death to be seen")
            assert servers.lost() == "its GCS died"
            server.wait()
            assert servers.lost() == "its GCS died"


@pytest.mark.parametrize("fails", [False, True])
def test_a_wait_for_what_is_lost_ends_within_its_block(fails):
    """Also if the block ends just then: the interrupt strikes nothing that comes after it."""
    for _ in range(3):
        known = threading.Event()

        def lost(known: threading.Event = known) -> str:
            known.set()
            return "it died"

        with pytest.raises(BadInput, match=r"^no start \(it died\)$|^of its own$"), limited(600.0, "no start", lost):  # noqa: PT012
            if fails:
                known.wait()
                raise BadInput("of its own")
            time.sleep(600)


class SlowToGo:
    """Its end takes long, as a logger's handlers' may while Ray starts: Python drops whatever is raised in it."""

    def __init__(self, ended: list[str]) -> None:
        self._ended: list[str] = ended

    def __del__(self) -> None:
        try:
            time.sleep(20)
        except KeyboardInterrupt:
            self._ended.append("struck")
            raise


def test_an_interrupt_that_python_drops_is_sent_again_and_prints_nothing(capfd, recwarn):
    ended: list[str] = []
    with pytest.raises(BadInput, match=r"^no start \(it died\)$"), limited(600.0, "no start", lambda: "it died"):  # noqa: PT012
        SlowToGo(ended)
        ended.append("went on")
        time.sleep(10)
    assert ended == ["struck", "went on"], "the first interrupt was dropped, the second was not"
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list, "nor was Python told to report it"


def test_what_else_fails_in_a_finalizer_is_reported_as_ever(monkeypatch):
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(what.exc_type))

    class Fails:
        def __del__(self) -> None:
            raise ZeroDivisionError

    with limited(600.0, "no start"):
        Fails()
    Fails()
    assert reported == [ZeroDivisionError, ZeroDivisionError]


@pytest.mark.slow
def test_a_forgotten_token_is_told(tmp_path, ray_environment):
    script = (
        "import sys; from ray.cluster_utils import Cluster\n"
        "c = Cluster(initialize_head=True, head_node_args={'num_cpus': 1, 'include_dashboard': False,"
        " 'include_log_monitor': False, 'no_monitor': True, 'object_store_memory': 100 * 2**20})\n"
        "print(c.address, flush=True); sys.stdin.read(); c.shutdown()\n"
    )
    guarded = {**ray_environment, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 16}
    with running([sys.executable, "-c", script], environment=guarded) as head:
        wait_until(lambda: "\n" in head.stdout, "a Ray cluster", head)
        command = [
            sys.executable,
            "-m",
            "workflows",
            "grid",
            *GRID,
            "--out",
            tmp_path,
            "--address",
            head.stdout.strip(),
        ]
        ended = run(command, environment=ray_environment)
        assert ended.returncode == 2, ended.stderr
        assert "asks for a token (RAY_AUTH_MODE is disabled): export RAY_AUTH_MODE=token" in ended.stderr
        assert "Traceback" not in ended.stderr
        head.stdin.close()
        head.wait()
