"""What each command does. Each gives the exit code."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tasks.executor import State
from tasks.step import Kind, Step, closure
from tasks.store import Store
from tracking.figures import write_evolution
from tracking.results_tree import read_entries, tree_path
from tracking.tables.benchmark import benchmark_table
from tracking.tables.exports import rich_table
from tracking.tracked import default_tracking_uri
from tracking.tree import TreeVariant
from unlearn_core.errors import BadInput
from unlearn_core.spec import HEADS, PAPER_DATASETS, PAPER_METHODS, SEEDS, Scenario, Variant
from workflows import explain as explanation
from workflows import results
from workflows.cli import EXIT_FAILED_STEPS, chosen, settings_of
from workflows.display import Display, EstimateLeft, counts_table, duration
from workflows.engine import Machine, Outcome, run_plan, save_plan
from workflows.forget import forget, verify
from workflows.grid import cell_step, choose_variants
from workflows.layout import Layout, read_json, read_text
from workflows.rates import GpuModel, Rates
from workflows.sources import DataOptions, Source, open_sources


def run(arguments: argparse.Namespace, console: Console) -> int:
    """One variant, then its table and figure."""
    _check_device(arguments)
    source = open_sources(data_options(arguments, [arguments.dataset]), [arguments.arch])[0]
    variants = choose_variants(source, [arguments.arch], [Scenario(arguments.scenario)], [arguments.key])
    outcome = _run([Part(source, variants)], arguments, console)
    if not outcome.state.failures:
        _print_variant(source, variants[0], arguments, console)
    return _conclude(outcome, arguments, console)


def grid(arguments: argparse.Namespace, console: Console) -> int:
    """Many variants."""
    _check_device(arguments)
    return _conclude(_run(_selection(arguments), arguments, console), arguments, console)


def features(arguments: argparse.Namespace, console: Console) -> int:
    """A backbone's features of a data set, as a file."""
    _check_device(arguments)
    source = open_sources(data_options(arguments, [arguments.dataset]), HEADS)[0]
    if "images" not in source.data.needs:
        raise BadInput(
            f"{arguments.dataset} holds features already; give images: cifar10, cifar100, a file or a folder"
        )
    file: Path = arguments.file or Path(f"{source.name}_{source.backbone}.npz")
    if file.suffix != ".npz":
        raise BadInput(f"--file {file} must end in .npz, as feature sets do")
    layout = Layout(arguments.out)
    rates = Rates(Store(layout.store), [source])
    display = Display(console, f"{source.name}: features by {arguments.backbone}", _estimate(rates, arguments))
    outcome = run_plan([source.data], layout, _machine(arguments), results.Recorder(layout, None, track=False), display)
    if not outcome.state.failures:
        from tasks.data_kinds import write_features  # brings torch, which other commands do without

        write_features(source.data, Store(layout.store), file)
        _speaker(console)(f"features: {file}")
    return _conclude(outcome, arguments, console, f"unlearn grid --features {file}")


def plan(arguments: argparse.Namespace, console: Console) -> int:
    """What ``grid`` would do."""
    parts = _selection(arguments, planning=True)
    cells = _cells(parts, arguments)
    layout, steps = Layout(arguments.out), closure(cells)
    store = Store(layout.store)
    state = State(steps)
    state.cached = {step.id for step in steps if store.has(step)}
    save_plan(layout, steps)
    n_methods = sum(step.kind is Kind.UNLEARN for step in steps)
    n_variants = sum(len(part.variants) for part in parts)
    say = _speaker(console)
    say(f"{n_variants} variants, {len(cells)} cells, {n_methods} method runs, {len(steps)} steps")
    for missing in dict.fromkeys(missing for part in parts for missing in part.source.missing):
        say(f"not there yet: {missing}")
    if any(part.source.missing for part in parts):
        say("planned from published sizes all the same; 'cached' then counts nothing that depends on what is missing")
    uses = Counter(needed.id for step in steps for needed in step.needs.values() if step.kind is Kind.UNLEARN)
    for kind in (Kind.FEATURES, Kind.RESIZED, Kind.SKETCH, Kind.STATISTICS, Kind.BASE, Kind.RETRAIN):
        users = [uses[step.id] for step in steps if step.kind is kind]
        if users:
            say(f"each {kind} step is shared by {min(users)} to {max(users)} method runs")
    rates = Rates(store, [part.source for part in parts])
    left = [step for step in steps if step.id not in state.cached]
    console.print(_costs(state, left, rates))
    seconds = rates.total(left)
    measured = sum(rates.seconds(step)[1] for step in left)
    say(
        f"about {duration(seconds / arguments.workers)} left on {arguments.workers} workers ({duration(seconds)} of work; "
        f"{measured} of {len(left)} steps from times measured in this store, the rest from this machine's GEMM rate)"
    )
    gpu = GpuModel()
    say(f"about {sum(gpu.seconds(rates.work(step)) for step in left) / 3600:.1f} GPU-hours left, by a model: {gpu}")
    if arguments.steps:
        for step in steps:
            say(f"{step.id[:12]} {'cached ' if step.id in state.cached else 'to run '} {step}")
    return 0


def _costs(state: State, left: Sequence[Step], rates: Rates) -> Table:
    """Steps by kind, and what those still to run will cost."""
    table, gpu = Table(box=None, pad_edge=False), GpuModel()
    table.add_column("steps")
    for column in ("total", "cached", "to run", "hours on one worker", "GPU-hours"):
        table.add_column(column, justify="right")
    for kind, count in state.counts().items():
        to_run = [step for step in left if step.kind == kind]
        hours, gpu_hours = rates.total(to_run) / 3600, sum(gpu.seconds(rates.work(step)) for step in to_run) / 3600
        table.add_row(
            kind, str(count["total"]), str(count["cached"]), str(len(to_run)), f"{hours:.2f}", f"{gpu_hours:.2f}"
        )
    return table


def status(arguments: argparse.Namespace, console: Console) -> int:
    """What the status file of a grid says."""
    layout = Layout(arguments.out)
    known = read_json(layout.status, None)
    if known is None:
        raise BadInput(f"{layout.out} holds no grid; give the --out of a run")
    say = _speaker(console)
    console.print(counts_table(known["counts"], str(layout.out)))
    when = datetime.fromtimestamp(known["updated"]).isoformat(" ", "seconds")
    age = time.time() - known["updated"]
    if known["finished"]:
        say(f"ended {when}; {known['left']} steps left")
    elif age > 30:
        say(
            f"no sign of life for {duration(age)} (process {known['pid']} on {known['host']}); the same command goes on"
        )
    else:
        say(f"running as process {known['pid']} on {known['host']}, {known['left']} steps left, last seen {when}")
    for step in known["running"]:
        say(f"running: {step}")
    for failure in known["failures"]:
        say(f"failed: {failure['step']}: {failure['reason']}")
    return 0


def explain(arguments: argparse.Namespace, console: Console) -> int:
    say = _speaker(console)
    for line in explanation.explain(Layout(arguments.out), arguments.step):
        say(line)
    return 0


def sync(arguments: argparse.Namespace, console: Console) -> int:
    layout = Layout(arguments.out)
    if not layout.store.exists():
        raise BadInput(f"{layout.out} has no step store; give the --out of a run")
    n_cells, tracking = results.sync(layout, arguments.tracking_uri)
    say = _speaker(console)
    say(f"{n_cells} cells from {layout.store}")
    say(tracking)
    return 0


def report(arguments: argparse.Namespace, console: Console) -> int:
    """Tables, figures, frames and a page from a results tree."""
    from workflows import report as reporting

    say = _speaker(console)
    out = arguments.out or arguments.results.parent / "report"
    notes = "" if arguments.notes is None else read_text(arguments.notes)
    with console.status("report") as status:
        done = reporting.write_report(
            arguments.results, out, notes, not arguments.no_illustrations, lambda what: status.update(f"report: {what}")
        )
    for table in reporting.named_tables(done.tables, chosen(arguments.table, ())):
        console.print(rich_table(table))
        for note in table.notes:
            say(note)
    for sentence in done.sentences:
        say(sentence)
    for problem in done.tree.problems:
        say(f"problem in the tree: {problem}")
    if arguments.document is not None:
        reporting.publish(done, arguments.document)
        say(f"document: {arguments.document}")
    say(f"tables, figures, frames: {out}")
    say(f"page: {done.page}")
    if not arguments.no_tracking:
        say(results.log_report(Layout(arguments.results.parent), arguments.tracking_uri, out))
    return 0


SERVER_ENDS_WITHIN = 8.0
"""Seconds."""


def ui(arguments: argparse.Namespace, console: Console) -> int:
    """MLflow's own server, on loopback, until interrupted."""
    layout = Layout(arguments.out)
    uri = arguments.tracking_uri or default_tracking_uri(layout.out)
    if uri.startswith("sqlite:///") and not os.path.exists(uri.removeprefix("sqlite:///")):
        raise BadInput(f"no MLflow database at {uri.removeprefix('sqlite:///')}; run a grid first, or 'unlearn sync'")
    say = _speaker(console)
    say(f"http://127.0.0.1:{arguments.port}  (Ctrl-C ends it)")
    say(f"click 'Model training', the experiment '{layout.experiment}', a variant's run, a child run, 'Model metrics'")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--host", "127.0.0.1", "--port", str(arguments.port), "--workers", "1"]
    # the server starts processes of its own: a group, so that all of them end with this command
    server = subprocess.Popen(command, start_new_session=True)
    try:
        # in short waits: a signal may reach a library's thread first, and a long wait would then never hear of it
        while server.poll() is None:
            time.sleep(0.2)
        return server.returncode
    finally:
        _end_group(server)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask all of a process's group to end, and make it where it does not."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=SERVER_ENDS_WITHIN)
            return


@dataclass(frozen=True)
class Part:
    """The chosen variants on one source."""

    source: Source
    variants: Sequence[Variant]


def data_options(arguments: argparse.Namespace, datasets: Sequence[str]) -> DataOptions:
    """What the options say about data."""
    names = {field.name for field in dataclasses.fields(DataOptions)} - {"datasets", "features"}
    given = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
    file = getattr(arguments, "features", None)
    if file is not None and getattr(arguments, "dataset", None):
        raise BadInput("--features is a data set of its own; leave --dataset out")
    return DataOptions(datasets=tuple(datasets), features=file, **given)


def _selection(arguments: argparse.Namespace, planning: bool = False) -> list[Part]:
    options = data_options(arguments, chosen(arguments.dataset, PAPER_DATASETS))
    archs = None if arguments.arch is None else chosen(arguments.arch, ())
    scenarios = [Scenario(name) for name in chosen(arguments.scenario, tuple(Scenario))]
    keys = None if arguments.key is None else chosen(arguments.key, ())
    parts = []
    for source in open_sources(options, archs, planning):
        wanted = [arch for arch in archs or source.archs if arch in source.archs]
        parts.append(Part(source, choose_variants(source, wanted, scenarios, keys)))
    return [part for part in parts if part.variants]


def _cells(parts: Sequence[Part], arguments: argparse.Namespace) -> list[Step]:
    settings, methods = settings_of(arguments), chosen(arguments.methods, PAPER_METHODS)
    seeds = chosen(arguments.seeds, SEEDS)
    return [
        cell_step(part.source, variant, seed, methods, settings)
        for part in parts
        for variant in part.variants
        for seed in seeds
    ]


def _run(parts: Sequence[Part], arguments: argparse.Namespace, console: Console) -> Outcome:
    layout = Layout(arguments.out)
    cells = _cells(parts, arguments)
    rates = Rates(Store(layout.store), [part.source for part in parts])
    variants = [variant for part in parts for variant in part.variants]
    names = ", ".join(dict.fromkeys(part.source.name for part in parts))
    title = str(variants[0]) if len(variants) == 1 else f"{names}: {len(variants)} variants, {len(cells)} cells"
    recorder = results.Recorder(layout, arguments.tracking_uri, track=not arguments.no_tracking)
    return run_plan(cells, layout, _machine(arguments), recorder, Display(console, title, _estimate(rates, arguments)))


def _estimate(rates: Rates, arguments: argparse.Namespace) -> EstimateLeft:
    workers = 1 if arguments.local else arguments.workers or os.cpu_count() or 1

    def estimate(state: State) -> float:
        settled = state.cached | state.done | set(state.failures)
        return rates.total([step for step in state.steps if step.id not in settled]) / workers

    return estimate


def _machine(arguments: argparse.Namespace) -> Machine:
    return Machine(
        arguments.local,
        arguments.address,
        arguments.workers,
        arguments.gpus_per_worker,
        arguments.device,
        arguments.deterministic,
    )


def _print_variant(source: Source, variant: Variant, arguments: argparse.Namespace, console: Console) -> None:
    layout, seeds = Layout(arguments.out), chosen(arguments.seeds, SEEDS)
    entries = [e for e in read_entries(layout.results, variant, source.backbone) if e["seed"] in seeds]
    table = benchmark_table(TreeVariant(variant, source.backbone, tuple(entries)))
    console.print(rich_table(table))
    say = _speaker(console)
    for note in table.notes:
        say(note)
    figures = write_evolution(layout.figures, entries, variant)
    say(f"results: {tree_path(layout.results, variant, source.backbone)}")
    say(f"figure: {figures[-1]}")


def _conclude(outcome: Outcome, arguments: argparse.Namespace, console: Console, following: str | None = None) -> int:
    """The last lines of a run: what ran, what failed and how to see more."""
    say, state = _speaker(console), outcome.state
    say(outcome.tracking)
    say(
        f"{len(state.done)} steps run, {len(state.cached)} cached, {len(state.failures)} failed; {duration(outcome.seconds)}"
    )
    causes = [failure for failure in state.failures.values() if failure.because is None]
    for failure in causes:
        say(f"failed: {failure.step}: {failure.reason}")
        if failure.traceback:
            say(f"  the whole of it: {Layout(arguments.out).failures / failure.step.id}.txt")
    if causes:
        say(f"{len(state.failures) - len(causes)} more steps needed those; the same command tries them again")
        return EXIT_FAILED_STEPS
    say(f"next: {following or f'unlearn ui --out {arguments.out}'}")
    return 0


def _check_device(arguments: argparse.Namespace) -> None:
    if not arguments.local:
        return
    import torch

    try:
        torch.zeros(1, device=arguments.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"--device {arguments.device} cannot be used here ({reason}); cpu always can") from error


def _speaker(console: Console):
    return lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True)


__all__ = ["explain", "features", "forget", "grid", "plan", "report", "run", "status", "sync", "ui", "verify"]
