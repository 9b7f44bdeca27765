"""An audit of one request: the networks of every method attacked beside retrained ones, and the floor of both attacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearn_core.audit.klom import klom_points, summary
from unlearn_core.audit.stein import min_queries, picked_queries
from unlearn_core.audit.ulira import FALSE_POSITIVE_RATES, Estimate, folds_of, ulira
from unlearn_core.errors import BadInput
from unlearn_core.records import without_nonfinite

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

PARTS = ("forget", "retain", "test")
ALPHA = 1e-3
FEWEST, FEWEST_IN_PAIRS = 8, 16
"""Shadows: the floor attacks half of them with fits from three quarters of that half."""
FIRST_SHADOW = 1000
"""The seed of the first: far from the grid's seeds and from those that settings are tuned on; even, for shadows come in
pairs."""
MOST_ROWS = 1000
"""Of forgotten, retained and test rows each, so many are asked about unless told otherwise."""


@dataclass(frozen=True, eq=False)
class ShadowAnswers:
    """What the networks of one kind, one for each shadow, say of the audit's rows.

    Attributes:
        forget: (n, r) margins; NaN for a record that the shadow does not forget.
        retain, test: (n, ...) margins.
        kl_rows: (n, r) KL(retrain || network) of the shadow's own retrain; NaN as ``forget``.
    """

    forget: Array
    retain: Array
    test: Array
    kl_rows: Array


def check_shadows(n_shadows: int, in_pairs: bool) -> None:
    fewest = FEWEST_IN_PAIRS if in_pairs else FEWEST
    if n_shadows < fewest or n_shadows % 4:
        why = ", for a random record is forgotten by half of them" if in_pairs else ""
        raise BadInput(f"{n_shadows} shadows are no whole quarters or too few; ask for {fewest}, {fewest + 4}, ..{why}")


def attack_networks(attacked: ShadowAnswers, retrained: ShadowAnswers, in_pairs: bool, fit: str) -> dict[str, Any]:
    """What both attacks make of networks that are to pass for retrained ones, as plain JSON values.

    KLOM is of one half of the shadows' networks beside the other half's retrains, both ways: in samples as large as the
    floor's, and no network is compared with the retrain that began with its own weights. ``klom_all`` is of all of them.
    """
    everyone = np.ones(len(attacked.forget), dtype=bool)
    return _entry(attacked.forget, retrained.forget, in_pairs, fit, _klom_of_halves(attacked, retrained)) | {
        "klom_all": _klom(attacked, retrained, [(everyone, everyone)]),
        "stein": _queries(attacked.kl_rows),
    }


def attack_floor(retrained: ShadowAnswers, in_pairs: bool, fit: str) -> dict[str, Any]:
    """The same attacks on one half of the retrains beside the other half: what perfect unlearning would come to."""
    half, klom = halves_of(len(retrained.forget)), _klom_of_halves(retrained, retrained)
    return _entry(retrained.forget[half], retrained.forget[~half], in_pairs, fit, klom)


def _klom_of_halves(attacked: ShadowAnswers, retrained: ShadowAnswers) -> dict[str, Any]:
    half = halves_of(len(attacked.forget))
    return _klom(attacked, retrained, [(half, ~half), (~half, half)])


def _klom(attacked: ShadowAnswers, retrained: ShadowAnswers, compared: Sequence[tuple[Mask, Mask]]) -> dict[str, Any]:
    """The mean over some choices of shadows on either side; None of a part that has no rows."""
    found: dict[str, Any] = {}
    for part in PARTS:
        ours, theirs = getattr(attacked, part), getattr(retrained, part)
        points = np.mean([klom_points(ours[one], theirs[other]) for one, other in compared], axis=0)
        found[part] = asdict(summary(points)) if len(points) else None
    return found


def halves_of(n_shadows: int) -> Mask:
    """(n,) True for every other pair of shadows: of a random request either half forgets each record equally often."""
    return np.arange(n_shadows) // 2 % 2 == 0


def _entry(unlearned: Array, retrained: Array, in_pairs: bool, fit: str, klom: Mapping[str, Any]) -> dict[str, Any]:
    found = ulira(unlearned, retrained, folds_of(len(unlearned), in_pairs), fit)
    rates = {f"tpr_at_{rate:g}": _plain(tpr) for rate, tpr in zip(FALSE_POSITIVE_RATES, found.tpr, strict=True)}
    attack = {"auc": _plain(found.auc), "accuracy": _plain(found.accuracy), **rates, "curve": list(found.curve)}
    return {"networks": len(unlearned), "ulira": attack, "klom": dict(klom)}


def _plain(estimate: Estimate) -> list[float]:
    return [estimate.value, estimate.low, estimate.high]


def _queries(kl_rows: Array) -> dict[str, Any]:
    """Label queries at error ``ALPHA`` of an attacker who draws records and of one who picks them: medians over shadows.

    None: more than there are records, or no bound. The rows are those of the audit, which may be a part of D_f.
    """
    drawn, picked, rows = [], [], []
    for shadow in kl_rows:
        known = shadow[~np.isnan(shadow)]
        rows.append(len(known))
        drawn.append(float(min_queries(max(float(known.mean()), 0.0), ALPHA)))
        picked.append(math.inf if (n := picked_queries(known, ALPHA)) is None else float(n))
    found = {
        "alpha": ALPHA,
        "rows": int(np.median(rows)),
        "drawn": float(np.median(drawn)),
        "picked": float(np.median(picked)),
    }
    return without_nonfinite(found)


def compare_rankings(names: Sequence[str], ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Whether two numbers order methods alike: Spearman's rank correlation, and the pairs that swap; equal ones do not.

    The correlation is None if one of the numbers is the same for all.
    """
    swapped = [
        [first, second]
        for i, first in enumerate(names)
        for j, second in enumerate(names[i + 1 :], i + 1)
        if (ours[i] - ours[j]) * (theirs[i] - theirs[j]) < 0
    ]
    from scipy.stats import rankdata  # here, for it takes a second to load, and few that load this module compare

    alike = len(set(ours)) < 2 or len(set(theirs)) < 2
    spearman = None if alike else float(np.corrcoef(rankdata(ours), rankdata(theirs))[0, 1])
    return {"spearman": spearman, "swapped": swapped, "pairs": len(names) * (len(names) - 1) // 2}
