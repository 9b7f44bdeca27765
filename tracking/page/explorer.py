"""KL over cost of any variant, drawn in the browser: choose the variant, the measure and the methods, point for values.

The numbers are an attribute of the element that the script draws into; without a script there are the figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tracking.entries import mean_over_seeds
from tracking.figures.style import look_of
from tracking.front import MEASURES, Trajectory, trajectories
from tracking.html import Html, tag
from tracking.tree import Tree, TreeVariant


def explorer(tree: Tree) -> Iterator[Html]:
    """Nothing if no variant has a method that can be placed."""
    found = {v.name: data for v in tree.variants if (data := _data(v))}
    if not found:
        return
    names = dict.fromkeys(method for data in found.values() for method in data["methods"])
    variants = tag("select", *(tag("option", name, value=name) for name in found), id="explore-variant")
    measures = (
        tag("label", tag("input", type="radio", name="measure", value=value, checked=i == 0), text)
        for i, (value, text) in enumerate((("kl_f", " forgotten rows (KL_f)"), ("kl_t", " test set (KL_t)")))
    )
    yield tag(
        "p",
        tag("label", "Variant ", variants),
        tag("span", *measures, role="group", aria_label="Measure"),
        class_="controls",
    )
    yield tag(
        "div",
        id="explorer",
        data_front=json.dumps(found, separators=(",", ":")),
        data_colours=json.dumps({name: look_of(name).color for name in names}, separators=(",", ":")),
    )
    yield tag("p", "", id="explore-value", class_="caption", aria_live="polite")
    boxes = (
        tag("label", tag("input", type="checkbox", value=name, checked=True), tag("span", f" {name}")) for name in names
    )
    every = (tag("button", f"{word} of them", type="button", data_choose=word.lower()) for word in ("All", "None"))
    yield tag("fieldset", tag("legend", "Methods"), *every, *boxes, id="explore-methods")


def _data(variant: TreeVariant) -> dict[str, Any] | None:
    curves = {curve.method: _curve(curve) for curve in trajectories(variant)}
    if not curves:
        return None
    levels = {
        name: [_short(mean_over_seeds(variant.entries, name, "last", measure)) for measure in MEASURES]
        for name in ("floor", "base")
        if variant.has(name)
    }
    return {"methods": curves, "levels": levels}


def _curve(curve: Trajectory) -> list[list[float | None]]:
    """Rows of cost in percent, then KL_f, its spread, KL_t, its spread."""
    rows = []
    for point in curve.points:
        spreads = (value for kl in (point.kl_f, point.kl_t) for value in ((kl.mean, kl.std) if kl else (None, None)))
        rows.append([_short(100 * point.cost), *map(_short, spreads)])
    return rows


def _short(value: float | None) -> float | None:
    """As many digits as one can point at."""
    return None if value is None else float(f"{value:.4g}")
