"""Does a step cost the driver as much in a plan of 100,000 steps as in one of 1,000?

Runs plans of trivial steps through the true loop of 'unlearn grid' (the plan's file, the look into the store, the schedule,
the terminal's table, the status file) on workers that answer at once. Prints ms and bytes per step and their ratios.

    python -m benchmarks.scale [--steps 1000 100000] [--save docs/data/scale.csv]
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
import tracemalloc
from collections.abc import Hashable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.saving import save, show
from tasks.state import Finished, JobResult
from tasks.step import Kind, Step, closure
from workflows.commands.running import SecondsLeft
from workflows.display import Display
from workflows.layout import Layout
from workflows.rates import Rates
from workflows.results import Recorder
from workflows.run import Machine, Workers, run_plan

SEEDS, METHODS = 5, 15
N_WORKERS = 16


class AnswersAtOnce:
    """Workers that do nothing, so that what is left is the driver."""

    on_gpu: bool = False

    def __init__(self) -> None:
        self._jobs: dict[int, Sequence[Step]] = {}

    def idle(self) -> Sequence[Hashable]:
        return [worker for worker in range(N_WORKERS) if worker not in self._jobs]

    def submit(self, worker: Hashable, steps: Sequence[Step]) -> None:
        assert isinstance(worker, int)
        self._jobs[worker] = steps

    def wait(self, seconds: float) -> Sequence[Finished]:
        jobs, self._jobs = self._jobs, {}
        return [Finished(worker, steps, JobResult(0.0)) for worker, steps in jobs.items()]

    def waiting_for_a_place(self) -> int:
        return 0

    def set_aside(self, worker: Hashable) -> str:
        raise RuntimeError(f"worker {worker} cannot be sick")

    def close(self) -> None:
        pass


class TheseWorkers(Workers):
    def backend(self) -> AnswersAtOnce:
        return AnswersAtOnce()


class OneSecondEach(Rates):
    """Every step is taken to last a second: estimates of steps that compute nothing would need their data."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, bool]] = {}

    def _estimate(self, step: Step) -> tuple[float, bool]:
        return 1.0, True


def plan(n_steps: int) -> list[Step]:
    """About so many steps, shaped as a grid's: bases, methods for every key and seed, and what ends a cell."""
    features = Step(Kind.FEATURES, {"dataset": "none"})
    bases = [Step(Kind.BASE, {"seed": seed}, {"features": features}) for seed in range(SEEDS)]
    ends = []
    for key in range(max(1, round(n_steps / SEEDS / (METHODS + 2)))):
        for seed, base in enumerate(bases):
            cell = {"seed": seed, "key": key}
            retrain = Step(Kind.RETRAIN, cell, {"features": features})
            needs = {"base": base, "retrain": retrain}
            unlearned = {f"m{i}": Step(Kind.UNLEARN, {**cell, "method": f"m{i}"}, needs) for i in range(METHODS)}
            ends.append(Step(Kind.SKETCH, cell, needs | unlearned))  # not an audit: those are read and recorded
    return ends


def drive(targets: Sequence[Step], out: Path) -> None:
    layout = Layout(out)
    with open(os.devnull, "w") as nowhere:
        display = Display(Console(file=nowhere, force_terminal=True), "scale", SecondsLeft(OneSecondEach(), N_WORKERS))
        recorder = Recorder(layout, None, track=False)
        outcome = run_plan(targets, layout, Machine(), recorder, display, TheseWorkers(layout.store, Machine()))
    assert len(outcome.state.done) == len(outcome.state.steps)


def measure(n_steps: int, root: Path) -> tuple[int, float, float, float]:
    """Steps, CPU milliseconds a step, bytes a step at the peak, and bytes of a step itself."""
    targets = plan(n_steps)
    started = time.process_time()
    n = len(closure(targets))  # hashes every step once
    drive(targets, root / f"{n_steps}")
    milliseconds = 1e3 * (time.process_time() - started) / n
    del targets
    gc.collect()
    tracemalloc.start()
    targets = plan(n_steps)
    closure(targets)
    own = tracemalloc.get_traced_memory()[0]
    drive(targets, root / f"{n_steps}-traced")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return n, milliseconds, (peak - own) / n, own / n


def compare(sizes: tuple[int, int], root: Path) -> list[dict[str, object]]:
    """Prints both sizes beside each other; returns them as rows."""
    rows: list[dict[str, object]] = []
    found = []
    drive(plan(100), root / "warm")  # imports and the first use of everything
    for n_steps in sizes:
        n, milliseconds, extra, own = measure(n_steps, root)
        found.append((milliseconds, extra))
        rows.append(
            {
                "steps": f"{n:,}",
                "CPU ms a step": f"{milliseconds:.3f}",
                "bytes a step at the peak": f"{extra:.0f}",
                "bytes of a step itself": f"{own:.0f}",
            }
        )
    show(rows)
    (few_ms, few_bytes), (many_ms, many_bytes) = found
    print("targets: below 1 ms a step, in time at most 1.5 times as much for the larger plan")
    print(f"ratio: {many_ms / few_ms:.2f} in time, {many_bytes / few_bytes:.2f} in memory")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs=2, default=(1_000, 100_000))
    parser.add_argument("--save", type=Path, help="file to keep the table in, such as docs/data/scale.csv")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(arguments.steps, Path(folder))
    if arguments.save is not None:
        save(arguments.save, rows, "python -m benchmarks.scale --save docs/data/scale.csv")


if __name__ == "__main__":
    main()
