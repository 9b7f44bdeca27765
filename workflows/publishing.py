"""A report's document at a place of its own, such as docs/results.md: with its figures, its numbers as a file, and a stamp.

The stamp has the digests of the numbers and of the text, so that a test can tell a document that is older than its data or
was edited by hand; other documents quote its parts word for word.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import polars as pl

from tracking import audit_document
from tracking.audits import Audit
from tracking.document import MADE
from tracking.figures.roc import write_rocs
from tracking.frames import OWNER, frames
from tracking.tables.exports import frame
from tracking.tables.shadows import audit_tables
from unlearn_core.errors import BadInput
from workflows.layout import check_folder
from workflows.quoting import renew
from workflows.report import Report

NUMBERS = ("last_kl_f", "last_kl_t", "best_kl_f", "best_kl_t", "last_acc_t", "last_acc_f", "cost", "preparation", "rte")
MADES = (MADE, audit_document.MADE)
"""What a document that may be written over says of itself."""
STAMP = re.compile(
    r"^<!-- numbers: (?P<file>\S+) sha256:(?P<numbers>\w+); text sha256:(?P<text>\w+) -->\n", re.MULTILINE
)


def check_document(document: Path) -> None:
    """Refuse, before any work is done, a place whose file was not made by a report."""
    if document.suffix != ".md" or document.is_dir():
        raise BadInput(f"--document {document} names no Markdown file; it is such as docs/results.md")
    check_folder(document.parent / "figures" / document.stem, "--document")
    if document.exists() and not _made_here(document):
        raise BadInput(
            f"{document} was not made by 'unlearn report' or 'audit', so it is not written over; name another --document"
        )


def publish(report: Report, document: Path) -> list[Path]:
    """Write it; returns the documents that quote it and were brought up to date.

    The figures of an earlier document there are replaced: those that it links, and nothing else.
    """
    check_document(document)
    text = (report.page.parent / "report.md").read_text()
    _write(document, text, report.files, lambda: _write_numbers(report, document))
    root = document.absolute().parent.parent
    return [quoting for quoting in _neighbours(document) if renew(quoting, root)]


def publish_audits(audits: Sequence[Audit], folder: Path, document: Path, notes: str) -> None:
    """Write some audits as one document, in the same way; their figures are drawn into ``folder`` first."""
    check_document(document)
    figures = write_rocs(folder, audits)
    text = audit_document.audit_document(audits, figures, notes)

    def numbers() -> Path:
        path = document.parent / "data" / f"{document.stem}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        frames_of = zip(audits, map(frame, audit_tables(audits)), strict=True)
        named = [found.insert_column(0, pl.lit(audit.name).alias("audit")) for audit, found in frames_of]
        pl.concat(named, how="vertical_relaxed").write_csv(path, float_precision=6)
        return path

    _write(document, text, [figure.svg for figure in figures], numbers)


def _write(document: Path, text: str, files: Iterable[Path], write_numbers: Callable[[], Path]) -> None:
    """The text with its figures beside it, its numbers and its stamp."""
    figures = document.parent / "figures" / document.stem
    shown = {path.name: path for path in files if path.suffix == ".svg" and f"(figures/{path.name})" in text}
    for name in shown:
        text = text.replace(f"(figures/{name})", f"({_link(document, name)})")
    ours = _linked_figures(document) if document.exists() else set()
    if foreign := sorted(name for name in shown if name not in ours and (figures / name).exists()):
        raise BadInput(f"{figures / foreign[0]} is not of an earlier report, so it is not written over; move it away")
    figures.mkdir(parents=True, exist_ok=True)
    for name, path in shown.items():
        shutil.copy(path, figures / name)
    document.write_text(_stamped(text, write_numbers(), document))
    for name in ours - set(shown):
        (figures / name).unlink(missing_ok=True)


def stamp_problem(document: Path) -> str | None:
    """What is wrong with a published document: older than its numbers, or edited by hand."""
    text = document.read_text()
    stamp = STAMP.search(text)
    if stamp is None:
        return "it has no stamp; write it with 'unlearn report --document'"
    numbers = document.parent / stamp["file"]
    if not numbers.exists() or _digest(numbers.read_bytes()) != stamp["numbers"]:
        return f"it is not of the numbers in {stamp['file']}; write it again with 'unlearn report --document'"
    if _digest(STAMP.sub("", text).encode()) != stamp["text"]:
        return "it was edited by hand; write it again with 'unlearn report --document'"
    return None


def _write_numbers(report: Report, document: Path) -> Path:
    """Means and standard deviations over seeds of all that the tables show, one line for every variant and row."""
    path = document.parent / "data" / f"{document.stem}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    over = [name for name in OWNER if name != "seed"]
    rows = frames(report.tree).rows
    spread = [pl.col(name).std(ddof=0).alias(f"{name}_std") for name in NUMBERS]
    means = rows.group_by(over, maintain_order=True).agg(pl.len().alias("seeds"), pl.col(*NUMBERS).mean(), *spread)
    means.write_csv(path, float_precision=6)
    return path


def _stamped(text: str, numbers: Path, document: Path) -> str:
    file = numbers.relative_to(document.parent).as_posix()
    stamp = f"<!-- numbers: {file} sha256:{_digest(numbers.read_bytes())}; text sha256:{_digest(text.encode())} -->\n"
    made = next((made for made in MADES if f"{made}\n" in text), None)
    return stamp + text if made is None else text.replace(f"{made}\n", f"{made}\n{stamp}", 1)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _neighbours(document: Path) -> list[Path]:
    return sorted({*document.parent.glob("*.md"), *document.absolute().parent.parent.glob("README.md")} - {document})


def _made_here(document: Path) -> bool:
    text = document.read_bytes().decode(errors="replace")
    return any(made in text for made in MADES)


def _linked_figures(document: Path) -> set[str]:
    """The figures that an earlier document shows: it was made here, so they were."""
    prefix = re.escape(_link(document, ""))
    return set(re.findall(rf"^!\[.*\]\({prefix}([^/()]+\.svg)\)$", document.read_text(), re.MULTILINE))


def _link(document: Path, figure: str) -> str:
    return f"figures/{document.stem}/{figure}"
