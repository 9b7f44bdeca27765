"""What does MLflow cost per run, with thousands of runs there already?

Writes made-up variants of five seeds with every method, as a grid and ``unlearn sync`` do, and prints CPU time per run when
so many runs are there, and of opening the database again. Figures and tables of the variants are in it.

    python -m benchmarks.mlflow_writer [--runs 500 2000 10000] [--save FILE.csv] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.saving import save
from tracking.mlflow_tracker import MlflowTracker
from tracking.tracked import TrackedCell, TrackedVariant, default_tracking_uri
from tracking.tree_writer import write_entries
from unlearn_core import methods
from unlearn_core.grid import HEADS, SEEDS, Scenario, Variant
from unlearn_core.records import (
    EpochMetrics,
    MethodRecord,
    ReferenceRecord,
    Scores,
    TargetRecord,
    cell_entry,
    method_entry,
    reference_entry,
)

EPOCHS = 20
WINDOW = 3
RETRAIN_SECONDS = 40.0
SETTINGS = {"preset": "paper", "training_epochs": 50, "proxy": {"ridge": 1e-3, "cap": 1.0}}


def variants() -> Iterator[Variant]:
    """The paper's head variants of CIFAR-10 and CIFAR-100, 84."""
    for dataset in ("cifar10", "cifar100"):
        for arch in HEADS:
            for scenario, keys in (
                (Scenario.CLASS, range(5)),
                (Scenario.SUBCLASS, (0, 2, 4, 6, 8)),
                (Scenario.RANDOM, (1, 50, 500, 5000)),
            ):
                for key in keys:
                    yield Variant(dataset, arch, scenario, key)


def scores(kl: float) -> Scores:
    return Scores(kl / 4, kl, kl / 3, kl, 0.95 - kl / 50, 0.5, 0.5, 0.5)


def target(name: str, kl: float) -> TargetRecord | None:
    if name not in methods.proxies():
        return None
    eta = None if name in methods.closed_forms() else 0.5
    admissible = None if eta is None else True
    known = None if eta is None else 0.1
    return TargetRecord(
        eta_max=eta,
        admissible=admissible,
        reason="made up",
        kl_net_proxy_before=known,
        kl_net_proxy_after=known,
        h_curve=(),
        scores=scores(kl),
        bound=None,
        proxy_seconds=0.1,
        ridge=1e-3,
        shrinkage="ridge",
        cap=1.0,
        finalizer="kl",
        dir_on_test="base",
    )


def method(name: str, place: int, seed: int) -> dict[str, Any]:
    """KL falls from epoch to epoch, at a rate that differs between methods, to a level that differs too."""
    index = methods.names().index(name)
    level = 0.02 + 0.01 * ((7 * index + 3 * place) % 13) + 0.001 * (seed % 5)
    pace = 0.004 * RETRAIN_SECONDS * (1 + index % 6)
    epochs = [
        EpochMetrics(e, pace * e, scores(level + 3 * math.exp(-e / (1 + index % 4)))) for e in range(1, EPOCHS + 1)
    ]
    cost = epochs[-1].seconds / RETRAIN_SECONDS
    return method_entry(
        MethodRecord(
            name, epochs, epochs[-1], epochs[-1], epochs[-1].seconds, cost, cost, 0.0, target=target(name, level)
        )
    )


def cell(variant: Variant, place: int, seed: int) -> TrackedCell:
    references = {
        name: reference_entry(ReferenceRecord(scores(kl), RETRAIN_SECONDS), RETRAIN_SECONDS)
        for name, kl in (("base", 4.0), ("retrain", 0.0), ("floor", 0.05))
    }
    rows = references | {name: method(name, place, seed) for name in methods.names()}
    steps = {name: f"{variant}-{seed}-{name}" for name in rows}
    entry = cell_entry(seed, 5000, 45000, rows)
    entry["provenance"] = {"step": f"{variant}-{seed}", "fingerprint": "f" * 64, "settings": SETTINGS}
    shown = {name: value for name, value in entry.items() if name != "provenance"}
    return TrackedCell(variant, seed, shown, steps, "f" * 64, SETTINGS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[500, 2000], help="report when so many are there")
    parser.add_argument("--save", type=Path, help="a CSV file for what is reported")
    parser.add_argument("--out", type=Path, help="keep the database and the results tree here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments.out or Path(folder), sorted(arguments.runs))
    rows = [{"runs that are there": f"{runs:,}", "CPU ms a run": f"{cost:.1f}"} for runs, cost in found]
    if arguments.save:
        sizes = " ".join(map(str, arguments.runs))
        save(
            arguments.save,
            rows,
            f"python -m benchmarks.mlflow_writer --runs {sizes} --save docs/data/mlflow_writer.csv",
        )


def measure(out: Path, sizes: list[int]) -> list[tuple[int, float]]:
    """Runs that are there, and CPU milliseconds of each of the last ``WINDOW`` variants' runs."""
    tracker = MlflowTracker(default_tracking_uri(out), f"unlearn-{out.name}", out / "mlartifacts")
    n_runs, costs, found = 0, list[tuple[float, int]](), list[tuple[int, float]]()
    for place, variant in enumerate(variants()):
        cells = [cell(variant, place, seed) for seed in SEEDS]
        entries = [c.entry | {"provenance": {"step": f"{variant}-{c.seed}"}} for c in cells]
        write_entries(out / "results", variant, "made", entries)
        started = time.process_time()
        tracker.log_variant(TrackedVariant(variant, "made", entries, cells))
        written = sum(len(c.step_ids) for c in cells) + len(cells[0].step_ids) + 1  # rows, their means, the variant
        n_runs += written
        costs.append((time.process_time() - started, written))
        if n_runs >= sizes[len(found)]:
            seconds, runs = map(sum, zip(*costs[-WINDOW:], strict=True))
            found.append((n_runs, round(1e3 * seconds / runs, 1)))
            print(f"{n_runs} runs there: {found[-1][1]} ms of CPU per run (target: below 50)", flush=True)
            if len(found) == len(sizes):
                break
    for what, call in (
        ("the grid's own run", lambda: tracker.log_grid(out / "results")),
        (
            "opening it again",
            lambda: MlflowTracker(default_tracking_uri(out), f"unlearn-{out.name}", out / "mlartifacts"),
        ),
    ):
        started = time.process_time()
        call()
        print(f"{what}, with {n_runs} runs: {time.process_time() - started:.1f} s of CPU", flush=True)
    return found


if __name__ == "__main__":
    main()
