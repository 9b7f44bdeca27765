"""Results made by hand, in the form that ``records`` writes: every number that a test does not give is a plain default."""

from __future__ import annotations

import cProfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracking.tree import Tree, TreeVariant
from tracking.tree_writer import TreeWriter
from unlearn_core import methods
from unlearn_core.grid import Scenario, Variant
from unlearn_core.records import (
    EpochMetrics,
    MethodRecord,
    ReferenceRecord,
    Scores,
    TargetRecord,
    cell_entry,
    method_entry,
    reference_entry,
)

BOUND = {
    "kl_retrain_base": 0.8,
    "kl_retrain_proxy": 0.7,
    "kl_retrain_retain_proxy": 0.1,
    "kl_base_proxy": 0.05,
    "h": -0.1,
    "remainder": 0.0,
    "decomposition": 0.3,
    "tight_bound": 0.4,
    "measured": 0.3,
}


def scores(kl_t: float = 0.1, kl_f: float = 0.2, acc_t: float = 0.9, acc_f: float = 0.5) -> Scores:
    return Scores(kl_t, kl_f, kl_t, kl_f, acc_t, acc_f, 0.5, 0.5)


def reference(rte: float = 1.0, **numbers: float) -> dict[str, Any]:
    return reference_entry(ReferenceRecord(scores(**numbers), seconds=10 * rte), retrain_seconds=10.0)


def target(
    eta: float | None = 0.5,
    admissible: bool | None = None,
    bound: Mapping[str, float] | None = None,
    h_curve: Any = ((0.0, 0.0), (0.5, -0.1), (1.0, 0.1)),
    dir_on_test: str = "base",
    **numbers: float,
) -> TargetRecord:
    """``eta`` None is for the empirical proxies."""
    empirical = eta is None
    return TargetRecord(
        eta_max=eta,
        admissible=None if empirical else eta > 0 if admissible is None else admissible,
        reason="made by hand",
        kl_net_proxy_before=None if empirical else 0.1,
        kl_net_proxy_after=None if empirical else 0.2,
        h_curve=() if empirical else h_curve,
        scores=scores(**numbers),
        bound=None if empirical else {**BOUND, **(bound or {})},
        proxy_seconds=0.1,
        ridge=1e-3,
        shrinkage="ridge",
        cap=1.0,
        finalizer="kl",
        dir_on_test=dir_on_test,
    )


def method(
    name: str,
    rte: float = 0.1,
    last: Mapping[str, float] | None = None,
    taught: TargetRecord | None = None,
    preparation: float = 0.0,
    **numbers: float,
) -> dict[str, Any]:
    """Two epochs, the first of them the best, at a twentieth and a tenth of the retrain's 10 s. A proxy is taught by
    ``taught``."""
    best = EpochMetrics(1, 0.5, scores(**numbers))
    end = EpochMetrics(2, 1.0, scores(**{**numbers, **(last or {})}))
    if name in methods.proxies() and taught is None:
        taught = target(None if name in methods.closed_forms() else 0.5)
    return method_entry(
        MethodRecord(
            name,
            [best, end],
            best,
            end,
            seconds=10 * rte,
            rte=rte,
            cost=rte,
            preparation=preparation,
            target=taught if name in methods.proxies() else None,
        )
    )


def raced(name: str, *records: tuple[float, float, float], preparation: float = 0.0) -> dict[str, Any]:
    """A baseline by its records: cost, KL_f, KL_t. The retrain takes 10 s; epochs are quarters."""
    epochs = [
        EpochMetrics(0.25 * (i + 1), 10 * cost, scores(kl_t=kl_t, kl_f=kl_f))
        for i, (cost, kl_f, kl_t) in enumerate(records)
    ]
    cost = records[-1][0]
    best = min(epochs, key=lambda epoch: epoch.scores.kl_f)
    return method_entry(MethodRecord(name, epochs, best, epochs[-1], 10 * cost, cost, cost, preparation))


def cell(seed: int = 42, n_forget: int = 100, **rows: dict[str, Any]) -> dict[str, Any]:
    """References are there unless given; ``_`` stands for ``-`` in names."""
    references = {"base": reference(kl_f=2.0), "retrain": reference(kl_t=0, kl_f=0), "floor": reference(kl_f=0.1)}
    return cell_entry(
        seed, n_forget, 900, {**references, **{name.replace("_", "-"): row for name, row in rows.items()}}
    )


def variant(
    *entries: dict[str, Any],
    scenario: str = "subclass",
    key: int = 0,
    arch: str = "mlp1",
    dataset: str = "cifar10",
    backbone: str = "r50",
) -> TreeVariant:
    return TreeVariant(Variant(dataset, arch, Scenario(scenario), key), backbone, entries)


def tree(*variants: TreeVariant) -> Tree:
    return Tree(tuple(variants))


def write(root: Path, *variants: TreeVariant) -> Path:
    """In one go: a file that is opened again for each variant is read again each time."""
    writer = TreeWriter(root)
    for v in variants:
        writer.add(v.variant, v.backbone, v.entries)
    writer.write_all()
    return root


def every_method() -> dict[str, dict[str, Any]]:
    return {name.replace("-", "_"): method(name) for name in methods.names()}


@pytest.fixture
def count_calls() -> Callable[[Callable[[], object]], int]:
    """How many functions some work calls: what it costs, however busy the machine is."""

    def count(work: Callable[[], object]) -> int:
        profile = cProfile.Profile()
        profile.runcall(work)
        return sum(entry.callcount for entry in profile.getstats())

    return count


@pytest.fixture
def made() -> SimpleNamespace:
    """The functions above."""
    return SimpleNamespace(
        scores=scores,
        reference=reference,
        target=target,
        method=method,
        raced=raced,
        cell=cell,
        variant=variant,
        tree=tree,
        write=write,
        every_method=every_method,
    )
