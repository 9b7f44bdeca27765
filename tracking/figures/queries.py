"""How many queries an attacker needs, against the error rate that it accepts.  [fig:hero-evolution b, app:stein]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracking.entries import Entry, number
from tracking.figures.style import FigureFile, height_beside_legend, look_of, new_figure, save, styled, with_seeds
from tracking.tables.table import counted, listed
from unlearn_core import methods
from unlearn_core.audit.stein import ALPHAS, UNBOUNDED, min_queries

ALPHA = "\N{GREEK SMALL LETTER ALPHA}"  # by name: in an editor it is easily taken for an a
ERROR_RATES: tuple[float, ...] = tuple(10 ** (-4 + i / 40) for i in range(145))
"""1e-4 to 0.4, evenly on a log axis."""
STATED = min(ALPHAS)
"""The error rate for which the legend and the caption give numbers."""


@dataclass(frozen=True)
class QueryCurve:
    """N(alpha) at ``ERROR_RATES``, the least over seeds, as in the table: that of the largest KL_f of a last epoch."""

    row: str
    n_seeds: int
    kl_f: float
    queries: tuple[int, ...]


def query_curves(entries: Sequence[Entry]) -> list[QueryCurve]:
    """Floor, base and methods whose KL_f is finite in every seed that has them, and not zero."""
    curves = []
    for row in ("floor", "base", *methods.names()):
        values = [number(entry, row, "last", "kl_f") for entry in entries if row in entry]
        known = [kl_f for kl_f in values if kl_f is not None]
        if not known or len(known) < len(values):
            continue
        kl_f = max(0.0, *known)  # a KL of two almost equal models may be rounded to just below zero
        queries = tuple(min_queries(kl_f, alpha) for alpha in ERROR_RATES)
        if max(queries) < UNBOUNDED:
            curves.append(QueryCurve(row, len(known), kl_f, queries))
    return curves


def write_queries(directory: Path, entries: Sequence[Entry], title: str, name: str) -> list[FigureFile]:
    """N(alpha) of each method, with |D_f| as a line; nothing if no KL_f is known."""
    curves = query_curves(entries)
    if not curves:
        return []
    n_forget = max(entry["n_forget"] for entry in entries)
    with styled():
        figure = new_figure(7.5, height_beside_legend(len(curves) + 2))
        axes = figure.add_subplot()
        for i, curve in enumerate(curves):
            label = f"{with_seeds(curve.row, curve.n_seeds, len(entries))}: {min_queries(curve.kl_f, STATED)}"
            every = (5 * i % 24, 24)  # marks in turn, so that curves that run together are told apart
            axes.plot(ERROR_RATES, curve.queries, label=label, markevery=every, **look_of(curve.row).plotted())
        axes.axhline(n_forget, color="black", linewidth=1.2)
        axes.text(ERROR_RATES[-1], 1.08 * n_forget, f"|D_f| = {n_forget}", ha="right")
        for alpha in ALPHAS:
            axes.axvline(alpha, color="0.8", linewidth=0.8, zorder=0)
        axes.set(xscale="log", yscale="log", ylabel=f"N({ALPHA}), random label queries needed")
        axes.set_xlabel(f"{ALPHA}, the attacker's error rate")
        axes.set_title(f"{title}: from KL_f, the least over {counted(len(entries), 'seed')}")
        axes.legend(title=f"N at {ALPHA} = {STATED:g}", loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=3.2)
        return [save(figure, directory, name, f"Queries to tell apart: {title}", _caption(curves, entries, n_forget))]


def _caption(curves: Sequence[QueryCurve], entries: Sequence[Entry], n_forget: int) -> str:
    beyond = [curve.row for curve in curves if min_queries(curve.kl_f, STATED) > n_forget]
    return (
        "Label queries on forgotten rows drawn at random that an attacker needs at least, to tell each model from the "
        f"retrain at error rate {ALPHA}: the least over {counted(len(entries), 'seed')}, from the last epoch's KL_f. One "
        f"who picks the rows, or reads probabilities, may need fewer. At {ALPHA} = {STATED:g} as many random draws as the "
        f"|D_f| = {n_forget} forget rows are too few for {listed(beyond) if beyond else 'none of them'}."
    )
