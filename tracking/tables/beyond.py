"""Closer than the paper: probe, fresh, and the proxy that ``auto`` would have chosen, beside the paper's proxies.

``auto`` is not run: which proxy it takes follows from what every target recorded (``unlearn_core.auto``), and what that
proxy came to is in the tree. Nothing of the retrain enters the choice; the *oracle* is the choice that knows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from tracking.spreads import mean_over_seeds, number, ratio, spread
from tracking.tables.benchmark import KL_DEFINED
from tracking.tables.table import (
    MISSING,
    Cell,
    Column,
    Group,
    Row,
    Table,
    number_cell,
    spread_cell,
    text_cell,
    two_digits,
    whole,
)
from tracking.tree import Entry, TreeVariant, incomplete_notes, name_within, shared_name, slug
from unlearn_core.auto import Candidate, choose_proxy
from unlearn_core.spec import AUTO_CANDIDATES, EMPIRICAL_PROXIES, FRESH, GAUSSIAN_PROXIES, PROBE

PAPER_PROXIES: tuple[str, ...] = (*GAUSSIAN_PROXIES, *EMPIRICAL_PROXIES)

RowOf = Callable[[Entry], str]
"""Which row of an entry counts: the same for all seeds, or one that each seed chooses."""

COLUMNS: tuple[Column, ...] = (
    Column("kl_t", "KL_t", r"$\mathrm{KL}_t$"),
    Column("kl_f", "KL_f", r"$\mathrm{KL}_f$"),
    Column("kl_f_over_floor", "x floor", r"$\times$ floor"),
    Column("last_kl_f", "KL_f last", r"$\mathrm{KL}_f$ last"),
    Column("target_kl_f", "KL_f target", r"$\mathrm{KL}_f$ target"),
    Column("rte_percent", "RTE %", r"RTE (\%)"),
    Column("wins", "wins"),
    Column("p", "p"),
)
CAPTION = (
    f"{KL_DEFINED}; at the epoch of the least KL_f, which takes a retrain to find, but for KL_f last; KL_f target: of the "
    "target before it is distilled, so that what the proxy and what the distillation lose can be told apart; "
    "wins: seeds with a smaller KL_f than lda-2c; p: paired t-test over seeds of log KL_f against lda-2c; best paper proxy: "
    "chosen by its mean KL_f, which takes a retrain; auto: chosen in each seed without one, "
    "among the Gaussian proxies, probe and fresh"
)


def chosen_by_auto(entry: Entry) -> str:
    """The row that ``auto`` stands for in this seed; the base where it unlearns nothing."""
    candidates = []
    for method in AUTO_CANDIDATES:
        if method not in entry:
            continue
        target = entry[method]["target"]
        before, after = target["kl_net_proxy_before"], target["kl_net_proxy_after"]
        # a proxy that took a class out is infinitely far from the network, which the tree writes as null
        loss = float("inf") if after is None else after - before
        candidates.append(Candidate(method, bool(target["admissible"]), target["eta_max"], before, loss))
    return choose_proxy(candidates).method or "base"


def beyond_the_paper(variants: Sequence[TreeVariant]) -> Table | None:
    """lda-2c, the best of the paper's proxies, ours and ``auto``, variant by variant; None where no probe was run."""
    probed = [v for v in variants if v.has(PROBE, "lda-2c", "base", "floor")]
    if not probed:
        return None
    name = shared_name(variants)
    return Table(
        name=f"beyond_{slug(name)}",
        title=f"{name}: probe, fresh and auto beside the paper's proxies, mean ± std over seeds",
        columns=COLUMNS,
        groups=tuple(Group(_rows(v), name_within(v, variants)) for v in probed),
        caption=CAPTION,
        notes=incomplete_notes(probed),
    )


def _rows(variant: TreeVariant) -> tuple[Row, ...]:
    best = min(
        (proxy for proxy in PAPER_PROXIES if variant.has(proxy)),
        key=lambda proxy: _mean_kl_f(variant, lambda _entry: proxy),
    )
    picked = [chosen_by_auto(entry) for entry in variant.entries]
    rows: list[tuple[str, RowOf, str]] = [
        ("base", lambda _entry: "base", ""),
        ("floor", lambda _entry: "floor", ""),
        ("lda-2c", lambda _entry: "lda-2c", ""),
        ("best paper proxy", lambda _entry: best, best),
        (PROBE, lambda _entry: PROBE, ""),
        *([(FRESH, lambda _entry: FRESH, "")] if variant.has(FRESH) else []),
        ("auto", chosen_by_auto, _counted(picked)),
    ]
    return tuple(Row(name, _cells(variant, row_of), remark) for name, row_of, remark in rows)


def _cells(variant: TreeVariant, row_of: RowOf) -> tuple[Cell, ...]:
    entries = variant.entries

    def over_seeds(block: str, field: str, scale: float = 1.0) -> Cell:
        values = [number(entry, row_of(entry), block, field) for entry in entries]
        return spread_cell(spread(None if value is None else scale * value for value in values), two_digits)

    over_floor = ratio(_mean_kl_f(variant, row_of), mean_over_seeds(entries, "floor", "best", "kl_f"))
    return (
        over_seeds("best", "kl_t"),
        over_seeds("best", "kl_f"),
        number_cell(over_floor, two_digits),
        over_seeds("last", "kl_f"),
        over_seeds("target", "kl_f"),
        over_seeds("best", "rte", 100.0),
        *_against(entries, row_of, lambda _entry: "lda-2c"),
    )


def _against(entries: Sequence[Entry], row_of: RowOf, other: RowOf) -> tuple[Cell, Cell]:
    """Seeds won, and the p value of a paired t-test of log KL_f: ratios are what methods differ by."""
    pairs = [
        (number(entry, row_of(entry), "best", "kl_f"), number(entry, other(entry), "best", "kl_f")) for entry in entries
    ]
    known = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
    if len(known) < len(pairs) or all(ours == theirs for ours, theirs in known):
        return MISSING, MISSING
    wins = sum(ours < theirs for ours, theirs in known)
    won = Cell(wins, f"{wins}/{len(known)}")
    if len(known) < 2:
        return won, MISSING
    change = np.log([ours / theirs for ours, theirs in known])
    error = float(change.std(ddof=1)) / math.sqrt(len(change))
    t = float(change.mean()) / error if error > 0 else math.inf
    return won, number_cell(float(2 * stats.t.sf(abs(t), len(change) - 1)), lambda p: f"{p:.1g}")


def _mean_kl_f(variant: TreeVariant, row_of: RowOf) -> float:
    over_seeds = spread(number(entry, row_of(entry), "best", "kl_f") for entry in variant.entries)
    return float("inf") if over_seeds is None else over_seeds.mean


AUTO_COLUMNS: tuple[Column, ...] = (
    Column("picked", "auto picks"),
    Column("oracle", "oracle"),
    Column("hits_percent", "hits %"),
    Column("auto_kl_f", "KL_f auto", r"$\mathrm{KL}_f$ auto"),
    Column("oracle_kl_f", "KL_f oracle", r"$\mathrm{KL}_f$ oracle"),
    Column("ratio", "auto/oracle"),
)
AUTO_CAPTION = (
    "oracle: the row with the least KL_f of each seed among the same candidates (the Gaussian proxies, probe, fresh, or "
    "nothing), which takes a retrain; hits: seeds in which auto's choice comes within 5 % of it; auto/oracle: ratio of the "
    "means"
)
NEARLY = 1.05


def auto_beside_the_oracle(variants: Sequence[TreeVariant]) -> Table | None:
    """How often ``auto`` picks what the oracle would, and what it loses."""
    probed = [v for v in variants if v.has(PROBE, "base")]
    if not probed:
        return None
    name, rows, hits, total = shared_name(variants), [], 0, 0
    for variant in probed:
        picked = [chosen_by_auto(entry) for entry in variant.entries]
        oracle = [_oracle(entry) for entry in variant.entries]
        kl = [
            [number(entry, row, "best", "kl_f") for entry, row in zip(variant.entries, chosen, strict=True)]
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
                    spread_cell(means[0], two_digits),
                    spread_cell(means[1], two_digits),
                    number_cell(ratio(auto_mean, oracle_mean), two_digits),
                ),
            )
        )
    return Table(
        name=f"auto_{slug(name)}",
        title=f"{name}: auto beside the oracle",
        columns=AUTO_COLUMNS,
        groups=(Group(tuple(rows)),),
        caption=AUTO_CAPTION,
        notes=(f"auto comes within 5 % of the oracle in {hits} of {total} cells", *incomplete_notes(probed)),
        row_heading="variant",
    )


def _oracle(entry: Entry) -> str:
    rows = [row for row in (*AUTO_CANDIDATES, "base") if row in entry]
    known = {row: kl for row in rows if (kl := number(entry, row, "best", "kl_f")) is not None}
    return min(known, key=lambda row: known[row])


def _counted(names: Sequence[str]) -> str:
    unique = dict.fromkeys(names)
    return next(iter(unique)) if len(unique) == 1 else ", ".join(f"{name} {names.count(name)}x" for name in unique)
