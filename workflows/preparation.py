"""Prepare a model of the user's for requests: here, or part by part on workers."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tasks.compute.parts import gather, part_steps, put_subject
from tasks.executor import execute, find_cached
from tasks.state import State
from tasks.step import Step
from tasks.store import Store
from unlearn_core.data.labelled import LabelledSet
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.locks import LOCK_NAME, FileLock
from unlearn_core.forgetting.model_files import LoadedModel
from unlearn_core.forgetting.opening import prepare
from unlearn_core.forgetting.state import FILE_NAME
from unlearn_core.preparations import Given, Kept
from unlearn_core.problem import as_inputs
from unlearn_core.recipes import Visit, training_recipe
from unlearn_core.training import Member, train
from workflows.deletion import check_device, load_data, read_model_and_data
from workflows.display import speaker
from workflows.forget_words import NO_TEST, model_options, say_model
from workflows.run import Machine, Workers

TIMED_ROWS = 20_000
"""Rows on which an epoch of training is timed, to say what preparing cost beside it."""
FAILURE = "failure.txt"


def run_preparation(arguments: argparse.Namespace, console: Console) -> int:
    """Prepare a model on its data, and say what it took beside training it."""
    say, out = speaker(console), arguments.out
    machine = Machine(address=arguments.address, workers=arguments.workers)
    on_workers = not machine.may_be_local
    _check_options(arguments, on_workers)
    arguments.logits = arguments.prepared = None
    data = load_data(arguments.data)
    given, places, loaded = read_model_and_data(arguments, data)
    del given["class_names"]
    say_model(loaded, say)
    if not data.has_test:
        say(NO_TEST)
    say(f"{loaded.blueprint.name}: {loaded.net.n_classes} classes; {len(data.train_y)} training rows")
    started = time.perf_counter()
    with (
        _elsewhere(out, loaded, machine, console) if on_workers else contextlib.nullcontext() as compute,
        console.status("preparing: statistics, fold models, curvature, held-out rows"),
    ):
        state = prepare(
            **given,
            out=out,
            ids=data.ids,
            sources=tuple(places.values()),
            ledger=arguments.ledger,
            wait=arguments.wait,
            waiting=say,
            also=tuple(dict.fromkeys(arguments.also or ())),
            compute=compute,
        )
    if len(state.removed):
        say(f"{len(state.removed)} rows are forgotten by now, and neither fold models nor curvature have seen them")
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in state.seconds.items())
    clock = f" ({time.perf_counter() - started:.1f} s by the clock, on workers)" if on_workers else ""
    say(f"prepared in {sum(state.seconds.values()):.1f} s{clock}: {took}")
    trained, epochs = _training_seconds(loaded, given, data)
    share = sum(state.seconds.values()) / trained
    say(f"that is {100 * share:.0f} % of training the model for {epochs} epochs, about {trained:.1f} s (one was timed)")
    say(f"{state.bytes / 1e6:.1f} MB in {out}")
    if frozen := state.frozen:
        say(f"newton leaves as they are, for they are in no linear or convolutional layer: {', '.join(frozen)}")
    say(f"next: unlearn forget {model_options(arguments)} --ids REQUEST --prepared {out}")
    return 0


def _check_options(arguments: argparse.Namespace, on_workers: bool) -> None:
    out: Path = arguments.out
    if arguments.model is None:
        raise BadInput("give the model as --model; a black box cannot be prepared")
    if on_workers and arguments.device != "cpu":
        raise BadInput(f"--device {arguments.device} is for one process; workers use the GPUs that Ray gives them")
    check_device(arguments.device)
    if (out / FILE_NAME).exists() and not arguments.force:
        raise BadInput(f"{out} already holds a prepared state; name another --out, or replace it with --force")
    if out.exists() and not (out / FILE_NAME).exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} is no prepared state and is not empty; name another --out")


@contextlib.contextmanager
def _elsewhere(
    out: Path, loaded: LoadedModel, machine: Machine, console: Console
) -> Iterator[Callable[[Given, Sequence[str]], Kept]]:
    """What computes parts on workers. Until the state is whole they wait beside it, with a copy of the rows."""
    folder = out.with_name(f"{out.name}.steps")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock, store = FileLock(folder / LOCK_NAME), Store(folder)
    if not lock.acquire():
        raise BadInput(f"{folder} is in use by {lock.holder()}; wait for it, or name another --out")

    def compute(given: Given, names: Sequence[str]) -> Kept:
        store.clean_scratch()
        parts = part_steps(names, given.arch, put_subject(given, loaded.blueprint.name, store))
        _execute([step for steps in parts.values() for step in steps], store, machine, console)
        return gather(parts, given, store)

    try:
        yield compute
        shutil.rmtree(folder)
    finally:
        lock.release()
        with contextlib.suppress(OSError):  # gone, or not empty: rerun, it goes on from there
            folder.rmdir()


def _execute(steps: list[Step], store: Store, machine: Machine, console: Console) -> None:
    say, state = speaker(console), State(steps, *find_cached(steps, store))
    if state.cached:
        say(f"{len(state.cached)} of {len(steps)} parts were prepared before, and are in {store.root}")
    if state.left:
        with Workers(store.root, machine) as workers:
            execute(state, workers.backend(), on_done=lambda step: say(f"prepared: {step}"), on_change=lambda _: None)
    if causes := state.causes:
        texts = [f"{cause.step}: {cause.reason}\n{cause.traceback or ''}" for cause in causes]
        (store.root / FAILURE).write_text("\n".join(texts))
        raise BadInput(
            f"{causes[0].step} failed ({causes[0].reason}; the whole of it is in {store.root / FAILURE}); rerun the same "
            "command to go on from what is prepared"
        )


def _training_seconds(loaded: LoadedModel, given: dict[str, Any], data: LabelledSet) -> tuple[float, int]:
    """What training it takes, from one epoch on at most ``TIMED_ROWS`` rows; and how many epochs that is."""
    how, epochs = loaded.blueprint.training
    rows = min(len(data.train_y), TIMED_ROWS)
    read = given["features"] if given["inputs"] is None else given["inputs"]
    inputs = as_inputs(read[:rows], loaded.net.device)
    labels = torch.from_numpy(given["labels"][:rows]).to(loaded.net.device)
    net = loaded.blueprint.fresh(loaded.net, inputs[:2], seed=0)
    seconds = train(net, inputs, [Member(0, "base", labels)], training_recipe(Visit.ALL, 1), how)
    return seconds * epochs * len(data.train_y) / rows, epochs
