"""The claims of a certificate, computed again from the files that it names.

It shares no code with what measured them first but the reading of files and KL itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearn_core.audit.divergence import log_probabilities, mean_kl
from unlearn_core.data.datasets import holds_images
from unlearn_core.data.feature_set import load_feature_set
from unlearn_core.data.images import load_image_file
from unlearn_core.data.labelled import LabelledSet
from unlearn_core.finalize import load_processor
from unlearn_core.forgetting.certificate import Check, Found, arrays_sha256
from unlearn_core.forgetting.model_files import load_logits, load_model
from unlearn_core.forgetting.request import find_rows, read_request
from unlearn_core.grid import LabelSpace
from unlearn_core.nets.make import blueprint
from unlearn_core.problem import as_inputs

RELATIVE = 1e-3
"""What another machine's arithmetic may change; and a row or two at the border of two classes."""
ABSOLUTE = 1e-6

Said = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Log probabilities on training and on held-out rows."""


def remeasure(content: Mapping[str, Any], files: Mapping[str, Path]) -> list[Check]:
    """Accuracies before and after and KL(base||unlearned), as the files have them, beside what the certificate says.

    A model that a function of the user's builds is built: their code runs.

    Args:
        files: where the file of each role lies; their hashes hold.
    """
    if content["history"]:
        return [_unknown("earlier requests are part of it, whose records only the ledger knows")]
    load = load_image_file if holds_images(str(files["data"])) else load_feature_set
    data = load(files["data"], needs_test=False)
    rows = find_rows(read_request(files["request"]), len(data.train_y), data.ids).rows
    if arrays_sha256({"rows": rows}) != content["request"]["rows_sha256"]:
        return [Check("measured again", Found.FAILED, "the request names other rows than those that were forgotten")]
    says = _before_and_after(content, files, data)
    if says is None:
        return [_unknown("what its logit processor reads is a layer of the model")]
    forget = np.zeros(len(data.train_y), dtype=bool)
    forget[rows] = True
    claims = {**_accuracies(content, says, data, forget), **_changes(content, says, forget)}
    return [_compare(claims)]


def _unknown(why: str) -> Check:
    return Check("measured again", Found.UNKNOWN, f"not measured: {why}")


def _before_and_after(
    content: Mapping[str, Any], files: Mapping[str, Path], data: LabelledSet
) -> tuple[Said, Said] | None:
    if "logits" in files:
        logits = load_logits(files["logits"], len(data.train_y), len(data.test_y) if data.has_test else None)
        before = logits.train, logits.train[:0] if logits.test is None else logits.test
    else:
        before = _answers(content, files["model"], data)
    if "processor" in files:
        if content["data"]["features"] != "given":
            return None
        seen = load_feature_set(files["features"], needs_test=data.has_test) if "features" in files else data
        processor = load_processor(files["processor"])
        after = tuple(
            processor(f, x) if len(f) else f for f, x in zip(before, (seen.train_x, seen.test_x), strict=True)
        )
    else:
        made = next((files[role] for role in ("unlearned", "attempted") if role in files), None)
        after = before if made is None else _answers(content, made, data)
    first, last = (tuple(map(log_probabilities, logits)) for logits in (before, after))
    return (first[0], first[1]), (last[0], last[1])


def _answers(content: Mapping[str, Any], weights: Path, data: LabelledSet) -> tuple[NDArray, ...]:
    net = load_model(weights, blueprint(content["model"]["kind"]), as_inputs(data.train_x[:2])).net
    train = net.logits(0, as_inputs(data.train_x)).cpu().numpy()
    return train, net.logits(0, as_inputs(data.test_x)).cpu().numpy() if data.has_test else train[:0]


Claims = dict[str, tuple[float | None, float]]
"""What is claimed, None for infinite, and what was measured."""


def _accuracies(content: Mapping[str, Any], says: tuple[Said, Said], data: LabelledSet, forget: NDArray) -> Claims:
    n_classes = says[0][0].shape[1]
    space = LabelSpace.FINE if n_classes == data.n_fine else LabelSpace.SUPERCLASS
    claims: Claims = {}
    for when, (train, heldout) in zip(("before", "after"), says, strict=True):
        right = train.argmax(axis=1) == data.train_labels(space)
        held = (heldout.argmax(axis=1) == data.test_labels(space)).mean() if data.has_test else math.nan
        for part, share in (
            ("retained", right[~forget].mean()),
            ("forgotten", right[forget].mean()),
            ("heldout", held),
        ):
            claims[f"{part} accuracy {when}"] = content["accuracy"][when][part], float(share)
    return claims


def _changes(content: Mapping[str, Any], says: tuple[Said, Said], forget: NDArray) -> Claims:
    (train_p, held_p), (train_q, held_q) = says
    measured: dict[str, Callable[[], float]] = {
        "forget": lambda: mean_kl(train_p[forget], train_q[forget]),
        "retain": lambda: mean_kl(train_p[~forget], train_q[~forget]),
        "heldout": lambda: mean_kl(held_p, held_q) if len(held_p) else math.nan,
    }
    claimed = content["divergence"]["base_to_unlearned"]
    return {f"KL(base||unlearned), {part}": (claimed[part], kl()) for part, kl in measured.items()}


def _compare(claims: Claims) -> Check:
    """An infinite claim is not compared: a processor gives a class that left a floor."""
    known = {name: pair for name, pair in claims.items() if pair[0] is not None}
    for name, (claimed, found) in known.items():
        if claimed is None or not math.isclose(claimed, found, rel_tol=RELATIVE, abs_tol=_slack(name)):
            return Check(
                "measured again", Found.FAILED, f"{name} is {found:.6g}, and the certificate says {claimed:.6g}"
            )
    return Check("measured again", Found.HOLDS, f"{len(known)} claims, each within {RELATIVE:g}")


def _slack(name: str) -> float:
    return RELATIVE if "accuracy" in name else ABSOLUTE
