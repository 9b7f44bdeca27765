"""The certificate as a document: its digest, its signature, and whether both and the files that it names still match.

Nothing here imports torch, and numpy only to hash arrays: a certificate is verified in a moment, also on a machine that
cannot load the model. Signatures are Ed25519, with keys in PEM files as ``openssl genpkey -algorithm ed25519`` makes them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearn_core.errors import BadInput, first_line
from unlearn_core.records import without_nonfinite

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from numpy.typing import NDArray

    from unlearn_core.nets.stack import State

FORMAT = "unlearn-certificate"
VERSION = 1
FILE_NAME = "certificate.json"
SIGNATURE_ALGORITHM = "Ed25519"
MAKE_KEY = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"


@dataclass(frozen=True)
class NamedFile:
    """A file that a certificate names; ``path`` is relative to the certificate's folder."""

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
class Signature:
    """Raw bytes of the public key (32) and of the signature (64)."""

    public_key: bytes
    value: bytes

    def entry(self) -> dict[str, str]:
        return {"algorithm": SIGNATURE_ALGORITHM, "public_key": self.public_key.hex(), "value": self.value.hex()}

    @staticmethod
    def from_entry(entry: dict[str, Any]) -> Signature:
        return Signature(bytes.fromhex(entry["public_key"]), bytes.fromhex(entry["value"]))


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
        return [NamedFile(**entry) for entry in self.content["files"]]

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
    if not path.is_file():
        raise BadInput(f"no certificate at {path}; 'unlearn forget' writes {FILE_NAME} into its --out")
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


@dataclass(frozen=True)
class Check:
    """One thing that was verified, or not."""

    what: str
    passed: bool
    detail: str


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
    checks = [_check_document(path, certificate), _check_signature(certificate, public_key)]
    return checks + [_check_file(file, path.parent, elsewhere.get(file.role)) for file in files]


def _check_document(path: Path, certificate: Certificate) -> Check:
    """The file must be, to the byte, what this certificate is written as; that includes its digest."""
    if path.read_bytes() == certificate.text().encode("ascii"):
        return Check("certificate", True, f"digest {certificate.digest}")
    return Check("certificate", False, f"the text does not match its digest: the content's is {certificate.digest}")


def _check_signature(certificate: Certificate, public_key: Path | None) -> Check:
    """A missing signature passes unless one is expected."""
    expected = None if public_key is None else _read_public_key(public_key)
    signature = certificate.signature
    if signature is None:
        if expected is None:
            return Check("signature", True, "none: the digest shows accidents, a signature would show forgeries")
        return Check("signature", False, f"none, and one by the key of {public_key} is expected")
    # loaded only when there is something to check
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    shown = signature.public_key.hex()
    try:
        Ed25519PublicKey.from_public_bytes(signature.public_key).verify(signature.value, certificate.canonical)
    except (InvalidSignature, ValueError):
        return Check("signature", False, f"not by the key {shown} over this certificate")
    if expected is not None and expected != signature.public_key:
        return Check("signature", False, f"by the key {shown}, and {public_key} holds {expected.hex()}")
    known = f", which is that of {public_key}" if expected else "; give --public-key to check whose that is"
    return Check("signature", True, f"by the key {shown}{known}")


def _check_file(file: NamedFile, folder: Path, elsewhere: Path | None) -> Check:
    path = elsewhere or Path(os.path.normpath(folder / file.path))
    if not path.is_file():
        return Check(file.role, False, f"not found at {path}; say where it is with --file {file.role}=PATH")
    found = file_sha256(path)
    if found != file.sha256:
        return Check(file.role, False, f"{path} has SHA-256 {found}, the certificate says {file.sha256}")
    return Check(file.role, True, f"{path}  SHA-256 {found}")


def sign(message: bytes, key_file: Path) -> Signature:
    """Sign with the private key in a PEM file that has no password."""
    key = _read_private_key(key_file)
    return Signature(key.public_key().public_bytes_raw(), key.sign(message))


def check_private_key(key_file: Path) -> None:
    """Refuse now what ``sign`` would refuse after all the work."""
    _read_private_key(key_file)


def _read_private_key(key_file: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not key_file.is_file():
        raise BadInput(f"no key at {key_file}; {MAKE_KEY}")
    try:
        key = load_pem_private_key(key_file.read_bytes(), password=None)
    except (ValueError, TypeError) as error:  # TypeError: the key has a password
        raise BadInput(
            f"{key_file} holds no private key without a password ({first_line(error)}); {MAKE_KEY}"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(f"{key_file} holds no {SIGNATURE_ALGORITHM} key but a {type(key).__name__}; {MAKE_KEY}")
    return key


def _read_public_key(key_file: Path) -> bytes:
    """The raw public key of a PEM file that holds it, or the private key that it belongs to."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if not key_file.is_file():
        raise BadInput(f"no key at {key_file}; give the signer's public key as PEM")
    content = key_file.read_bytes()
    if b"PRIVATE" in content:
        return _read_private_key(key_file).public_key().public_bytes_raw()
    try:
        key = load_pem_public_key(content)
    except ValueError as error:
        raise BadInput(f"{key_file} is no public key in PEM; openssl pkey -in key.pem -pubout writes one") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadInput(f"{key_file} holds no {SIGNATURE_ALGORITHM} key but a {type(key).__name__}")
    return key.public_bytes_raw()
