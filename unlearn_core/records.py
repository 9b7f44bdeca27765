"""What the core returns: frozen results, and their form in the results tree [app:results_layout].

Numbers that are infinite or undefined are written as null; nothing here imports torch or numpy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

Json = Any
Finite = Annotated[float, "finite"]
"""Never null in the results tree; any other number may be infinite or undefined there."""


@dataclass(frozen=True)
class Scores:
    """One model beside the retrain of its cell. KL in nats, KL(retrain||model); accuracies in [0, 1].

    ``_t`` is on the whole test set, ``_f`` on the forgotten training rows, ``_reverse`` is KL(model||retrain).
    """

    kl_t: float
    kl_f: float
    kl_t_reverse: float
    kl_f_reverse: float
    acc_t: float
    acc_f: float
    mia_auc: float
    mia_balanced_accuracy: float
    """Of the one-sided attack, by which what was pushed too far counts as safe."""
    mia_two_sided: float = math.nan
    """Of the two-sided one; older results lack it."""


@dataclass(frozen=True)
class EpochMetrics:
    """``seconds`` is the method's time up to this epoch, proxy included, evaluation excluded. Epoch 0 is the base.

    A retrain cut short is recorded within its first epoch too: then ``epoch`` is a fraction.
    """

    epoch: Finite
    seconds: Finite
    scores: Scores


@dataclass(frozen=True)
class TargetRecord:
    """A proxy's target before anything is written into the network."""

    eta_max: float | None
    """None for ``dir`` and ``dir-2c``, which have no eta."""
    admissible: bool | None
    reason: str
    kl_net_proxy_before: float | None
    kl_net_proxy_after: float | None
    h_curve: Sequence[tuple[Finite, float]]
    scores: Scores
    bound: Mapping[str, float] | None
    """The terms of prop:tight-bound on D, with ``measured`` beside them."""
    proxy_seconds: Finite
    ridge: Finite
    shrinkage: str
    cap: float
    """Infinite, and null in the results tree, where eta had no limit."""
    finalizer: str
    dir_on_test: str


@dataclass(frozen=True)
class MethodRecord:
    """One method on one cell. ``best`` is the epoch with the least KL_f, epoch 0 only where nothing was unlearned."""

    method: str
    epochs: Sequence[EpochMetrics]
    best: EpochMetrics
    last: EpochMetrics
    seconds: Finite
    rte: Finite
    """RTE as the paper has it, proxy fit and distillation (or the baseline's training) over the retrain's, per seed: it
    leaves out nothing that ``cost`` counts, so the two are one number, and the paper has none for ``preparation``."""
    cost: float
    """All processor time spent after the request was known (fit, signal, eta, target, copies, training), over the
    retrain's. Scoring is nobody's cost."""
    preparation: float
    """All processor time spent before any request came on what the method starts from, over the retrain's, whoever else
    shares it."""
    target: TargetRecord | None = None


@dataclass(frozen=True)
class ReferenceRecord:
    """Base, retrain or floor: a network as trained."""

    scores: Scores
    seconds: Finite


def best_epoch(epochs: Sequence[EpochMetrics]) -> EpochMetrics:
    """The epoch (1.., never 0) with the least KL_f; the earliest where several share it, the last where none is finite."""
    finite = [epoch for epoch in epochs if math.isfinite(epoch.scores.kl_f)]
    return min(finite, key=lambda epoch: epoch.scores.kl_f) if finite else epochs[-1]


def without_nonfinite(value: Json) -> Json:
    """The same JSON value with null in the place of infinite and undefined numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [without_nonfinite(item) for item in value]
    return value


def _epoch_entry(epoch: EpochMetrics) -> dict[str, Json]:
    return {"epoch": epoch.epoch, "seconds": epoch.seconds, **dataclasses.asdict(epoch.scores)}


def reference_entry(record: ReferenceRecord, retrain_seconds: float) -> dict[str, Json]:
    """Base, retrain or floor as a row of a seed entry."""
    entry = dataclasses.asdict(record.scores) | {"seconds": record.seconds, "rte": record.seconds / retrain_seconds}
    return without_nonfinite(entry)


def method_entry(record: MethodRecord) -> dict[str, Json]:
    """A method as a row of a seed entry."""
    entry: dict[str, Json] = {
        "best": {**_epoch_entry(record.best), "rte": record.rte},
        "last": _epoch_entry(record.last),
        "epochs": [_epoch_entry(epoch) for epoch in record.epochs],
        "seconds": record.seconds,
        "rte": record.rte,
        "cost": record.cost,
        "preparation": record.preparation,
    }
    if record.target is not None:
        target = dataclasses.asdict(record.target)
        entry["target"] = {**target.pop("scores"), **target}
    return without_nonfinite(entry)


def cell_entry(
    seed: int, n_forget: int, n_retain: int, rows: Mapping[str, Json], found: Mapping[str, Json] | None = None
) -> dict[str, Json]:
    """The seed entry of the results tree: references and methods by name at its top level.

    Args:
        found: what was found out of the request before a method is chosen (``assessed_entry``).
    """
    return {"seed": seed, "n_forget": n_forget, "n_retain": n_retain, **(found or {}), **rows}


def assessed_entry(
    kept_answers: float | None, kind: str | None = None, seconds: float | None = None
) -> dict[str, Json]:
    """What is known of a request: as ``Problem.kept_answers`` has it, which kind the tests find, and what that took."""
    found: dict[str, Json] = {"kept_answers": kept_answers, "assessed_as": kind, "assessment_seconds": seconds}
    return {name: value for name, value in found.items() if value is not None}
