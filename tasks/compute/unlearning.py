"""What each kind of step computes: it reads its needs from the store, calls the core, and writes plain files.

How data comes in is in ``data``.

A function gets the steps of one shape (the seeds of one method, say) and computes them as one stack; each step is
published on its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.cache import Cache
from tasks.compute.data import Write, compute_features, compute_images, compute_resized, compute_shard, load_arrays
from tasks.compute.parts import compute_part
from tasks.compute.reading import read_array, read_weights
from tasks.compute.request import compute_request
from tasks.files import ENTRY, KL_ROWS, MARGINS, OMEGA, RECORD, SKETCH, WEIGHTS
from tasks.step import FOLDS, Kind, Step, check_config
from tasks.store import Store, write_json
from unlearn_core.assess import assess, view_retained
from unlearn_core.audit.answers import answers_of, final_networks
from unlearn_core.audit.rows import AuditRows, audit_rows
from unlearn_core.audit.stein import stein_block
from unlearn_core.clock import Stopwatch
from unlearn_core.data.sketch import Sketch, semi_orthogonal, sketch, sketch_width
from unlearn_core.data.splits import scenario_mask
from unlearn_core.data.weights import load_weights, save_safetensors
from unlearn_core.grid import RESNET, LabelSpace, Scenario
from unlearn_core.nets.make import stored_network
from unlearn_core.nets.resnet import ResNetStack
from unlearn_core.nets.stack import State
from unlearn_core.preparations import (
    CROSSFIT,
    DISCRIMINANT,
    PREPARATIONS,
    Given,
    Kept,
    Per,
    arrays_of,
    kept_as,
    prepared_config,
)
from unlearn_core.problem import Cell, Inputs, Problem, make_cell, make_problem
from unlearn_core.recipes import training_config
from unlearn_core.records import Json, assessed_entry, cell_entry, method_entry, reference_entry, without_nonfinite
from unlearn_core.references import Trained, make_scorers, reference_records, train_reference
from unlearn_core.run_settings import RunSettings, what_is_run
from unlearn_core.unlearning import Reference, run_method
from unlearn_core.within_budget import hidden_layers

Compute = Callable[[Sequence[Step], Store, Cache], list[Write]]


def compute_prepared(steps: Sequence[Step], store: Store, cache: Cache) -> list[Write]:
    """What is computed once for all requests: of D in one label space, for an architecture, or of a base network."""

    def writer(step: Step) -> Write:
        name, arch = step.config["what"], step.config.get("arch")
        check_config(step, prepared_config(name, arch))
        problem = _problem(step, store, cache)
        base = step.needs.get("base")
        net = None if base is None else _trained([base], store, cache, problem).net
        kept = problem.prepared if net is None else Kept()
        value = kept.get(name, Given(problem, arch, net, pretrained=_pretrained(step, cache)))

        def write(directory: Path) -> None:
            write_json(directory / RECORD, {"seconds": kept.seconds[kept_as(name, arch)]})
            for field, array in arrays_of(value).items():
                np.save(directory / f"{field}.npy", array, allow_pickle=False)

        return write

    return [writer(step) for step in steps]


def compute_reference(steps: Sequence[Step], store: Store, cache: Cache) -> list[Write]:
    """Base, retrain or floor."""
    problem = _problem(steps[0], store, cache)
    cells = _cells(steps, store, cache)
    config, kind = steps[0].config, steps[0].kind
    check_config(steps[0], training_config(config["arch"], str(kind), config["epochs"]))
    pretrained = _pretrained(steps[0], cache)
    trained = train_reference(str(kind), problem, config["arch"], cells, config["epochs"], pretrained=pretrained)

    def writer(k: int) -> Write:
        def write(directory: Path) -> None:
            save_safetensors(directory / WEIGHTS, trained.net.state(k))
            write_json(directory / RECORD, {"seconds": trained.seconds[k]})

        return write

    return [writer(k) for k in range(len(steps))]


def compute_unlearning(steps: Sequence[Step], store: Store, cache: Cache) -> list[Write]:
    """One method on the cells of one variant."""
    reference = _reference(steps, store, cache)
    method, settings = steps[0].config["method"], RunSettings.from_config(steps[0].config)
    check_config(steps[0], what_is_run(method, reference.arch, settings).config())
    records = run_method(method, reference, settings)

    def writer(k: int) -> Write:
        return lambda directory: write_json(directory / ENTRY, method_entry(records[k]))

    return [writer(k) for k in range(len(steps))]


def compute_audit(steps: Sequence[Step], store: Store, cache: Cache) -> list[Write]:
    """A cell's seed entry: its references scored, its methods gathered, and what Stein's bound says of each row at its last
    epoch."""
    reference = _reference(steps, store, cache)
    problem = reference.problem
    floor = _trained([step.needs["floor"] for step in steps], store, cache, problem)
    scored = {
        name: reference_records(trained, reference.scorers)
        for name, trained in (("base", reference.base), ("retrain", reference.retrain), ("floor", floor))
    }

    def writer(k: int) -> Write:
        step, cell = steps[k], reference.cells[k]
        rows = {name: reference_entry(records[k], reference.retrain.seconds[k]) for name, records in scored.items()}
        rows |= {
            role: store.read_json(needed, ENTRY) for role, needed in step.needs.items() if needed.kind is Kind.UNLEARN
        }
        for row in rows.values():
            row["stein"] = stein_block(row.get("last", row), cell.n_forget)
        found = _assessed(step, cell, problem)
        entry = cell_entry(cell.seed, cell.n_forget, len(cell.forget) - cell.n_forget, rows, found)
        return lambda directory: write_json(directory / ENTRY, entry)

    return [writer(k) for k in range(len(steps))]


def _assessed(step: Step, cell: Cell, problem: Problem) -> dict[str, Json]:
    """What a rule may know of a cell's request, and what it takes to find out if there are models of folds."""
    if problem.train.features is None:
        return {}
    arch = step.config["arch"]
    check_config(step, {"assessed_by": prepared_config(DISCRIMINANT, arch)})
    if FOLDS not in step.needs:
        return assessed_entry(problem.kept_answers(cell.forget))
    crossfit, watch = problem.prepare(CROSSFIT, arch), Stopwatch()
    compared_with = view_retained(problem, cell.forget, crossfit)
    problem.prepare(DISCRIMINANT)
    with watch.running():
        found = assess(problem, cell.forget, crossfit, compared_with, hidden_layers(arch), cell.seed)
    kept = problem.kept_answers(cell.forget) if found.kept is None else found.kept
    return assessed_entry(kept, str(found.verdict.kind), watch.seconds)


def compute_answers(steps: Sequence[Step], store: Store, cache: Cache) -> list[Write]:
    """What the networks of an audit say of its rows: bases, retrains, or what a method makes of the bases.

    A method's network is kept nowhere: its answers are, and its scores at its end.
    """
    reference = _reference(steps, store, cache)
    method = steps[0].config["method"]
    given = {"base": reference.base, "retrain": reference.retrain}
    if method in given:
        networks = [(given[method].net, k) for k in range(len(steps))]
        rows = [{"seconds": seconds} for seconds in given[method].seconds]
    else:
        settings = RunSettings.from_config(steps[0].config)
        check_config(steps[0], what_is_run(method, reference.arch, settings).config())
        networks, records = final_networks(method, reference, settings)
        rows = [{"seconds": r.seconds, "cost": r.cost, "preparation": r.preparation} for r in records]
    chosen = _audit_rows(steps[0], store, cache)

    def writer(k: int) -> Write:
        answers = answers_of(networks[k], (reference.retrain.net, k), reference.problem, chosen)
        entry = {**without_nonfinite(dataclasses.asdict(reference.scorers[k].score(*networks[k]))), **rows[k]}

        def write(directory: Path) -> None:
            write_json(directory / ENTRY, entry)
            np.save(directory / KL_ROWS, answers.kl_rows, allow_pickle=False)
            for part in MARGINS:
                np.save(directory / f"{part}.npy", getattr(answers, part), allow_pickle=False)

        return write

    return [writer(k) for k in range(len(steps))]


def _audit_rows(step: Step, store: Store, cache: Cache) -> AuditRows:
    data, config = _inputs(step, store, cache).data, step.config
    request = Scenario(config["scenario"]), config["key"], config.get("pool")
    return audit_rows(*request, data.train_y, len(data.test_y), config["rows"])


def compute_sketch(steps: Sequence[Step], store: Store, cache: Cache) -> list[Write]:
    """What the proxies of one ResNet see: a layer of it on every image, projected."""

    def writer(step: Step) -> Write:
        problem = _problem(step, store, cache)
        net = _trained([step.needs["base"]], store, cache, problem).net
        if not isinstance(net, ResNetStack):
            raise TypeError("only a ResNet is sketched; a head's proxies see its features")
        omega = np.load(store.path(step.needs["projection"]) / OMEGA, allow_pickle=False)

        def write(directory: Path) -> None:
            for part, inputs in zip(SKETCH, (problem.train.inputs, problem.test.inputs), strict=True):
                sketched = sketch(net, inputs, omega, step.config["layer"])
                np.save(directory / f"{part}.npy", sketched, allow_pickle=False)

        return write

    return [writer(step) for step in steps]


def compute_projection(steps: Sequence[Step], store: Store, cache: Cache) -> list[Write]:
    """Omega, once for all networks."""

    def writer(step: Step) -> Write:
        config = step.config
        width = sketch_width(config["size"], config["layer"], config.get("arch", RESNET))
        omega = semi_orthogonal(config["dim"], width, config["draw"])
        return lambda directory: np.save(directory / OMEGA, omega, allow_pickle=False)

    return [writer(step) for step in steps]


COMPUTE: Mapping[Kind, Compute] = MappingProxyType(
    {
        Kind.IMAGES: compute_images,
        Kind.RESIZED: compute_resized,
        Kind.SHARD: compute_shard,
        Kind.FEATURES: compute_features,
        Kind.PROJECTION: compute_projection,
        Kind.SKETCH: compute_sketch,
        Kind.PREPARED: compute_prepared,
        Kind.BASE: compute_reference,
        Kind.RETRAIN: compute_reference,
        Kind.FLOOR: compute_reference,
        Kind.UNLEARN: compute_unlearning,
        Kind.AUDIT: compute_audit,
        Kind.ANSWERS: compute_answers,
        Kind.REQUEST: compute_request,
        Kind.PART: compute_part,
    }
)


def _data(step: Step) -> Step:
    return step.needs.get("features") or step.needs["images"]


def _inputs(step: Step, store: Store, cache: Cache) -> Inputs:
    """The data of a step, on this worker's device once for all label spaces."""
    return cache.get(_data(step).id, lambda: Inputs(load_arrays(_data(step), store), cache.device))


def _problem(step: Step, store: Store, cache: Cache) -> Problem:
    """The data of a step on this worker's device, with what was prepared of it if the step needs that; loaded once."""
    inputs, space = _inputs(step, store, cache), LabelSpace(step.config["space"])
    sketch_step = step.needs.get("sketch")
    prepared = [need for need in _prepared(step) if PREPARATIONS[need.config["what"]].per is not Per.NETWORK]

    def load() -> Problem:
        return make_problem(inputs, space, _load_sketch(sketch_step, store), load_prepared(prepared, store))

    needed = [str(space), *(one.id for one in (_data(step), sketch_step, *prepared) if one is not None)]
    return cache.get("/".join(needed), load)


def _load_sketch(step: Step | None, store: Store) -> Sketch | None:
    if step is None:
        return None
    arrays = (read_array(store.path(step) / f"{part}.npy") for part in SKETCH)
    return Sketch(*arrays)


def _prepared(step: Step) -> list[Step]:
    return [need for need in step.needs.values() if need.kind is Kind.PREPARED]


def load_prepared(steps: Sequence[Step], store: Store) -> Kept:
    """What some steps prepared, with the seconds that each took."""
    kept = Kept()
    for step in steps:
        name = step.config["what"]
        arrays = {path.stem: np.load(path, allow_pickle=False) for path in store.path(step).glob("*.npy")}
        key = kept_as(name, step.config.get("arch"))
        kept.values[key] = PREPARATIONS[name].load(arrays)
        kept.seconds[key] = store.read_json(step, RECORD)["seconds"]
    return kept


def _of_network(step: Step, store: Store, cache: Cache) -> Kept:
    """What was prepared of a step's base network; loaded once."""
    steps = [need for need in _prepared(step) if PREPARATIONS[need.config["what"]].per is Per.NETWORK]
    return cache.get("/".join(["prepared", *(one.id for one in steps)]), lambda: load_prepared(steps, store))


def _cells(steps: Sequence[Step], store: Store, cache: Cache) -> list[Cell]:
    """The forget request of each step; for a base network, which has none, a cell that forgets nothing."""
    data = _inputs(steps[0], store, cache).data

    def mask(step: Step) -> NDArray[np.bool_]:
        if step.kind is Kind.BASE:
            return np.zeros(len(data.train_y), dtype=bool)
        config = step.config
        scenario, key = Scenario(config["scenario"]), config["key"]
        return scenario_mask(scenario, key, data.train_y, config["seed"], config.get("pool"))

    return [make_cell(data, mask(step), step.config["seed"]) for step in steps]


def _trained(steps: Sequence[Step], store: Store, cache: Cache, problem: Problem) -> Trained:
    """A stack of stored networks, one per step."""

    def load(step: Step) -> dict[str, torch.Tensor]:
        return cache.get(step.id, lambda: read_weights(store.path(step) / WEIGHTS))

    net = stored_network(steps[0].config["arch"], [load(step) for step in steps], problem.device)
    return Trained(net, tuple(store.read_json(step, RECORD)["seconds"] for step in steps))


def _reference(steps: Sequence[Step], store: Store, cache: Cache) -> Reference:
    problem = _problem(steps[0], store, cache)
    cells = _cells(steps, store, cache)
    base, retrain = (_trained([s.needs[role] for s in steps], store, cache, problem) for role in ("base", "retrain"))
    scorers = make_scorers(problem, cells, retrain)
    pretrained, kept = _pretrained(steps[0], cache), [_of_network(step, store, cache) for step in steps]
    return Reference(problem, steps[0].config["arch"], cells, base, retrain, scorers, pretrained, kept)


def _pretrained(step: Step, cache: Cache) -> State | None:
    """The weights that a network's body starts from, if they are not drawn."""
    if (place := step.hints.get("initial")) is None:
        return None
    return cache.get(f"initial/{step.config['initial']}", lambda: load_weights(Path(place)))
