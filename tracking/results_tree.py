"""The paper's JSON layout of results.  [app:results_layout]

``results/{dataset}/{backbone}/{scenario}_{arch}_raw.json``: architecture -> sub-key -> list of seed entries, with the
``subclass`` scenario wrapped in ``{"meta", "results"}``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracking.files import write_atomically
from unlearn_core.errors import BadInput
from unlearn_core.spec import SEEDS, Scenario, Variant

Entry = dict[str, Any]


def tree_path(root: Path, variant: Variant, backbone: str) -> Path:
    """The file that holds this variant."""
    return root / variant.dataset / backbone / f"{variant.scenario}_{variant.arch}_raw.json"


def write_entries(root: Path, variant: Variant, backbone: str, entries: Sequence[Entry]) -> Path:
    """Put seed entries into the tree, replacing those of the same seeds; the file changes in one atomic step."""
    path = tree_path(root, variant, backbone)
    document = _read(path) if path.exists() else {}
    by_key = _by_key(document, variant)
    kept = {entry["seed"]: entry for entry in by_key.get(str(variant.key), [])}
    kept.update({entry["seed"]: entry for entry in entries})
    by_key[str(variant.key)] = [kept[seed] for seed in sorted(kept, key=_seed_order)]
    arch_keys = sorted(by_key, key=int)
    for key in arch_keys:  # the same order whatever finished first
        by_key[key] = by_key.pop(key)
    # allow_nan=False: a NaN that slipped through is a bug; no indent: that takes json's slow encoder, seconds for a grid
    write_atomically(path, json.dumps(document, allow_nan=False))
    return path


def read_entries(root: Path, variant: Variant, backbone: str) -> list[Entry]:
    """The seed entries of one variant."""
    path = tree_path(root, variant, backbone)
    if not path.exists():
        raise BadInput(f"no results of {variant} at {path}")
    entries = _by_key(_read(path), variant).get(str(variant.key))
    if not entries:
        raise BadInput(f"{path} has no entry for {variant.scenario} {variant.key}")
    return entries


def _seed_order(seed: int) -> tuple[int, int]:
    """The paper's seeds in its order, then any others by number: a tree does not depend on what finished first."""
    return (SEEDS.index(seed), seed) if seed in SEEDS else (len(SEEDS), seed)


def _by_key(document: dict[str, Any], variant: Variant) -> dict[str, list[Entry]]:
    """The sub-key -> entries mapping inside ``document``, made where it is missing."""
    arch = document.setdefault(variant.arch, {})
    if variant.scenario != Scenario.SUBCLASS:
        return arch
    arch.setdefault("meta", {"dataset": variant.dataset, "label_space": str(variant.label_space)})
    return arch.setdefault("results", {})


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise BadInput(f"{path} is not valid JSON ({error}); move it aside and run again") from error
