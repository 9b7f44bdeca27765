"""Writes the results tree in few writes: an entry is encoded once, however often its file is written.

A file holds all keys and seeds of a scenario and an architecture. It is written when the first cell comes, then at intervals
in which writing takes a small share of the time, and once more when nothing is left to come. What a crash takes with it is
in the store: a rerun and ``sync`` put it there again.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracking.entries import Entry
from tracking.tree import entries_by_key, read_document, seed_order, tree_path
from unlearn_core.grid import Variant
from unlearn_core.writing import write_atomically

INTERVAL_SECONDS = 5.0
SHARE = 0.05
"""Of the time, writing a file again may take so much."""


def write_entries(root: Path, variant: Variant, backbone: str, entries: Sequence[Entry]) -> Path:
    """Put seed entries into the tree, replacing those of the same seeds; the file changes in one atomic step."""
    writer = TreeWriter(root)
    writer.add(variant, backbone, entries)
    writer.write_all()
    return tree_path(root, variant, backbone)


class TreeWriter:
    """The files of a tree that are being written. Nobody else writes them meanwhile."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._root: Path = root
        self._clock: Callable[[], float] = clock
        self._files: dict[Path, _File] = {}

    def add(self, variant: Variant, backbone: str, entries: Sequence[Entry]) -> None:
        """Take seed entries, in place of those of the same seeds; they are in the tree after the next write."""
        file = self._file(variant, backbone)
        for entry in entries:
            file.put(variant.key, entry)

    def entries(self, variant: Variant, backbone: str) -> list[Entry]:
        """All seeds of a variant, written or not; a file that was closed is read, and not kept."""
        path = tree_path(self._root, variant, backbone)
        return (self._files.get(path) or _File(path, variant)).entries(variant.key)

    def write_due(self) -> None:
        """Write the files whose last write is long enough ago."""
        for file in self._files.values():
            if file.changed and self._clock() >= file.due:
                file.write(self._clock)

    def write_all(self) -> None:
        for file in self._files.values():
            if file.changed:
                file.write(self._clock)

    def close(self, variant: Variant, backbone: str) -> None:
        """Nothing more comes for the variant's file: write it, and keep it in memory no longer."""
        path = tree_path(self._root, variant, backbone)
        file = self._files.pop(path, None)
        if file is not None and file.changed:
            file.write(self._clock)

    def _file(self, variant: Variant, backbone: str) -> _File:
        path = tree_path(self._root, variant, backbone)
        if path not in self._files:
            self._files[path] = _File(path, variant)
        return self._files[path]


class _File:
    """One file of the tree: the texts of its entries by key and seed, and what stands around them."""

    def __init__(self, path: Path, variant: Variant) -> None:
        document = read_document(path) if path.exists() else {}
        by_key = entries_by_key(document, variant)
        self._path: Path = path
        self._texts: dict[int, dict[int, str]] = {
            int(key): {entry["seed"]: _encoded(entry) for entry in entries} for key, entries in by_key.items()
        }
        self._around: tuple[str, str] = _around(document, by_key)
        self.changed: bool = False
        self.due: float = float("-inf")

    def put(self, key: int, entry: Entry) -> None:
        text, seeds = _encoded(entry), self._texts.setdefault(key, {})
        if seeds.get(entry["seed"]) != text:
            seeds[entry["seed"]] = text
            self.changed = True

    def entries(self, key: int) -> list[Entry]:
        seeds = self._texts.get(key, {})
        return [json.loads(seeds[seed]) for seed in sorted(seeds, key=seed_order)]

    def write(self, clock: Callable[[], float]) -> None:
        started = clock()
        write_atomically(self._path, self._pieces())
        now = clock()
        self.changed = False
        self.due = now + max(INTERVAL_SECONDS, (now - started) / SHARE)

    def _pieces(self) -> Sequence[str]:
        """The file's text: keys and seeds are in the same order whatever finished first."""
        before, after = self._around
        pieces = [before, "{"]
        for i, key in enumerate(sorted(self._texts)):
            seeds = self._texts[key]
            listed = ", ".join(seeds[seed] for seed in sorted(seeds, key=seed_order))
            pieces.append(f'{", " if i else ""}"{key}": [{listed}]')
        return [*pieces, "}", after]


def _encoded(entry: Entry) -> str:
    # allow_nan=False: a NaN that slipped through is a bug; no indent: that takes json's slow encoder, seconds for a grid
    return json.dumps(entry, allow_nan=False)


def _around(document: dict[str, Any], by_key: Mapping[str, Any]) -> tuple[str, str]:
    """What stands before and after the mapping ``by_key`` in the text of ``document``."""
    mark = uuid.uuid4().hex

    def marked(value: Any) -> Any:
        if value is by_key:
            return mark
        return {name: marked(inner) for name, inner in value.items()} if isinstance(value, dict) else value

    before, _, after = json.dumps(marked(document), allow_nan=False).partition(f'"{mark}"')
    return before, after
