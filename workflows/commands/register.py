"""Register in MLflow what a request has made.

Register the unlearned model of a certificate, or its logit processor, ready to be served, as 'unlearn forget
--register' does at the end of a request. The certificate and all of its files must hold. A name gets each certificate
once: given again, the command says which version it is.

unlearn register forgotten/certificate.json --name classifier
"""

from __future__ import annotations

import argparse

from rich.console import Console

from workflows.commands.values import path, repeated, role_and_path
from workflows.display import speaker


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "unlearn register CERTIFICATE --name NAME [options]"
    parser.add_argument("certificate", **path("CERTIFICATE"), help="the certificate.json of a request")
    parser.add_argument("--name", required=True, help="of the model in MLflow; it gets a new version")
    place = "look for a file here, such as data=features.npz; may be repeated (default: where it was)"
    parser.add_argument("--file", default=[], **repeated(role_and_path, "ROLE=PATH"), help=place)
    uri = "MLflow server or database (default: an SQLite file beside the certificate)"
    parser.add_argument("--tracking-uri", metavar="URI", help=uri)


def run(arguments: argparse.Namespace, console: Console) -> int:
    from workflows.registration import check_name, register

    check_name(arguments.name, "--name")
    said = register(arguments.certificate, arguments.name, arguments.tracking_uri, dict(arguments.file))
    speaker(console)(said)
    return 0
