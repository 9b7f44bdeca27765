"""Would scipy's L-BFGS-B fit the probe of D as fast as ours?

The whole fit, ours and with scipy in the place of our optimiser: the same objective, start, whitened coordinates, memory and
gap at which to stop; on one thread, in turns. On ``../shared/data/cifar10_r50.npz`` if that is beside the checkout, else on
digits.

    python -m benchmarks.probe_optimizer [--features FILE.npz]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from unlearn_core.data import load_dataset, load_feature_set
from unlearn_core.grid import LabelSpace
from unlearn_core.problem import Inputs, make_problem
from unlearn_core.proxies import probe

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10_r50.npz"
CONSTANTS = probe.ProbeConstants()
TURNS = 3
Array = NDArray[np.float64]


def by_scipy(data: probe._Data, weights: Array, factors: Array, tilt: Array, gap: float) -> Array:
    """Instead of ``probe._minimise``."""
    slope = np.empty(0)

    def place(u: Array) -> Array:
        return weights + probe._coloured(u.reshape(weights.shape), factors)

    def objective(u: Array) -> tuple[float, Array]:
        nonlocal slope
        value, gradient = data.objective(place(u))
        slope = probe._whitened(gradient - tilt, factors).ravel()
        return value - float(np.sum(tilt * place(u))), slope

    def stop(u: Array) -> None:
        if 0.5 * float(slope @ slope) <= gap:  # of the point just accepted: the last one evaluated
            raise StopIteration

    how = data.constants
    options = {"maxcor": how.memory, "maxiter": how.max_steps, "maxfun": 10 * how.max_steps, "ftol": 0, "gtol": 0}
    start = np.zeros(weights.size)
    return place(minimize(objective, start, jac=True, method="L-BFGS-B", callback=stop, options=options).x)


def measure(minimise, features: NDArray, labels: NDArray, n_classes: int) -> tuple[float, float, int, float]:
    """CPU seconds of the fit and of its minimisations, evaluations of the objective, and the gap in nats that is left."""
    seconds, evaluations, evaluate = 0.0, 0, probe._Data.objective

    def timed(*arguments) -> Array:
        nonlocal seconds
        started = time.process_time()
        found = minimise(*arguments)
        seconds += time.process_time() - started
        return found

    def counted(data: probe._Data, weights: Array) -> tuple[float, Array]:
        nonlocal evaluations
        evaluations += 1
        return evaluate(data, weights)

    with patch.object(probe, "_minimise", timed), patch.object(probe._Data, "objective", counted):
        started = time.process_time()
        fit = probe.fit_probe_of_all(features, labels, n_classes, CONSTANTS)
        whole = time.process_time() - started
    return whole, seconds, evaluations, probe._gap(fit.gradient, fit.factors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, default=SHARED, help="a feature set with superclasses")
    file = parser.parse_args().features
    data = load_feature_set(file) if file.exists() else load_dataset("digits")
    for space in (LabelSpace.SUPERCLASS, LabelSpace.FINE):
        problem = make_problem(Inputs(data), space)
        case = (data.train_x, problem.train.labels, problem.n_classes)
        turns = [(measure(probe._minimise, *case), measure(by_scipy, *case)) for _ in range(TURNS)]
        ours, scipy = (min(of_one) for of_one in zip(*turns, strict=True))
        print(
            f"{data.name}, {problem.n_classes} classes, {len(data.train_x)} x {data.train_x.shape[1]}; L-BFGS-B / ours:"
        )
        for k, what in enumerate(("CPU seconds of the fit", "CPU seconds of its minimisations", "evaluations")):
            print(f"  {what:33s} {scipy[k]:6.2f} / {ours[k]:6.2f} = {scipy[k] / ours[k]:.2f}")
        print(f"  gap left, in nats: {scipy[3]:.1e}, {ours[3]:.1e} (asked for: {CONSTANTS.gap_of_d:.0e})", flush=True)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
