"""What is found out of a request before a method is chosen for it: its kind, and whether others stand for the records.

A deletion request is compared with held-out rows. A grid's cell has none: its test rows are what methods are scored on, and
no choice may see their labels. It is compared with retained rows, each seen by the model of its own fold: a request for rows
drawn at random is told from neither.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unlearn_core.crossfit import CrossFit
from unlearn_core.problem import Problem
from unlearn_core.request_kind import (
    HeldoutView,
    RequestKind,
    Verdict,
    Witnesses,
    draws_for,
    kind_by_counts,
    kind_by_tests,
    view_rows,
)

MOST_RECORDS = 1000
"""Records, at most, that are compared: drawn at random they differ from other rows as all do, and a thousand show it."""
COMPARED = 10_000
"""Rows, at most, that records are compared with; every second one is a witness, the others say where rows lie."""


@dataclass(frozen=True)
class Assessment:
    """The kind of a request, and of a group what share of right answers a model without the records keeps on them."""

    verdict: Verdict
    kept: float | None = None


def assess(
    problem: Problem,
    forget: NDArray[np.bool_],
    crossfit: CrossFit,
    compared_with: HeldoutView | None,
    hidden: int,
    seed: int,
) -> Assessment:
    """What the rule of ``within_budget`` asks of a request.

    Args:
        forget: (N,) of the problem's rows.
        compared_with: rows that no model of a fold saw; None: there are none.
        hidden: layers of the head. A linear one is trained alike whether others stand for a group or not.
    """
    rows, n_folds = np.flatnonzero(forget), len(crossfit.weights)
    verdict = kind_by_counts(problem.train.labels[rows], problem.class_counts, n_folds)
    if verdict is None:
        verdict = _tested(problem, rows, crossfit, compared_with, seed)
    asks = verdict.kind is RequestKind.GROUP and hidden > 0
    return Assessment(verdict, problem.kept_answers(forget) if asks else None)


def _tested(
    problem: Problem, rows: NDArray[np.int64], crossfit: CrossFit, compared_with: HeldoutView | None, seed: int
) -> Verdict:
    """By comparing the records, or as many of them as show what all would, with rows that no model of a fold saw."""
    asked = len(rows)
    if asked > MOST_RECORDS:
        rows = draws_for("records", seed).choice(rows, MOST_RECORDS, replace=False)
    labels = problem.train.labels[rows]
    if compared_with is None:
        nothing = np.zeros(len(labels))
        unseen = Witnesses(labels, nothing, nothing, lambda: nothing[:, None])
        return kind_by_tests(unseen, problem.n_classes, None)
    log_q = np.asarray(crossfit.log_q[problem.train.number[rows]], dtype=np.float64)
    seen = compared_with.see(log_q, labels, lambda: problem.train.seen[rows])
    verdict = kind_by_tests(seen, problem.n_classes, compared_with.witnesses, seed)
    if len(rows) < asked:
        verdict = replace(verdict, why=f"{verdict.why}; {len(rows)} of the {asked} were compared")
    return verdict


def view_retained(problem: Problem, forget: NDArray[np.bool_], crossfit: CrossFit) -> HeldoutView:
    """Retained rows, evenly spread over the classes, as those that records are compared with."""
    retained = np.flatnonzero(~forget)
    rows = retained[np.linspace(0, len(retained) - 1, min(len(retained), COMPARED)).astype(np.int64)]
    labels = problem.train.labels[rows]
    order = np.argsort(labels, kind="stable")  # every second one is a witness: of every class then
    rows = rows[order]
    return view_rows(crossfit.log_q[problem.train.number[rows]], labels[order], problem.train.seen[rows])
