"""Do the seeds of a variant, and the variants of a tree, belong together?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tracking.tree import Entry, TreeVariant
from unlearn_core.spec import METHODS

Found = Iterator[tuple[str, str]]
"""Keys and what is wrong there."""


def repeated_seeds(entries: Sequence[tuple[str, Entry]]) -> dict[str, str]:
    """What to say of entries, by key, whose seed came before."""
    first: dict[int, str] = {}
    repeated: dict[str, str] = {}
    for at, entry in entries:
        if (before := first.setdefault(entry["seed"], at)) != at:
            repeated[at] = f"seed {entry['seed']} again; the entry at {before} counts"
    return repeated


def differences_between_seeds(entries: Sequence[tuple[str, Entry]]) -> Found:
    """Seeds of one variant forget as many rows, from the same data, under the same settings."""
    for name in ("n_forget", "n_retain"):
        yield from _odd_ones(name, [(at, entry["seed"], entry[name]) for at, entry in entries])
    made_from = [(at, entry["seed"], entry["provenance"]) for at, entry in entries if "provenance" in entry]
    for at, entry in entries:
        if made_from and "provenance" not in entry:
            yield f"{at}.provenance", f"missing; {len(made_from)} of {len(entries)} seeds have it"
    shared = [
        (at, seed, _flat({name: provenance.get(name) for name in ("fingerprint", "settings")}))
        for at, seed, provenance in made_from
    ]
    for name in dict.fromkeys(name for _, _, flat in shared for name in flat):
        yield from _odd_ones(f"provenance.{name}", [(at, seed, flat.get(name)) for at, seed, flat in shared])


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _odd_ones(name: str, values: Sequence[tuple[str, int, Any]]) -> Found:
    """What differs from what most of the seeds say, from the first where none has a majority."""
    texts = [json.dumps(value) for _, _, value in values]
    usual = Counter(texts).most_common(1)[0][0] if texts else ""
    others = listed(seed for (_, seed, _), text in zip(values, texts, strict=True) if text == usual)
    for (at, seed, _), text in zip(values, texts, strict=True):
        if text != usual:
            yield f"{at}.{name}", f"{_short(text)} in seed {seed}, but {_short(usual)} in seeds {others}"


def missing_methods(raw: Sequence[tuple[str, Any]]) -> Found:
    """Methods that some seeds have and others lack, from the entries as they are in the file."""
    entries = [(at, entry) for at, entry in raw if isinstance(entry, dict)]
    for name in METHODS:
        having = sum(name in entry for _, entry in entries)
        for at, entry in entries:
            if having and name not in entry:
                yield f"{at}.{name}", f"missing; {having} of {len(entries)} seeds have it"


def missing_seeds(variants: Sequence[TreeVariant]) -> dict[str, str]:
    """What to say of variants, by name, without a seed that at least half of the variants have."""
    counts = Counter(seed for variant in variants for seed in variant.seeds)
    usual = [seed for seed, count in counts.items() if 2 * count >= len(variants)]
    lacking = {variant.name: [seed for seed in usual if seed not in variant.seeds] for variant in variants}
    return {
        name: f"no seed {listed(seeds)}, which {min(counts[seed] for seed in seeds)} of {len(variants)} variants have"
        for name, seeds in lacking.items()
        if seeds
    }


def listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
