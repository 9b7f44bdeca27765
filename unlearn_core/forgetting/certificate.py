"""The certificate as a document: its digest, its signature, and whether both and the files that it names still match.

Nothing here imports torch, and numpy only to hash arrays: a certificate is verified in a moment, also on a machine that
cannot load the model.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearn_core.errors import BadInput, first_line
from unlearn_core.forgetting.audit_block import audit_in_words, audit_problem
from unlearn_core.forgetting.envelope import ENVELOPE_NAME, Envelope, in_toto_statement, is_envelope
from unlearn_core.forgetting.keys import Signature, check_private_key, is_weak, read_public_key, sign
from unlearn_core.records import without_nonfinite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unlearn_core.nets.stack import State

__all__ = ["Certificate", "Check", "NamedFile", "Signature", "check_private_key", "sign", "verify_certificate"]

FORMAT = "unlearn-certificate"
VERSION = 1
FILE_NAME = "certificate.json"
PAGE_NAME = "certificate.html"
MAX_BYTES = 1 << 26

UNLEARNED = "unlearned"
NOT_UNLEARNED = "not unlearned"
"""Something was asked for, and not enough of it was achieved."""
NOTHING = "nothing to unlearn"
"""The request itself asks for nothing."""


@dataclass(frozen=True)
class NamedFile:
    """A file that a certificate names; ``path`` is relative to the certificate's folder."""

    role: str
    path: str
    sha256: str
    bytes: int

    @staticmethod
    def of(role: str, path: Path, beside: Path, sha256: str | None = None) -> NamedFile:
        """Args: beside: the folder of the certificate. sha256: if it is known."""
        place = os.path.relpath(path.resolve(), beside.resolve())
        return NamedFile(role, place, sha256 or file_sha256(path), path.stat().st_size)

    @staticmethod
    def from_entry(entry: Mapping[str, Any]) -> NamedFile:
        file = NamedFile(**entry)
        for field in fields(file):
            value, kind = getattr(file, field.name), int if field.name == "bytes" else str
            if type(value) is not kind or value == "":
                raise ValueError(f"{field.name} of a file is {value!r}")
        if not re.fullmatch("[0-9a-f]{64}", file.sha256) or "\0" in file.path:
            raise ValueError(f"{file.sha256!r} of {file.path!r} is no SHA-256 of a file")
        return file


@dataclass(frozen=True)
class Certificate:
    """``content`` is plain JSON; digest and signature are over all of it."""

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
        return [NamedFile.from_entry(entry) for entry in self.content["files"]]

    def with_files(self, files: Sequence[NamedFile]) -> Certificate:
        """The same with hashes of files; to be called before signing, for a signature would no longer hold."""
        if self.signature is not None:
            raise ValueError("a signed certificate is not changed")
        return replace(self, content={**self.content, "files": [vars(file) for file in files]})


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def arrays_sha256(arrays: Mapping[str, NDArray]) -> str:
    """Over names, types, shapes and values, whatever file the arrays came from and whatever order they are in."""
    import numpy as np

    digest = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {value.dtype.str} {value.shape}\0".encode())
        digest.update(value.tobytes() if value.dtype.kind == "U" else value.data)
    return digest.hexdigest()


def state_sha256(state: State) -> str:
    """Of a network's weights; floats of all types are hashed as float64, which holds each of them exactly."""
    return arrays_sha256(
        {
            name: (tensor.double() if tensor.is_floating_point() else tensor).cpu().numpy()
            for name, tensor in state.items()
        }
    )


def read_certificate(path: Path) -> Certificate:
    """A certificate from its file, whether or not it is genuine."""
    return _parse(_read(path), path)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise BadInput(f"no certificate at {path}; 'unlearn forget' writes {FILE_NAME} into its --out")
    if path.stat().st_size > MAX_BYTES:
        raise BadInput(f"{path} has {path.stat().st_size} bytes, and no certificate has more than {MAX_BYTES}")
    return path.read_bytes()


def _parse(text: bytes, path: Path) -> Certificate:
    """From the document of a certificate, or from the statement within an envelope."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
        if is_envelope(document):
            statement = json.loads(Envelope.read(text, path).payload, parse_constant=_refuse_constant)
            document = {"certificate": statement["predicate"], "signature": None}
        content = document["certificate"]
        known = content["format"] == FORMAT
        signature = None if document["signature"] is None else Signature.from_entry(document["signature"])
        certificate = Certificate(content, signature)
        _ = certificate.files, certificate.digest
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        said = f"{type(error).__name__}: {first_line(error)}"
        raise BadInput(f"{path} is no certificate ({said}); it may be damaged") from error
    version = content.get("version")
    if not known or type(version) is not int or version != VERSION:
        raise BadInput(f"{path} is of format {content['format']} version {version}; this is {FORMAT} {VERSION}")
    return certificate


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


class Found(StrEnum):
    """What a check found."""

    HOLDS = "ok"
    FAILED = "FAILED"
    UNSIGNED = "UNSIGNED"
    UNKNOWN = "UNKNOWN"
    """It cannot be told from what is here: whose key it is, or what a page shows."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    what: str
    found: Found
    detail: str

    @property
    def passed(self) -> bool:
        return self.found is Found.HOLDS

    @property
    def failed(self) -> bool:
        return self.found is Found.FAILED


def verify_certificate(
    path: Path,
    elsewhere: Mapping[str, Path] | None = None,
    public_key: Path | None = None,
    require_signature: bool = False,
) -> list[Check]:
    """Check the document to the byte, its signature, that its list of files is complete, and every file in it.

    Args:
        elsewhere: where the file of a role lies, if not where the certificate says.
        public_key: whose signature it must be (PEM); without it, a signature only says that its maker had some key.
        require_signature: an unsigned certificate fails.
    """
    elsewhere = elsewhere or {}
    expected = None if public_key is None else read_public_key(public_key)
    text = _read(path)
    certificate = _parse(text, path)
    files = certificate.files
    if unknown := sorted(set(elsewhere) - {file.role for file in files}):
        roles = ", ".join(file.role for file in files) or "no files"
        raise BadInput(f"the certificate names no file {unknown[0]!r}; it names {roles}")
    required = require_signature or expected is not None
    if is_envelope(json.loads(text)):
        if expected is None or public_key is None:
            raise BadInput(f"{path} is an envelope, which holds no key; give the signer's as --public-key")
        checks = _check_envelope(Envelope.read(text, path), certificate, expected, public_key)
    else:
        signed = (
            _check_signature(certificate, required)
            if expected is None
            else _check_signer(certificate, expected, public_key)
        )
        checks = [_check_document(text, certificate), signed, *_check_beside(certificate, path.parent)]
    checks += [_check_complete(certificate), *_check_audit(certificate)]
    return checks + [_check_file(file, path.parent, elsewhere.get(file.role)) for file in files]


def summarise(checks: Sequence[Check]) -> str:
    """In words, what all of it shows, and what it does not."""
    others, failed = f"all {sum(check.passed for check in checks)} other checks hold", sum(c.failed for c in checks)
    found = {check.found for check in checks if check.what == "signature"}
    if failed:
        return f"not verified: {failed} of {len(checks)} checks failed"
    if Found.UNSIGNED in found:
        return f"intact but unsigned: {others}; nothing shows who wrote it, and anybody could have"
    if Found.UNKNOWN in found:
        return f"intact, and signed by a key that nobody vouched for: {others}; --public-key checks whose it is"
    return f"verified: all {sum(check.passed for check in checks)} checks hold"


def _check_document(text: bytes, certificate: Certificate) -> Check:
    """The file must be, to the byte, what this certificate is written as; that includes its digest."""
    if text == certificate.text().encode("ascii"):
        return Check("certificate", Found.HOLDS, f"digest {certificate.digest}")
    said = f"the text does not match its digest: the content's is {certificate.digest}"
    return Check("certificate", Found.FAILED, said)


def _check_signature(certificate: Certificate, required: bool) -> Check:
    """Whether the signature, if there is one, holds for the key that it comes with."""
    signature = certificate.signature
    if signature is None:
        found = Found.FAILED if required else Found.UNSIGNED
        return Check("signature", found, "none: the digest shows accidents, only a signature would show forgeries")
    shown = signature.public_key.hex()
    if is_weak(signature.public_key):
        return Check("signature", Found.FAILED, f"by the weak key {shown}, under which anybody can sign")
    if not signature.is_over(certificate.canonical):
        return Check("signature", Found.FAILED, f"not by the key {shown} over this certificate")
    said = f"by the key {shown}; anybody can make a key: give --public-key to check whose it is"
    return Check("signature", Found.UNKNOWN, said)


def _check_signer(certificate: Certificate, expected: bytes, public_key: Path | None) -> Check:
    """Whether the signature is of the key that was given."""
    check, signature = _check_signature(certificate, required=True), certificate.signature
    if check.failed or signature is None:
        return check
    shown = signature.public_key.hex()
    if expected != signature.public_key:
        return Check("signature", Found.FAILED, f"by the key {shown}, and {public_key} holds {expected.hex()}")
    return Check("signature", Found.HOLDS, f"by the key {shown}, which is that of {public_key}")


def _check_envelope(envelope: Envelope, certificate: Certificate, expected: bytes, public_key: Path) -> list[Check]:
    """The statement must be, to the byte, that of its certificate, and signed by the key that was given."""
    whole = envelope.payload == in_toto_statement(certificate.content)
    said = "digest" if whole else "the statement is not that of its own certificate, whose digest is"
    signed = envelope.is_signed_by(expected)
    by = f"{'' if signed else 'not '}by the key {expected.hex()}, which is that of {public_key}"
    return [
        Check("certificate", Found.HOLDS if whole else Found.FAILED, f"{said} {certificate.digest}"),
        Check("signature", Found.HOLDS if signed else Found.FAILED, by),
    ]


def _check_beside(certificate: Certificate, folder: Path) -> list[Check]:
    """An envelope beside the certificate must say the same, by the same key."""
    place = folder / ENVELOPE_NAME
    if not place.is_file():
        return []
    try:
        envelope = Envelope.read(_read(place), place)
    except BadInput as error:
        return [Check("envelope", Found.FAILED, str(error))]
    if envelope.payload != in_toto_statement(certificate.content):
        return [Check("envelope", Found.FAILED, f"{place} is of another certificate")]
    if certificate.signature is None or not envelope.is_signed_by(certificate.signature.public_key):
        return [Check("envelope", Found.FAILED, f"{place} is not signed by the key of the certificate")]
    return [Check("envelope", Found.HOLDS, f"{place} says the same, by the same key")]


def _check_complete(certificate: Certificate) -> Check:
    """The list of files must name what went in and, if something was unlearned, what came out: each once."""
    content, counted = certificate.content, Counter(file.role for file in certificate.files)
    try:
        black_box = content["model"]["kind"] == "black box"
        needed = {"logits" if black_box else "model", "data", "request"}
        if content["outcome"] == UNLEARNED:
            needed.add("processor" if content["finalizer"]["name"] == "none" else "unlearned")
        elif content["outcome"] not in (NOT_UNLEARNED, NOTHING):
            return Check("files", Found.FAILED, f"nobody knows which the outcome {content['outcome']!r} has")
    except (KeyError, TypeError):
        return Check(
            "files", Found.FAILED, "the certificate does not say what came of which model, so nobody knows which"
        )
    if missing := sorted(needed - set(counted)):
        return Check("files", Found.FAILED, f"incomplete: no hash of {', '.join(missing)}, which this outcome needs")
    if doubled := [role for role, count in counted.items() if count > 1]:
        return Check("files", Found.FAILED, f"two files are said to be the {doubled[0]}")
    return Check("files", Found.HOLDS, f"complete: {', '.join(counted)}")


def _check_audit(certificate: Certificate) -> list[Check]:
    """An audit, if there is one, must be one that could have been: it cannot be repeated from the files alone."""
    if (audit := certificate.content.get("audit")) is None:
        return []
    problem = audit_problem(audit)
    return [Check("audit", Found.HOLDS if problem is None else Found.FAILED, problem or audit_in_words(audit))]


def _check_file(file: NamedFile, folder: Path, elsewhere: Path | None) -> Check:
    path = elsewhere or Path(os.path.normpath(folder / file.path))
    try:
        if not path.is_file():
            said = f"not found at {path}; say where it is with --file {file.role}=PATH"
            return Check(file.role, Found.FAILED, said)
        size, found = path.stat().st_size, file_sha256(path)
    except (OSError, ValueError) as error:
        return Check(file.role, Found.FAILED, f"{path} cannot be read ({first_line(error)})")
    if found != file.sha256:
        return Check(file.role, Found.FAILED, f"{path} has SHA-256 {found}, the certificate says {file.sha256}")
    if size != file.bytes:
        return Check(file.role, Found.FAILED, f"{path} has {size} bytes, the certificate says {file.bytes}")
    return Check(file.role, Found.HOLDS, f"{path}  SHA-256 {found}")
