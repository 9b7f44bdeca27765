"""Does any method fail on a network that has hardly been trained? Every method, head and key of digits at 1, 2, 50 epochs.

A failure is an exception, a warning of NumPy's or torch's, or a score that is no number. It prints one line for each, and a
table of how many runs there were.

    python -m benchmarks.undertrained [EPOCHS,..] [ARCH,..]
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

import torch

from unlearn_core import methods
from unlearn_core.data import FeatureSet, load_dataset
from unlearn_core.grid import HEADS, SEEDS, LabelSpace, Scenario, Variant
from unlearn_core.problem import Inputs, make_cells, make_problem
from unlearn_core.references import make_scorers, train_reference
from unlearn_core.run_settings import RunSettings
from unlearn_core.unlearning import Reference, run_method

EPOCHS = (1, 2, 50)
Key = tuple[Scenario, int]
KEYS: tuple[Key, ...] = (
    *((scenario, label) for scenario in (Scenario.CLASS, Scenario.SUBCLASS) for label in range(10)),
    *((Scenario.RANDOM, size) for size in (1, 5, 50, 500)),
)


def walk(
    data: FeatureSet, arch: str, epochs: int, keys: Iterable[Key], chosen: Sequence[str]
) -> Iterator[tuple[Variant, str, str | None]]:
    """Of every key and method, what went wrong, or None."""
    inputs = Inputs(data)
    problems = {space: make_problem(inputs, space) for space in LabelSpace}
    for scenario, key in keys:
        variant = Variant(data.name, arch, scenario, key)
        problem, cells = problems[variant.label_space], make_cells(data, variant, SEEDS[:1])
        base, retrain = (train_reference(role, problem, arch, cells, epochs) for role in ("base", "retrain"))
        reference = Reference(problem, arch, cells, base, retrain, make_scorers(problem, cells, retrain))
        for method in chosen:
            yield variant, method, _failure(method, reference)


def _failure(method: str, reference: Reference) -> str | None:
    try:
        with warnings.catch_warnings(action="error"):
            [record] = run_method(method, reference, RunSettings())
    except Exception as error:  # whatever it is, it is what this looks for
        return f"{type(error).__name__}: {error}"
    scores = record.last.scores
    wrong = [field.name for field in fields(scores) if not math.isfinite(getattr(scores, field.name))]
    return f"{', '.join(wrong)}: no number" if wrong else None


def main() -> None:
    torch.set_num_threads(1)
    wanted = [argument.split(",") for argument in sys.argv[1:]]
    epochs = [int(word) for word in wanted[0]] if wanted else EPOCHS
    archs = wanted[1] if len(wanted) > 1 else HEADS
    data, table = load_dataset("digits"), []
    for arch in archs:
        for count in epochs:
            runs = failed = 0
            for variant, method, failure in walk(data, arch, count, KEYS, methods.names()):
                runs += 1
                if failure is not None:
                    failed += 1
                    print(f"{variant}, {count} epochs, {method}: {failure}")
            table.append(f"| {arch} | {count} | {runs} | {failed} |")
    print("| head | epochs | runs | failed |\n|---|---|---|---|", *table, sep="\n")


if __name__ == "__main__":
    main()
