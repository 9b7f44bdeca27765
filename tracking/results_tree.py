"""The paper's JSON layout of results.  [app:results_layout]

``results/{dataset}/{backbone}/{scenario}_{arch}_raw.json``: architecture -> sub-key -> list of seed entries, with the
``subclass`` scenario wrapped in ``{"meta", "results"}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracking.entry_checks import Report, sound_entry
from tracking.files import write_atomically
from tracking.tree import Entry, Tree, TreeProblem, TreeVariant
from tracking.tree_checks import differences_between_seeds, missing_methods, missing_seeds, repeated_seeds
from unlearn_core.errors import BadInput
from unlearn_core.spec import ARCHITECTURES, SEEDS, Scenario, Variant

SUFFIX = "_raw.json"


def tree_path(root: Path, variant: Variant, backbone: str) -> Path:
    """The file that holds this variant."""
    return root / variant.dataset / backbone / f"{variant.scenario}_{variant.arch}{SUFFIX}"


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


def read_tree(root: Path) -> Tree:
    """Everything below ``root``; what cannot be used is left out and said, and never stops the reading."""
    files = sorted(root.glob("*/*/*.json"))
    if not any(file.name.endswith(SUFFIX) for file in files):
        raise BadInput(f"{root} holds no results (DATASET/BACKBONE/SCENARIO_ARCH{SUFFIX}); give the results of a run")
    problems: list[TreeProblem] = []
    variants: list[TreeVariant] = []
    for file in files:
        variants += _read_file(root, file, problems)
    lacking = missing_seeds(variants)
    for i, variant in enumerate(variants):
        if what := lacking.get(variant.name):
            file = tree_path(root, variant.variant, variant.backbone).relative_to(root)
            problems.append(TreeProblem(file, _key(variant), what))
            variants[i] = replace(variant, problems=(*variant.problems, problems[-1]))
    return Tree(tuple(sorted(variants, key=_grid_order)), tuple(problems))


def _read_file(root: Path, file: Path, problems: list[TreeProblem]) -> Iterator[TreeVariant]:
    below = file.relative_to(root)

    def report(key: str, what: str) -> None:
        problems.append(TreeProblem(below, key, what))

    scenario, _, arch = file.name.removesuffix(SUFFIX).partition("_")
    if not file.name.endswith(SUFFIX) or scenario not in tuple(Scenario):
        report("", f"not named SCENARIO_ARCH{SUFFIX}; scenarios are {', '.join(Scenario)}")
        return
    if arch not in ARCHITECTURES:
        report("", f"unknown architecture {arch!r}; there are {', '.join(ARCHITECTURES)}")
        return
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        report("", f"not valid JSON ({error}); move it aside and run 'unlearn sync'")
        return
    if not isinstance(document, dict):
        document = {}
    for other in sorted(document.keys() - {arch}):
        report(other, f"does not belong into a file of {arch}")
    at, by_key = arch, document.get(arch)
    if scenario == Scenario.SUBCLASS:
        at, by_key = f"{at}.results", by_key.get("results") if isinstance(by_key, dict) else None
    if not isinstance(by_key, dict) or not by_key:
        report(at, "missing; it should hold a list of seed entries for every key")
        return
    for key, raw in by_key.items():
        if not re.fullmatch("0|[1-9][0-9]{0,8}", key):
            report(f"{at}.{key}", "not a class or a number of rows")
        elif not isinstance(raw, list) or not raw:
            report(f"{at}.{key}", "no list of seed entries")
        else:
            first = len(problems)
            variant = Variant(below.parts[0], arch, Scenario(scenario), int(key))
            if entries := _sound_entries(f"{at}.{key}", raw, report):
                yield TreeVariant(variant, below.parts[1], entries, tuple(problems[first:]))


def _sound_entries(at: str, raw: list[Any], report: Report) -> tuple[Entry, ...]:
    named = [(f"{at}[{i}]", entry) for i, entry in enumerate(raw)]
    sound = [(key, entry) for key, value in named if (entry := sound_entry(value, key, report)) is not None]
    repeated = repeated_seeds(sound)
    sound = [(key, entry) for key, entry in sound if key not in repeated]
    for key, what in (*repeated.items(), *missing_methods(named), *differences_between_seeds(sound)):
        report(key, what)
    return tuple(entry for _, entry in sound)


def _key(variant: TreeVariant) -> str:
    wrapped = ".results" if variant.variant.scenario is Scenario.SUBCLASS else ""
    return f"{variant.variant.arch}{wrapped}.{variant.variant.key}"


def _grid_order(variant: TreeVariant) -> tuple[str, str, int, int, int]:
    v = variant.variant
    return v.dataset, variant.backbone, ARCHITECTURES.index(v.arch), list(Scenario).index(v.scenario), v.key


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
