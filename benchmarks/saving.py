"""Keep what a benchmark measured as a file that documents quote.

As a command it brings every quotation in the documents up to date, after a file was changed by hand: ``make quotes``.

    python -m benchmarks.saving
"""

from __future__ import annotations

import csv
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

from workflows.quoting import COMMAND, DATE, documents, markdown_table, renew

ROOT = Path(__file__).resolve().parent.parent


def show(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows as a Markdown table."""
    print(markdown_table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]), flush=True)


def save(path: Path, rows: Sequence[Mapping[str, object]], command: str) -> None:
    """Write rows to a CSV file, with the command that measured them and the date, and renew who quotes it."""
    source = {COMMAND: command, DATE: datetime.date.today().isoformat()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], *source], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **source} for row in rows)
    renew_all()


def renew_all() -> None:
    for document in documents(ROOT):
        if renew(document, ROOT):
            print(f"renewed: {document.relative_to(ROOT)}")


if __name__ == "__main__":
    renew_all()
