"""A results tree as polars frames, for whoever wants to ask a question of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracking.entries import BOUND, EPOCH, LATER, REFERENCES, STEIN, TARGET, Entry, Fields, stein_of
from tracking.tree import Tree, TreeVariant
from unlearn_core import methods
from unlearn_core.records import Finite

Schema = dict[str, Any]
"""Column -> polars type."""
POLARS_TYPES: Mapping[Any, Any] = {
    **dict.fromkeys((Finite, float, float | None), pl.Float64),
    **dict.fromkeys((int, int | None), pl.Int64),
    **dict.fromkeys((bool, bool | None), pl.Boolean),
    str: pl.String,
}


def _columns(fields: Fields) -> Schema:
    """The fields that are one value each, which a curve or a group of numbers is not."""
    return {name: POLARS_TYPES[kind] for name, kind in fields.items() if kind in POLARS_TYPES}


OWNER: Schema = {
    "dataset": pl.String,
    "backbone": pl.String,
    "arch": pl.String,
    "scenario": pl.String,
    "key": pl.Int64,
    "seed": pl.Int64,
    "method": pl.String,
}
BLOCKS: Mapping[str, Schema] = {
    "best": _columns(EPOCH),
    "last": _columns(EPOCH),
    "target": _columns(TARGET),
    "bound": _columns(BOUND),
    "stein": _columns(STEIN),
}
ROWS: Schema = {
    **OWNER,
    "kind": pl.String,
    "complete": pl.Boolean,
    "n_forget": pl.Int64,
    "n_retain": pl.Int64,
    "seconds": pl.Float64,
    "rte": pl.Float64,
    "cost": pl.Float64,
    "preparation": pl.Float64,
    **{f"{block}_{name}": kind for block, schema in BLOCKS.items() for name, kind in schema.items()},
}
EPOCHS: Schema = {**OWNER, **_columns(EPOCH)}


@dataclass(frozen=True)
class Frames:
    """``rows``: one per variant, seed and row (references and methods). ``epochs``: one per epoch of a method.

    ``best_`` is the oracle's epoch, which has the least KL_f. A reference has no epochs: its own scores are its ``best_``.
    ``stein_`` is from the last epoch's KL. ``complete`` is false for all rows of a variant about which the tree has a
    problem to report. Null: infinite, undefined, or not there for this kind of row or in a tree of this age.
    """

    rows: pl.DataFrame
    epochs: pl.DataFrame


def frames(tree: Tree) -> Frames:
    """The numbers of a whole tree, with all their digits.

    Examples:
        After ``make demo``, the distance of the base from the retrain, by seed:

        >>> from pathlib import Path
        >>> from tracking.tree import read_tree
        >>> rows = frames(read_tree(Path("runs/demo/results"))).rows
        >>> rows.filter(pl.col("method") == "base").select("seed", "best_kl_f").columns
        ['seed', 'best_kl_f']
    """
    return Frames(_frame(_rows(tree), ROWS), _frame(_epochs(tree), EPOCHS))


def _frame(rows: Iterator[list[Any]], schema: Schema) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=schema, orient="row")


def _rows(tree: Tree) -> Iterator[list[Any]]:
    for variant, entry, name, owner in _owners(tree):
        row = entry[name]
        reference = name in REFERENCES
        target = row.get("target") or {}
        blocks: Mapping[str, Mapping[str, Any]] = {
            # a reference's seconds are its training time, not that of an epoch
            "best": {**row, "seconds": None} if reference else row["best"],
            "last": {} if reference else row["last"],
            "target": target,
            "bound": target.get("bound") or {},
            "stein": stein_of(entry, name),
        }
        numbers = [blocks[block].get(field) for block, schema in BLOCKS.items() for field in schema]
        kind = "reference" if reference else str(methods.find(name).family)
        counts = [entry["n_forget"], entry["n_retain"], row["seconds"], row["rte"]]
        yield [*owner, kind, variant.complete, *counts, *(row.get(field) for field in LATER), *numbers]


def _epochs(tree: Tree) -> Iterator[list[Any]]:
    for _, entry, name, owner in _owners(tree):
        for epoch in entry[name].get("epochs", ()):
            yield [*owner, *(epoch.get(field) for field in EPOCH)]


def _owners(tree: Tree) -> Iterator[tuple[TreeVariant, Entry, str, list[Any]]]:
    for tree_variant in tree.variants:
        variant = tree_variant.variant
        place = [variant.dataset, tree_variant.backbone, variant.arch, str(variant.scenario), variant.key]
        for entry in tree_variant.entries:
            for name in (*REFERENCES, *tree_variant.methods):
                if name in entry:
                    yield tree_variant, entry, name, [*place, entry["seed"], name]
