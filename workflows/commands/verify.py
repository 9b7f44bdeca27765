"""Check a certificate, its signature and the files it names.

Check that a certificate is unchanged, who signed it, and that the model, the data and the request are the files it
names. Exit code 0: everything holds; 1: something does not.

unlearn verify forgotten/certificate.json --public-key signer.pem
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from workflows.commands.values import path, repeated
from workflows.display import speaker


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "unlearn verify CERTIFICATE [options]"
    parser.add_argument("certificate", **path("CERTIFICATE"), help="the certificate.json of a request")
    place = "look for a file here, such as data=features.npz; may be repeated (default: where it was)"
    parser.add_argument("--file", default=[], **repeated(_role_and_path, "ROLE=PATH"), help=place)
    parser.add_argument("--public-key", **path("PEM"), help="also check that the signature is of this key")


def run(arguments: argparse.Namespace, console: Console) -> int:
    from unlearn_core.forgetting.certificate import verify_certificate

    say = speaker(console)
    checks = verify_certificate(arguments.certificate, dict(arguments.file), arguments.public_key)
    for check in checks:
        say(f"{'ok    ' if check.passed else 'FAILED'} {check.what}: {check.detail}")
    failed = sum(not check.passed for check in checks)
    say(f"{failed} of {len(checks)} checks failed" if failed else f"verified: all {len(checks)} checks hold")
    return 1 if failed else 0


def _role_and_path(text: str) -> tuple[str, Path]:
    role, equals, path = text.partition("=")
    if not equals or not role or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROLE=PATH, such as data=features.npz")
    return role, Path(path)
