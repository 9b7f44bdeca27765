"""The paper's numbers with the two or three digits that its tables print: ``data/paper_tables.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from tracking.entries import Spread
from tracking.tables.recommendations import DEFAULT_KEYS
from tracking.tree import TreeVariant
from unlearn_core.grid import Scenario

ARCHITECTURE_NAMES: Mapping[str, str] = {"Linear": "linear", "MLP-1": "mlp1", "MLP-2": "mlp2", "ResNet-18": "resnet18"}


@dataclass(frozen=True, order=True)
class PaperVariant:
    """What a number of the paper is about. Not a ``spec.Variant``: the paper may have what this project has not."""

    dataset: str
    arch: str
    scenario: str
    key: int

    def matches(self, variant: TreeVariant) -> bool:
        """Whatever the backbone."""
        own = variant.variant
        return (self.dataset, self.arch, self.scenario, self.key) == (own.dataset, own.arch, own.scenario, own.key)


@dataclass(frozen=True)
class PaperBenchmark:
    """Row -> measure (kl_test, kl_last, kl_forget, acc_test, acc_forget, rte_percent) -> number."""

    label: str
    variant: PaperVariant
    backbone: str
    rows: Mapping[str, Mapping[str, Spread | None]]


@dataclass(frozen=True)
class PaperRecommendation:
    eta_max: Spread
    admissible_percent: float


@dataclass(frozen=True)
class PaperDistillation:
    """KL of the target and of the distilled network; None if the paper has a dash."""

    target: Mapping[str, Spread] | None
    distilled: Mapping[str, Spread] | None


@dataclass(frozen=True)
class Paper:
    benchmarks: tuple[PaperBenchmark, ...]
    recommendations: Mapping[PaperVariant, Mapping[str, PaperRecommendation]]
    """By variant, then proxy. Where two tables print a variant they agree."""
    distillation: Mapping[PaperVariant, Mapping[str, PaperDistillation]]


@cache
def read_paper() -> Paper:
    tables = json.loads((resources.files("tracking") / "data" / "paper_tables.json").read_text())
    return Paper(
        benchmarks=tuple(map(_benchmark, tables["benchmarks"])),
        recommendations={
            _recommended(table["label"], row): {
                proxy: PaperRecommendation(Spread(cell["eta_max"], cell["std"]), cell["admissible_percent"])
                for proxy, cell in cells.items()
            }
            for table in tables["recommendations"]
            for row, cells in table["rows"].items()
        },
        distillation={
            _distilled(tables["distillation"], row): {
                proxy: PaperDistillation(_blocks(cells["target"][proxy]), _blocks(cells["distilled"][proxy]))
                for proxy in cells["distilled"]
            }
            for row, cells in tables["distillation"]["rows"].items()
        },
    )


def _benchmark(table: dict[str, Any]) -> PaperBenchmark:
    return PaperBenchmark(
        table["label"],
        PaperVariant(table["dataset"], table["arch"], table["scenario"], table["key"]),
        table["backbone"],
        {row: {name: _printed(cell) for name, cell in cells.items()} for row, cells in table["rows"].items()},
    )


def _printed(cell: dict[str, Any] | None) -> Spread | None:
    return None if cell is None else Spread(cell["mean"], cell["std"])


def _blocks(cell: dict[str, Any] | None) -> dict[str, Spread] | None:
    return None if cell is None else {name: Spread(value["mean"], value["std"]) for name, value in cell.items()}


def _distilled(table: dict[str, Any], row: str) -> PaperVariant:
    scenario, _, key = row.partition("/")
    return PaperVariant(table["dataset"], table["arch"], scenario, int(key))


def _recommended(label: str, row: str) -> PaperVariant:
    """Which variant a row is about: the captions say it in words, with default keys class 0, subclass 0, random 50."""
    _, _, last = row.rpartition(" / ")
    if last in ARCHITECTURE_NAMES:
        scenario, key = ("class", 6) if label == "tab:app-reco-arch-cifar10-class-6" else ("subclass", 0)
        return PaperVariant("cifar10", ARCHITECTURE_NAMES[last], scenario, key)
    dataset, arch = {
        "tab:reco": ("cifar10", "mlp1"),
        "tab:app-reco-scenario-cifar10-resnet18": ("cifar10", "resnet18"),
        "tab:app-reco-scenario-cifar100-dinov2-mlp2": ("cifar100", "mlp2"),
    }[label]
    return PaperVariant(dataset, arch, last, DEFAULT_KEYS[Scenario(last)])
