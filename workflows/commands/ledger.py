"""Check the ledger of a model's requests.

Check that no entry of a ledger was changed, dropped or added, who signed them, and that its files are those of its
last request. A certificate that is shown must be one of its requests. Exit code 0: nothing speaks against it, and the
last line says what that shows; 1: something does.

unlearn ledger verify ledger --public-key signer.pem --certificate forgotten/certificate.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from workflows.commands.values import DIR, path, repeated
from workflows.display import speaker


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "unlearn ledger verify DIR [options]"
    parser.add_argument("action", choices=("verify",), help="what to do")
    parser.add_argument("ledger", **DIR, help="the folder that was --ledger in 'unlearn forget'")
    by = "its last entry, which vouches for all before it, must be signed by this key"
    parser.add_argument("--public-key", **path("PEM"), help=by)
    signed = "it must be signed, by whatever key"
    parser.add_argument("--require-signature", action="store_true", help=signed)
    known = "this certificate must be of one of its requests; may be repeated"
    parser.add_argument("--certificate", default=[], **repeated(Path, "CERTIFICATE"), help=known)


def run(arguments: argparse.Namespace, console: Console) -> int:
    from unlearn_core.forgetting.ledger_check import summarise_ledger, verify_ledger

    checks = verify_ledger(arguments.ledger, arguments.public_key, arguments.require_signature, arguments.certificate)
    say = speaker(console)
    for check in checks:
        say(f"{check.found:8} {check.what}: {check.detail}")
    say(summarise_ledger(checks))
    return int(any(check.failed for check in checks))
