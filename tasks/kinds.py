"""What each kind of step computes: it reads its needs from the store, calls the core, and writes plain files.

How data comes in is in ``data_kinds``.

A function gets the steps of one shape (the seeds of one method, say) and computes them as one stack; each step is
published on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tasks.data_kinds import Write, compute_features, compute_images, compute_resized, compute_shard, load_arrays
from tasks.files import ENTRY, MOMENTS, OMEGA, PROBE, RECORD, SKETCH, WEIGHTS
from tasks.holdings import Holdings
from tasks.step import Kind, Step
from tasks.store import Store, write_json
from unlearn_core.audit.stein import stein_block
from unlearn_core.data.sketch import Sketch, semi_orthogonal, sketch, sketch_width
from unlearn_core.data.splits import scenario_mask
from unlearn_core.data.weights import load_weights
from unlearn_core.nets.make import stored_network
from unlearn_core.nets.resnet import ResNetStack
from unlearn_core.problem import Cell, Inputs, Problem, make_cell
from unlearn_core.proxies.probe import ProbeFit
from unlearn_core.proxies.statistics import Moments
from unlearn_core.records import cell_entry, method_entry, reference_entry
from unlearn_core.references import Trained, make_scorers, reference_records, train_reference
from unlearn_core.spec import DirOnTest, LabelSpace, ProxySettings, RunSettings, Scenario
from unlearn_core.unlearning import Reference, run_method

Compute = Callable[[Sequence[Step], Store, Holdings], list[Write]]


def compute_statistics(steps: Sequence[Step], store: Store, holdings: Holdings) -> list[Write]:
    """The moments of D in one label space."""

    def writer(moments: Moments) -> Write:
        def write(directory: Path) -> None:
            for name in MOMENTS:
                np.save(directory / f"{name}.npy", getattr(moments, name), allow_pickle=False)

        return write

    return [writer(_problem(step, store, holdings).moments) for step in steps]


def compute_probe(steps: Sequence[Step], store: Store, holdings: Holdings) -> list[Write]:
    """The probe of D in one label space."""

    def writer(fit: ProbeFit) -> Write:
        def write(directory: Path) -> None:
            for name in PROBE:
                np.save(directory / f"{name}.npy", np.asarray(getattr(fit, name)), allow_pickle=False)

        return write

    return [writer(_problem(step, store, holdings).probe) for step in steps]


def compute_reference(steps: Sequence[Step], store: Store, holdings: Holdings) -> list[Write]:
    """Base, retrain or floor."""
    problem = _problem(steps[0], store, holdings)
    cells = [_cell(step, problem) for step in steps]
    config = steps[0].config
    pretrained = None
    if (place := steps[0].hints.get("initial")) is not None:
        pretrained = holdings.get(f"initial/{config['initial']}", lambda: load_weights(Path(place)))
    trained = train_reference(
        str(steps[0].kind), problem, config["arch"], cells, config["epochs"], pretrained=pretrained
    )

    def writer(k: int) -> Write:
        def write(directory: Path) -> None:
            save_file(trained.net.state(k), directory / WEIGHTS)
            write_json(directory / RECORD, {"seconds": trained.seconds[k]})

        return write

    return [writer(k) for k in range(len(steps))]


def compute_unlearning(steps: Sequence[Step], store: Store, holdings: Holdings) -> list[Write]:
    """One method on the cells of one variant."""
    reference = _reference(steps, store, holdings)
    records = run_method(steps[0].config["method"], reference, _settings(steps[0]))

    def writer(k: int) -> Write:
        return lambda directory: write_json(directory / ENTRY, method_entry(records[k]))

    return [writer(k) for k in range(len(steps))]


def compute_audit(steps: Sequence[Step], store: Store, holdings: Holdings) -> list[Write]:
    """A cell's seed entry: its references scored, its methods gathered, and what Stein's bound says of each row."""
    reference = _reference(steps, store, holdings)
    problem = reference.problem
    floor = _trained([step.needs["floor"] for step in steps], store, holdings, problem)
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
            row["stein"] = stein_block(row.get("best", row), cell.n_forget)
        entry = cell_entry(cell.seed, cell.n_forget, len(cell.forget) - cell.n_forget, rows)
        return lambda directory: write_json(directory / ENTRY, entry)

    return [writer(k) for k in range(len(steps))]


def compute_sketch(steps: Sequence[Step], store: Store, holdings: Holdings) -> list[Write]:
    """What the proxies of one ResNet see: a layer of it on every image, projected."""

    def writer(step: Step) -> Write:
        problem = _problem(step, store, holdings)
        net = _trained([step.needs["base"]], store, holdings, problem).net
        if not isinstance(net, ResNetStack):
            raise TypeError("only a ResNet is sketched; a head's proxies see its features")
        omega = np.load(store.path(step.needs["projection"]) / OMEGA, allow_pickle=False)

        def write(directory: Path) -> None:
            for part, inputs in zip(SKETCH, (problem.train_inputs, problem.test_inputs), strict=True):
                sketched = sketch(net, inputs, omega, step.config["layer"])
                np.save(directory / f"{part}.npy", sketched, allow_pickle=False)

        return write

    return [writer(step) for step in steps]


def compute_projection(steps: Sequence[Step], store: Store, holdings: Holdings) -> list[Write]:
    """Omega, once for all networks."""

    def writer(step: Step) -> Write:
        config = step.config
        omega = semi_orthogonal(config["dim"], sketch_width(config["size"], config["layer"]), config["draw"])
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
        Kind.STATISTICS: compute_statistics,
        Kind.PROBE: compute_probe,
        Kind.BASE: compute_reference,
        Kind.RETRAIN: compute_reference,
        Kind.FLOOR: compute_reference,
        Kind.UNLEARN: compute_unlearning,
        Kind.AUDIT: compute_audit,
    }
)


def _problem(step: Step, store: Store, holdings: Holdings) -> Problem:
    """The data of a step on this worker's device; with the cached statistics where the step names them."""
    data_step, space = step.needs.get("features") or step.needs["images"], LabelSpace(step.config["space"])
    inputs = holdings.get(data_step.id, lambda: Inputs(load_arrays(data_step, store), holdings.device))
    sketch_step = step.needs.get("sketch")
    problem = holdings.get(
        f"{data_step.id}/{space}/{sketch_step.id if sketch_step else None}",
        lambda: Problem(inputs, space, _load_sketch(sketch_step, store)),
    )
    if (statistics := step.needs.get("statistics")) is not None:
        # a cached property is an ordinary entry of the instance: the stored moments take its place
        problem.__dict__.setdefault("moments", _load_moments(store.path(statistics)))
    if (probe := step.needs.get("probe_fit")) is not None:
        problem.__dict__.setdefault("probe", _load_probe(store.path(probe)))
    return problem


def _load_sketch(step: Step | None, store: Store) -> Sketch | None:
    if step is None:
        return None
    arrays = (np.load(store.path(step) / f"{part}.npy", mmap_mode="c", allow_pickle=False) for part in SKETCH)
    return Sketch(*arrays)


def _load_moments(directory: Path) -> Moments:
    return Moments(**{name: np.load(directory / f"{name}.npy", allow_pickle=False) for name in MOMENTS})


def _load_probe(directory: Path) -> ProbeFit:
    arrays = {name: np.load(directory / f"{name}.npy", allow_pickle=False) for name in PROBE}
    return ProbeFit(**{**arrays, "scale": float(arrays["scale"])})


def _cell(step: Step, problem: Problem) -> Cell:
    """The forget request of a step; for a base network, which has none, a cell that forgets nothing."""
    config, data = step.config, problem.data
    if step.kind is Kind.BASE:
        return make_cell(data, np.zeros(len(data.train_y), dtype=bool), config["seed"])
    mask = scenario_mask(Scenario(config["scenario"]), config["key"], data.train_y, config["seed"])
    return make_cell(data, mask, config["seed"])


def _trained(steps: Sequence[Step], store: Store, holdings: Holdings, problem: Problem) -> Trained:
    """A stack of stored networks, one per step."""

    def load(step: Step) -> dict[str, torch.Tensor]:
        return holdings.get(step.id, lambda: load_file(store.path(step) / WEIGHTS))

    net = stored_network(steps[0].config["arch"], [load(step) for step in steps], problem.device)
    return Trained(net, tuple(store.read_json(step, RECORD)["seconds"] for step in steps))


def _reference(steps: Sequence[Step], store: Store, holdings: Holdings) -> Reference:
    problem = _problem(steps[0], store, holdings)
    cells = [_cell(step, problem) for step in steps]
    base, retrain = (_trained([s.needs[role] for s in steps], store, holdings, problem) for role in ("base", "retrain"))
    return Reference(problem, steps[0].config["arch"], cells, base, retrain, make_scorers(problem, cells, retrain))


def _settings(step: Step) -> RunSettings:
    config = step.config
    proxy = {name: config[name] for name in ("ridge", "shrinkage", "finalizer") if name in config}
    if "cap" in config:
        proxy["cap"] = float(config["cap"])  # "inf" is no number in JSON
    if "dir_on_test" in config:
        proxy["dir_on_test"] = DirOnTest(config["dir_on_test"])
    return RunSettings(preset=config.get("preset", "paper"), proxy=ProxySettings(**proxy))
