"""What an attacker could tell, and what the theory promised: queries needed beside |D_f|, bounds beside measured KL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracking.entries import REFERENCES, Entry, ratio, spread, stein_of
from tracking.tables.table import (
    MISSING,
    Cell,
    Column,
    Row,
    Table,
    grouped,
    number_cell,
    spread_cell,
    text_cell,
    two_decimals,
)
from tracking.tree import TreeVariant
from unlearn_core import methods
from unlearn_core.audit.stein import ALPHAS, UNBOUNDED

QUERY_COLUMNS: tuple[Column, ...] = (
    *(
        Column(f"n_{where}_at_{alpha:g}", f"N_{where} {alpha:g}", rf"$N_{where}({alpha:g})$")
        for alpha in ALPHAS
        for where in "tf"
    ),
    Column("n_forget", "|D_f|", r"$|D_f|$"),
    *(Column(f"verdict_at_{alpha:g}", f"verdict {alpha:g}", prose=True) for alpha in ALPHAS),
)
QUERY_CAPTION = (
    "N: label queries on rows drawn at random that an attacker needs at least, to tell the model from the retrain with both "
    "error rates at alpha; on test points (N_t) or on forgotten points (N_f), from the last epoch's KL, the least over "
    "seeds; indistinguishable: N_f > |D_f| in every seed, so that as many random draws as there are forgotten points are "
    "too few. The attacker sees labels drawn from the model's posterior at points drawn at random: one who picks the points "
    "on which the two differ most, or who reads probabilities, may need fewer"
)
BOUND_COLUMNS: tuple[Column, ...] = (
    Column("eta_max", "eta_max", r"$\eta_{\max}$"),
    Column("kl_base", "KL base"),
    Column("bound", "bound"),
    Column("measured", "measured"),
    Column("measured_over_bound", "measured/bound"),
)
BOUND_CAPTION = (
    "KL(retrain || target) in nats over all training rows: the bound of prop:tight-bound with its remainder, and measured; "
    "KL base: KL(retrain || base), where unlearning starts; mean ± std over seeds; "
    "-- if the bound is infinite, because a class left the support of P_r; what stands in the bound takes the retrain to "
    "compute, so that nobody knows it before"
)


def queries(variants: Sequence[TreeVariant]) -> Table:
    """Stein's N for base, floor and every method, a group for every variant.  [app:stein]"""
    return grouped("queries", "queries that an attacker needs", variants, QUERY_COLUMNS, _query_rows, QUERY_CAPTION)


def bounds(variants: Sequence[TreeVariant]) -> Table:
    """The bound beside what was measured for every Gaussian proxy, a group for every variant.  [prop:tight-bound]"""
    title = "the bound and the measured KL of the target"
    return grouped("bounds", title, variants, BOUND_COLUMNS, _bound_rows, BOUND_CAPTION, "proxy")


def _query_rows(variant: TreeVariant) -> tuple[Row, ...]:
    names = [name for name in (*REFERENCES, *variant.methods) if name != "retrain"]
    return tuple(Row(name, _query_cells(some, name)) for name in names if (some := variant.entries_with(name)))


def _query_cells(entries: Sequence[Entry], row: str) -> tuple[Cell, ...]:
    blocks = [stein_of(entry, row) for entry in entries]
    n_forget = max(entry["n_forget"] for entry in entries)
    return (
        *(_least(block[f"n_{where}_at_{alpha:g}"] for block in blocks) for alpha in ALPHAS for where in "tf"),
        Cell(n_forget, str(n_forget)),
        *(_verdict([block[f"indistinguishable_at_{alpha:g}"] for block in blocks]) for alpha in ALPHAS),
    )


def _least(counts: Iterable[int | None]) -> Cell:
    """Missing if KL is infinite in a seed: the bound says nothing there."""
    known = list(counts)
    numbers = [count for count in known if count is not None]
    if len(numbers) < len(known):
        return MISSING
    least = min(numbers)
    return Cell(least, "unbounded" if least == UNBOUNDED else str(least))


def _verdict(flags: Sequence[bool | None]) -> Cell:
    """A bound that is not reached does not say that an attack works."""
    shown = sum(flag is True for flag in flags)
    if shown == len(flags):
        return text_cell("indistinguishable")
    return text_cell(f"in {shown} of {len(flags)} seeds" if shown else "not shown")


def _bound_rows(variant: TreeVariant) -> tuple[Row, ...]:
    rows = []
    for proxy in methods.proxies():
        targets = [entry[proxy]["target"] for entry in variant.entries_with(proxy)]
        if not targets or any(target["bound"] is None for target in targets):
            continue
        terms = {
            term: spread(target["bound"][term] for target in targets)
            for term in ("kl_retrain_base", "tight_bound", "measured")
        }
        bound, measured = terms["tight_bound"], terms["measured"]
        share = ratio(measured.mean if measured else None, bound.mean if bound else None)
        eta = spread_cell(spread(target["eta_max"] for target in targets), two_decimals)
        numbers = (spread_cell(value) for value in terms.values())
        remark = "" if any(target["eta_max"] for target in targets) else "not admissible"
        rows.append(Row(proxy, (eta, *numbers, number_cell(share, two_decimals)), remark))
    return tuple(rows)
