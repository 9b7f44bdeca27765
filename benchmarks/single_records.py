"""How close do methods come on single records? One record of a grid is five rows, which is chance; these are many.

Records are drawn with a seed that no grid has (a large random request of one may hold some). A base, a retrain without all
of them and a floor are trained once: what a retrain says of one record hardly depends on whether the others were there.
Then each record is a request of its own, and
so are the same records some at a time. Printed is the mean KL_f over the records, what the floor has there, the share of the
records on which the method is closer than the floor, and how often the mean over five records, as a grid has it, would be
more than twice the floor's. ``short-hard-warm`` lasts for what about 1 % of a retrain buys.

    python -m benchmarks.single_records --features FEATURES [--arch linear mlp2] [--records 120] [--seed 100]
        [--save docs/data]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.saving import save, show
from unlearn_core.data import load_dataset
from unlearn_core.data.feature_set import FeatureSet
from unlearn_core.grid import HEADS, HIDDEN_LAYERS, SEEDS, LabelSpace
from unlearn_core.preparations import Kept
from unlearn_core.problem import Inputs, Problem, make_cell, make_problem
from unlearn_core.recipes import HEAD_EPOCHS
from unlearn_core.references import Trained, make_scorers, train_reference
from unlearn_core.run_settings import RunSettings
from unlearn_core.tuned import Tuned
from unlearn_core.unlearning import Reference, run_method

AT_A_TIME = (1, 5, 20)
METHODS = {0: ("newton", "flow"), 1: ("newton", "newton-crossfit", "short-hard-warm")}
"""By hidden layers, one or more; what ``auto`` hands out for scattered rows."""
ONE_PERCENT = {"short-hard-warm": Tuned("paper", {"recipe.record_at": (0.45,)})}
IN_A_GRID, DRAWS = len(SEEDS), 10_000


class Networks:
    """Of one head, trained once: the references that every request is run on and measured against."""

    def __init__(self, data: FeatureSet, arch: str, records: NDArray[np.int64], seed: int, epochs: int) -> None:
        self.data: FeatureSet = data
        self.arch: str = arch
        self.seed: int = seed
        self.problem: Problem = make_problem(Inputs(data), LabelSpace.FINE)
        self._of_base: Kept = Kept()
        cells = [make_cell(data, self._asked(records), seed)]
        self.base, self.retrain, self.floor = (
            train_reference(role, self.problem, arch, cells, epochs) for role in ("base", "retrain", "floor")
        )

    def _asked(self, records: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.isin(np.arange(len(self.data.train_y)), records)

    def kl_f(self, method: str, records: NDArray[np.int64]) -> float:
        """Of a request for some records."""
        cells = [make_cell(self.data, self._asked(records), self.seed)]
        scorers = make_scorers(self.problem, cells, self.retrain)
        networks = (self.base, self.retrain, scorers)
        reference = Reference(self.problem, self.arch, cells, *networks, of_networks=[self._of_base])
        [record] = run_method(method, reference, RunSettings(tuned=ONE_PERCENT.get(method)))
        return record.last.scores.kl_f

    def kl_f_of(self, trained: Trained, record: int) -> float:
        """Of one of the references on one record."""
        cells = [make_cell(self.data, self._asked(np.array([record])), self.seed)]
        return make_scorers(self.problem, cells, self.retrain)[0].score(trained.net, 0).kl_f


def chance_of_missing(kls: NDArray[np.float64], floors: NDArray[np.float64], rng: np.random.Generator) -> float:
    """How often the mean over as many records as a grid has is more than twice the floor's."""
    drawn = rng.integers(0, len(kls), (DRAWS, IN_A_GRID))
    return float((kls[drawn].mean(1) > 2 * floors[drawn].mean(1)).mean())


def measure(networks: Networks, records: NDArray[np.int64]) -> list[dict[str, object]]:
    """One line for the base, and one for every method and number of records at a time."""
    floors = np.array([networks.kl_f_of(networks.floor, int(record)) for record in records])
    bases = np.array([networks.kl_f_of(networks.base, int(record)) for record in records])
    lines = [_line(networks.arch, "base", "", bases, floors)]
    for method in METHODS[min(1, HIDDEN_LAYERS[networks.arch])]:
        for count in AT_A_TIME:
            requests = np.array_split(records, max(1, len(records) // count))
            found = np.array([networks.kl_f(method, several) for several in requests])
            of_floor = np.array([floors[np.isin(records, several)].mean() for several in requests])
            lines.append(_line(networks.arch, method, count, found, of_floor))
    return lines


def _line(
    arch: str, method: str, count: int | str, kls: NDArray[np.float64], floors: NDArray[np.float64]
) -> dict[str, object]:
    rng = np.random.default_rng(0)
    single = count in (1, "")
    return {
        "head": arch,
        "method": method,
        "at a time": count,
        "KL_f": f"{kls.mean():.2g}",
        "floor": f"{floors.mean():.2g}",
        "closer than the floor": f"{(kls < floors).mean():.0%}",
        "five at more than twice the floor": f"{chance_of_missing(kls, floors, rng):.0%}" if single else "",
    }


def main(given: Sequence[str] | None = None) -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", required=True, help="a feature set (.npz), or digits")
    parser.add_argument("--arch", nargs="+", choices=HEADS, default=("linear", "mlp2"))
    parser.add_argument("--records", type=int, default=120, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=100, help="of the draw and the networks; none that a grid has")
    parser.add_argument("--epochs", type=int, default=HEAD_EPOCHS, help="of base, retrain and floor")
    parser.add_argument("--save", type=Path, help="folder to keep the table in, such as docs/data")
    options = parser.parse_args(given)
    if options.seed in SEEDS:
        parser.error(f"seed {options.seed} is a grid's")
    data = load_dataset(options.features)
    records = np.random.default_rng(options.seed).choice(len(data.train_y), options.records, replace=False)
    lines = []
    for arch in options.arch:
        lines += measure(Networks(data, arch, records, options.seed, options.epochs), records)
    show(lines)
    if options.save is not None:
        asked = f"--arch {' '.join(options.arch)} --records {options.records} --seed {options.seed}"
        command = f"python -m benchmarks.single_records --features FEATURES {asked} --save docs/data"
        save(options.save / "single_records.csv", lines, command)


if __name__ == "__main__":
    main()
