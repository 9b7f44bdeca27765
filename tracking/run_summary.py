"""What the MLflow runs above the seeds say: a variant's numbers over seeds, each row's mean curve, a grid's claims."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tracking.claims import Claim, Verdict, can_fail, claims_table
from tracking.entries import REFERENCES, Spread
from tracking.figures.style import look_of
from tracking.front import HEADLINE, KL_F, KL_T, Place, places, trajectories
from tracking.mlflow_views import COST, LOG_COST
from tracking.summary import closest, headline
from tracking.tables.benchmark import MEASURES, benchmark_table
from tracking.tables.exports import markdown
from tracking.tables.front import front_summary
from tracking.tables.table import Table, only_columns
from tracking.tree import Tree, TreeVariant
from unlearn_core import methods

VERSION = 2
"""Raise it if what is summarized changes: runs of an older one are then written again."""
DESCRIPTION = "mlflow.note.content"
LONGEST_TAG = 8000
CUT = "\n\n(The rest is among the artifacts.)"
BEST, AT_HEADLINE = "best", f"best_at_{100 * HEADLINE:g}_percent"

Numbers = list[tuple[str, float, int]]
"""Metric, value, step."""


@dataclass(frozen=True)
class RunSummary:
    """A run above the seeds. ``metrics`` may have a metric several times: a curve, by its steps."""

    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Numbers = field(default_factory=list)


def digest(variant: TreeVariant) -> str:
    """Of the steps that a summary is made from: the same results, the same summary."""
    steps = sorted((entry["seed"], entry.get("provenance", {}).get("step", "")) for entry in variant.entries)
    rows = sorted({name for entry in variant.entries for name in entry if isinstance(entry[name], dict)})
    return hashlib.sha256(json.dumps([VERSION, steps, rows]).encode()).hexdigest()[:16]


def variant_summary(variant: TreeVariant) -> RunSummary:
    """Means and standard deviations over seeds of every row, who is closest, and the benchmark as its description."""
    metrics: Numbers = [("seeds", len(variant.entries), 0)]
    means: dict[str, dict[str, float]] = {}
    for row in rows_of(variant):
        for measure, spread in _spreads(variant, row):
            means.setdefault(row, {})[measure] = spread.mean
            metrics.append((f"{measure}/{row}", spread.mean, 0))
            if spread.std is not None:
                metrics.append((f"{measure}_std/{row}", spread.std, 0))
    tags = {}
    if best := closest(variant, methods.names(), KL_F):
        tags["best_method"] = str(best)
        found = means[best.names[0]]
        metrics += [(f"{name}/{BEST}", found[name], 0) for name in (KL_F, KL_T, COST) if name in found]
    if place := _headline_place(variant):
        tags[AT_HEADLINE] = str(place.method)
        said = {KL_F: place.kl, f"{KL_F}_over_short": place.ratio}
        metrics += [(f"{name}/{AT_HEADLINE}", value, 0) for name, value in said.items() if value is not None]
    return RunSummary(variant.name, tags, [(name, _readable(value), step) for name, value, step in metrics])


def row_summaries(variant: TreeVariant) -> Iterator[RunSummary]:
    """A row over all seeds: its curve if all of them have one, and its numbers at the end."""
    curves = {found.method: found.points for found in trajectories(variant)}
    for row in rows_of(variant):
        curve: Numbers = []
        for step, point in enumerate(curves.get(row, ()), start=1):
            curve.append((COST, 100 * point.cost, step))
            for measure, spread in ((KL_F, point.kl_f), (KL_T, point.kl_t)):
                if spread is not None:
                    curve.append((measure, spread.mean, step))
                    curve.append((f"{measure}_std", spread.std or 0.0, step))
        drawn = {name for name, _, _ in curve}
        curve += [(name, spread.mean, 0) for name, spread in _spreads(variant, row) if name not in drawn]
        curve += [(LOG_COST, math.log10(value), step) for name, value, step in curve if name == COST and value > 0]
        yield RunSummary(row, {"mlflow.runColor": look_of("floor" if row in REFERENCES else row).color}, curve)


def variant_description(variant: TreeVariant, links: str) -> str:
    """The benchmark in Markdown, as much of it as a tag of MLflow holds; first what the UI shows without a click."""
    table = only_columns(benchmark_table(variant), lambda column: not column.aside)
    told = [f"{sentence}\n" for sentence in headline(Tree((variant,)))]
    return _fitting(_in_short(variant), links, *told, table=table)


def _in_short(variant: TreeVariant) -> str:
    """The closest method and what it is beside, in numbers."""
    best = closest(variant, methods.names(), KL_F)
    rows = {} if best is None else {f"closest at the last epoch: {best}": best.names[0]}
    said = []
    for name, row in (rows | {name: name for name in ("floor", "base") if variant.has(name)}).items():
        means = {measure: spread.mean for measure, spread in _spreads(variant, row)}
        kls = ", ".join(f"KL{measure[2:]} {means[measure]:.2g}" for measure in (KL_F, KL_T) if measure in means)
        cost = f", cost {means[COST]:.2g} % of a retrain" if row not in REFERENCES and COST in means else ""
        said.append(f"**{name}**: {kls} nats{cost}")
    return "; ".join(said) + "\n"


def _readable(value: float) -> float:
    """Four significant digits: MLflow's tables show all that a number has."""
    return float(f"{value:.4g}")


def grid_summary(tree: Tree, claims: Sequence[Claim]) -> RunSummary:
    """How many variants and cells there are and how many claims hold; the front and the claims as its description."""
    judged = can_fail(claims)
    counts = {
        "variants": len(tree.variants),
        "cells": sum(len(v.entries) for v in tree.variants),
        **{f"claims/{verdict.name.lower()}": sum(claim.verdict is verdict for claim in judged) for verdict in Verdict},
    }
    return RunSummary("grid", {}, [(name, count, 0) for name, count in counts.items()])


def grid_description(tree: Tree, claims: Sequence[Claim], links: str) -> str:
    told = [f"{sentence}\n" for sentence in headline(tree)]
    if (front := front_summary(tree)) is not None:
        told.append(markdown(replace(front, notes=())))
    verdicts = only_columns(claims_table(claims), lambda column: column.name in ("verdict", "statement"))
    return _fitting(links, *told, table=verdicts)


def _fitting(*parts: str, table: Table) -> str:
    """With the table's notes and caption if there is room for them; whole lines in any case."""
    for shown in (table, replace(table, notes=()), replace(table, notes=(), caption="")):
        text = "\n".join((*parts, markdown(shown)))
        if len(text) <= LONGEST_TAG:
            return text
    room = LONGEST_TAG - len(CUT)
    return text[: text.rindex("\n", 0, room)] + CUT


def rows_of(variant: TreeVariant) -> list[str]:
    """References and methods, each of which has a run over all seeds."""
    return [row for row in (*REFERENCES, *variant.methods) if variant.has(row)]


def _spreads(variant: TreeVariant, row: str) -> Iterator[tuple[str, Spread]]:
    """What the benchmark shows of a row, by the name of its column."""
    for measure in MEASURES:
        if (spread := measure.spread(variant.entries, row)) is not None:
            yield measure.column.name, spread


def _headline_place(variant: TreeVariant) -> Place | None:
    found = (p for p in places(variant) if (p.budget, p.measure) == (HEADLINE, KL_F) and p.method)
    return next(found, None)
