"""What does unlearning by proxy cost beside a retrain?

With cached statistics, each Gaussian proxy with its eta_max for a request of 5,000 rows out of 50,000 x 384, for 10 and for
100 classes, beside one mlp1 retrain (50 epochs, extrapolated from one) and beside scikit-learn's fits of the same
posteriors, single-threaded, in turns.

    python -m benchmarks.proxies
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.naive_bayes import GaussianNB
from threadpoolctl import threadpool_limits

from benchmarks.timing import best_of_turns
from unlearn_core import methods
from unlearn_core.grid import head_widths
from unlearn_core.nets.heads import HeadStack
from unlearn_core.problem import problem_of
from unlearn_core.proxies.request import ForgetRequest
from unlearn_core.recipes import HEAD_TRAINING, Visit, training_recipe
from unlearn_core.target import fit, make_target
from unlearn_core.training import Member, train

GAUSSIAN = tuple(name for name in methods.proxies() if methods.find_proxy(name).prepares == methods.MOMENTS)

N, DIM, FORGET, EPOCHS = 50_000, 384, 5_000, 50
TURNS = 3


def measure(n_classes: int, scattered: bool) -> None:
    """``scattered``: the request takes rows of every class, the dearer case; otherwise of one superclass-like block."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(N) % n_classes)
    features = (rng.normal(size=(N, DIM)) + 1.5 * rng.normal(size=(n_classes, DIM))[labels] / 3).astype(np.float32)
    forget = np.zeros(N, dtype=bool)
    candidates = rng.permutation(N) if scattered else np.argsort(labels, kind="stable")
    forget[candidates[: FORGET if scattered else FORGET // 2]] = True
    if not scattered:
        forget[candidates[-FORGET // 2 :]] = True
    logits = LinearDiscriminantAnalysis(solver="lsqr").fit(features[::10], labels[::10]).decision_function(features)
    problem = problem_of(features, labels, n_classes)
    points = problem.training_points(logits.astype(np.float32))
    problem.prepare(methods.MOMENTS)

    inputs, targets, mask = torch.from_numpy(features), torch.from_numpy(labels), torch.from_numpy(forget)

    def retrain_epoch() -> None:
        net = HeadStack.initialise(head_widths("mlp1", DIM, n_classes), [torch.Generator()])
        train(net, inputs, [Member(0, "retrain", targets, mask)], training_recipe(Visit.RETAIN, 1), HEAD_TRAINING)

    def proxy(method: str) -> None:
        request = ForgetRequest(problem, forget, points)
        make_target(fit(method, request), points, request.lost_classes, cap=1.0)

    def scikit_learn(model) -> None:
        """Two fits and two posteriors, for D and for D_r; no eta."""
        for rows in (slice(None), ~forget):
            model.fit(features[rows], labels[rows]).predict_log_proba(features)

    contestants = {
        "retrain": retrain_epoch,
        **{method: lambda method=method: proxy(method) for method in GAUSSIAN},
        "scikit-learn LDA x 2": lambda: scikit_learn(LinearDiscriminantAnalysis(solver="lsqr")),
        "scikit-learn GaussianNB x 2": lambda: scikit_learn(GaussianNB()),
    }
    seconds = best_of_turns(contestants, TURNS)
    retrain = EPOCHS * seconds.pop("retrain")
    kind = "rows of every class" if scattered else "rows of a few classes"
    print(f"{n_classes} classes, {FORGET} of {N} x {DIM} forgotten ({kind}); one mlp1 retrain: {retrain:.1f} s")
    for name, duration in seconds.items():
        target = " (target: below 2 %)" if name in GAUSSIAN else ""
        print(f"  {name:28s} {duration * 1e3:7.0f} ms = {duration / retrain:6.2%} of the retrain{target}")


def main() -> None:
    torch.set_num_threads(1)
    with threadpool_limits(1):
        for n_classes in (10, 100):
            for scattered in (False, True):
                measure(n_classes, scattered)


if __name__ == "__main__":
    main()
