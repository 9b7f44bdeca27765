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
from collections.abc import Callable, Iterator
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
START_LOOK_SECONDS = 1.0
"""Between two looks whether a Ray that is being started, or joined, still lives."""
LOOK_SECONDS = 5.0
LOST_SECONDS = 20.0
"""Without a connection, after which a cluster counts as lost."""
UNWIND_SECONDS = 20.0
"""For the driver to end in order, after which it ends all the same."""
DROPPED_SECONDS = 0.1
"""Between two looks whether an interrupt got lost, so that it must be sent again."""
SERVERS = {"gcs_server": "its GCS", "raylet": "its raylet"}
"""What a local Ray stands on, by the name of the process."""
EXIT_REFUSED = 2
RESUME = "finished steps are kept: rerun the same command to resume"


class ClusterLost(BadInput):
    """The cluster that a driver was on does not answer any more."""


@contextlib.contextmanager
def ray_session(address: str | None) -> Iterator[Watch]:
    """Connect to a cluster, or start a local one and stop it afterwards; it is watched from the first moment on."""
    ours = not ray.is_initialized()
    watch = (_start_local() if address is None else _join(address)) if ours else Watch()
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
        if ours:
            _shut_down(f"Ray did not end within {UNWIND_SECONDS:.0f} s; {RESUME}")


def _shut_down(problem: str) -> None:
    with limited(UNWIND_SECONDS, problem):
        ray.shutdown()


def _start_local() -> Watch:
    """On loopback alone: Ray takes its switch for machines that are never part of a cluster."""
    # the object store carries messages only: results go through the store on disk
    options: dict[str, Any] = {
        "include_dashboard": False,
        "object_store_memory": 200 * 2**20,
        "_node_ip_address": "127.0.0.1",
    }
    logs = "/tmp/ray/session_latest/logs"
    problem = (
        f"a local Ray did not start: this machine may be too busy or short of memory; look into {logs}, or use --local; "
        f"{RESUME}"
    )
    clusters = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False  # otherwise 127.0.0.1 is replaced by an address that others reach
    try:
        with _source_on_path():
            return _init(START_SECONDS, problem, Servers().lost, "local", **options)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters


def _join(address: str) -> Watch:
    place = _resolved(address)
    if not place.startswith("ray://"):
        _check_head(place)
    problem = (
        f"no driver could join the Ray at {place} within {JOIN_SECONDS:.0f} s; run this on one of its nodes, and give the "
        f"address that 'ray status' and the head's log name, not 127.0.0.1; {RESUME}"
    )
    return _init(JOIN_SECONDS, problem, Port("the head", place.removeprefix("ray://")).lost, place)


def _init(seconds: float, problem: str, lost: Callable[[], str | None], address: str, **options: Any) -> Watch:
    """``lost`` says what has died meanwhile: Ray would wait for it for a minute, and then end this process by itself."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with limited(seconds, problem, lost):
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
            return Watch()
    except BadInput as refusal:
        _shut_down(str(refusal))  # here, where it has a limit, and not when Python exits
        raise
    except Exception as error:  # of many kinds, bare ``Exception`` too
        problem = f"{problem} (Ray says: {first_line(error)[:200]})"
        _shut_down(problem)
        raise BadInput(problem) from error
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


class Servers:
    """The servers of a local Ray that this process is starting."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}
        self._before: frozenset[int] = frozenset(pid for pid, _, _ in _children())

    def lost(self) -> str | None:
        """Which one has died; None where they live, are not there yet, or the system does not say."""
        ours = [(pid, name, lives) for pid, name, lives in _children() if name in SERVERS and pid not in self._before]
        alive = {pid: name for pid, name, lives in ours if lives}
        self._seen |= {pid: name for pid, name, _ in ours}
        return next((f"{SERVERS[name]} died" for pid, name in self._seen.items() if pid not in alive), None)


def _children() -> list[tuple[int, str, bool]]:
    """Number, name and whether it lives, of every process that this one started and has not yet asked after."""
    found, me = [], os.getpid()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            before, _, after = (process / "stat").read_text().rpartition(")")
        except OSError:
            continue  # ended meanwhile
        state, parent = after.split()[:2]
        if int(parent) == me:
            found.append((int(process.name), before.partition("(")[2], state not in ("Z", "X")))
    return found


class Port:
    """A server somewhere, by whether its port can be connected to."""

    def __init__(self, what: str, place: str) -> None:
        self._what: str = what
        self._place: str = place
        self._answered: float = time.monotonic()

    def lost(self) -> str | None:
        """Says so if it has not answered for ``LOST_SECONDS``."""
        host, _, port = self._place.rpartition(":")
        if _unreachable(host.strip("[]"), int(port), LOOK_SECONDS) is None:
            self._answered = time.monotonic()
        elif time.monotonic() - self._answered > LOST_SECONDS:
            return f"{self._what} ({self._place}) does not answer any more"
        return None


class Watch(threading.Thread):
    """Looks whether the head and this node's Ray still answer; if not, ends the driver in order, or else at once."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="ray-watch")
        context = ray.get_runtime_context()
        here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        raylet = f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}"
        self._ports: list[Port] = [Port("the head", context.gcs_address), Port("this node's raylet", raylet)]
        self._over: threading.Event = threading.Event()
        self.lost: str | None = None

    def run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            for port in self._ports:
                if (why := port.lost()) is not None:
                    self.lost = f"the Ray cluster is lost: {why}; {RESUME}"
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
def limited(seconds: float, problem: str, lost: Callable[[], str | None] = lambda: None) -> Iterator[None]:
    """Interrupt the block after so many seconds; if it waits where nothing interrupts it, end the process soon after.

    Args:
        lost: asked now and then; says what the block waits for in vain, if it does.
    """
    over = threading.Event()
    struck = threading.Event()
    dropped = threading.Event()
    either = threading.Lock()
    deadline = time.monotonic() + seconds

    def strike() -> None:
        nonlocal problem
        why = None
        while why is None and (left := deadline - time.monotonic()) > 0:
            if over.wait(min(left, START_LOOK_SECONDS)):
                return
            why = lost()
        main = threading.main_thread().ident
        assert main is not None
        with either:
            if over.is_set():
                return
            if why is not None:
                problem = f"{problem} ({why})"
            struck.set()
            signal.pthread_kill(main, signal.SIGINT)
        end_by = time.monotonic() + UNWIND_SECONDS
        while not over.wait(DROPPED_SECONDS):
            if time.monotonic() > end_by:
                _end_now(problem)
            with either:
                if dropped.is_set() and not over.is_set():
                    dropped.clear()
                    signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=strike, daemon=True, name="limit").start()
    interrupted = False
    try:
        try:
            with _dropped_interrupts(struck, dropped):
                yield
        except KeyboardInterrupt:
            interrupted = True
            raise
        finally:
            with either:
                over.set()
            if struck.is_set() and not interrupted:
                time.sleep(1.0)  # the interrupt is on its way, and must not strike what comes after the block
    except KeyboardInterrupt:
        if struck.is_set():
            raise BadInput(problem) from None
        raise
    finally:
        over.set()  # also if the interrupt struck just before


@contextlib.contextmanager
def _dropped_interrupts(struck: threading.Event, dropped: threading.Event) -> Iterator[None]:
    """Tell of our own interrupt where it hit a finalizer: Python prints it there and goes on as if nothing had been."""
    before = sys.unraisablehook

    def look(what: sys.UnraisableHookArgs) -> None:
        if struck.is_set() and what.exc_type is KeyboardInterrupt:
            dropped.set()
        else:
            before(what)

    sys.unraisablehook = look
    try:
        yield
    finally:
        sys.unraisablehook = before


def _end_now(problem: str) -> None:
    """For a process that is stuck inside Ray."""
    print(f"unlearn: {problem}", file=sys.stderr, flush=True)
    os._exit(EXIT_REFUSED)


@contextlib.contextmanager
def _source_on_path() -> Iterator[None]:
    """So that local workers import this checkout wherever the command was started.

    They inherit it. As Ray's ``runtime_env`` it would reach them seconds later: an agent sets that up, and the workers that
    Ray has started meanwhile, without it, are of no use.
    """
    before = os.environ.get("PYTHONPATH")
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [before])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
