"""Closer than the paper: proxies that it does not have, and the one that ``auto`` would choose, beside the paper's.

``auto`` is not run: which proxy it takes follows from what every target recorded (``unlearn_core.auto``), and what that
proxy came to is in the tree. Nothing of the retrain enters the choice; the *oracle* is the choice that knows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tracking.entries import Entry, mean_over_seeds, number, ratio, spread
from tracking.tables.benchmark import COST, COST_DEFINED, KL_DEFINED, ORACLE_DEFINED, ORACLE_KL_F, PREPARATION, RTE
from tracking.tables.table import (
    MISSING,
    Cell,
    Column,
    Group,
    Row,
    Table,
    listed,
    number_cell,
    spread_cell,
    text_cell,
    whole,
)
from tracking.tree import TreeVariant, incomplete_notes, name_within, shared_name, slug
from unlearn_core import methods
from unlearn_core.auto import Candidate, choose_proxy

COMPARED = "lda-2c"
"""The paper's proxy that the others are tested against."""

RowOf = Callable[[Entry], str]
"""Which row of an entry counts: the same for all seeds, or one that each seed chooses."""

COLUMNS: tuple[Column, ...] = (
    Column("kl_t", "KL_t", r"$\mathrm{KL}_t$"),
    Column("kl_f", "KL_f", r"$\mathrm{KL}_f$"),
    Column("kl_f_over_floor", "x floor", r"$\times$ floor"),
    ORACLE_KL_F.column,
    Column("target_kl_f", "KL_f target", r"$\mathrm{KL}_f$ target"),
    COST.column,
    PREPARATION.column,
    RTE.column,
    Column("wins", "wins"),
    Column("p", "p"),
)


def _ours() -> tuple[str, ...]:
    """The proxies that the paper does not have."""
    return tuple(name for name in methods.proxies() if not methods.find(name).paper)


def _caption() -> str:
    candidates = listed(["the Gaussian proxies", *(name for name in _ours() if name in methods.auto_candidates())])
    return (
        f"{KL_DEFINED}; at the last epoch, but for the oracle's; {ORACLE_DEFINED}; KL_f target: of the target before it is "
        f"distilled, so that what the proxy and what the distillation lose can be told apart; {COST_DEFINED}; wins: seeds "
        f"with a smaller KL_f than {COMPARED}; p: paired t-test over seeds of log KL_f against {COMPARED}; best paper "
        "proxy: chosen by its mean KL_f, which takes a retrain; auto: chosen in each seed without one, among "
        f"{candidates}"
    )


def chosen_by_auto(entry: Entry) -> str:
    """The row that ``auto`` stands for in this seed; the base if it unlearns nothing."""
    candidates = []
    for method in methods.auto_candidates():
        if method not in entry:
            continue
        target = entry[method]["target"]
        before, after = target["kl_net_proxy_before"], target["kl_net_proxy_after"]
        # a proxy that took a class out is infinitely far from the network, which the tree writes as null
        loss = float("inf") if after is None else after - before
        candidates.append(Candidate(method, bool(target["admissible"]), target["eta_max"], before, loss))
    return choose_proxy(candidates).method or "base"


def beyond_the_paper(variants: Sequence[TreeVariant]) -> Table | None:
    """lda-2c, the best of the paper's proxies, ours and ``auto``, variant by variant; None if none of ours was run."""
    shown = [v for v in _with_ours(variants) if v.has(COMPARED, "base", "floor")]
    if not shown:
        return None
    name = shared_name(variants)
    return Table(
        name=f"beyond_{slug(name)}",
        title=f"{name}: {listed([*_ours(), 'auto'])} beside the paper's proxies, mean ± std over seeds",
        columns=COLUMNS,
        groups=tuple(Group(_rows(v), name_within(v, variants)) for v in shown),
        caption=_caption(),
        notes=incomplete_notes(shown),
    )


def _with_ours(variants: Sequence[TreeVariant]) -> list[TreeVariant]:
    return [v for v in variants if any(v.has(name) for name in _ours())]


def _rows(variant: TreeVariant) -> tuple[Row, ...]:
    def same(name: str) -> RowOf:
        return lambda _entry: name

    paper = [name for name in methods.paper_methods() if name in methods.proxies() and variant.has(name)]
    best = min(paper, key=lambda proxy: _mean_kl_f(variant, same(proxy)))
    picked = _counted([chosen_by_auto(entry) for entry in variant.entries])
    rows = [(name, same(name), "") for name in ("base", "floor", COMPARED)]
    rows.append(("best paper proxy", same(best), best))
    rows += [(name, same(name), "") for name in _ours() if variant.has(name)]
    rows.append(("auto", chosen_by_auto, picked))
    return tuple(Row(name, _cells(variant, row_of), remark) for name, row_of, remark in rows)


def _cells(variant: TreeVariant, row_of: RowOf) -> tuple[Cell, ...]:
    entries = variant.entries

    def over_seeds(block: str, field: str) -> Cell:
        return spread_cell(spread(number(entry, row_of(entry), block, field) for entry in entries))

    over_floor = ratio(_mean_kl_f(variant, row_of), mean_over_seeds(entries, "floor", "last", "kl_f"))
    times = (
        spread(number(entry, row_of(entry), "last", name) for entry in entries)
        for name in ("cost", "preparation", "rte")
    )
    return (
        over_seeds("last", "kl_t"),
        over_seeds("last", "kl_f"),
        number_cell(over_floor),
        over_seeds("best", "kl_f"),
        over_seeds("target", "kl_f"),
        *(number_cell(time and 100 * time.mean) for time in times),
        *_against(entries, row_of),
    )


def _against(entries: Sequence[Entry], row_of: RowOf) -> tuple[Cell, Cell]:
    """Seeds won, and the p value of a paired t-test of log KL_f: ratios are what methods differ by."""
    pairs = [[number(entry, row, "last", "kl_f") for row in (row_of(entry), COMPARED)] for entry in entries]
    known = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
    if len(known) < len(pairs) or all(ours == theirs for ours, theirs in known):
        return MISSING, MISSING
    wins = sum(ours < theirs for ours, theirs in known)
    won = Cell(wins, f"{wins}/{len(known)}")
    if len(known) < 2:
        return won, MISSING
    from scipy import stats  # here, for it takes a second to load, and few reports have anything to test

    change = np.log([ours / theirs for ours, theirs in known])
    error = float(change.std(ddof=1)) / math.sqrt(len(change))
    t = float(change.mean()) / error if error > 0 else math.inf
    return won, number_cell(float(2 * stats.t.sf(abs(t), len(change) - 1)), lambda p: f"{p:.1g}")


def _mean_kl_f(variant: TreeVariant, row_of: RowOf) -> float:
    over_seeds = spread(number(entry, row_of(entry), "last", "kl_f") for entry in variant.entries)
    return float("inf") if over_seeds is None else over_seeds.mean


AUTO_COLUMNS: tuple[Column, ...] = (
    Column("picked", "auto picks"),
    Column("oracle", "oracle"),
    Column("hits_percent", "hits %"),
    Column("auto_kl_f", "KL_f auto", r"$\mathrm{KL}_f$ auto"),
    Column("oracle_kl_f", "KL_f oracle", r"$\mathrm{KL}_f$ oracle"),
    Column("ratio", "auto/oracle"),
)
NEARLY = 1.05


def _auto_caption() -> str:
    candidates = ", ".join(["the Gaussian proxies", *(name for name in _ours() if name in methods.auto_candidates())])
    return (
        "KL_f at the last epoch; oracle: the row with the least of each seed among the same candidates "
        f"({candidates}, or nothing), which takes a retrain; hits: seeds in which auto's choice comes within 5 % of it; "
        "auto/oracle: ratio of the means"
    )


def auto_beside_the_oracle(variants: Sequence[TreeVariant]) -> Table | None:
    """How often ``auto`` picks what the oracle would, and what it loses."""
    candidates = methods.auto_candidates()
    shown = [v for v in _with_ours(variants) if v.has("base") and any(v.has(name) for name in candidates)]
    if not shown:
        return None
    name, rows, hits, total = shared_name(variants), [], 0, 0
    for variant in shown:
        picked = [chosen_by_auto(entry) for entry in variant.entries]
        oracle = [_oracle(entry) for entry in variant.entries]
        kl = [
            [number(entry, row, "last", "kl_f") for entry, row in zip(variant.entries, chosen, strict=True)]
            for chosen in (picked, oracle)
        ]
        close = sum(a is not None and o is not None and a <= NEARLY * o for a, o in zip(*kl, strict=True))
        hits, total = hits + close, total + len(picked)
        means = [spread(values) for values in kl]
        auto_mean, oracle_mean = (s.mean if s else None for s in means)
        rows.append(
            Row(
                name_within(variant, variants),
                (
                    text_cell(_counted(picked)),
                    text_cell(_counted(oracle)),
                    number_cell(100.0 * close / len(picked), whole),
                    spread_cell(means[0]),
                    spread_cell(means[1]),
                    number_cell(ratio(auto_mean, oracle_mean)),
                ),
            )
        )
    return Table(
        name=f"auto_{slug(name)}",
        title=f"{name}: auto beside the oracle",
        columns=AUTO_COLUMNS,
        groups=(Group(tuple(rows)),),
        caption=_auto_caption(),
        notes=(f"auto comes within 5 % of the oracle in {hits} of {total} cells", *incomplete_notes(shown)),
        row_heading="variant",
    )


def _oracle(entry: Entry) -> str:
    rows = [row for row in (*methods.auto_candidates(), "base") if row in entry]
    known = {row: kl for row in rows if (kl := number(entry, row, "last", "kl_f")) is not None}
    return min(known, key=lambda row: known[row])


def _counted(names: Sequence[str]) -> str:
    unique = dict.fromkeys(names)
    return next(iter(unique)) if len(unique) == 1 else ", ".join(f"{name} {names.count(name)}x" for name in unique)
