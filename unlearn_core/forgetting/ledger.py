"""Earlier requests on one model: what was forgotten, the statistics without it, the base and the last model.

It is a folder with ``ledger.json`` and the files that it names. ``ledger.json`` is replaced last and in one step:
that is when a request counts. Whoever changes a ledger, or reads its files too, holds its lock (``hold_ledger``).

Nothing in it is trusted: entries are chained and may be signed (``ledger_entries``), files must have the hashes that
the last entry says. It holds the base model, statistics of the rows that are *not* forgotten and the numbers of those
that are: keep it as safe as the training data.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unlearn_core.data.npz import read_npz
from unlearn_core.data.weights import read_checkpoint, save_safetensors
from unlearn_core.durable import PRIVATE, make_private, replace_text, sync
from unlearn_core.errors import BadInput, first_line
from unlearn_core.forgetting.certificate import file_sha256, state_sha256
from unlearn_core.forgetting.keys import read_public_key
from unlearn_core.forgetting.ledger_entries import (
    Entry,
    Identity,
    check_chain,
    check_record,
    heads,
    rows_sha256,
    sign_head,
)
from unlearn_core.forgetting.locks import FileLock, hold_folder, wait_for
from unlearn_core.forgetting.scratch import Scratch, clean_scratch
from unlearn_core.proxies.statistics import Moments

if TYPE_CHECKING:
    import torch

    from unlearn_core.nets.stack import State

__all__ = ["Entry", "HeldLedger", "Identity", "Ledger", "check_writable", "hold_ledger"]

FILE_NAME = "ledger.json"
FORMAT = "unlearn-ledger"
VERSION = 2
WAIT = 600.0
"""Seconds to wait for a ledger that another request holds."""
UNFINISHED = r"(ledger|delivery-[0-9]+)\.json\.new|(statistics|base|last)-[0-9]+\.(npz|safetensors)"
"""What a request that was cut off may leave: not yet, or no longer, part of the ledger."""
OURS = re.compile(rf"\.lock|delivery-[0-9]+\.json|\.unlearn-[0-9a-f]{{8}}(\.lock)?|{UNFINISHED}")
"""What may lie in a new ledger's folder."""


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
        """The ledger in a folder, or a new one if the folder is empty or missing; to be written to."""
        ledger = Ledger.read(folder)
        check_writable(folder, "the ledger")
        return ledger

    @staticmethod
    def read(folder: Path) -> Ledger:
        """The same, only to be read."""
        path = folder / FILE_NAME
        if not path.is_file():
            if folder.exists() and not (folder.is_dir() and all(OURS.fullmatch(name) for name in _names_in(folder))):
                raise BadInput(f"{folder} is no ledger and is not empty; name a ledger's folder or a new one")
            return Ledger(folder)
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["format"] != FORMAT or type(known["version"]) is not int or not 1 <= known["version"] <= VERSION:
                raise BadInput(f"{path} is {known['format']} version {known['version']}; this is {FORMAT} {VERSION}")
            entries = tuple(Entry(**entry) for entry in known["entries"])
            identity = Identity(**known["identity"])
            ledger = Ledger(folder, identity, entries, tuple(known["forgotten"]), dict(known["files"]))
            for record in (identity, *entries):
                check_record(record)
            check_chain(identity, entries, known["head"] if known["version"] > 1 else None)
            ledger._check_what_is_kept()
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, BadInput):
                raise
            raise _damaged(path, error) from error
        return ledger

    def _check_what_is_kept(self) -> None:
        """Refuse rows and names of files that are not those of the last entry."""
        last, files = self.entries[-1], self.files or {}
        if not all(type(row) is int and row >= 0 for row in self.forgotten) or not _ascends(self.forgotten):
            raise ValueError("what is forgotten is no ascending list of rows")
        if len(self.forgotten) != last.n_forget:
            raise ValueError(f"{len(self.forgotten)} rows are forgotten, and its last entry says {last.n_forget}")
        if last.chained and last.forgotten_sha256 != rows_sha256(self.forgotten):
            raise ValueError("other rows are forgotten than its last entry says")
        plain = all(type(name) is str and re.fullmatch(rf"{role}-[0-9]+\.[a-z]+", name) for role, name in files.items())
        if not plain or "statistics" not in files or not set(files) <= {"statistics", "base", "last"}:
            raise ValueError("its files are not its own")
        if last.files_sha256 is not None and set(last.files_sha256) != set(files):
            raise ValueError("its files are not those of its last entry")

    @property
    def exists(self) -> bool:
        return self.identity is not None

    @property
    def heads(self) -> list[str]:
        """The digests of its first entries: of none, of one, ..., of all."""
        return [] if self.identity is None else heads(self.identity, self.entries)

    def find(self, certificate: str) -> Entry | None:
        """The entry of a certificate, by its digest."""
        return next((entry for entry in self.entries if entry.certificate == certificate), None)

    def signer(self) -> bytes | None:
        """By whose key the last entry is signed, and with it all before; None if it is not."""
        return self.entries[-1].signer(self.heads[-1]) if self.entries else None

    def base_state(self) -> dict[str, torch.Tensor] | None:
        return self._state("base")

    def last_state(self) -> dict[str, torch.Tensor] | None:
        return self._state("last")

    def check_signer(self, key_file: Path | None, trust: bool) -> None:
        """Refuse to sign what nobody vouched for, and to leave unsigned what follows a signed entry.

        Args:
            trust: whether to sign on top of an entry that is not signed by this key.
        """
        signer, number = self.signer(), len(self.entries)
        if key_file is None and signer is not None:
            raise BadInput(f"request {number} of {self.folder} is signed; sign this one too, with --sign PEM")
        if key_file is not None and number and not trust and signer != read_public_key(key_file):
            raise BadInput(
                f"request {number} of {self.folder} is not signed by {key_file}, and signing the next one would vouch for "
                f"all before it; see 'unlearn ledger verify {self.folder}', then go on with --trust-ledger"
            )

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

    def retained(self) -> Moments | None:
        """The moments of the rows that are not forgotten; None before the first request.

        A ledger of version 1 has those of all rows and of the forgotten ones; from the latter, a single row could be
        read.
        """
        if self.files is None:
            return None
        path = self.file("statistics")
        names = [field.name for field in fields(Moments)]
        parts = ("retained",) if self.entries[-1].chained else ("total", "forgotten")
        arrays = read_npz(path, "ledger's statistics", [f"{part}_{name}" for part in parts for name in names])
        if any(not np.issubdtype(array.dtype, np.number) or not np.isfinite(array).all() for array in arrays.values()):
            raise _damaged(path, ValueError("not all are numbers"))
        found = [Moments(**{name: arrays[f"{part}_{name}"] for name in names}) for part in parts]
        c, d = found[0].counts.shape[:1], found[0].reference.shape[:1]
        for name, shape in {"reference": d, "counts": c, "sums": c + d, "squares": c + d, "outer": d + d}.items():
            if any(getattr(moments, name).shape != shape for moments in found):
                raise _damaged(path, ValueError(f"{name} has not the shape {shape}"))
        try:
            return found[0] if len(found) == 1 else found[0] - found[1]
        except ValueError as error:
            raise _damaged(path, error) from error

    def history(self) -> list[dict[str, Any]]:
        return [vars(entry) for entry in self.entries]

    def append(
        self,
        identity: Identity,
        entry: Entry,
        rows: Sequence[int],
        retained: Moments,
        base: State | None,
        last: State | None,
        key_file: Path | None = None,
    ) -> Ledger:
        """Add a request, on disk; returns the new state. Until ``ledger.json`` is replaced, the ledger is as it was.

        Args:
            entry: without its place in the chain, and unsigned.
            rows: all rows that are forgotten now.
            retained: moments of the others; they are kept about their own mean, for that of D would tell of the rest.
            base, last: weights; None for a black box.
            key_file: signs the entry.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = {"statistics": f"statistics-{entry.number:04d}.npz"}
        kept = self.files or {}
        for role, state in (("base", base), ("last", last)):
            if state is not None:
                first_only = role == "base" and role in kept
                files[role] = kept[role] if first_only else f"{role}-{entry.number:04d}.safetensors"
        scratch = Scratch(self.folder)
        try:
            arrays = {f"retained_{name}": value for name, value in vars(retained.recentred()).items()}
            np.savez(make_private(scratch.path / files["statistics"]), allow_pickle=False, **arrays)
            for role, state in (("base", base), ("last", last)):
                if state is not None and files[role] != kept.get(role):
                    save_safetensors(scratch.path / files[role], state, private=True)
                    (scratch.path / files[role]).chmod(PRIVATE)
            for path in scratch.path.iterdir():
                sync(path)
                os.replace(path, self.folder / path.name)
        finally:
            scratch.remove()
        entries = list(self.entries)
        entries.append(
            replace(
                entry,
                forgotten_sha256=rows_sha256(rows),
                files_sha256={role: file_sha256(self.folder / name) for role, name in files.items()},
                previous=heads(identity, entries)[-1],
            )
        )
        head = heads(identity, entries)[-1]
        if key_file is not None:
            entries[-1] = replace(entries[-1], signature=sign_head(head, key_file))
        document = {
            "format": FORMAT,
            "version": VERSION,
            "identity": vars(identity),
            "entries": [vars(one) for one in entries],
            "head": head,
            "forgotten": [int(row) for row in rows],
            "files": files,
        }
        replace_text(self.folder / FILE_NAME, json.dumps(document, indent=1) + "\n")
        for old in set(kept.values()) - set(files.values()):
            (self.folder / old).unlink(missing_ok=True)
        return Ledger.read(self.folder)

    def file(self, role: str) -> Path:
        """Where a file lies that has the hash that the last entry says."""
        path, known = self.folder / (self.files or {})[role], self.entries[-1].files_sha256
        if not path.is_file():
            raise _damaged(path, ValueError("it is missing"))
        if known is not None and file_sha256(path) != known[role]:
            raise _damaged(path, ValueError("it is not the file that the last entry has the hash of"))
        return path

    def _state(self, role: str) -> dict[str, torch.Tensor] | None:
        if self.files is None or role not in self.files:
            return None
        path = self.file(role)
        state, entry = read_checkpoint(path).state, self.entries[-1]
        if state_sha256(state) != (self.identity and self.identity.base if role == "base" else entry.model_sha256):
            raise _damaged(path, ValueError("its weights are not those of the ledger"))
        return state


@dataclass(frozen=True)
class HeldLedger:
    """A ledger's folder while its lock is held; only ``hold_ledger`` makes one."""

    folder: Path


@contextlib.contextmanager
def hold_ledger(
    folder: Path, wait: float = WAIT, waiting: Callable[[str], None] = lambda text: None
) -> Iterator[HeldLedger]:
    """Hold a ledger's lock: one request after the other. A new ledger's folder is made, and removed if it stays empty.

    Args:
        wait: seconds after which to give up.
        waiting: told once, if somebody else holds it.
    """
    Ledger.open(folder)  # so that no lock is put where no ledger may be

    def take(lock: FileLock) -> None:
        wait_for(lock, f"the ledger {folder}", wait, waiting)

    with hold_folder(folder, f"the ledger to {folder}", take, mode=0o700):
        _clean(folder)
        try:
            yield HeldLedger(folder)
        finally:
            with contextlib.suppress(BadInput, OSError):  # the next request tries again
                _clean(folder)


def _clean(folder: Path) -> None:
    """Remove what requests that were cut off left: by old statistics, what they forgot could be told from the new ones."""
    clean_scratch(folder)
    known = set((Ledger.read(folder).files or {}).values())
    for name in os.listdir(folder):
        if re.fullmatch(UNFINISHED, name) and name not in known:
            (folder / name).unlink(missing_ok=True)


def _damaged(path: Path, error: Exception) -> BadInput:
    return BadInput(f"{path} is damaged ({type(error).__name__}: {first_line(error)}); restore it from a backup")


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:  # a request that was refused has just removed it
        return []


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
