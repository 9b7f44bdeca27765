"""The parts of a prepared state as steps: what they are computed from in the store, and each of them, or a piece of one.

The command that prepares has read and checked model and data; it puts them into the store, where workers map them. A part is
computed there by the function that computes it in one process, so that the state is the same to the bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.cache import Cache
from tasks.compute.reading import read_array, read_weights
from tasks.files import RECORD, WEIGHTS
from tasks.step import Kind, Step, check_config
from tasks.store import Store, write_json
from unlearn_core.clock import Stopwatch
from unlearn_core.data.weights import save_safetensors
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.certificate import arrays_sha256, state_sha256
from unlearn_core.nets.make import blueprint
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.preparations import PREPARATIONS, Given, Kept, Per, arrays_of, kept_as, prepared_config
from unlearn_core.problem import Problem, Rows, as_inputs

Write = Callable[[Path], None]


def put_subject(given: Given, network: str, store: Store) -> Step:
    """Put what a state is prepared of into the store, unless it is there already.

    Args:
        network: what builds the network, as ``blueprint`` reads it; looked for in the current folder.
    """
    arrays, weights = _subject_arrays(given), given.network.state(0)
    config = {
        "network": network,
        "n_classes": given.problem.n_classes,
        "weights": state_sha256(weights),
        "data": arrays_sha256(arrays),
    }
    step = Step(Kind.SUBJECT, config, hints={"folder": str(Path.cwd())})
    store.verify(step)  # what is damaged is moved aside

    def write(directory: Path) -> None:
        save_safetensors(directory / WEIGHTS, weights)
        for name, array in arrays.items():
            np.save(directory / f"{name}.npy", array, allow_pickle=False)

    if not store.has(step):
        store.commit(step, write, seconds=0.0)
    return step


def _subject_arrays(given: Given) -> dict[str, NDArray]:
    """Rows as proxies see them, and as the network reads them if that is something else."""
    rows = given.problem.train
    arrays, inputs = {"labels": rows.labels, "features": rows.seen}, rows.inputs.cpu().numpy()
    same = inputs.shape == rows.seen.shape and inputs.dtype == rows.seen.dtype
    if not (same and np.may_share_memory(inputs, rows.seen)):
        arrays["inputs"] = inputs
    return arrays | ({} if given.removed is None else {"removed": given.removed})


def part_steps(names: Sequence[str], arch: str | None, subject: Step) -> dict[str, list[Step]]:
    """The steps of each part: one, or one for every piece."""

    def step(name: str, piece: Mapping[str, int]) -> Step:
        return Step(Kind.PART, {**prepared_config(name, arch), **piece}, {"subject": subject})

    def steps(name: str) -> list[Step]:
        how = PREPARATIONS[name]
        if how.pieces is None:
            return [step(name, {})]
        return [step(name, {"piece": k}) for k in range(how.pieces.count(how.constants))]

    return {name: steps(name) for name in names}


def compute_part(steps: Sequence[Step], store: Store, cache: Cache) -> list[Write]:
    def writer(step: Step) -> Write:
        name, piece = step.config["what"], step.config.get("piece")
        check_config(step, prepared_config(name, step.config.get("arch")))
        how, given, watch = PREPARATIONS[name], _given(step, store, cache), Stopwatch(cache.device)
        with watch.running():
            if how.pieces is None or piece is None:
                value = how.compute(given, how.constants)
            else:
                value = how.pieces.compute(given, how.constants, piece)

        def write(directory: Path) -> None:
            write_json(directory / RECORD, {"seconds": watch.seconds})
            for field, array in arrays_of(value).items():
                np.save(directory / f"{field}.npy", array, allow_pickle=False)

        return write

    return [writer(step) for step in steps]


def gather(parts: Mapping[str, Sequence[Step]], given: Given, store: Store) -> Kept:
    """What the steps computed, with the seconds that it took all of them."""
    kept = Kept()
    for name, steps in parts.items():
        how, key = PREPARATIONS[name], kept_as(name, given.arch)
        arrays = [
            {path.stem: np.load(path, allow_pickle=False) for path in store.path(step).glob("*.npy")} for step in steps
        ]
        if how.pieces is None:
            kept.values[key] = how.load(arrays[0])
        else:
            kept.values[key] = how.pieces.join(given, how.constants, [how.pieces.load(one) for one in arrays])
        kept.seconds[key] = sum(store.read_json(step, RECORD)["seconds"] for step in steps)
    return kept


def _given(step: Step, store: Store, cache: Cache) -> Given:
    """What a part is computed from, mapped once; the network is built only for a part that asks for it."""
    subject = step.needs["subject"]
    folder = store.path(subject)

    def rows() -> Given:
        arrays = {path.stem: read_array(path) for path in folder.glob("*.npy")}
        read = arrays.get("inputs", arrays["features"])
        train = Rows(arrays["labels"], arrays["features"], lambda: as_inputs(read, cache.device))
        problem = Problem(train, None, subject.config["n_classes"])
        return Given(problem, step.config.get("arch"), removed=arrays.get("removed"))

    given = replace(cache.get(subject.id, rows), arch=step.config.get("arch"))
    if PREPARATIONS[step.config["what"]].per is not Per.NETWORK:
        return given
    return replace(given, net=cache.get(f"network/{subject.id}", lambda: _network(subject, given, store)))


def _network(subject: Step, given: Given, store: Store) -> NetworkStack:
    name = subject.config["network"]
    with contextlib.chdir(subject.hints["folder"]) if ":" in name else contextlib.nullcontext():
        net = blueprint(name).restore(read_weights(store.path(subject) / WEIGHTS), given.problem.train.inputs[:2])
    if state_sha256(net.state(0)) != subject.config["weights"]:
        raise BadInput(f"{name} builds another network here than where the command runs; use the same code there")
    return net
