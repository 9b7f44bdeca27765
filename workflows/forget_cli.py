"""The options of ``unlearn forget`` and ``unlearn verify``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from unlearn_core.finalizers import FINALIZERS
from unlearn_core.forgetting.settings import AUTO, NAMED_PROXIES, SHRINKAGES, Stopping
from unlearn_core.spec import ARCHITECTURES

AddCommand = Callable[[str, str, str, str], argparse.ArgumentParser]
"""Name, summary, description, example."""


def add_forget_commands(command: AddCommand) -> None:
    _add_forget(
        command(
            "forget",
            "unlearn records of your own model and write a certificate",
            "Make a classifier forget training records: choose a proxy, write its target into the weights, and "
            "certify what "
            "was done. Needs the data's features and labels and the model, or only its logits; no retraining.",
            "unlearn forget --model classifier.safetensors --arch mlp1 --data features.npz --ids request.csv --out "
            "forgotten",
        )
    )
    verify = command(
        "verify",
        "check a certificate, its signature and the files it names",
        "Check that a certificate is as it was written, who signed it, and that model, data and request are the "
        "files that it "
        "speaks of. Exit code 0: all of it holds; 1: something does not.",
        "unlearn verify forgotten/certificate.json --public-key signer.pem",
    )
    verify.add_argument("certificate", type=Path, metavar="CERTIFICATE", help="the certificate.json of a request")
    verify.add_argument(
        "--file",
        action="append",
        default=[],
        type=_role_and_path,
        metavar="ROLE=PATH",
        help="where a file lies now, such as data=features.npz; by default where it lay",
    )
    verify.add_argument("--public-key", type=Path, metavar="PEM", help="whose signature it must be")


def _add_forget(forget: argparse.ArgumentParser) -> None:
    model = forget.add_argument_group("the model, one of")
    model.add_argument(
        "--model",
        metavar="M",
        help="weights of --arch (safetensors or a state dict), or PACKAGE.MODULE:FUNCTION that builds a torch.nn.Module "
        "whose output is its logits",
    )
    model.add_argument("--arch", choices=ARCHITECTURES, help="what the weights are of")
    model.add_argument("--weights", type=Path, metavar="FILE", help="weights of the module that FUNCTION builds")
    model.add_argument(
        "--logits",
        type=Path,
        metavar="NPZ",
        help="of a black box, train_logits (N, C) and test_logits: a logit processor comes out",
    )
    data = forget.add_argument_group("data and request")
    data.add_argument(
        "--data",
        required=True,
        type=Path,
        metavar="NPZ",
        help="what the model was trained on: train_x or train_images, train_y, test_x or test_images, test_y, and "
        "optionally ids, superclass, class_names",
    )
    data.add_argument(
        "--ids",
        required=True,
        type=Path,
        metavar="FILE",
        help="the request: a CSV, JSON lines or text of ids or row numbers",
    )
    data.add_argument(
        "--features-from",
        metavar="LAYER",
        help="proxies see this layer of the model, such as penultimate; not the data",
    )
    data.add_argument(
        "--features",
        type=Path,
        metavar="NPZ",
        help="proxies see these features of the same rows, such as 'unlearn features' writes",
    )
    data.add_argument("--ledger", type=Path, metavar="DIR", help="remembers earlier requests on this model")
    how = forget.add_argument_group("how")
    how.add_argument(
        "--proxy", default=AUTO, choices=(AUTO, *NAMED_PROXIES), help="which model of the data predicts the change"
    )
    how.add_argument(
        "--finalizer",
        choices=FINALIZERS,
        help="distil, least squares, or logit processor; by default kl, and none for a black box",
    )
    how.add_argument("--ridge", default=1e-3, type=float, help="regularisation of the proxies' covariances")
    how.add_argument("--shrinkage", default="ridge", choices=SHRINKAGES, help="its kind")
    how.add_argument("--cap", type=float, help="largest eta, inf for no limit; by default the paper's 1, for probe 32")
    how.add_argument("--seed", default=0, type=_count, help="of row orders and held-out rows")
    how.add_argument("--epochs", default=Stopping.epochs, type=_positive, help="of the distillation, at most")
    how.add_argument(
        "--patience",
        default=Stopping.patience,
        type=_positive,
        help="epochs without a gain on held-out rows that end it",
    )
    how.add_argument("--lr", type=float, help="of the distillation; by default 1e-3 and what is better of its tenths")
    how.add_argument("--batch-size", type=_positive, help="of the distillation; by default by the size of the request")
    how.add_argument("--device", default="cpu", help="such as cuda:0")
    checks = forget.add_argument_group("checks")
    checks.add_argument("--dry-run", action="store_true", help="say what would be done, and write nothing")
    checks.add_argument(
        "--max-drop",
        default=1.0,
        type=float,
        metavar="POINTS",
        help="refuse to write a model that loses more retained accuracy",
    )
    checks.add_argument(
        "--verify-retrain",
        nargs="?",
        const=1,
        type=_positive,
        metavar="N",
        help="also retrain from scratch N times (default 1), each with a second one for the floor, and certify the distance",
    )
    checks.add_argument("--retrain-epochs", type=_positive, metavar="E", help="by default 50, for resnet18 20")
    checks.add_argument("--retrain-lr", type=float, metavar="LR", help="by default 1e-3, for resnet18 1e-4")
    output = forget.add_argument_group("output")
    output.add_argument("--out", default=Path("forgotten"), type=Path, metavar="DIR", help="weights and certificate")
    output.add_argument(
        "--force", action="store_true", help="write over an earlier certificate, and in spite of --max-drop"
    )
    output.add_argument("--sign", type=Path, metavar="PEM", help="sign with this Ed25519 private key")
    output.add_argument("--register", metavar="NAME", help="register the unlearned model in MLflow, ready to be served")
    output.add_argument("--tracking-uri", help="MLflow server or database; by default sqlite below --out")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least 1")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least 0")
    return int(text)


def _role_and_path(text: str) -> tuple[str, Path]:
    role, equals, path = text.partition("=")
    if not equals or not role or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROLE=PATH, such as data=features.npz")
    return role, Path(path)
