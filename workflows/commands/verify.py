"""Check a certificate, its signature and the files it names.

Check that a certificate is unchanged, who signed it, that the model, the data and the request are the files it names,
and that its page shows what it says. Exit code 0: nothing speaks against it, and the last line says what that shows;
1: something does.

unlearn verify forgotten/certificate.json --public-key signer.pem
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from unlearn_core.errors import BadInput, printable
from workflows.commands.values import path, repeated, role_and_path
from workflows.display import speaker

if TYPE_CHECKING:
    from unlearn_core.forgetting.certificate import Certificate, Check

PACKAGE = "unlearn-grid"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "unlearn verify CERTIFICATE [options]"
    what = "the certificate.json of a request, or its certificate.dsse.json"
    parser.add_argument("certificate", **path("CERTIFICATE"), help=what)
    place = "look for a file here, such as data=features.npz; may be repeated (default: where it was)"
    parser.add_argument("--file", default=[], **repeated(role_and_path, "ROLE=PATH"), help=place)
    parser.add_argument("--public-key", **path("PEM"), help="the signature must be there and of this key")
    signed = "the signature must be there, of whatever key"
    parser.add_argument("--require-signature", action="store_true", help=signed)
    again = "also measure accuracies and KL again from the files; builds the model, so code that it names runs"
    parser.add_argument("--remeasure", action="store_true", help=again)
    parser.add_argument("--page", **path("FILE.html"), help="also write the certificate as a page here")


def run(arguments: argparse.Namespace, console: Console) -> int:
    from unlearn_core.forgetting.certificate import read_certificate, summarise, verify_certificate
    from unlearn_core.forgetting.envelope import ENVELOPE_NAME

    if arguments.page is not None and arguments.page.exists():
        raise BadInput(f"{arguments.page} exists already; name another --page")
    checks = verify_certificate(
        arguments.certificate, dict(arguments.file), arguments.public_key, arguments.require_signature
    )
    certificate = read_certificate(arguments.certificate)
    if arguments.certificate.name != ENVELOPE_NAME:
        checks += _check_page(certificate, arguments.certificate.parent)
    if arguments.remeasure and not any(check.failed for check in checks):
        checks += _remeasure(certificate, arguments.certificate.parent, dict(arguments.file))
    say = speaker(console)
    for check in checks:
        say(printable(f"{check.found:8} {check.what}: {check.detail}"))
    if arguments.page is not None:
        arguments.page.write_text(_page(certificate), encoding="utf-8")
        say(f"page: {arguments.page}")
    say(printable(f"it says: {certificate.content.get('outcome')}"))
    say(summarise(checks))
    return int(any(check.failed for check in checks))


def _remeasure(certificate: Certificate, folder: Path, elsewhere: Mapping[str, Path]) -> list[Check]:
    from workflows.remeasure import remeasure

    files = {file.role: elsewhere.get(file.role, folder / file.path) for file in certificate.files}
    try:
        return remeasure(certificate.content, files)
    except (KeyError, TypeError) as error:
        raise BadInput(f"the certificate lacks what is measured ({type(error).__name__}: {error})") from error


def _page(certificate: Certificate) -> str:
    from tracking.certificate_page import certificate_page

    try:
        return certificate_page(certificate.document())
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadInput(f"the certificate lacks what a page shows ({type(error).__name__}: {error})") from error


def _check_page(certificate: Certificate, folder: Path) -> list[Check]:
    """A page beside the certificate must be what the certificate looks like, if this version of the software made both."""
    from unlearn_core.forgetting.certificate import PAGE_NAME, Check, Found

    place = folder / PAGE_NAME
    if not place.is_file():
        return []
    made = certificate.content.get("made")
    software = made.get("software") if isinstance(made, dict) else None
    ours = isinstance(software, dict) and software.get(PACKAGE) == _installed_version()
    try:
        same = place.read_bytes() == _page(certificate).encode()
    except (BadInput, UnicodeError):
        same = False
    if same:
        return [Check("page", Found.HOLDS, f"{place} shows this certificate")]
    anew = "rely on certificate.json alone, or draw it anew with --page FILE.html"
    if ours:
        return [Check("page", Found.FAILED, f"{place} is not what this certificate looks like; {anew}")]
    return [Check("page", Found.UNKNOWN, f"{place} was drawn by another version; {anew}")]


def _installed_version() -> str | None:
    from importlib import metadata

    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None
