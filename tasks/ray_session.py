"""Join a Ray cluster, or start a local one, and notice when it is gone. Every wait has a limit and ends in one line."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray import _raylet
from ray._private import ray_constants
from ray.exceptions import AuthenticationError, RpcError

from unlearn_core.errors import BadInput, first_line

REACH_SECONDS = 10.0
"""For a port to answer at all."""
JOIN_SECONDS = 120.0
START_SECONDS = 300.0
"""For a local Ray: ten seconds on an idle machine, a minute on one that is busy."""
LOOK_SECONDS = 5.0
LOST_SECONDS = 20.0
"""Without a connection, after which a cluster counts as lost."""
UNWIND_SECONDS = 20.0
"""For the driver to end in order, after which it ends all the same."""
EXIT_REFUSED = 2
RESUME = "finished steps are kept: rerun the same command to resume"


class ClusterLost(BadInput):
    """The cluster that a driver was on does not answer any more."""


@contextlib.contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start a local one and stop it afterwards."""
    if ray.is_initialized():
        yield
        return
    if address is None:
        _start_local()
    else:
        _join(address)
    try:
        yield
    finally:
        with limited(UNWIND_SECONDS, f"Ray did not end within {UNWIND_SECONDS:.0f} s; {RESUME}"):
            ray.shutdown()


def _start_local() -> None:
    """On loopback alone: Ray takes its switch for machines that are never part of a cluster."""
    # the object store carries messages only: results go through the store on disk
    options: dict[str, Any] = {
        "include_dashboard": False,
        "object_store_memory": 200 * 2**20,
        "_node_ip_address": "127.0.0.1",
        "runtime_env": {"env_vars": {"PYTHONPATH": _source_root()}},
    }
    logs = "/tmp/ray/session_latest/logs"
    problem = f"a local Ray did not start: this machine may be too busy; rerun, look into {logs}, or use --local"
    clusters = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False  # otherwise 127.0.0.1 is replaced by an address that others reach
    try:
        _init(START_SECONDS, problem, "local", **options)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters


def _join(address: str) -> None:
    place = _resolved(address)
    if not place.startswith("ray://"):
        _check_head(place)
    problem = (
        f"no driver could join the Ray at {place} within {JOIN_SECONDS:.0f} s; run this on one of its nodes, and give the "
        "address that 'ray status' and the head's log name, not 127.0.0.1"
    )
    _init(JOIN_SECONDS, problem, place)


def _init(seconds: float, problem: str, address: str, **options: Any) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with limited(seconds, problem):
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    except BadInput:
        raise
    except Exception as error:  # of many kinds, bare ``Exception`` too
        raise BadInput(f"{problem} (Ray says: {first_line(error)[:200]})") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)  # Ray's own ends a driver without a word


def _resolved(address: str) -> str:
    """Where the head is. ``auto`` is what a Ray job finds in its environment, never whatever Ray happens to run here."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
        if not address:
            raise BadInput(
                "--address auto is for a command that runs as a Ray job ('ray job submit'); elsewhere give the head's "
                "HOST:PORT, as 'ray start --head' prints it, or leave --address out to start a local Ray"
            )
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise BadInput(f"--address {address} is no HOST:PORT; give the head's, such as 10.0.0.1:6379")
    if (why := _unreachable(host.strip("[]"), int(port), REACH_SECONDS)) is not None:
        raise BadInput(
            f"no Ray answers at {address} ({why}); check host and port ('ray start --head' printed them) and that the "
            "cluster runs"
        )
    return address


def _check_head(place: str) -> None:
    """Refuse what is no head of a cluster, and one that asks for a token that we lack."""
    problem = f"what answers at {place} is no Ray head; check the port, 6379 unless chosen otherwise"
    try:
        with limited(JOIN_SECONDS, problem):
            _raylet.GcsClient(address=place)  # pyright: ignore[reportAttributeAccessIssue]
    except AuthenticationError as error:
        mode = os.environ.get("RAY_AUTH_MODE", "not set")
        raise BadInput(
            f"the Ray at {place} asks for a token (RAY_AUTH_MODE is {mode}): export RAY_AUTH_MODE=token, with the cluster's "
            "token in ~/.ray/auth_token or RAY_AUTH_TOKEN"
        ) from error
    except RpcError as error:
        raise BadInput(f"{problem} (Ray says: {first_line(error)[:100]})") from error


def _unreachable(host: str, port: int, seconds: float) -> str | None:
    """Why a port cannot be connected to; None if it can."""
    try:
        with socket.create_connection((host, port), timeout=seconds):
            return None
    except OSError as error:
        return error.strerror or str(error)


class Watch(threading.Thread):
    """Looks whether the head and this node's Ray still answer; if not, ends the driver in order, or else at once."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="ray-watch")
        context = ray.get_runtime_context()
        here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        self._places: dict[str, str] = {
            "the head": context.gcs_address,
            "this node's raylet": f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}",
        }
        self._over: threading.Event = threading.Event()
        self.lost: str | None = None

    def run(self) -> None:
        answered = dict.fromkeys(self._places, time.monotonic())
        while not self._over.wait(LOOK_SECONDS):
            for what, place in self._places.items():
                host, _, port = place.rpartition(":")
                if _unreachable(host, int(port), LOOK_SECONDS) is None:
                    answered[what] = time.monotonic()
                elif time.monotonic() - answered[what] > LOST_SECONDS:
                    self.lost = f"the Ray cluster is lost: {what} ({place}) does not answer any more; {RESUME}"
                    self._over.wait(UNWIND_SECONDS)  # the driver sees it when it next waits for a job
                    if not self._over.is_set():
                        _end_now(self.lost)
                    return

    def check(self) -> None:
        """Raise if the cluster is lost."""
        if self.lost is not None:
            raise ClusterLost(self.lost)

    def stop(self) -> None:
        self._over.set()


@contextlib.contextmanager
def limited(seconds: float, problem: str) -> Iterator[None]:
    """Interrupt the block after so many seconds; if it waits where nothing interrupts it, end the process soon after."""
    over = threading.Event()
    struck = threading.Event()

    def strike() -> None:
        if over.wait(seconds):
            return
        struck.set()
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        if not over.wait(UNWIND_SECONDS):
            _end_now(problem)

    threading.Thread(target=strike, daemon=True, name="limit").start()
    try:
        yield
    except KeyboardInterrupt:
        if struck.is_set():
            raise BadInput(problem) from None
        raise
    finally:
        over.set()


def _end_now(problem: str) -> None:
    """For a process that is stuck inside Ray."""
    print(f"unlearn: {problem}", file=sys.stderr, flush=True)
    os._exit(EXIT_REFUSED)


def _source_root() -> str:
    """So that local workers import this checkout wherever the command was started."""
    root = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
