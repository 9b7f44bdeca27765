"""A results tree as polars frames, for whoever wants to ask a question of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import polars as pl

from tracking.spreads import stein_of
from tracking.tree import REFERENCES, Entry, Tree, TreeVariant
from unlearn_core.audit.bounds import Bound
from unlearn_core.audit.stein import ALPHAS
from unlearn_core.records import Scores
from unlearn_core.spec import PROXIES

Schema = dict[str, Any]
"""Column -> polars type."""

OWNER: Schema = {
    "dataset": pl.String,
    "backbone": pl.String,
    "arch": pl.String,
    "scenario": pl.String,
    "key": pl.Int64,
    "seed": pl.Int64,
    "method": pl.String,
}
SCORES: Schema = {score.name: pl.Float64 for score in fields(Scores)}
EPOCH: Schema = {"epoch": pl.Int64, "seconds": pl.Float64, **SCORES}
TARGET: Schema = {
    **SCORES,
    "eta_max": pl.Float64,
    "admissible": pl.Boolean,
    "reason": pl.String,
    "kl_net_proxy_before": pl.Float64,
    "kl_net_proxy_after": pl.Float64,
    "proxy_seconds": pl.Float64,
    "ridge": pl.Float64,
    "shrinkage": pl.String,
    "cap": pl.Float64,
    "finalizer": pl.String,
    "dir_on_test": pl.String,
}
BOUND: Schema = {term.name: pl.Float64 for term in fields(Bound)} | {"measured": pl.Float64}
STEIN: Schema = {f"n_{where}_at_{alpha:g}": pl.Int64 for alpha in ALPHAS for where in "tf"} | {
    f"indistinguishable_at_{alpha:g}": pl.Boolean for alpha in ALPHAS
}
BLOCKS: Mapping[str, Schema] = {"best": EPOCH, "last": EPOCH, "target": TARGET, "bound": BOUND, "stein": STEIN}
ROWS: Schema = {
    **OWNER,
    "kind": pl.String,
    "complete": pl.Boolean,
    "n_forget": pl.Int64,
    "n_retain": pl.Int64,
    "seconds": pl.Float64,
    "rte": pl.Float64,
    **{f"{block}_{name}": kind for block, schema in BLOCKS.items() for name, kind in schema.items()},
}
EPOCHS: Schema = {**OWNER, **EPOCH}


@dataclass(frozen=True)
class Frames:
    """``rows``: one per variant, seed and row (references and methods). ``epochs``: one per epoch of a method.

    A reference has no epochs: its own scores are its ``best_``. ``complete`` is false for all rows of a variant about
    which the tree has a problem to report. Null: infinite, undefined, or not there for this kind of row.
    """

    rows: pl.DataFrame
    epochs: pl.DataFrame


def frames(tree: Tree) -> Frames:
    """The numbers of a whole tree, with all their digits."""
    return Frames(_frame(_rows(tree), ROWS), _frame(_epochs(tree), EPOCHS))


def _frame(rows: Iterator[list[Any]], schema: Schema) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=schema, orient="row")


def _rows(tree: Tree) -> Iterator[list[Any]]:
    for variant, entry, name, owner in _owners(tree):
        row = entry[name]
        reference = name in REFERENCES
        target = row.get("target") or {}
        blocks: Mapping[str, Mapping[str, Any]] = {
            "best": row if reference else row["best"],
            "last": {} if reference else row["last"],
            "target": target,
            "bound": target.get("bound") or {},
            "stein": stein_of(entry, name),
        }
        kind = "reference" if reference else "proxy" if name in PROXIES else "baseline"
        numbers = [blocks[block].get(field) for block, schema in BLOCKS.items() for field in schema]
        if reference:  # its training time, not that of an epoch; see ``seconds``
            numbers[list(EPOCH).index("seconds")] = None
        yield [
            *owner,
            kind,
            variant.complete,
            entry["n_forget"],
            entry["n_retain"],
            row["seconds"],
            row["rte"],
            *numbers,
        ]


def _epochs(tree: Tree) -> Iterator[list[Any]]:
    for _, entry, name, owner in _owners(tree):
        for epoch in entry[name].get("epochs", ()):
            yield [*owner, *(epoch[field] for field in EPOCH)]


def _owners(tree: Tree) -> Iterator[tuple[TreeVariant, Entry, str, list[Any]]]:
    for tree_variant in tree.variants:
        variant = tree_variant.variant
        place = [variant.dataset, tree_variant.backbone, variant.arch, str(variant.scenario), variant.key]
        for entry in tree_variant.entries:
            for name in (*REFERENCES, *tree_variant.methods):
                if name in entry:
                    yield tree_variant, entry, name, [*place, entry["seed"], name]
