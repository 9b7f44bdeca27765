"""The entries of a ledger, each with a digest of all before it, signed if there is a key.

``head[k]``, the digest of the first k entries and of what the ledger belongs to, is ``previous`` in entry k + 1 and
what the signature of entry k is over. Whoever changes, drops or adds an entry without the key changes the heads that
others have signed, or that later certificates hold under ``history``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from unlearn_core.forgetting.keys import Signature, is_weak, sign

if TYPE_CHECKING:
    from unlearn_core.forgetting.subject import Subject


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
    """One request, as the ledger and every later certificate list it.

    From ``forgotten_sha256`` on, all is None in entries of version 1, which were not chained.
    """

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
    forgotten_sha256: str | None = None
    """Of the numbers of all rows that were forgotten by then."""
    files_sha256: Mapping[str, str] | None = None
    """Of the ledger's files by then: statistics, base and last."""
    previous: str | None = None
    """The digest of all entries before."""
    signature: Mapping[str, str] | None = None

    @property
    def chained(self) -> bool:
        return self.previous is not None

    @property
    def content(self) -> dict[str, Any]:
        """What digests are over."""
        return {name: value for name, value in vars(self).items() if value is not None and name != "signature"}

    def signer(self, head: str) -> bytes | None:
        """The key whose signature over ``head`` the entry has; None if there is none, or it does not hold."""
        if self.signature is None:
            return None
        try:
            signature = Signature.from_entry(dict(self.signature))
        except (ValueError, KeyError, TypeError):
            return None
        whole = signature.entry() == self.signature and not is_weak(signature.public_key)
        return signature.public_key if whole and signature.is_over(_message(head)) else None


def sign_head(head: str, key_file: Path) -> dict[str, str]:
    return sign(_message(head), key_file).entry()


def _message(head: str) -> bytes:
    """Not to be mistaken for anything else that the key signs."""
    return f"unlearn-ledger-entry {head}".encode("ascii")


def heads(identity: Identity, entries: Sequence[Entry]) -> list[str]:
    """One more than there are entries."""
    found = [_digest(vars(identity))]
    for entry in entries:
        found.append(_digest({"before": found[-1], "entry": entry.content}))
    return found


def rows_sha256(rows: Sequence[int]) -> str:
    return _digest([int(row) for row in rows])


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def check_record(record: Identity | Entry) -> None:
    """Refuse types that this software does not write, before they are used."""
    kinds = get_type_hints(type(record))
    if wrong := [name for name, value in vars(record).items() if not _is_of(value, kinds[name])]:
        raise ValueError(f"{wrong[0]} is no {kinds[wrong[0]]}")


def check_chain(identity: Identity, entries: Sequence[Entry], head: str | None) -> None:
    """Refuse entries that are not numbered, counted and chained as they were written, and signatures that do not hold.

    Args:
        head: what the ledger says is the digest of all of them; None in version 1.
    """
    if not entries or [entry.number for entry in entries] != list(range(1, len(entries) + 1)):
        raise ValueError("its entries are not numbered from 1")
    found, n_forget, chained = heads(identity, entries), 0, False
    for entry, before, after in zip(entries, found, found[1:], strict=False):
        n_forget += entry.n_new
        if entry.n_forget != n_forget or entry.n_new < 0:
            raise ValueError(
                f"entry {entry.number} says {entry.n_forget} rows in all, and the entries sum to {n_forget}"
            )
        if chained and not entry.chained:
            raise ValueError(f"entry {entry.number} is not chained to the one before")
        chained = entry.chained
        if chained and entry.previous != before:
            raise ValueError(f"what comes before entry {entry.number} was changed")
        whole = entry.forgotten_sha256 is not None and entry.files_sha256 is not None
        if chained != whole or (entry.signature is not None and not chained):
            raise ValueError(f"entry {entry.number} is neither chained nor of version 1")
        if entry.signature is not None and entry.signer(after) is None:
            raise ValueError(f"the signature of entry {entry.number} does not hold")
    if (head is not None) != chained or (head is not None and head != found[-1]):
        raise ValueError("its entries are not those that its head is the digest of")


def _is_of(value: object, kind: Any) -> bool:
    """Whether JSON's value is of a type such as ``int`` or ``float | None``; a whole number may stand for a float."""
    kinds = get_args(kind) or (kind,)
    if isinstance(value, dict):
        mapped = Mapping in {get_origin(one) for one in kinds}
        return mapped and all(type(part) is str for pair in value.items() for part in pair)
    return type(value) in kinds or (type(value) is int and float in kinds)
