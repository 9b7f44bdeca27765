"""The certificate as a document: its digest, its signature, and whether both and the files it names still match.

Nothing here imports torch: a certificate is read and verified in a moment, also where the model cannot be loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unlearn_core.errors import BadInput
from unlearn_core.forgetting.hashing import file_sha256
from unlearn_core.forgetting.signing import Signature, check_signature
from unlearn_core.records import without_nonfinite

FORMAT = "unlearn-certificate"
VERSION = 1
FILE_NAME = "certificate.json"


@dataclass(frozen=True)
class NamedFile:
    """A file that a certificate speaks of; the path is written from the certificate's own folder."""

    role: str
    path: str
    sha256: str
    bytes: int

    @staticmethod
    def of(role: str, path: Path, beside: Path) -> NamedFile:
        """``beside``: the folder of the certificate."""
        place = os.path.relpath(path.resolve(), beside.resolve())
        return NamedFile(role, place, file_sha256(path), path.stat().st_size)


@dataclass(frozen=True)
class Certificate:
    """``content`` is plain JSON; the digest is over all of it, and a signature over the same bytes."""

    content: Mapping[str, Any]
    signature: Signature | None = None

    @staticmethod
    def of(content: Mapping[str, Any]) -> Certificate:
        """Infinite and undefined numbers become null."""
        return Certificate(without_nonfinite({"format": FORMAT, "version": VERSION, **content}))

    @property
    def canonical(self) -> bytes:
        """The bytes that digest and signature are over: keys sorted, no spaces, ASCII."""
        return json.dumps(self.content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.canonical).hexdigest()

    def document(self) -> dict[str, Any]:
        """As the file holds it."""
        return {
            "certificate": self.content,
            "digest": {
                "algorithm": "SHA-256",
                "over": "certificate, as JSON with sorted keys and no spaces",
                "value": self.digest,
            },
            "signature": None if self.signature is None else self.signature.entry(),
        }

    def text(self) -> str:
        return json.dumps(self.document(), indent=1, allow_nan=False) + "\n"

    @property
    def files(self) -> list[NamedFile]:
        return [NamedFile(**entry) for entry in self.content["files"]]

    def with_files(self, files: Sequence[NamedFile]) -> Certificate:
        """The same with hashes of files; a signature would no longer hold, so there must be none yet."""
        if self.signature is not None:
            raise ValueError("a signed certificate is not changed")
        return replace(self, content={**self.content, "files": [vars(file) for file in files]})


@dataclass(frozen=True)
class Check:
    """One thing that was verified, or not."""

    what: str
    passed: bool
    detail: str


def read_certificate(path: Path) -> Certificate:
    """A certificate from its file, whether or not it is genuine."""
    if not path.is_file():
        raise BadInput(f"no certificate at {path}; 'unlearn forget' writes certificate.json into its --out")
    try:
        document = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
        content = document["certificate"]
        known = content["format"] == FORMAT
        signature = None if document["signature"] is None else Signature.from_entry(document["signature"])
        certificate = Certificate(content, signature)
        _ = certificate.files
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is no certificate ({type(error).__name__}: {error}); it may be damaged") from error
    if not known or content.get("version") != VERSION:
        raise BadInput(
            f"{path} is of format {content.get('format')} version {content.get('version')}; this is {FORMAT} {VERSION}"
        )
    return certificate


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def verify_certificate(
    path: Path, elsewhere: Mapping[str, Path] | None = None, public_key: Path | None = None
) -> list[Check]:
    """Check the document to the byte, its signature, and every file that it names.

    Args:
        elsewhere: where the file of a role lies, if not where the certificate says.
        public_key: whose signature it must be (PEM); without it, a signature only says that its maker had some key.
    """
    elsewhere = elsewhere or {}
    certificate = read_certificate(path)
    files = certificate.files
    if unknown := sorted(set(elsewhere) - {file.role for file in files}):
        roles = ", ".join(file.role for file in files) or "no files"
        raise BadInput(f"the certificate names no file {unknown[0]!r}; it names {roles}")
    checks = [
        _check_document(path, certificate),
        Check("signature", *check_signature(certificate.canonical, certificate.signature, public_key)),
    ]
    return checks + [_check_file(file, path.parent, elsewhere.get(file.role)) for file in files]


def _check_document(path: Path, certificate: Certificate) -> Check:
    """The file must be, to the byte, what this certificate is written as; that includes its digest."""
    if path.read_bytes() == certificate.text().encode("ascii"):
        return Check("certificate", True, f"digest {certificate.digest}")
    return Check("certificate", False, f"the text does not match its digest: the content's is {certificate.digest}")


def _check_file(file: NamedFile, folder: Path, elsewhere: Path | None) -> Check:
    path = elsewhere or Path(os.path.normpath(folder / file.path))
    if not path.is_file():
        return Check(file.role, False, f"not found at {path}; say where it is with --file {file.role}=PATH")
    found = file_sha256(path)
    if found != file.sha256:
        return Check(file.role, False, f"{path} has SHA-256 {found}, the certificate says {file.sha256}")
    return Check(file.role, True, f"{path}  SHA-256 {found}")
