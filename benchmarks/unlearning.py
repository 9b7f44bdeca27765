"""What does a whole request cost beside a retrain: proxy, eta, target and distillation?

One subclass of 5,000 rows out of 50,000 x 384 leaves an mlp1 of two superclasses, on generated features or on those of a
file. Base and retrain are trained for the paper's 50 epochs; then each proxy is carried out as a grid would, in the same
process, on one thread, three times in turns. The probe of D and the moments of D are computed once for all requests and are
not counted; the last column says what they cost.

    python -m benchmarks.unlearning [--features FILE]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from unlearn_core import methods
from unlearn_core.data import FeatureSet, load_feature_set
from unlearn_core.grid import Scenario, Variant
from unlearn_core.problem import Inputs, make_cells, make_problem
from unlearn_core.recipes import HEAD_EPOCHS
from unlearn_core.references import make_scorers, train_reference
from unlearn_core.run_settings import RunSettings
from unlearn_core.unlearning import Reference, run_method

N, N_TEST, DIM, TURNS = 50_000, 10_000, 384, 3
METHODS = ("lda-2c", "probe", "fresh")


def generated() -> FeatureSet:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(N + N_TEST) % 10)
    centres = 0.25 * rng.normal(size=(10, DIM))
    features = (rng.normal(size=(N + N_TEST, DIM)) + centres[labels]).astype(np.float32)
    superclass = (np.arange(10) >= 5).astype(np.int64)
    return FeatureSet(
        name="generated",
        train_x=features[:N],
        train_y=labels[:N],
        test_x=features[N:],
        test_y=labels[N:],
        class_names=tuple(str(c) for c in range(10)),
        superclass=superclass,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, help="a feature set with superclasses, instead of generated features")
    file = parser.parse_args().features
    torch.set_num_threads(1)
    data = generated() if file is None else load_feature_set(file)
    variant = Variant(data.name, "mlp1", Scenario.SUBCLASS, 0)
    problem, cells = make_problem(Inputs(data), variant.label_space), make_cells(data, variant, [42])
    base, retrain = (train_reference(role, problem, "mlp1", cells, HEAD_EPOCHS) for role in ("base", "retrain"))
    reference = Reference(problem, "mlp1", cells, base, retrain, make_scorers(problem, cells, retrain))
    once = {}
    for method in METHODS:
        prepared = methods.find_proxy(method).prepares or ""
        if prepared not in once:
            started = time.process_time()
            problem.prepare(prepared)
            once[prepared] = time.process_time() - started
        run_method(method, reference, RunSettings())  # warm
        print(f"{method}: once for all requests {once[prepared] / retrain.seconds[0]:.1%} of a retrain", flush=True)
    records = [{method: run_method(method, reference, RunSettings())[0] for method in METHODS} for _ in range(TURNS)]
    print(f"retrain: {retrain.seconds[0]:.1f} s; of it, in {TURNS} turns (best):")
    for method in METHODS:
        best = min((turn[method] for turn in records), key=lambda record: record.rte)
        fit = best.target.proxy_seconds / retrain.seconds[0] if best.target else 0.0
        print(f"  {method:8} {best.rte:6.1%}   target {fit:.1%}, distillation {best.rte - fit:.1%}")


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
