"""The paper's results tree: read into variants with their problems, and written.  [app:results_layout]

``results/{dataset}/{backbone}/{scenario}_{arch}_raw.json``: architecture -> sub-key -> list of seed entries, with the
``subclass`` scenario wrapped in ``{"meta", "results"}``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from tracking.entries import Entry, Report, sound_entry
from unlearn_core import methods
from unlearn_core.errors import BadInput
from unlearn_core.grid import ARCHITECTURES, SEEDS, Scenario, Variant

SUFFIX = "_raw.json"
LONGEST_NAME = 80
LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class TreeProblem:
    """Something in the tree that cannot be used, or cannot be true."""

    file: Path
    """Below the root."""
    key: str
    """From the top of the file, such as ``mlp1.results.0[2].ft.best.kl_f``; empty for the file as a whole."""
    what: str

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.file), self.key, self.what) if part)


@dataclass(frozen=True)
class TreeVariant:
    """One variant. Every row that is in an entry is whole: damaged ones were taken out and are in ``problems``."""

    variant: Variant
    backbone: str
    entries: tuple[Entry, ...]
    problems: tuple[TreeProblem, ...] = ()
    kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was computed of it and is asked for again."""

    @property
    def complete(self) -> bool:
        return not self.problems

    @property
    def family(self) -> str:
        """The name that it shares with variants that differ in the forget set only."""
        return f"{self.variant.dataset}/{self.backbone}/{self.variant.arch}"

    @property
    def name(self) -> str:
        return f"{self.family}/{self.variant.scenario}/{self.variant.key}"

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(entry["seed"] for entry in self.entries)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of any seed, in the table's order."""
        return tuple(name for name in methods.names() if any(name in entry for entry in self.entries))

    def has(self, *rows: str) -> bool:
        """Whether every seed has all of them."""
        return all(row in entry for row in rows for entry in self.entries)

    def entries_with(self, *rows: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if all(row in entry for row in rows))


@dataclass(frozen=True)
class Tree:
    """Variants in the grid's order; problems of files and of variants alike."""

    variants: tuple[TreeVariant, ...]
    problems: tuple[TreeProblem, ...] = ()

    def families(self) -> list[list[TreeVariant]]:
        """The variants by data set, backbone and architecture."""
        return [list(group) for _, group in groupby(self.variants, lambda variant: variant.family)]


def shared_name(variants: Sequence[TreeVariant]) -> str:
    """The name that some variants have in common: their own if it is one variant, their family's, or ``all``."""
    for names in ({v.name for v in variants}, {v.family for v in variants}):
        if len(names) == 1:
            return names.pop()
    return "all"


def name_within(variant: TreeVariant, variants: Sequence[TreeVariant]) -> str:
    """What tells a variant from the others: without the family's name if all of them share it."""
    same_family = {v.family for v in variants} == {variant.family}
    return f"{variant.variant.scenario}/{variant.variant.key}" if same_family else variant.name


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return name.replace("/", "_")


def incomplete_notes(variants: Sequence[TreeVariant]) -> tuple[str, ...]:
    """A line for every variant whose numbers are not all there, for the table that shows it."""
    return tuple(
        f"{v.name} is incomplete: {v.problems[0]}" + (f" (and {len(v.problems) - 1} more)" if v.problems[1:] else "")
        for v in variants
        if not v.complete
    )


def tree_path(root: Path, variant: Variant, backbone: str) -> Path:
    """The file that holds this variant."""
    return root / variant.dataset / backbone / f"{variant.scenario}_{variant.arch}{SUFFIX}"


def read_entries(root: Path, variant: Variant, backbone: str) -> list[Entry]:
    """The seed entries of one variant."""
    path = tree_path(root, variant, backbone)
    if not path.exists():
        raise BadInput(f"no results of {variant} at {path}")
    entries = entries_by_key(read_document(path), variant).get(str(variant.key))
    if not entries:
        raise BadInput(f"{path} has no entry for {variant.scenario} {variant.key}")
    return entries


def read_tree(root: Path) -> Tree:
    """Everything below ``root``; what cannot be used is left out and reported, and never stops the reading.

    Examples:
        After ``make demo``:

        >>> tree = read_tree(Path("runs/demo/results"))
        >>> len(tree.variants), tree.problems
        (1, ())
    """
    files = sorted(root.glob("*/*/*.json"))
    if not any(file.name.endswith(SUFFIX) for file in files):
        raise BadInput(f"{root} holds no results (DATASET/BACKBONE/SCENARIO_ARCH{SUFFIX}); give the results of a run")
    problems: list[TreeProblem] = []
    variants: list[TreeVariant] = []
    for file in files:
        variants += _read_file(root, file, problems)
    lacking = _missing_seeds(variants)
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
    if not str(below).isprintable() or any(len(part) > LONGEST_NAME for part in below.parts):
        report("", f"its path cannot be part of other names: it is not printable, or longer than {LONGEST_NAME}")
        return
    try:
        text = file.read_bytes()
        document = json.loads(text)
        if LONE_SURROGATE.search(text):  # JSON can write what no text can hold
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError, OSError) as error:
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
    repeated = _repeated_seeds(sound)
    sound = [(key, entry) for key, entry in sound if key not in repeated]
    for key, what in (*repeated.items(), *_missing_methods(named), *_differences_between_seeds(sound)):
        report(key, what)
    return tuple(entry for _, entry in sound)


# Do the seeds of a variant, and the variants of a tree, belong together?

Found = Iterator[tuple[str, str]]
"""Keys, and what is wrong there."""


def _repeated_seeds(entries: Sequence[tuple[str, Entry]]) -> dict[str, str]:
    """What to say of entries, by key, whose seed came before."""
    first: dict[int, str] = {}
    repeated: dict[str, str] = {}
    for at, entry in entries:
        if (before := first.setdefault(entry["seed"], at)) != at:
            repeated[at] = f"seed {entry['seed']} again; the entry at {before} counts"
    return repeated


def _missing_methods(raw: Sequence[tuple[str, Any]]) -> Found:
    """Methods that some seeds have and others lack, from the entries as they are in the file."""
    entries = [(at, entry) for at, entry in raw if isinstance(entry, dict)]
    for name in methods.names():
        having = sum(name in entry for _, entry in entries)
        for at, entry in entries:
            if having and name not in entry:
                yield f"{at}.{name}", f"missing; {having} of {len(entries)} seeds have it"


def _differences_between_seeds(entries: Sequence[tuple[str, Entry]]) -> Found:
    """Seeds of one variant forget as many rows, from the same data, under the same settings."""
    for name in ("n_forget", "n_retain"):
        yield from _odd_ones(name, [(at, entry["seed"], entry[name]) for at, entry in entries])
    made_from = [(at, entry["seed"], entry["provenance"]) for at, entry in entries if "provenance" in entry]
    for at, entry in entries:
        if made_from and "provenance" not in entry:
            yield f"{at}.provenance", f"missing; {len(made_from)} of {len(entries)} seeds have it"
    shared = [
        (at, seed, flat({name: provenance.get(name) for name in ("fingerprint", "settings")}))
        for at, seed, provenance in made_from
    ]
    for name in dict.fromkeys(name for _, _, values in shared for name in values):
        yield from _odd_ones(f"provenance.{name}", [(at, seed, values.get(name)) for at, seed, values in shared])


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names, such as ``proxy.ridge``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _odd_ones(name: str, values: Sequence[tuple[str, int, Any]]) -> Found:
    """What differs from what most of the seeds say, or from the first if none has a majority."""
    texts = [json.dumps(value) for _, _, value in values]
    usual = Counter(texts).most_common(1)[0][0] if texts else ""
    others = _listed(seed for (_, seed, _), text in zip(values, texts, strict=True) if text == usual)
    for (at, seed, _), text in zip(values, texts, strict=True):
        if text != usual:
            yield f"{at}.{name}", f"{_short(text)} in seed {seed}, but {_short(usual)} in seeds {others}"


def _missing_seeds(variants: Sequence[TreeVariant]) -> dict[str, str]:
    """What to say of variants, by name, that lack a seed which at least half of the variants have."""
    counts = Counter(seed for variant in variants for seed in variant.seeds)
    usual = [seed for seed, count in counts.items() if 2 * count >= len(variants)]
    lacking = {variant.name: [seed for seed in usual if seed not in variant.seeds] for variant in variants}
    return {
        name: f"no seed {_listed(seeds)}, which {min(counts[seed] for seed in seeds)} of {len(variants)} variants have"
        for name, seeds in lacking.items()
        if seeds
    }


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _key(variant: TreeVariant) -> str:
    wrapped = ".results" if variant.variant.scenario is Scenario.SUBCLASS else ""
    return f"{variant.variant.arch}{wrapped}.{variant.variant.key}"


def _grid_order(variant: TreeVariant) -> tuple[str, str, int, int, int]:
    v = variant.variant
    return v.dataset, variant.backbone, ARCHITECTURES.index(v.arch), list(Scenario).index(v.scenario), v.key


def seed_order(seed: int) -> tuple[int, int]:
    """The paper's seeds in its order, then any others by number: a tree does not depend on what finished first."""
    return (SEEDS.index(seed), seed) if seed in SEEDS else (len(SEEDS), seed)


def entries_by_key(document: dict[str, Any], variant: Variant) -> dict[str, list[Entry]]:
    """The sub-key -> entries mapping inside ``document``, made if it is missing."""
    arch = document.setdefault(variant.arch, {})
    if variant.scenario != Scenario.SUBCLASS:
        return arch
    arch.setdefault("meta", {"dataset": variant.dataset, "label_space": str(variant.label_space)})
    return arch.setdefault("results", {})


def read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict):
            raise ValueError("it holds no object")
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not valid JSON ({error}); move it aside and run 'unlearn sync'") from error
    return document
