"""The certificate as an in-toto statement in a DSSE envelope, which other tools verify without knowing our form.

https://github.com/secure-systems-lab/dsse and https://github.com/in-toto/attestation: the statement's subjects are the files
with their SHA-256, its predicate is the certificate's content; the signature is Ed25519 over the encoding that DSSE signs.
It is written beside certificate.json if a certificate is signed, and says the same.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearn_core.errors import BadInput, first_line
from unlearn_core.forgetting.keys import Signature, sign

ENVELOPE_NAME = "certificate.dsse.json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:unlearn-grid:certificate:v1"


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """PAE: what a DSSE signature is over."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def in_toto_statement(content: Mapping[str, Any]) -> bytes:
    """The in-toto statement of a certificate's content, keys sorted, no spaces, ASCII."""
    subjects = [{"name": file["path"], "digest": {"sha256": file["sha256"]}} for file in content["files"]]
    document = {
        "_type": STATEMENT_TYPE,
        "subject": subjects,
        "predicateType": PREDICATE_TYPE,
        "predicate": content,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def is_envelope(document: Any) -> bool:
    return isinstance(document, dict) and "payloadType" in document


def key_id(public_key: bytes) -> str:
    """A hint to which key it was: the SHA-256 of its raw bytes."""
    return hashlib.sha256(public_key).hexdigest()


def envelope_text(content: Mapping[str, Any], key_file: Path) -> str:
    """The envelope of a certificate's content, signed with the private key in a PEM file."""
    payload = in_toto_statement(content)
    signature = sign(pre_authentication_encoding(PAYLOAD_TYPE, payload), key_file)
    document = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [
            {"keyid": key_id(signature.public_key), "sig": base64.b64encode(signature.value).decode()},
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def _decoded(text: str) -> bytes:
    """Base64, standard or for addresses: DSSE has a verifier take both."""
    return base64.b64decode(text.translate(str.maketrans("-_", "+/")), validate=True)


@dataclass(frozen=True)
class Envelope:
    """The payload, and raw signatures over its encoding; none of it is checked."""

    payload: bytes
    signatures: tuple[bytes, ...]

    @staticmethod
    def read(text: bytes, path: Path) -> Envelope:
        try:
            document = json.loads(text)
            if document["payloadType"] != PAYLOAD_TYPE:
                raise ValueError(f"payloadType is {document['payloadType']!r}")
            return Envelope(
                _decoded(document["payload"]), tuple(_decoded(one["sig"]) for one in document["signatures"])
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            said = f"{type(error).__name__}: {first_line(error)}"
            raise BadInput(f"{path} is no DSSE envelope of an in-toto statement ({said}); it may be damaged") from error

    def is_signed_by(self, public_key: bytes) -> bool:
        encoded = pre_authentication_encoding(PAYLOAD_TYPE, self.payload)
        return any(Signature(public_key, value).is_over(encoded) for value in self.signatures)
