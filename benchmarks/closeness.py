"""Does the estimate of closeness hold, and which requests are taken for groups?

Asks a grid's networks for its random requests on a prepared state, as ``unlearn forget --prepared STATE --method newton``
does, and puts the estimates of KL(retrain || network) on the records, before and after, beside the truth: of the floor, a
retrain from other initial weights, which is what is estimated, and of the retrain, which starts from the base's own. Then it
draws random requests of the same sizes, takes the grid's classes and subclasses, and counts what kind each is taken for.

No network is trained: bases, retrains and floors, and what was prepared if the grid ran ``newton-crossfit``, come from the
store that ``unlearn grid --out RUN`` left. Cells that it lacks are counted and left out. Prints Markdown.

    python -m benchmarks.closeness --features FEATURES --out RUN [--arch mlp1 ...] [--seeds 0 1 ...] [--records 1 50 ...]
        [--save docs/data]
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from benchmarks.saving import save, show
from tasks.compute.unlearning import load_prepared
from tasks.files import WEIGHTS
from tasks.step import Step
from tasks.store import Store
from unlearn_core.audit.divergence import kl_rows, log_probabilities
from unlearn_core.closeness import Closeness
from unlearn_core.data import load_dataset
from unlearn_core.data.feature_set import FeatureSet
from unlearn_core.data.splits import scenario_mask
from unlearn_core.forgetting.forget import forget
from unlearn_core.forgetting.open_request import open_request
from unlearn_core.forgetting.opening import Heldout, white_box
from unlearn_core.forgetting.plan import ForgetSettings
from unlearn_core.forgetting.state import PARTS, PreparedState, keep_state, open_state
from unlearn_core.grid import HEADS, SEEDS, LabelSpace, Scenario, Variant
from unlearn_core.nets.make import stored_network
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.problem import as_inputs
from unlearn_core.request_kind import RequestKind
from unlearn_core.run_settings import RunSettings
from workflows.grid import cell_step
from workflows.sources import RANDOM_SIZES, Source, feature_source

PREPARING = ("lda", "newton-crossfit", "flow")
"""Methods whose steps hold all that a state has."""
METHOD = "newton"
TRUTHS = ("floor", "retrain")
FIRST_DRAW = 10_000
"""Seed of the first random request whose kind is asked for; no grid has it."""


@dataclass(frozen=True)
class Measured:
    """One estimate beside the truth, mean KL in nats over the records of a cell; ``when`` is before or after."""

    arch: str
    size: int
    when: str
    estimate: Closeness
    truth: Mapping[str, float]


class Networks:
    """What a grid left of one architecture."""

    def __init__(self, features: Path, store: Store, arch: str, folder: Path) -> None:
        self.source: Source = feature_source(str(features))
        self.data: FeatureSet = load_dataset(str(features))
        self.store: Store = store
        self.arch: str = arch
        self.folder: Path = folder
        self.missing: Counter[str] = Counter()

    def cell(self, scenario: Scenario, key: int, seed: int) -> Step:
        variant = Variant(self.source.name, self.arch, scenario, key)
        return cell_step(self.source, variant, seed, PREPARING, RunSettings())

    def network(self, step: Step) -> NetworkStack | None:
        """None, and counted, if the store lacks it."""
        if not self.store.has(step):
            self.missing[str(step.kind)] += 1
            return None
        return stored_network(self.arch, [load_file(self.store.path(step) / WEIGHTS)], torch.device("cpu"))

    def state(self, cell: Step, net: NetworkStack) -> PreparedState:
        """Prepared of a cell's base, once; what the store holds of it is not computed again."""
        out = self.folder / cell.needs["base"].id
        if out.exists():
            return open_state(out)
        steps = {name: step for method in PREPARING for name, step in cell.needs[method].needs.items() if name in PARTS}
        known = load_prepared([step for step in steps.values() if self.store.has(step)], self.store)
        rows = self.rows(cell)
        subject = white_box(net, rows.features, rows.labels, None, None, rows.heldout)
        return keep_state(subject, self.arch, out, kept=known)

    def rows(self, cell: Step) -> Labelled:
        data, space = self.data, LabelSpace(cell.config["space"])
        return Labelled(data.train_x, data.train_labels(space), Heldout(data.test_x, data.test_labels(space)))

    def asked_for(self, scenario: Scenario, key: int, seed: int) -> NDArray[np.int64]:
        return np.flatnonzero(scenario_mask(scenario, key, self.data.train_y, seed))


@dataclass(frozen=True, eq=False)
class Labelled:
    features: NDArray
    labels: NDArray[np.int64]
    heldout: Heldout


def measure_cells(networks: Networks, sizes: Sequence[int], seeds: Sequence[int]) -> Iterator[Measured]:
    """Every random cell that the store has and whose records are taken for exchangeable."""
    for seed, size in itertools.product(seeds, sizes):
        cell = networks.cell(Scenario.RANDOM, size, seed)
        base, *others = (networks.network(cell.needs[role]) for role in ("base", *TRUTHS))
        if base is None or any(other is None for other in others):
            continue
        rows, asked = networks.rows(cell), networks.asked_for(Scenario.RANDOM, size, seed)
        result = forget(
            base,
            rows.features,
            rows.labels,
            asked,
            METHOD,
            heldout=rows.heldout,
            prepared=networks.state(cell, base),
        )
        predicted = result.outcome.closeness
        if predicted is None or predicted.before is None or predicted.after is None:
            continue
        inputs = as_inputs(rows.features[asked])
        log_truths = {role: says(net, inputs) for role, net in zip(TRUTHS, others, strict=True) if net is not None}
        for when, net, estimate in (("before", base, predicted.before), ("after", result.model, predicted.after)):
            log_net = says(net, inputs)
            truth = {role: float(kl_rows(log_p, log_net).mean()) for role, log_p in log_truths.items()}
            yield Measured(networks.arch, size, when, estimate, truth)


def says(net: NetworkStack, inputs: torch.Tensor) -> NDArray[np.float64]:
    return log_probabilities(net.logits(0, inputs).double().numpy())


def kinds(
    networks: Networks, scenario: Scenario, keys: Sequence[int], seed: int, draws: int = 1
) -> dict[str, Counter[RequestKind]]:
    """What requests are taken for, on the state of one seed's base: it does not depend on the network."""
    found: dict[str, Counter[RequestKind]] = {}
    for key in keys:
        cell = networks.cell(scenario, key, seed)
        base = networks.network(cell.needs["base"])
        if base is None:
            continue
        rows, state = networks.rows(cell), networks.state(cell, base)
        name = f"{scenario} {key}" if scenario is Scenario.RANDOM else str(scenario)
        counted = found.setdefault(name, Counter())
        for draw in range(draws):
            asked = networks.asked_for(scenario, key, FIRST_DRAW + draw)
            request = open_request(base, rows.features, rows.labels, asked, heldout=rows.heldout, prepared=state)
            verdict = request.plan(ForgetSettings(proxy=METHOD)).verdict
            if verdict is not None:
                counted[verdict.kind] += 1
    return found


def coverage_table(measured: Sequence[Measured]) -> list[dict[str, object]]:
    """By architecture, size and time: estimates, truths, and how often the interval holds."""
    rows: list[dict[str, object]] = []
    groups = {(one.arch, one.size, one.when): [] for one in measured}
    for one in measured:
        groups[one.arch, one.size, one.when].append(one)
    for when in ("before", "after"):
        groups["all", 0, when] = [one for one in measured if one.when == when]
    for (arch, size, when), several in groups.items():
        if not several:
            continue
        estimates = np.array([one.estimate.estimate for one in several])
        floor, retrain = (np.array([one.truth[role] for one in several]) for role in TRUTHS)
        low, high = (np.array([getattr(one.estimate, end) for one in several]) for end in ("low", "high"))
        rows.append(
            {
                "head": arch,
                "records": size or "",
                "": when,
                "cells": len(several),
                "estimate": f"{estimates.mean():.3f}",
                "floor": f"{floor.mean():.3f}",
                "error": f"{(estimates - floor).mean():+.3f}",
                "within": f"{np.mean((low <= floor) & (floor <= high)):.0%}",
                "floor at most": f"{np.mean(floor <= high):.0%}",
                "retrain": f"{retrain.mean():.3f}",
                "retrain at most": f"{np.mean(retrain <= high):.0%}",
            }
        )
    return rows


def kinds_table(found: Mapping[str, Counter[RequestKind]]) -> list[dict[str, object]]:
    """By request: the share that is taken for each kind."""
    return [
        {
            "request": name,
            "asked": counted.total(),
            **{str(kind): f"{counted[kind] / counted.total():.1%}" for kind in RequestKind},
        }
        for name, counted in found.items()
    ]


def main(given: Sequence[str] | None = None) -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, required=True, help="the grid's feature set (.npz)")
    parser.add_argument("--out", type=Path, required=True, help="the grid's output folder")
    parser.add_argument("--arch", nargs="+", choices=HEADS, default=HEADS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--records", nargs="+", type=int, default=RANDOM_SIZES)
    parser.add_argument("--draws", type=int, default=100, help="random requests of each size whose kind is asked for")
    parser.add_argument("--save", type=Path, help="folder to keep both tables in, such as docs/data")
    options = parser.parse_args(given)
    measured: list[Measured] = []
    found: dict[str, Counter[RequestKind]] = {}
    missing: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for arch in options.arch:
            networks = Networks(options.features, Store(options.out / "store"), arch, Path(folder))
            measured += measure_cells(networks, options.records, options.seeds)
            for scenario in Scenario:
                if scenario is Scenario.SUBCLASS and not networks.source.has_superclass:
                    continue
                is_random = scenario is Scenario.RANDOM
                keys = options.records if is_random else networks.source.keys(scenario)
                draws = options.draws if is_random else 1
                for name, counted in kinds(networks, scenario, keys, options.seeds[0], draws).items():
                    found[name] = found.get(name, Counter()) + counted
            missing += networks.missing
    command = (
        f"python -m benchmarks.closeness --features FEATURES --out RUN --arch {' '.join(options.arch)} --save docs/data"
    )
    for name, rows in (("closeness", coverage_table(measured)), ("kinds", kinds_table(found))):
        if rows:
            show(rows)
        if rows and options.save is not None:
            save(options.save / f"{name}.csv", rows, command)
    if missing:
        print(f"\nNot in the store: {', '.join(f'{count} {kind}' for kind, count in missing.items())}.")


if __name__ == "__main__":
    main()
