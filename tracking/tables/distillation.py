"""Is the unlearned network as close to the retrain as the target it was taught?  [tab:distillation]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracking.entries import Spread, mean_over_seeds, number, ratio, spread, unlearned_nothing
from tracking.tables.benchmark import KL_DEFINED, ORACLE_DEFINED, oracle_column
from tracking.tables.table import Cell, Column, Row, Table, grouped, least, number_cell, spread_cell
from tracking.tree import TreeVariant
from unlearn_core import methods

MEASURES: tuple[tuple[Column, str, str], ...] = (
    (Column("target_kl_t", "KL_t target", r"$\mathrm{KL}_t$ target"), "target", "kl_t"),
    (Column("network_kl_t", "KL_t net", r"$\mathrm{KL}_t$ net"), "last", "kl_t"),
    (Column("target_kl_f", "KL_f target", r"$\mathrm{KL}_f$ target"), "target", "kl_f"),
    (Column("network_kl_f", "KL_f net", r"$\mathrm{KL}_f$ net"), "last", "kl_f"),
    (oracle_column("network_kl_f", "KL_f net", r"$\mathrm{KL}_f$ net"), "best", "kl_f"),
)
RATIO = Column("network_over_target_kl_f", "net/target")
BOLD = 2  # as the cells of tab:distillation show; its caption does not say
CAPTION = (
    f"{KL_DEFINED}; net: the unlearned network at its last epoch; {ORACLE_DEFINED}; "
    "net/target: ratio of the mean KL_f at the last epoch, below 1 if the network is closer; bold: the best two"
)


def distillation(variants: Sequence[TreeVariant]) -> Table:
    """Target and network of every proxy, a group for every variant."""
    columns = (*(column for column, _, _ in MEASURES), RATIO)
    title = "target and unlearned network, mean ± std over seeds"
    table = grouped("distillation", title, variants, columns, _rows, CAPTION, "proxy")
    return replace(table, notes=(*table.notes, *_dir_notes(variants)))


def _dir_notes(variants: Sequence[TreeVariant]) -> list[str]:
    """The empirical measure has never seen a test point: what its target says there is a choice."""
    said = {
        "base": "the targets of dir and dir-2c give test points the base network's output",
        "as-forgotten": "the targets of dir and dir-2c take test points of the forgotten class as forgotten",
    }
    chosen = {
        entry[proxy]["target"]["dir_on_test"]
        for variant in variants
        for proxy in methods.closed_forms()
        for entry in variant.entries_with(proxy)
    }
    return [said.get(choice, f"the targets of dir and dir-2c on test points: {choice}") for choice in sorted(chosen)]


def idle_everywhere(variant: TreeVariant, proxy: str) -> bool:
    """Admissible in no seed: target and network are the base."""
    return all(unlearned_nothing(entry, proxy) for entry in variant.entries_with(proxy))


def _rows(variant: TreeVariant) -> tuple[Row, ...]:
    proxies = [proxy for proxy in methods.proxies() if proxy in variant.methods]
    ranked = [not idle_everywhere(variant, proxy) for proxy in proxies]
    cells: list[list[Cell]] = [[] for _ in proxies]
    for _, block, name in MEASURES:
        spreads = [_spread(variant, proxy, block, name) for proxy in proxies]
        scores = [s.mean if s and rank else None for s, rank in zip(spreads, ranked, strict=True)]
        for row, over_seeds, bold in zip(cells, spreads, least(scores, BOLD), strict=True):
            row.append(replace(spread_cell(over_seeds), bold=bold))
    for row, proxy in zip(cells, proxies, strict=True):
        means = [mean_over_seeds(variant.entries_with(proxy), proxy, block, "kl_f") for block in ("last", "target")]
        row.append(number_cell(ratio(means[0], means[1])))
    remarks = ["" if rank else "not admissible" for rank in ranked]
    return tuple(Row(proxy, tuple(row), remark) for proxy, row, remark in zip(proxies, cells, remarks, strict=True))


def _spread(variant: TreeVariant, proxy: str, block: str, name: str) -> Spread | None:
    return spread(number(entry, proxy, block, name) for entry in variant.entries_with(proxy))
