"""One page for a request to many models."""

from __future__ import annotations

from collections.abc import Sequence

from tracking.html import Html, asset, document, joined, tag

DONE, NOT_CONCERNED = "done", "not concerned"
RECORDS = "records found"
HEAD = (
    "model",
    "outcome",
    RECORDS,
    "retained accuracy",
    "forgotten accuracy",
    "KL(base||unlearned)",
    "what was said",
)


def plan_page(request: str, rows: Sequence[Sequence[str]]) -> str:
    """Args: rows: what ``HEAD`` names, of each model; the certificate of one that is done lies in the folder of its name."""
    done = sum(row[1] == DONE for row in rows)
    concerned = sum(row[1] != NOT_CONCERNED for row in rows)
    title = f"{request}: forgotten in {done} of {concerned} models"
    body = [
        tag("h1", title),
        tag(
            "p",
            f"{len(rows)} models in the plan, {concerned} of them have records of the request. Each that is done has a "
            "certificate of its own, which says what was done and what is not guaranteed.",
        ),
        tag("table", tag("thead", _row("th", HEAD)), tag("tbody", joined(_model(row) for row in rows))),
    ]
    return document(title, asset("certificate.css"), [tag("main", *body)])


def _model(row: Sequence[str]) -> Html:
    name = tag("a", row[0], href=f"{row[0]}/certificate.html") if row[1] == DONE else row[0]
    return _row("td", (name, *row[1:]))


def _row(element: str, cells: Sequence[str]) -> Html:
    return tag("tr", *(tag(element, cell) for cell in cells))
