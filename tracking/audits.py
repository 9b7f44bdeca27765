"""What ``unlearn audit`` found: a file for each variant, read with its problems, and said in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracking.tables.table import counted, listed

FLOOR, BASE = "floor", "base"
NEEDED = ("name", "key", "shadows", "rows", "pool", "fit", "epochs", "rankings", "failed")
ATTACKS = ("auc", "accuracy", "tpr_at_0.01", "tpr_at_0.001")
PARTS = ("forget", "retain", "test")
FEW = 4
"""Pairs of methods that are named."""
SAID: Mapping[str, str] = {"ulira_auc": "U-LiRA's AUC", "klom_forget": "KLOM on forgotten records"}


@dataclass(frozen=True, eq=False)
class Audit:
    """One variant's, as ``audit`` wrote it."""

    entry: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.entry["name"]

    @property
    def results(self) -> Mapping[str, Any]:
        """By row: the floor, the base, then methods."""
        return self.entry["results"]

    @property
    def methods(self) -> list[str]:
        return [name for name in self.results if name not in (FLOOR, BASE)]

    def auc(self, row: str) -> tuple[float, float, float]:
        """U-LiRA's AUC and its interval."""
        value, low, high = self.results[row]["ulira"]["auc"]
        return value, low, high


def read_audits(folder: Path) -> tuple[list[Audit], list[str]]:
    """All audits of a folder, and what cannot be read of it; neither if there is no such folder."""
    found, problems = [], []
    for file in sorted(folder.glob("*.json")):
        try:
            entry = json.loads(file.read_bytes())
            _check(entry)
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            why = f"{type(error).__name__} {error.args[0] if isinstance(error, KeyError) else ''}".rstrip()
            problems.append(f"{file.name}: {why}; run its 'unlearn audit' again, which computes nothing twice")
        else:
            found.append(Audit(entry))
    return found, problems


def _check(entry: Mapping[str, Any]) -> None:
    """Fails unless all is there that tables, figures and sentences read."""
    for name in NEEDED:
        _ = entry[name]
    _ = entry["results"][FLOOR]
    for row in entry["results"].values():
        for name in ATTACKS:
            value, low, high = row["ulira"][name]
            _ = float(value), float(low), float(high)
        if len(row["ulira"]["curve"]) != len(entry["false_positive_rates"]):
            raise ValueError("a curve has another length than its axis")
        for part in PARTS:
            _ = float(row["klom"][part]["mean"]), float(row["klom"][part]["p95"])


def sentences(audit: Audit) -> tuple[str, ...]:
    """What an audit says: who passes for a retrain, who is caught most, and whether KL_f ranks methods as the attacks do."""
    rows = sorted(audit.methods, key=lambda name: audit.auc(name)[0])
    if not rows:
        return ()
    passing = [name for name in rows if audit.auc(name)[1] <= 0.5]
    about = f"{audit.name}, {counted(audit.entry['shadows'], 'shadow')}"
    said = [
        f"{about}: by one answer to one record, U-LiRA is right {_percent(audit, FLOOR)} of the time about two retrains"
        + (f", and {_percent(audit, BASE)} about a base and a retrain." if BASE in audit.results else "."),
        f"Its interval holds chance for {listed(passing)}." if passing else "Its interval holds chance for no method.",
        f"Least caught: {_with_auc(audit, rows[0])}; most: {_with_auc(audit, rows[-1])}.",
    ]
    return (*said, *_ranking_sentences(audit))


def _ranking_sentences(audit: Audit) -> list[str]:
    """Whether the ranking by KL_f survives; which pairs swap, if they are few."""
    said = []
    for measure, found in audit.entry["rankings"].items():
        if found["spearman"] is None:
            said.append(f"{SAID[measure]} is the same for all methods, so that it ranks none.")
            continue
        swapped, pairs = found["swapped"], found["pairs"]
        if not swapped:
            said.append(f"{SAID[measure]} ranks the methods as KL_f does.")
            continue
        named = "; ".join("/".join(pair) for pair in swapped[:FEW]) if len(swapped) <= FEW else ""
        detail = f"{len(swapped)} of {pairs} pairs swap" + (f" ({named})" if named else "")
        said.append(f"{SAID[measure]} ranks them otherwise than KL_f: {detail}, Spearman {found['spearman']:.2f}.")
    return said


def _percent(audit: Audit, row: str) -> str:
    return f"{100 * audit.results[row]['ulira']['accuracy'][0]:.0f} %"


def _with_auc(audit: Audit, row: str) -> str:
    return f"{row} (AUC {audit.auc(row)[0]:.3f})"


def all_sentences(audits: Sequence[Audit]) -> list[str]:
    return [" ".join(sentences(audit)) for audit in audits if audit.methods]
