"""What does the machinery around the science cost?

Overhead per step, MLflow per run, speed-up of two workers over one on a real feature set, and a fully cached rerun of
a thousand steps including Python's and Ray's start; what a step costs the driver in a plan of 100,000 beside one of 1,000.
With --where: where workers and driver wait in the demo, on Ray, in one process, and as it is started by default.

    python -m benchmarks.workflow [--features FILE.npz] [--where [--save docs/data/where.csv]]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import scale
from benchmarks.first_minutes import processor_seconds
from benchmarks.saving import save, show
from tasks.executor import execute
from tasks.ray_backend import Placement, RayBackend, ray_session
from tasks.state import Finished, JobResult, State
from tasks.step import Kind, Step, closure
from tasks.store import DONE, Store

GRID = ("--arch", "linear", "--scenario", "class", "--epochs", "2")


def unlearn(*arguments: str) -> tuple[float, str]:
    """Wall seconds and output of one command, on a Ray of its own."""
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    started = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-m", "workflows", *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return time.perf_counter() - started, result.stdout


class Empty:
    """Workers that publish empty results: what is left is the executor and the store."""

    on_gpu: bool = False

    def __init__(self, store: Store) -> None:
        self.store: Store = store
        self.job: list[Step] = []

    def idle(self) -> list[int]:
        return [] if self.job else [0]

    def submit(self, worker, steps) -> None:
        self.job = list(steps)

    def wait(self, seconds: float) -> list[Finished]:
        job, self.job = self.job, []
        for step in job:
            self.store.commit(step, lambda directory: None, 0.0)
        return [Finished(0, job, JobResult(0.0))] if job else []

    def waiting_for_a_place(self) -> int:
        return 0

    def set_aside(self, worker) -> str:
        raise RuntimeError("the only worker cannot be set aside")

    def close(self) -> None:
        pass


def many_steps() -> list[Step]:
    features = Step(Kind.FEATURES, {"dataset": "none"})
    bases = [Step(Kind.BASE, {"seed": seed}, {"features": features}) for seed in range(20)]
    return closure(
        [
            Step(Kind.UNLEARN, {"seed": seed, "key": k}, {"base": base})
            for seed, base in enumerate(bases)
            for k in range(50)
        ]
    )


def executor_overhead(root: Path) -> float:
    """Seconds per step of scheduling and publishing; leaves every step in the store."""
    state = State(many_steps())
    started = time.perf_counter()
    execute(state, Empty(Store(root)), lambda step: None, lambda state: None)
    return (time.perf_counter() - started) / len(state.steps)


def ray_overhead(root: Path) -> float:
    """Seconds per step of scheduling on one Ray worker, which finds each of them in the store and returns at once."""
    with ray_session(None) as watch:
        backend = RayBackend(root, Placement(workers=1, cpus=1, gpus=0.0), watch)
        while not backend.idle():
            backend.wait(1.0)
        state = State(many_steps())
        started = time.perf_counter()
        execute(state, backend, lambda step: None, lambda state: None)
        seconds = time.perf_counter() - started
        backend.close()
    return seconds / len(state.steps)


def where(root: Path) -> list[dict[str, object]]:
    """The wall time of the demo by what was waited for; a busy machine stretches all of it but the processor seconds."""
    rows: list[dict[str, object]] = []
    for name, options in (("on Ray", ("--workers", "2")), ("in one process", ("--local",)), ("by default", ())):
        out, before, used = root / name.replace(" ", "-"), time.time(), processor_seconds()
        seconds, output = unlearn("run", "--methods", "all", "--out", str(out), *options)
        status = json.loads((out / "status.json").read_text())
        done = [json.loads(file.read_text()) for file in (out / "store" / "steps").glob(f"*/*/{DONE}")]
        first, last = status["first_job"], max(record["finished"] for record in done)
        n_workers = 1 if "in this process" in output or "--local" in options else 2
        busy = sum(record["seconds"] for record in done) / (n_workers * (last - first))
        parts = {
            "the demo": name,
            "wall s": seconds,
            "Python and plan": status["started"] - before,
            "until the first job": first - status["started"],
            "work": last - first,
            "after the last step": before + seconds - last,
        }
        row = {part: f"{value:.1f}" if isinstance(value, float) else value for part, value in parts.items()}
        spent = {
            "processor s": f"{processor_seconds() - used:.1f}",
            "load": f"{os.getloadavg()[0]:.0f} on {os.cpu_count()}",
        }
        rows.append({**row, "workers busy": f"{100 * busy:.0f} % of {n_workers}", **spent})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--features", help="a feature set for the speed-up; digits, which are too small for it, otherwise"
    )
    parser.add_argument("--where", action="store_true", help="only: where workers and driver wait in the demo")
    parser.add_argument(
        "--save", type=Path, help="with --where: file to keep the table in, such as docs/data/where.csv"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if arguments.where:
            rows = where(root)
            show(rows)
            if arguments.save:
                save(arguments.save, rows, "python -m benchmarks.workflow --where --save docs/data/where.csv")
            return
        scale.compare((1_000, 100_000), root / "scale")
        for what, measured in (("store", executor_overhead(root / "empty")), ("Ray", ray_overhead(root / "empty"))):
            print(f"executor and {what}: {1e3 * measured:.2f} ms per step (target: below 5)", flush=True)
        grid = ("--dataset", "digits", *GRID, "--seeds", ",".join(map(str, range(12))), "--out", str(root / "many"))
        seconds, output = unlearn("grid", *grid)
        runs, writer, waited = re.search(  # pyright: ignore[reportGeneralTypeIssues]
            r"(\d+) runs written.*?([\d.]+) s in the writer, ([\d.]+) s waited", output
        ).groups()  # pyright: ignore[reportOptionalMemberAccess]
        print(
            f"MLflow: {1e3 * float(writer) / int(runs):.0f} ms per run in the writer, opening the database included "
            f"(target: below 50); {waited} s of {seconds:.0f} s waited for",
            flush=True,
        )
        seconds, output = unlearn("grid", *grid)
        n_cached = re.search(r"0 steps run, (\d+) cached", output)
        print(
            f"cached rerun of {n_cached and n_cached[1]} steps: {seconds:.1f} s (target: below 5 for 1,000)", flush=True
        )
        real = ("--dataset", arguments.features or "digits", "--arch", "mlp1", "--scenario", "class", "--key", "0,1")
        work = {}
        for workers in ("1", "2"):
            out = root / f"workers{workers}"
            unlearn(
                "grid", *real, "--workers", workers, "--out", str(out), "--no-tracking", "--epochs", "5", "--seeds", "0"
            )
            status = json.loads((out / "status.json").read_text())
            work[workers] = status["updated"] - status["first_job"]
            whole = status["updated"] - status["started"]
            print(f"{workers} workers: {work[workers]:.1f} s of work, {whole:.1f} s with Ray's start", flush=True)
        print(f"ratio 1 worker / 2 workers: {work['1'] / work['2']:.2f} (target: at least 1.7)")


if __name__ == "__main__":
    main()
