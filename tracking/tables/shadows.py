"""The attacker's audit as a table: both attacks on every method's networks, beside base and floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracking.audits import BASE, FLOOR, Audit
from tracking.tables.table import MISSING, Cell, Column, Group, Row, Table, counted, least, listed, number_cell
from tracking.tree import slug

BEST = 3
ATTACKS: Mapping[str, str] = {
    "auc": "AUC",
    "accuracy": "accuracy",
    "tpr_at_0.01": "TPR at 1 %",
    "tpr_at_0.001": "TPR at 0.1 %",
}
CHANCE: Mapping[str, float] = {"auc": 0.5, "accuracy": 0.5, "tpr_at_0.01": 0.01, "tpr_at_0.001": 0.001}
COLUMNS: tuple[Column, ...] = (
    Column("kl_f", "KL_f", r"$\mathrm{KL}_f$"),
    *(Column(name, heading) for name, heading in ATTACKS.items()),
    Column("klom_forget_mean", "KLOM f"),
    *(Column(f"klom_{part}_p95", f"{part[0]} p95") for part in ("forget", "retain", "test")),
    *(Column(f"klom_{part}_mean", f"KLOM {part[0]}", aside=True) for part in ("retain", "test")),
    Column("n_drawn", "N drawn"),
    Column("n_picked", "N picked"),
    Column("cost_percent", "cost %", aside=True),
    Column("mia_auc", "loss attack", aside=True),
)
CAPTION = (
    "U-LiRA: how well an attacker with shadows of their own tells an unlearned network from a retrained one by its answer "
    "to one forgotten record; AUC, with its 95 % interval over networks, and accuracy (of the likelier of the two) are 0.5 "
    "by chance, a true positive rate (TPR) is the false positive rate by chance; bold if the interval holds chance; KLOM: "
    "KL of margins, unlearned from retrained, on forgotten (f), retained (r) and test (t) points, in nats: mean and "
    "95th percentile (p95) over points, of half of the networks beside the other half's retrains; floor: retrains beside "
    "retrains; N: label queries on forgotten records at error 0.001, drawn at random, or each once and picked where the two "
    "differ most, medians over shadows, -- if the records asked about are too few; KL_f (bold: the three least), cost (of a "
    "retrain) and the loss attack's AUC: means over shadows"
)


def audit_table(audit: Audit) -> Table:
    """Floor and base first, then methods by AUC."""
    rows = [name for name in (FLOOR, BASE) if name in audit.results]
    rows += sorted(audit.methods, key=lambda name: audit.auc(name)[0])
    closest = dict(
        zip(audit.methods, least([_score(audit, name, "kl_f") for name in audit.methods], BEST), strict=True)
    )
    return Table(
        name=f"audit_{slug(audit.name)}",
        title=f"{audit.name}: the attacker's audit, {counted(audit.entry['shadows'], 'shadow')}",
        columns=COLUMNS,
        groups=(Group(tuple(Row(name, _cells(audit, name, closest.get(name, False))) for name in rows)),),
        caption=CAPTION,
        notes=_notes(audit),
    )


def audit_tables(audits: Sequence[Audit]) -> list[Table]:
    return [audit_table(audit) for audit in audits]


def _notes(audit: Audit) -> tuple[str, ...]:
    entry = audit.entry
    rows = listed([f"{count} {part}" for part, count in entry["rows"].items()])
    notes = [f"asked about {rows} rows; {entry['fit']} fits; networks trained for {entry['epochs']} epochs"]
    if entry["pool"] is not None:
        notes.append(
            f"every shadow forgets {entry['key']} of the same {entry['pool']} rows, each of which half of the shadows forget"
        )
    if entry["failed"]:
        notes.append(f"failed, and left out: {listed(entry['failed'])}")
    return tuple(notes)


def _score(audit: Audit, row: str, name: str) -> float | None:
    return audit.results[row].get("scores", {}).get(name)


def _cells(audit: Audit, row: str, closest: bool) -> tuple[Cell, ...]:
    result = audit.results[row]
    klom, stein = result["klom"], result.get("stein", {})
    cost = _score(audit, row, "cost")
    return (
        number_cell(_score(audit, row, "kl_f"), _three_digits, closest),
        *(_attack(name, result["ulira"][name]) for name in ATTACKS),
        number_cell(klom["forget"]["mean"]),
        *(number_cell(klom[part]["p95"]) for part in ("forget", "retain", "test")),
        *(number_cell(klom[part]["mean"]) for part in ("retain", "test")),
        *(_queries(stein, name) for name in ("drawn", "picked")),
        number_cell(None if cost is None else 100 * cost),
        number_cell(_score(audit, row, "mia_auc"), lambda value: f"{value:.3f}"),
    )


def _attack(name: str, found: Sequence[float]) -> Cell:
    value, low, high = found
    text = f"{value:.3f} [{low:.2f}, {high:.2f}]" if name == "auc" else f"{value:.3f}"
    return Cell(value, text, bold=low <= CHANCE[name] <= high)


def _queries(stein: Mapping[str, Any], name: str) -> Cell:
    count = stein.get(name)
    return MISSING if count is None or count > stein["rows"] else Cell(count, f"{count:.0f}")


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value >= 0.001 else f"{value:.1e}"
