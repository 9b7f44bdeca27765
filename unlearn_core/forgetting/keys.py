"""Ed25519 keys in PEM files, as ``openssl genpkey -algorithm ed25519`` makes them, and what is signed with them.

A key may have a password: it is taken from the environment, or asked for at a terminal, once.
"""

from __future__ import annotations

import functools
import getpass
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearn_core.errors import BadInput, first_line

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNATURE_ALGORITHM = "Ed25519"
MAKE_KEY = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"
PASSWORD = "UNLEARN_KEY_PASSWORD"
MAX_KEY_BYTES = 1 << 20

FIELD = 2**255 - 19
_Y_OF_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
LOW_ORDER_Y: frozenset[int] = frozenset({0, 1, FIELD - 1, _Y_OF_ORDER_8, FIELD - _Y_OF_ORDER_8})
"""y of the eight points whose order divides 8: under such a key anybody can sign, without a private key."""


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

    def is_over(self, message: bytes) -> bool:
        # loaded only when there is something to check
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(self.value, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def is_weak(public_key: bytes) -> bool:
    """Whether a raw public key is a point of low order, or not written as points are."""
    y = int.from_bytes(public_key, "little") & (2**255 - 1)
    return len(public_key) != 32 or y >= FIELD or y in LOW_ORDER_Y


def sign(message: bytes, key_file: Path) -> Signature:
    """Sign with the private key in a PEM file."""
    key = _read_private_key(key_file)
    return Signature(key.public_key().public_bytes_raw(), key.sign(message))


def check_private_key(key_file: Path) -> None:
    """Refuse now what ``sign`` would refuse after all the work."""
    _read_private_key(key_file)


def read_public_key(key_file: Path) -> bytes:
    """The raw public key of a PEM file that holds it, or the private key that it belongs to."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content = _read(key_file, "give the signer's public key as PEM")
    if b"PRIVATE" in content:
        return _read_private_key(key_file).public_key().public_bytes_raw()
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{key_file} is no public key in PEM; openssl pkey -in key.pem -pubout writes one") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadInput(f"{key_file} holds no {SIGNATURE_ALGORITHM} key but a {type(key).__name__}")
    raw = key.public_bytes_raw()
    if is_weak(raw):
        raise BadInput(f"{key_file} holds a weak key, under which anybody can sign; {MAKE_KEY}")
    return raw


def _read_private_key(key_file: Path) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = _read(key_file, MAKE_KEY)
    try:
        try:
            key = load_pem_private_key(content, password=None)
        except TypeError:  # the key has a password
            key = load_pem_private_key(content, _password(key_file))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"{key_file} holds no private key that can be read ({first_line(error)}); a password is taken from {PASSWORD}"
            f"; {MAKE_KEY}"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(f"{key_file} holds no {SIGNATURE_ALGORITHM} key but a {type(key).__name__}; {MAKE_KEY}")
    return key


def _read(key_file: Path, remedy: str) -> bytes:
    if not key_file.is_file():
        raise BadInput(f"no key at {key_file}; {remedy}")
    if key_file.stat().st_size > MAX_KEY_BYTES:
        raise BadInput(f"{key_file} is too large for a key; {remedy}")
    return key_file.read_bytes()


def _password(key_file: Path) -> bytes:
    if given := os.environ.get(PASSWORD):
        return os.fsencode(given)
    if not sys.stdin.isatty():
        raise BadInput(f"{key_file} has a password; put it into the environment as {PASSWORD}, or run at a terminal")
    return _asked_password(key_file.resolve())


@functools.cache
def _asked_password(key_file: Path) -> bytes:
    """Asked for once, though the key is read before the work and after it."""
    return getpass.getpass(f"password of {key_file}: ").encode()
