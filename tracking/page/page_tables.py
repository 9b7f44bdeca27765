"""Tables that only the page has: all variants at a glance, how their results were computed, and what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tracking.entries import Entry, mean_over_seeds
from tracking.front import KL_F
from tracking.summary import Closest, closest, over_floor
from tracking.tables.table import MISSING, Cell, Column, Group, Row, Table, number_cell, text_cell
from tracking.tree import Tree, TreeVariant, name_within
from unlearn_core import methods
from unlearn_core.grid import ARCHITECTURES
from unlearn_core.recipes import UNLEARNING_EPOCHS, Optimization, training_optimization, unlearning_optimization

INCOMPLETE = "incomplete"
COLUMNS: tuple[Column, ...] = (
    Column("proxy", "closest proxy", prose=True),
    Column("proxy_kl_f", "KL_f"),
    Column("over_floor", "x floor"),
    Column("baseline", "closest baseline", prose=True),
    Column("baseline_kl_f", "KL_f"),
    Column("floor_kl_f", "floor KL_f"),
    Column("n_forget", "|D_f|"),
    Column("seeds", "seeds"),
)
CAPTION = (
    "closest: the least mean KL_f over seeds, in nats on the forgotten training rows, at the last epoch and whatever the "
    "cost, among the methods that all seeds have; in bold, the closer of proxy and baseline; x floor: the closest proxy's "
    "over the floor's, a second retrain from other initial weights, which is not a lower bound"
)


def index_table(tree: Tree) -> Table:
    """What comes closest to the retrain in each variant, and whether the variant is complete."""
    return Table(
        name="variants",
        title="All variants",
        columns=COLUMNS,
        groups=tuple(
            Group(tuple(_row(variant, name_within(variant, family)) for variant in family), family[0].family)
            for family in tree.families()
        ),
        caption=CAPTION,
        row_heading="forgotten",
        group_heading="family",
    )


def _row(variant: TreeVariant, name: str) -> Row:
    proxy, baseline = closest(variant, methods.proxies(), KL_F), closest(variant, methods.baselines(), KL_F)
    n_forget = max(entry["n_forget"] for entry in variant.entries)
    return Row(
        name,
        (
            *_closest_cells(proxy, baseline),
            number_cell(over_floor(variant)),
            *_closest_cells(baseline, proxy),
            number_cell(mean_over_seeds(variant.entries, "floor", "last", KL_F)),
            Cell(n_forget, str(n_forget)),
            Cell(len(variant.entries), str(len(variant.entries))),
        ),
        "" if variant.complete else INCOMPLETE,
    )


def _closest_cells(one: Closest | None, other: Closest | None) -> tuple[Cell, Cell]:
    if one is None:
        return MISSING, MISSING
    return text_cell(str(one)), number_cell(one.kl, bold=other is not None and one.kl < other.kl)


NOT_RECORDED = "not recorded"
CELLS = Column("cells", "cells")
SEEDS = Column("seeds", "seeds")


def provenance_tables(tree: Tree) -> tuple[Table, ...]:
    """A row for whatever differs: one for a whole data set or architecture if all of its cells were made alike."""
    return (
        _recorded(tree, "fingerprint", "Data", "data set", lambda v: f"{v.variant.dataset}/{v.backbone}"),
        _recorded(tree, "settings", "Settings", "architecture", lambda v: v.variant.arch),
        _recorded(tree, "versions", "Versions", "architecture", lambda v: v.variant.arch),
    )


def recipe_table(tree: Tree) -> Table:
    """Not from the tree: what this version of the program does."""
    present = {v.variant.arch for v in tree.variants}
    return Table(
        name="recipe",
        title="Recipe",
        columns=tuple(Column(when, when, prose=True) for when in ("training", "unlearning")),
        groups=(
            Group(
                tuple(
                    Row(arch, (_steps(training_optimization(arch)), _steps(unlearning_optimization(arch))))
                    for arch in ARCHITECTURES
                    if arch in present
                )
            ),
        ),
        caption="as this version of the program has it, for every method whose own recipe says nothing else; distillation "
        f"takes {UNLEARNING_EPOCHS} epochs, training as many as the settings say",
        row_heading="architecture",
    )


def problems_table(tree: Tree) -> Table:
    rows = (
        Row(str(problem.file), (text_cell(problem.key or "the whole file"), text_cell(problem.what)))
        for problem in tree.problems
    )
    return Table(
        name="problems",
        title="Problems of the tree",
        columns=(Column("key", "key", prose=True), Column("what", "what", prose=True)),
        groups=(Group(tuple(rows)),),
        caption="what is named here was left out, and all else is shown",
        row_heading="file",
    )


def _recorded(tree: Tree, part: str, title: str, row_heading: str, row_of: Callable[[TreeVariant], str]) -> Table:
    alike: dict[tuple[str, tuple[tuple[str, str], ...]], list[Entry]] = {}
    for variant in tree.variants:
        for entry in variant.entries:
            said = _named_values(entry.get("provenance", {}).get(part), part)
            alike.setdefault((row_of(variant), said), []).append(entry)
    columns = list(dict.fromkeys(column for _, said in alike for column, _ in said)) or [part]
    rows = []
    for (name, said), entries in alike.items():
        seeds = ", ".join(dict.fromkeys(str(entry["seed"]) for entry in entries))
        values = dict(said)
        cells = (text_cell(values[column]) if column in values else MISSING for column in columns)
        unknown = (text_cell(NOT_RECORDED) for _ in columns)
        rows.append(Row(name, (Cell(len(entries), str(len(entries))), text_cell(seeds), *(cells if said else unknown))))
    return Table(
        name=part,
        title=title,
        columns=(CELLS, SEEDS, *(Column(name, name.replace("_", " "), prose=name == part) for name in columns)),
        groups=(Group(tuple(rows)),),
        row_heading=row_heading,
    )


def _named_values(value: Any, name: str) -> tuple[tuple[str, str], ...]:
    """Whatever was recorded, as text; a null is not."""
    named = value if isinstance(value, dict) else {name: value}
    return tuple((key, v if isinstance(v, str) else json.dumps(v)) for key, v in named.items() if v is not None)


def _steps(optimization: Optimization) -> Cell:
    decay = "" if optimization.decay == 1 else f", times {optimization.decay:g} after every epoch"
    return text_cell(
        f"{optimization.algorithm}, batches of {optimization.batch_size}, learning rate {optimization.lr:g}{decay}"
    )
