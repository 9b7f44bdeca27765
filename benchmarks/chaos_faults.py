"""What ``benchmarks.chaos`` does to a running grid, and what it does it to."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

RAY_PROCESSES = {
    "worker": "ray::Worker",
    "raylet": "/raylet",
    "GCS": "/gcs_server",
    "MLflow writer": "ray::MlflowTracker",
}
DAY = 24 * 3600
JUMPS = (400 * DAY, -400 * DAY, 7200, -7200, -90)
DISK_MEGABYTES = 64
SHARE_OF_KILLS = 2 / 3
MARK = "UNLEARN_CHAOS"


class MlflowServer:
    """A server on loopback for all rounds that want one; killed now and then, and started again."""

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self.database: Path = root / "server.db"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]
        self.uri: str = f"http://127.0.0.1:{self._port}"
        self._artifacts: Path = root / "server-artifacts"
        self._environment: dict[str, str] = {**environment, MARK: f"server{self._port}"}

    def __enter__(self) -> MlflowServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Unless it answers."""
        if self._answers():
            return
        self.kill()
        places = ["--backend-store-uri", f"sqlite:///{self.database}", "--artifacts-destination", str(self._artifacts)]
        listening = ["--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        with self.database.with_suffix(".log").open("a") as log:
            command = [sys.executable, "-m", "mlflow", "server", *listening, *places]
            subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        deadline = time.monotonic() + 300.0
        while not self._answers():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the MLflow server does not start: see {log.name}")
            time.sleep(0.2)

    def kill(self) -> bool:
        """Whether it ran."""
        return sum(_signal(pid, signal.SIGKILL) for pid in _marked(self._environment[MARK])) > 0

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=5.0):
                return True
        except OSError:
            return False


class Scene:
    """One output folder, the driver on it, and what can be struck."""

    def __init__(
        self, root: Path, name: str, environment: Mapping[str, str], where: str, server: MlflowServer | None = None
    ) -> None:
        self.name: str = name
        self.where: str = where
        self.out: Path = root / name
        self.log: Path = root / f"{name}.log"
        self.server: MlflowServer | None = server
        self.small_disk: bool = False
        self.kinds: Sequence[str] = tuple(FAULTS)
        self.driver: BaseProcess | None = None
        self.environment: dict[str, str] = {**environment, MARK: name}
        self._clock: Path = root / f"{name}.clock"
        self.jump(0)

    def start(self, arguments: list[str]) -> None:
        """A driver, by a command's arguments."""
        driven = (arguments, self.environment, self.log, self._clock)
        self.driver = get_context("fork").Process(target=_drive, args=driven)
        self.driver.start()

    def say(self, line: str) -> None:
        with self.log.open("a") as log:
            log.write(f"--- {line}\n")

    @property
    def runs(self) -> bool:
        return self.driver is not None and self.driver.is_alive()

    def wait(self, seconds: float) -> int:
        """The driver's exit code; one that hangs is killed."""
        assert self.driver is not None
        self.driver.join(seconds)
        self.driver.kill()
        self.driver.join()
        assert self.driver.exitcode is not None
        return self.driver.exitcode

    def pids(self, what: str) -> list[int]:
        return [pid for pid in _marked(self.name) if RAY_PROCESSES[what] in _title(pid)]

    def wait_for(self, fault: str, seconds: float) -> bool:
        """Whether there is something to strike before the driver ends."""
        deadline = time.monotonic() + seconds
        while not FAULTS[fault].there(self):
            if time.monotonic() > deadline or not self.pause(0.2):
                return False
        return True

    def pause(self, seconds: float) -> bool:
        """Whether the driver still runs afterwards."""
        assert self.driver is not None
        self.driver.join(seconds)
        return self.runs

    def jump(self, by: int) -> None:
        self._clock.write_bytes(struct.pack("=q", by))

    @property
    def filler(self) -> Path:
        return self.out / "filler"

    def repair(self) -> None:
        """What a person would do before the same command: make room, start the server."""
        self.filler.unlink(missing_ok=True)
        if self.server:
            self.server.start()

    def end(self) -> None:
        """Whatever is left of a round."""
        self.filler.unlink(missing_ok=True)
        for pid in _marked(self.name):
            _signal(pid, signal.SIGKILL)
        self._clock.unlink(missing_ok=True)


@dataclass(frozen=True)
class Fault:
    there: Callable[[Scene], bool]
    """Whether there is something to strike now."""
    strike: Callable[[Scene, random.Random], bool]
    """Whether it was struck."""
    possible: Callable[[Scene], bool] = lambda scene: True


def _is_driving(scene: Scene) -> bool:
    """Whether the driver of this start has taken the folder: before that it only loads code."""
    assert scene.driver is not None
    try:
        return f'"pid": {scene.driver.pid},' in (scene.out / "driver.lock").read_text()
    except FileNotFoundError:
        return False


def _kill_driver(scene: Scene, moments: random.Random) -> bool:
    assert scene.driver is not None
    scene.driver.kill()
    return True


def _stop_worker(scene: Scene, moments: random.Random) -> bool:
    workers = scene.pids("worker")
    if not workers or not _signal(worker := moments.choice(workers), signal.SIGSTOP):
        return False
    scene.pause(moments.uniform(1.0, 10.0))
    _signal(worker, signal.SIGCONT)
    return True


def _damage(scene: Scene, moments: random.Random) -> bool:
    """Any file of a finished step loses its second half."""
    files = [file for stamp in _stamps(scene) for file in stamp.parent.iterdir() if file.stat().st_size]
    if files:
        file = moments.choice(sorted(files))
        os.truncate(file, file.stat().st_size // 2)
    return bool(files)


def _stamps(scene: Scene) -> list[Path]:
    return list(scene.out.glob("store/steps/*/*/DONE.json"))


def _set_file_times(scene: Scene, moments: random.Random) -> bool:
    """All of the folder's own files are of another year: past or future."""
    files = [file for file in scene.out.glob("*") if file.is_file()]
    then = time.time() + moments.choice((-1, 1)) * 365 * DAY
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            os.utime(file, (then, then))
    return bool(files)


def _jump(scene: Scene, moments: random.Random) -> bool:
    scene.jump(moments.choice(JUMPS))
    return True


def _fill_disk(scene: Scene, moments: random.Random) -> bool:
    with contextlib.suppress(OSError), scene.filler.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(2**16))
    return scene.filler.exists()


def _kill_server(scene: Scene, moments: random.Random) -> bool:
    """It stays away, or is back after a while."""
    assert scene.server is not None
    struck = scene.server.kill()
    if moments.random() < 0.5 and scene.pause(moments.uniform(0.0, 5.0)):
        scene.server.start()
    return struck


def _of_ray(what: str) -> Fault:
    def kill(scene: Scene, moments: random.Random) -> bool:
        victims = scene.pids(what)
        return bool(victims) and _signal(moments.choice(victims), signal.SIGKILL)

    return Fault(lambda scene: bool(scene.pids(what)), kill, _on_ray)


def _on_ray(scene: Scene) -> bool:
    return scene.where == "Ray"


FAULTS: dict[str, Fault] = {
    "driver": Fault(_is_driving, _kill_driver),
    **{what: _of_ray(what) for what in RAY_PROCESSES},
    "worker stopped": Fault(lambda scene: bool(scene.pids("worker")), _stop_worker, _on_ray),
    "store file": Fault(lambda scene: bool(_stamps(scene)), _damage),
    "file times": Fault(_is_driving, _set_file_times),
    "clock": Fault(_is_driving, _jump),
    "disk full": Fault(_is_driving, _fill_disk, lambda scene: scene.small_disk),
    "MLflow server": Fault(_is_driving, _kill_server, lambda scene: scene.server is not None),
}


KILLS: tuple[str, ...] = ("driver", *RAY_PROCESSES, "MLflow server")
"""Faults that kill a process."""


def draw(scene: Scene, moments: random.Random) -> str:
    """The next fault: a kill in two of three cases, whichever other faults there are."""
    possible = [name for name in scene.kinds if FAULTS[name].possible(scene)]
    wanted = moments.random() < SHARE_OF_KILLS
    return moments.choice([name for name in possible if (name in KILLS) == wanted] or possible)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of its own for a folder, which is easily filled; False without the right to mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def surroundings(root: Path) -> dict[str, str]:
    """A home of its own, no token, and all code loaded; says what cannot be tried here."""
    (root / "home").mkdir(parents=True)
    with small_disk(root / "disk") as disk:
        if not disk:
            print("no full disks: only root may mount a small one", file=sys.stderr)
    source = str(Path(__file__).resolve().parent.parent)
    ours = {"HOME": str(root / "home"), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    # a server's job runners are seven processes that nobody here needs
    ours |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": source, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    # Ray's workers give way to all else on a machine (15); on a busy one they would hardly start
    ours |= {"RAY_worker_niceness": "0"}
    os.environ.update(ours)
    for module in ("workflows.commands.grid", "tasks.worker", "tasks.ray_backend", "tracking.mlflow_tracker"):
        importlib.import_module(module)
    return dict(os.environ)


def _drive(arguments: list[str], environment: dict[str, str], log: Path, clock: Path) -> None:
    """What a forked driver does: the command, by a clock that can be set while it runs."""
    os.environ.update(environment)
    with log.open("a") as opened:
        os.dup2(opened.fileno(), 1)
        os.dup2(opened.fileno(), 2)
    true_time, true_ns = time.time, time.time_ns

    def jump() -> int:
        (seconds,) = struct.unpack("=q", clock.read_bytes() or bytes(8))
        return seconds

    time.time = lambda: true_time() + jump()
    time.time_ns = lambda: true_ns() + 10**9 * jump()
    from workflows.cli import main

    sys.argv = ["unlearn", *arguments]
    main()


def _marked(mark: str) -> list[int]:
    """Processes that were started with this mark, and those that they started: the environment is inherited."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return ""


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
