"""The block ``audit`` of a certificate: what it is about, what it says in words, whether it makes sense. Light."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Json = Any

ABOUT: Mapping[str, Json] = {
    "what": "whether an attacker who trained networks of the same recipe can tell an unlearned one from one that was "
    "trained without the records, by one answer to one record",
    "of": "the procedure on this request: other networks of the same architecture, trained on the same data from other "
    "seeds, each unlearned by the method and the settings of this request; not this model's own weights",
    "definitions": {
        "U-LiRA": "Hayes et al. 2024, arXiv 2403.01218, after LiRA of Carlini et al. 2022",
        "KLOM": "Georgiev et al. 2025, arXiv 2410.23232",
    },
    "numbers": "U-LiRA: [value, low, high], 95 % intervals over networks. KLOM: in nats over points, of one half of the "
    "shadows beside the other half's retrains. floor: retrains attacked as if they were unlearned",
}
RATES = {"tpr_at_0.01": "1 %", "tpr_at_0.001": "0.1 %"}
ATTACKS = ("auc", "accuracy", *RATES)
ROWS = ("floor", "base", "unlearned")
PARTS = ("forget", "retain", "test")


def passes(audit: Mapping[str, Json]) -> bool:
    """Whether the interval of the unlearned networks' AUC holds chance."""
    return audit["results"]["unlearned"]["ulira"]["auc"][1] <= 0.5


def audit_in_words(audit: Mapping[str, Json]) -> str:
    """One line."""
    found = {name: audit["results"][name]["ulira"] for name in ROWS}
    aucs = {name: "{:.3f} ({:.3f} to {:.3f})".format(*found[name]["auc"]) for name in ROWS}
    klom = {name: audit["results"][name]["klom"]["forget"]["mean"] for name in ("unlearned", "floor")}
    rates = ", ".join(f"{100 * found['unlearned'][rate][0]:.3g} % at {said}" for rate, said in RATES.items())
    return (
        f"{audit['shadows']} shadows, {'at chance' if passes(audit) else 'told from retrains'}: U-LiRA's AUC "
        f"{aucs['unlearned']}, of retrains {aucs['floor']}, of bases {aucs['base']}; true positives {rates}; "
        f"KLOM on records {klom['unlearned']:.3g}, of retrains {klom['floor']:.3g}"
    )


def audit_problem(audit: Mapping[str, Json]) -> str | None:
    """What no audit could have found, or None."""
    try:
        shadows = audit["shadows"]
        if not 0 <= audit["left_alone"] <= shadows:
            return f"{audit['left_alone']} of {shadows} shadows are said to be as they were"
        for name in ROWS:
            row = audit["results"][name]
            if row["networks"] != (shadows // 2 if name == "floor" else shadows):
                return f"{name}: {row['networks']} networks were attacked, of {shadows} shadows"
            for attack in ATTACKS:
                value, low, high = row["ulira"][attack]
                if not 0 <= low <= value <= high <= 1:
                    return f"{name}: {attack} {value:g} is not within its interval, {low:g} to {high:g}"
            for part in PARTS:
                points = row["klom"][part]
                if (points is None) != (audit["rows"][part] == 0):
                    return f"{name}: KLOM on {audit['rows'][part]} {part} rows is {points}"
                if points is not None and not (points["mean"] >= -1e-9 and math.isfinite(points["p95"])):
                    return f"{name}: KLOM {points} is no divergence"
        _ = audit_in_words(audit)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:  # a certificate may hold anything
        return f"not all of it is there ({type(error).__name__}: {error})"
    return None
