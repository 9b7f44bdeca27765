"""Earlier requests on one model: what was forgotten, the statistics without it, the base and the last model.

It is a folder with ``ledger.json`` and the files that it names. ``ledger.json`` is replaced last and in one step, so that an
interrupted request leaves the ledger as it was.

A ledger holds the base model and statistics of the forgotten rows (of a single one, the row itself): keep it as safe as the
training data.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import numpy as np

from unlearn_core.data.npz import read_npz
from unlearn_core.data.weights import read_checkpoint, save_safetensors
from unlearn_core.errors import BadInput, first_line
from unlearn_core.forgetting.certificate import state_sha256
from unlearn_core.proxies.statistics import Moments

if TYPE_CHECKING:
    import torch

    from unlearn_core.forgetting.subject import Subject
    from unlearn_core.nets.stack import State

FILE_NAME = "ledger.json"
FORMAT = "unlearn-ledger"
VERSION = 1


@dataclass(frozen=True)
class Identity:
    """What a ledger belongs to: hashes of the base model and of the data, and what proxies see."""

    base: str
    data: str
    features: str

    @staticmethod
    def of(subject: Subject) -> Identity:
        return Identity(subject.base_sha256, subject.data_sha256, subject.seen_by_proxies)


@dataclass(frozen=True)
class Entry:
    """One request, as the ledger and every later certificate list it."""

    number: int
    time: str
    outcome: str
    n_asked: int
    n_new: int
    n_forget: int
    proxy: str | None
    eta_max: float | None
    finalizer: str
    model_sha256: str | None
    """Hash of the model that the request left; None for a black box."""
    certificate: str
    """The digest of its certificate."""


@dataclass(frozen=True, eq=False)
class Ledger:
    """The state of a ledger; ``identity`` is None if it does not exist yet."""

    folder: Path
    identity: Identity | None = None
    entries: tuple[Entry, ...] = ()
    forgotten: tuple[int, ...] = ()
    """Rows, ascending."""
    files: Mapping[str, str] | None = None

    @staticmethod
    def open(folder: Path) -> Ledger:
        """The ledger in a folder, or a new one if the folder is empty or missing."""
        path = folder / FILE_NAME
        exists = path.is_file()
        if not exists and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"{folder} is no ledger and is not empty; name a ledger's folder or a new one")
        check_writable(folder, "the ledger")
        if not exists:
            return Ledger(folder)
        try:
            known = json.loads(path.read_text())
            if (known["format"], known["version"]) != (FORMAT, VERSION) or known["version"] is True:
                raise BadInput(f"{path} is {known['format']} version {known['version']}; this is {FORMAT} {VERSION}")
            entries = tuple(Entry(**entry) for entry in known["entries"])
            identity = Identity(**known["identity"])
            ledger = Ledger(folder, identity, entries, tuple(known["forgotten"]), dict(known["files"]))
            ledger._check_types()
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, BadInput):
                raise
            raise _damaged(path, error) from error
        return ledger

    def _check_types(self) -> None:
        """Refuse what this software does not write, before it is used."""
        for record in (self.identity, *self.entries):
            kinds = get_type_hints(type(record))
            if wrong := [name for name, value in vars(record).items() if not _is_of(value, kinds[name])]:
                raise ValueError(f"{wrong[0]} is no {kinds[wrong[0]]}")
        if not self.entries or [entry.number for entry in self.entries] != list(range(1, len(self.entries) + 1)):
            raise ValueError("its entries are not numbered from 1")
        if not all(type(row) is int and row >= 0 for row in self.forgotten) or not _ascends(self.forgotten):
            raise ValueError("what is forgotten is no ascending list of rows")
        if len(self.forgotten) != self.entries[-1].n_forget:
            raise ValueError(
                f"{len(self.forgotten)} rows are forgotten, and its last entry says {self.entries[-1].n_forget}"
            )
        files = self.files or {}
        plain = all(type(name) is str and re.fullmatch(rf"{role}-[0-9]+\.[a-z]+", name) for role, name in files.items())
        if not plain or "statistics" not in files or not set(files) <= {"statistics", "base", "last"}:
            raise ValueError("its files are not its own")

    @property
    def exists(self) -> bool:
        return self.identity is not None

    def base_state(self) -> dict[str, torch.Tensor] | None:
        return self._state("base")

    def last_state(self) -> dict[str, torch.Tensor] | None:
        return self._state("last")

    def check_model(self, given: State) -> None:
        """Refuse a network that is neither the base nor what the last request left."""
        if self.identity is None:
            return
        last, found = self.entries[-1], state_sha256(given)
        if found not in (self.identity.base, last.model_sha256):
            raise BadInput(
                f"the ledger {self.folder} is for another model: the one given ({found[:12]}) is neither its base "
                f"({self.identity.base[:12]}) nor what request {last.number} left; give one of the two, or a new ledger"
            )

    def check(self, identity: Identity) -> None:
        """Refuse another model, other data or other features than the ledger was begun with."""
        if self.identity is None:
            return
        for what, ours, theirs in (
            ("another model", self.identity.base, identity.base),
            ("other data", self.identity.data, identity.data),
            ("other features", self.identity.features, identity.features),
        ):
            if ours != theirs:
                raise BadInput(
                    f"the ledger {self.folder} is for {what} ({ours[:40]}, now {theirs[:40]}); give the same as in its "
                    "first request, or a new ledger"
                )

    def moments(self) -> tuple[Moments | None, Moments | None]:
        """Of all training rows, and of those that were forgotten so far; None before the first request."""
        if self.files is None:
            return None, None
        names = [field.name for field in fields(Moments)]
        required = [f"{part}_{name}" for part in ("total", "forgotten") for name in names]
        path = self.folder / self.files["statistics"]
        arrays = read_npz(path, "ledger's statistics", required)
        if any(not np.issubdtype(array.dtype, np.number) or not np.isfinite(array).all() for array in arrays.values()):
            raise _damaged(path, ValueError("not all are numbers"))
        total, forgotten = (
            Moments(**{name: arrays[f"{part}_{name}"] for name in names}) for part in ("total", "forgotten")
        )
        c, d = total.counts.shape[:1], total.reference.shape[:1]
        for name, shape in {"reference": d, "counts": c, "sums": c + d, "squares": c + d, "outer": d + d}.items():
            if not getattr(total, name).shape == getattr(forgotten, name).shape == shape:
                raise _damaged(path, ValueError(f"{name} has not the shape {shape}"))
        return total, forgotten

    def history(self) -> list[dict[str, Any]]:
        return [vars(entry) for entry in self.entries]

    def append(
        self,
        identity: Identity,
        entry: Entry,
        rows: Sequence[int],
        moments: tuple[Moments, Moments],
        base: State | None,
        last: State | None,
    ) -> Ledger:
        """Add a request, on disk; returns the new state.

        Args:
            rows: all rows that are forgotten now.
            moments: of all training rows, and of the forgotten ones.
            base, last: weights; None for a black box.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        files = {"statistics": f"statistics-{entry.number:04d}.npz"}
        parts = zip(("total", "forgotten"), moments, strict=True)
        arrays = {f"{part}_{name}": value for part, values in parts for name, value in vars(values).items()}
        np.savez(self.folder / files["statistics"], allow_pickle=False, **arrays)
        for role, state in (("base", base), ("last", last)):
            if state is None:
                continue
            if role == "base" and self.files is not None:
                files[role] = self.files[role]
                continue
            files[role] = f"{role}-{entry.number:04d}.safetensors"
            save_safetensors(self.folder / files[role], state)
        document = {
            "format": FORMAT,
            "version": VERSION,
            "identity": vars(identity),
            "entries": [*self.history(), vars(entry)],
            "forgotten": [int(row) for row in rows],
            "files": files,
        }
        unfinished = self.folder / f"{FILE_NAME}.new"
        unfinished.write_text(json.dumps(document, indent=1) + "\n")
        os.replace(unfinished, self.folder / FILE_NAME)
        for old in set((self.files or {}).values()) - set(files.values()):
            (self.folder / old).unlink(missing_ok=True)
        return Ledger.open(self.folder)

    def _state(self, role: str) -> dict[str, torch.Tensor] | None:
        if self.files is None or role not in self.files:
            return None
        state, entry = read_checkpoint(self.folder / self.files[role]).state, self.entries[-1]
        if state_sha256(state) != (self.identity and self.identity.base if role == "base" else entry.model_sha256):
            raise _damaged(self.folder / self.files[role], ValueError("its weights are not those of the ledger"))
        return state


def _damaged(path: Path, error: Exception) -> BadInput:
    return BadInput(f"{path} is damaged ({type(error).__name__}: {first_line(error)}); restore it from a backup")


def _is_of(value: object, kind: Any) -> bool:
    """Whether JSON's value is of a type such as ``int`` or ``float | None``; a whole number may stand for a float."""
    kinds = get_args(kind) or (kind,)
    return type(value) in kinds or (type(value) is int and float in kinds)


def _ascends(rows: Sequence[int]) -> bool:
    return all(a < b for a, b in itertools.pairwise(rows))


def check_writable(folder: Path, what: str) -> Path:
    """Refuse, before any work is done, a folder in which no file can be made; returns it or its nearest existing parent."""
    place = folder.absolute()
    while not os.path.lexists(place):  # a link to nowhere is a place that cannot be written
        place = place.parent
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise BadInput(f"cannot write {what} to {folder} ({error.strerror or error}); name another folder") from error
    return place
