"""What each kind of step computes: it reads its needs from the store, calls the core, and writes plain files.

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

from tasks.files import ARRAYS, ENTRY, MOMENTS, RECORD, WEIGHTS
from tasks.holdings import Holdings
from tasks.step import Kind, Step
from tasks.store import Store, write_json
from unlearn_core.audit.stein import stein_block
from unlearn_core.data.datasets import load_dataset
from unlearn_core.data.feature_set import FeatureSet, feature_set_from_arrays, fingerprint
from unlearn_core.data.splits import scenario_mask
from unlearn_core.errors import BadInput
from unlearn_core.nets.heads import HeadStack
from unlearn_core.problem import Cell, Problem, make_cell, make_problem
from unlearn_core.proxies.statistics import Moments
from unlearn_core.records import cell_entry, method_entry, reference_entry
from unlearn_core.references import Trained, make_scorers, reference_records, train_reference
from unlearn_core.spec import DirOnTest, LabelSpace, ProxySettings, RunSettings, Scenario
from unlearn_core.unlearning import Reference, run_method

Write = Callable[[Path], None]
Compute = Callable[[Sequence[Step], Store, Holdings], list[Write]]


def compute_features(steps: Sequence[Step], store: Store, holdings: Holdings) -> list[Write]:
    """Bring a data set into the store, where every worker can map it."""
    writes = []
    for step in steps:
        features = load_dataset(step.hints["source"])
        if fingerprint(features) != step.config["fingerprint"]:
            raise BadInput(f"{step.hints['source']} changed since the plan was made; run the command again")
        writes.append(_features_writer(features))
    return writes


def _features_writer(features: FeatureSet) -> Write:
    def write(directory: Path) -> None:
        for name in ARRAYS:
            if (value := getattr(features, name)) is not None:
                np.save(directory / f"{name}.npy", np.asarray(value), allow_pickle=False)

    return write


def compute_statistics(steps: Sequence[Step], store: Store, holdings: Holdings) -> list[Write]:
    """The moments of D in one label space."""

    def writer(moments: Moments) -> Write:
        def write(directory: Path) -> None:
            for name in MOMENTS:
                np.save(directory / f"{name}.npy", getattr(moments, name), allow_pickle=False)

        return write

    return [writer(_problem(step, store, holdings).moments) for step in steps]


def compute_reference(steps: Sequence[Step], store: Store, holdings: Holdings) -> list[Write]:
    """Base, retrain or floor."""
    problem = _problem(steps[0], store, holdings)
    cells = [_cell(step, problem) for step in steps]
    config = steps[0].config
    trained = train_reference(str(steps[0].kind), problem, config["arch"], cells, config["epochs"])

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


COMPUTE: Mapping[Kind, Compute] = MappingProxyType(
    {
        Kind.FEATURES: compute_features,
        Kind.STATISTICS: compute_statistics,
        Kind.BASE: compute_reference,
        Kind.RETRAIN: compute_reference,
        Kind.FLOOR: compute_reference,
        Kind.UNLEARN: compute_unlearning,
        Kind.AUDIT: compute_audit,
    }
)


def _problem(step: Step, store: Store, holdings: Holdings) -> Problem:
    """The data of a step on this worker's device; with the cached statistics where the step names them."""
    features_step, space = step.needs["features"], LabelSpace(step.config["space"])

    def load() -> Problem:
        return make_problem(_load_features(features_step, store), space, holdings.device)

    problem = holdings.get(f"{features_step.id}/{space}", load)
    if (statistics := step.needs.get("statistics")) is not None:
        # a cached property is an ordinary entry of the instance: the stored moments take its place
        problem.__dict__.setdefault("moments", _load_moments(store.path(statistics)))
    return problem


def _load_features(step: Step, store: Store) -> FeatureSet:
    directory = store.path(step)
    arrays = {
        name: np.load(directory / f"{name}.npy", mmap_mode="c", allow_pickle=False)
        for name in ARRAYS
        if (directory / f"{name}.npy").exists()
    }
    return feature_set_from_arrays(step.config["dataset"], arrays, source=str(directory))


def _load_moments(directory: Path) -> Moments:
    return Moments(**{name: np.load(directory / f"{name}.npy", allow_pickle=False) for name in MOMENTS})


def _cell(step: Step, problem: Problem) -> Cell:
    """The forget request of a step; for a base network, which has none, a cell that forgets nothing."""
    config, features = step.config, problem.features
    if step.kind is Kind.BASE:
        return make_cell(features, np.zeros(len(features.train_y), dtype=bool), config["seed"])
    mask = scenario_mask(Scenario(config["scenario"]), config["key"], features.train_y, config["seed"])
    return make_cell(features, mask, config["seed"])


def _trained(steps: Sequence[Step], store: Store, holdings: Holdings, problem: Problem) -> Trained:
    """A stack of stored networks, one per step."""

    def load(step: Step) -> dict[str, torch.Tensor]:
        return holdings.get(step.id, lambda: load_file(store.path(step) / WEIGHTS))

    net = HeadStack.from_states([load(step) for step in steps], problem.device)
    return Trained(net, tuple(store.read_json(step, RECORD)["seconds"] for step in steps))


def _reference(steps: Sequence[Step], store: Store, holdings: Holdings) -> Reference:
    problem = _problem(steps[0], store, holdings)
    cells = [_cell(step, problem) for step in steps]
    base, retrain = (_trained([s.needs[role] for s in steps], store, holdings, problem) for role in ("base", "retrain"))
    return Reference(problem, cells, base, retrain, make_scorers(problem, cells, retrain))


def _settings(step: Step) -> RunSettings:
    config = step.config
    proxy = {name: config[name] for name in ("ridge", "shrinkage", "cap", "finalizer") if name in config}
    if "dir_on_test" in config:
        proxy["dir_on_test"] = DirOnTest(config["dir_on_test"])
    return RunSettings(preset=config.get("preset", "paper"), proxy=ProxySettings(**proxy))
