"""Documents that quote: what stands between two marks is what a file says, word for word, and a test holds them to it.

    <!-- part of docs/results.md: headline -->              what a report puts first
    <!-- part of docs/results.md: What auto reaches -->     the table whose title begins so, with its notes
    <!-- part of docs/data/gpu_steps.csv -->                a file as a table
    <!-- part of docs/data/results.csv: kl_f of mlp1 by base, short -->   variants down, methods across

each up to ``<!-- /part -->``; files are named from the project's root. A file of numbers says in its last columns where they
come from: ``command`` and ``date`` if that command writes them, ``trial`` and ``date`` if they are a record of something
that no command does again. The quotation says so below the table, so that a reader can tell the two apart.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tracking.document import END_OF_PART, PART

HEADLINE = "headline"
QUOTED = re.compile(
    r"(?P<head><!-- part of (?P<file>[^\s:]+)(?:: (?P<part>[^\n]+?))? -->\n)(?P<body>.*?)(?P<end><!-- /part -->)",
    re.DOTALL,
)
COMMAND, TRIAL, DATE = "command", "trial", "date"
NUMBER = re.compile(r"[-+]?[\d.,]+( ?%)?|--|")
CROSSED = re.compile(r"(?P<measure>\w+) of (?P<arch>\w+) by (?P<methods>.+)")


def renew(quoting: Path, root: Path) -> bool:
    """Bring its quotations up to date; whether any was old."""
    text = quoting.read_text()

    def fresh(found: re.Match[str]) -> str:
        body = _quotation(found, root, quoting)
        return found[0] if body is None else found["head"] + body + found["end"]

    new = QUOTED.sub(fresh, text)
    if new != text:
        quoting.write_text(new)
    return new != text


def quoted_problem(quoting: Path, root: Path) -> str | None:
    """What is wrong with a document's quotations: one is old, or what it quotes is not there."""
    for found in QUOTED.finditer(quoting.read_text()):
        wanted, name = _quotation(found, root, quoting), found["file"]
        if wanted is None:
            return f"it quotes what {name} does not say: {found['part'] or 'the file is not there'}"
        if wanted != found["body"]:
            return f"its quotation of {name} is old; run 'make quotes'"
    return None


def documents(root: Path) -> list[Path]:
    """All that may quote."""
    return sorted({*root.glob("*.md"), *(root / "docs").rglob("*.md")})


def markdown_table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """In GitHub's dialect; columns of numbers to the right."""
    cells = list(zip(*lines, strict=True))
    ends = ["--:" if all(NUMBER.fullmatch(cell.strip("*")) for cell in column) else ":--" for column in cells]
    escaped = ([cell.replace("|", r"\|") for cell in line] for line in (columns, ends, *lines))
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def _quotation(found: re.Match[str], root: Path, quoting: Path) -> str | None:
    file, part = root / found["file"], found["part"]
    if not file.exists():
        return None
    if file.suffix == ".csv":
        with file.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        return _table(rows) if part is None else _crossed(rows, part)
    text = file.read_text()
    body = _headline(text) if part == HEADLINE else _titled(text, part or "")
    away = os.path.relpath(file.parent, quoting.parent)
    return body if body is None or away == "." else body.replace("](figures/", f"]({away}/figures/")


def _headline(text: str) -> str | None:
    return text.split(PART, 1)[1].split(END_OF_PART, 1)[0].lstrip("\n") if PART in text else None


def _titled(text: str, title: str) -> str | None:
    """A table with its title and its notes, up to where its fold ends or the next title begins."""
    found = re.search(rf"^\*\*{re.escape(title)}.*?(?=^</details>|^\*\*|^#|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[0] if title and found else None


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """The rows of a file, and below them where they come from."""
    source = {COMMAND, TRIAL, DATE}
    columns = [name for name in rows[0] if name not in source]
    lines = [[row[name] for name in columns] for row in rows]
    return f"{markdown_table(columns, lines)}\n{_source(rows)}\n\n"


def _source(rows: Sequence[Mapping[str, str]]) -> str:
    by_command = COMMAND in rows[0]
    said = dict.fromkeys((row[COMMAND if by_command else TRIAL], row[DATE]) for row in rows)
    if by_command:
        return "; ".join(f"Made by `{command}` on {date}" for command, date in said) + "."
    trials = "; ".join(f"{trial} ({date})" for trial, date in said)
    return f"*A record that no command makes again:* {trials}."


def _crossed(rows: Sequence[Mapping[str, str]], part: str) -> str | None:
    """A measure of published results at the last epoch: variants down, methods across, two significant digits."""
    asked = CROSSED.fullmatch(part)
    if asked is None or f"last_{asked['measure']}" not in rows[0]:
        return None
    measure, methods = asked["measure"], asked["methods"].split(", ")
    known: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["arch"] == asked["arch"]:  # references have one record, which is filed as the best
            value = row[f"last_{measure}"] or row[f"best_{measure}"]
            known.setdefault(f"{row['scenario']} {row['key']}", {})[row["method"]] = value
    lines = [[variant, *(_short(values.get(name, "")) for name in methods)] for variant, values in known.items()]
    return f"{markdown_table(['', *methods], lines)}\n" if lines else None


def _short(value: str) -> str:
    return f"{float(value):.2g}" if value else "--"
