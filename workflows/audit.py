"""An audit as steps, and what its shadows' answers come to.

A shadow is a seed: its base, its retrain, and what every method makes of the base. More shadows are more seeds, so that a
larger audit finds the answers of a smaller one in the store. All but the answers is shared by methods and with grids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.files import ENTRY, KL_ROWS, MARGINS
from tasks.step import Kind, Step, hash_of
from tasks.store import Store
from unlearn_core.audit.attack import (
    FIRST_SHADOW,
    ShadowAnswers,
    attack_floor,
    attack_networks,
    check_shadows,
    compare_rankings,
)
from unlearn_core.audit.rows import audit_rows, forgotten_by
from unlearn_core.audit.ulira import CURVE
from unlearn_core.errors import BadInput
from unlearn_core.grid import Scenario, Variant
from unlearn_core.records import without_nonfinite
from unlearn_core.run_settings import RunSettings
from workflows.grid import cell_step, flat_settings
from workflows.sources import Source

REFERENCES = ("base", "retrain")
RANKED: Mapping[str, tuple[str, ...]] = {"ulira_auc": ("ulira", "auc"), "klom_forget": ("klom", "forget", "mean")}
"""What KL_f is compared with as a ranking of methods, and where it is in a row of the results."""


@dataclass(frozen=True, eq=False)
class AuditPlan:
    """One variant, audited.

    Attributes:
        methods: whose networks are attacked.
        rows: of forgotten, retained and test rows each, at most so many are asked about.
    """

    source: Source
    variant: Variant
    methods: Sequence[str]
    settings: RunSettings
    n_shadows: int
    rows: int

    def __post_init__(self) -> None:
        check_shadows(self.n_shadows, self.in_pairs)
        if self.settings.proxy.finalizer == "none":
            raise BadInput("an audit needs networks, and --finalizer none makes none; use kl or mse")
        if self.pool is not None and 2 * self.pool > self.source.n_train:
            most = self.source.n_train // 4
            raise BadInput(f"random {self.variant.key}: an audit draws from twice as many rows; ask for at most {most}")

    @property
    def in_pairs(self) -> bool:
        """Random requests: shadows 2j and 2j + 1 forget the two halves of one pool."""
        return self.variant.scenario is Scenario.RANDOM

    @property
    def pool(self) -> int | None:
        """Random requests are halves of one pool of rows, so that each of its rows is forgotten by half of the shadows."""
        return 2 * self.variant.key if self.in_pairs else None

    @property
    def seeds(self) -> range:
        return range(FIRST_SHADOW, FIRST_SHADOW + self.n_shadows)

    @property
    def name(self) -> str:
        return (
            f"{self.source.name}/{self.source.backbone}/{self.variant.arch}/{self.variant.scenario}/{self.variant.key}"
        )

    @cached_property
    def steps(self) -> dict[str, list[Step]]:
        """The answers of base, retrain and every method, a step for each shadow."""
        found: dict[str, list[Step]] = {name: [] for name in (*REFERENCES, *self.methods)}
        for seed in self.seeds:
            cell = cell_step(self.source, self.variant, seed, self.methods, self.settings, self.pool)
            for name, steps in found.items():
                steps.append(self._answers(cell, name))
        return found

    def _answers(self, cell: Step, name: str) -> Step:
        if name not in REFERENCES:
            of = cell.needs[name]
            return Step(Kind.ANSWERS, {**of.config, "rows": self.rows}, of.needs, of.hints, alone=of.alone)
        config, needs = cell.needs["retrain"].config, cell.needs
        asked = {key: config[key] for key in ("arch", "space", "seed", "scenario", "key", "pool") if key in config}
        wanted = {role: need for role, need in needs.items() if role in ("features", "images", *REFERENCES)}
        return Step(Kind.ANSWERS, {**asked, "method": name, "rows": self.rows}, wanted, alone=cell.alone)

    def complete(self, store: Store) -> bool:
        """Whether there is a base and a retrain of every shadow; methods may have failed."""
        return all(store.has(step) for name in REFERENCES for step in self.steps[name])

    def entry(self, store: Store, fit: str) -> dict[str, Any]:
        """What both attacks find, as plain JSON values; a method of which a step failed is left out and named.

        From the same store it is the same to the byte.
        """
        whole = {name: all(store.has(step) for step in steps) for name, steps in self.steps.items()}
        if not self.complete(store):
            raise BadInput(f"{self.variant}: bases or retrains are missing; rerun the same command")
        there, retrained = [name for name in self.steps if whole[name]], self._gather("retrain", store)
        results = {"floor": attack_floor(retrained, self.in_pairs, fit)}
        for name in there:
            if name != "retrain":
                attack = attack_networks(self._gather(name, store), retrained, self.in_pairs, fit)
                results[name] = {"scores": self._scores(name, store), **attack}
            results["floor" if name == "retrain" else name]["id"] = self._id(name, fit)
        return {
            "name": self.name,
            "dataset": self.source.name,
            "backbone": self.source.backbone,
            "arch": self.variant.arch,
            "scenario": str(self.variant.scenario),
            "key": self.variant.key,
            "fingerprint": self.source.fingerprint,
            "shadows": self.n_shadows,
            "first_shadow": FIRST_SHADOW,
            "rows": {part: getattr(retrained, part).shape[1] for part in MARGINS},
            "pool": self.pool,
            "fit": fit,
            "settings": without_nonfinite(flat_settings(self.settings)),
            "epochs": self.steps["retrain"][0].needs["retrain"].config["epochs"],
            "failed": [name for name in self.methods if not whole[name]],
            "false_positive_rates": list(CURVE),
            "results": results,
            "rankings": self._rankings({name: results[name] for name in self.methods if name in results}),
        }

    def _gather(self, name: str, store: Store) -> ShadowAnswers:
        folders = [store.path(step) for step in self.steps[name]]

        def stacked(file: str) -> NDArray[np.float64]:
            return np.array([np.load(folder / file, allow_pickle=False) for folder in folders], dtype=np.float64)

        margins = {part: stacked(f"{part}.npy") for part in MARGINS}
        kl_rows = stacked(KL_ROWS)
        if self.pool is not None:
            n_rows, key = self.source.n_train, self.variant.key
            nobodys = np.zeros(n_rows, dtype=np.int64)  # no label matters to a random request
            rows = audit_rows(Scenario.RANDOM, key, self.pool, nobodys, self.source.n_test, self.rows)
            kept = np.array([forgotten_by(rows, key, self.pool, n_rows, seed) for seed in self.seeds])
            margins["forget"][~kept] = kl_rows[~kept] = np.nan
        return ShadowAnswers(**margins, kl_rows=kl_rows)

    def _scores(self, name: str, store: Store) -> dict[str, float | None]:
        """Means over shadows of what a grid measures; None if it is undefined in one of them."""
        entries = [store.read_json(step, ENTRY) for step in self.steps[name]]
        return {
            key: None if any(entry[key] is None for entry in entries) else fmean(entry[key] for entry in entries)
            for key in entries[0]
        }

    def _id(self, name: str, fit: str) -> str:
        return hash_of([fit, *(step.id for role in (name, "retrain") for step in self.steps[role])])

    @staticmethod
    def _rankings(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Whether the attacks order the methods as their KL_f does; methods without a finite KL_f are left out."""
        known = {name: row for name, row in results.items() if row["scores"]["kl_f"] is not None}
        if len(known) < 3:
            return {}
        kl_f, found = [row["scores"]["kl_f"] for row in known.values()], {}
        for measure, path in RANKED.items():
            values = [_at(row, path) for row in known.values()]
            found[measure] = compare_rankings(list(known), kl_f, values)
        return found


def _at(row: Mapping[str, Any], path: Sequence[str]) -> float:
    value: Any = row
    for key in path:
        value = value[key]
    return value[0] if isinstance(value, list) else value
