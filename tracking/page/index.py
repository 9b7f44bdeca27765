"""All variants in one table: what comes closest to the retrain in each, and whether it is complete."""

from __future__ import annotations

from tracking.spreads import mean_over_seeds
from tracking.summary import KL_F, Closest, closest, over_floor
from tracking.tables.table import MISSING, Cell, Column, Group, Row, Table, number_cell, text_cell, two_digits
from tracking.tree import Tree, TreeVariant, name_within
from unlearn_core.spec import BASELINES, PROXIES

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
    "closest: the least mean KL_f over seeds, in nats on the forgotten training rows, among the methods that all seeds "
    "have; in bold, the closer of proxy and baseline; x floor: the closest proxy's over the floor's, a second retrain "
    "from other initial weights, which is not a lower bound"
)


def index_table(tree: Tree) -> Table:
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
    proxy, baseline = closest(variant, PROXIES, KL_F), closest(variant, BASELINES, KL_F)
    n_forget = max(entry["n_forget"] for entry in variant.entries)
    return Row(
        name,
        (
            *_closest_cells(proxy, baseline),
            number_cell(over_floor(variant), two_digits),
            *_closest_cells(baseline, proxy),
            number_cell(mean_over_seeds(variant.entries, "floor", "best", KL_F), two_digits),
            Cell(n_forget, str(n_forget)),
            Cell(len(variant.entries), str(len(variant.entries))),
        ),
        "" if variant.complete else INCOMPLETE,
    )


def _closest_cells(one: Closest | None, other: Closest | None) -> tuple[Cell, Cell]:
    if one is None:
        return MISSING, MISSING
    return text_cell(str(one)), number_cell(one.kl, two_digits, bold=other is not None and one.kl < other.kl)
