"""Ed25519 signatures with keys in PEM files, as ``openssl genpkey -algorithm ed25519`` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearn_core.errors import BadInput

ALGORITHM = "Ed25519"
MAKE_KEY = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"


@dataclass(frozen=True)
class Signature:
    """Raw bytes of the public key (32) and of the signature (64)."""

    public_key: bytes
    value: bytes

    def entry(self) -> dict[str, str]:
        return {"algorithm": ALGORITHM, "public_key": self.public_key.hex(), "value": self.value.hex()}

    @staticmethod
    def from_entry(entry: dict[str, Any]) -> Signature:
        return Signature(bytes.fromhex(entry["public_key"]), bytes.fromhex(entry["value"]))


def sign(message: bytes, key_file: Path) -> Signature:
    """Sign with the private key in a PEM file that has no password."""
    key = _private_key(key_file)
    return Signature(key.public_key().public_bytes_raw(), key.sign(message))


def check_private_key(key_file: Path) -> None:
    """Refuse now what ``sign`` would refuse after all the work."""
    _private_key(key_file)


def check_signature(message: bytes, signature: Signature | None, public_key: Path | None) -> tuple[bool, str]:
    """Whether it holds, and what to say of it; no signature holds unless one is expected."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    expected = None if public_key is None else _public_key(public_key)
    if signature is None:
        if expected is None:
            return True, "none: the digest shows accidents, a signature would show forgeries"
        return False, f"none, and one by the key of {public_key} is expected"
    shown = signature.public_key.hex()
    try:
        Ed25519PublicKey.from_public_bytes(signature.public_key).verify(signature.value, message)
    except (InvalidSignature, ValueError):
        return False, f"not by the key {shown} over this certificate"
    if expected is not None and expected != signature.public_key:
        return False, f"by the key {shown}, and {public_key} holds {expected.hex()}"
    known = f", which is that of {public_key}" if expected else "; give --public-key to check whose that is"
    return True, f"by the key {shown}{known}"


def _private_key(key_file: Path):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not key_file.is_file():
        raise BadInput(f"no key at {key_file}; {MAKE_KEY}")
    try:
        key = load_pem_private_key(key_file.read_bytes(), password=None)
    except (ValueError, TypeError) as error:  # TypeError: the key has a password
        reason = (str(error).splitlines() or [""])[0]
        raise BadInput(f"{key_file} holds no private key without a password ({reason}); {MAKE_KEY}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(f"{key_file} holds no {ALGORITHM} key but a {type(key).__name__}; {MAKE_KEY}")
    return key


def _public_key(key_file: Path) -> bytes:
    """The raw public key of a PEM file that holds it, or the private key that it belongs to."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if not key_file.is_file():
        raise BadInput(f"no key at {key_file}; give the signer's public key as PEM")
    content = key_file.read_bytes()
    if b"PRIVATE" in content:
        return _private_key(key_file).public_key().public_bytes_raw()
    try:
        key = load_pem_public_key(content)
    except ValueError as error:
        raise BadInput(f"{key_file} is no public key in PEM; openssl pkey -in key.pem -pubout writes one") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadInput(f"{key_file} holds no {ALGORITHM} key but a {type(key).__name__}")
    return key.public_bytes_raw()
