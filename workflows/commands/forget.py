"""Make a model of your own forget records and certify it.

Make a classifier forget training records, without retraining it, and certify what was done. Give the model's weights,
or only its logits, and the features and labels it was trained on. Nothing is written unless all of it succeeds. With a
ledger, the same command given again finishes what was interrupted.

unlearn forget --model classifier.safetensors --arch mlp1 --data features.npz --ids request.csv --out forgotten
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from unlearn_core.auto import AUTO, DEFAULT_BUDGET
from unlearn_core.recipes import Stopping
from workflows.commands import options
from workflows.commands.values import COUNT, DIR, at_least, path, repeated, share

NPZ = path("NPZ")


def add_options(parser: argparse.ArgumentParser) -> None:
    from unlearn_core import methods
    from unlearn_core.run_settings import FINALIZERS

    parser.usage = (
        "unlearn forget (--model M --data NPZ | --logits NPZ --data NPZ | --plan TOML) --ids FILE ... [options]"
    )
    group = parser.add_argument_group("the model, as weights or as logits")
    options.add_model(group)
    add = group.add_argument
    logits = "outputs of a black box, train_logits (N, C) and test_logits: makes a logit processor, which corrects them"
    add("--logits", **NPZ, help=logits)

    group = parser.add_argument_group("data and request")
    options.add_training_data(group, required=False)
    add = group.add_argument
    ids = "the records to forget: ids or row numbers in a CSV, JSON lines or text file; with --ledger also several "
    ids += "requests, repeated or as a folder of files, each with its entry and, in a folder of --out, its certificate"
    add("--ids", required=True, **repeated(Path, "FILE"), help=ids)
    state = "start from what 'unlearn prepare' made of this model and these data: a request then takes a moment"
    add("--prepared", **DIR, help=state)
    add("--check-prepared", action="store_true", help="read all of it and of the data again, and compare hashes")
    add("--ledger", **DIR, help="remember here what was forgotten, and continue earlier requests")
    options.add_wait(add)
    trust = "with --sign: sign on top of a ledger whose last entry is not signed by this key"
    add("--trust-ledger", action="store_true", help=trust)

    add = parser.add_argument_group("many models, one subject").add_argument
    plan = "forget the same records in each model of this TOML file: a table per model with its options; --out is a folder "
    add("--plan", **path("TOML"), help=plan + "with one of each, and a summary. Rerun it to resume")
    add("--local", action="store_true", help="with --plan: one model after the other, without Ray")
    add("--address", help="with --plan: join this Ray cluster (default: start a local Ray and stop it)")
    add("--workers", **COUNT, help="with --plan: start this many (default: one per CPU)")

    group = parser.add_argument_group(
        "how to forget",
        "A proxy is a simple model of the features; it predicts how the model's outputs change when the records are "
        "forgotten. Distillation writes that change into the weights. newton and truncate change the weights in one step; "
        "short trains anew on what is left, and not for long.",
    )
    add = group.add_argument
    chosen = "the method to use; auto: what fits this request best: with --prepared by its kind, else among proxies"
    known = (AUTO, *methods.proxies(), *methods.edits(), *methods.cut_short())
    add(
        "--method",
        "--proxy",
        dest="proxy",
        default=AUTO,
        choices=known,
        metavar="METHOD",
        help=f"{chosen} ({', '.join(known)})",
    )
    spend = "with --prepared, auto chooses what is closest within this share of a retrain's cost, such as 1%% or 0.01"
    add("--budget", default=DEFAULT_BUDGET, type=share, metavar="SHARE", help=f"{spend} (default: {DEFAULT_BUDGET})")
    finalizers = (
        "distil (kl), least squares on the last layer (mse), or write a logit processor and leave the weights (none)"
    )
    add("--finalizer", choices=FINALIZERS, help=f"{finalizers} (default: kl, for a black box none)")
    options.add_proxy_settings(group)
    add("--seed", default=0, type=at_least(0), help="draws row orders and held-out rows")
    add("--epochs", default=Stopping.epochs, **COUNT, help="distil for at most this many")
    patience = "stop after this many epochs without a gain on held-out rows"
    add("--patience", default=Stopping.patience, **COUNT, help=patience)
    add("--lr", type=float, help="learning rate (default: tries 1e-3, 1e-4, 1e-5 while each improves)")
    add("--batch-size", **COUNT, help="rows per update (default: by the size of the request)")
    add("--device", default="cpu", help="compute here, such as cuda:0")

    add = parser.add_argument_group("checks").add_argument
    add("--dry-run", action="store_true", help="say what would be done, and write nothing")
    drop = (
        "refuse a model that loses more retained accuracy, in percentage points; of one that was trained anew, accuracy on "
        "held-out rows"
    )
    add("--max-drop", default=1.0, type=float, metavar="POINTS", help=drop)
    retrain = (
        "also retrain from scratch N times, or once, each time with a second retrain as the floor, and certify the "
    )
    add("--verify-retrain", nargs="?", const=1, **COUNT, help=retrain + "distance (default: no retrain)")
    audit = (
        "also train N networks with the records and N without, unlearn the former in the same way, and certify whether "
    )
    audit += "an attacker can tell them apart; takes about 2 N trainings, and N is at least 8 (default: no audit)"
    add("--audit", **COUNT, help=audit)
    add("--retrain-epochs", **COUNT, help="train all of those this long (default: 50, for resnet18 20, for resnet8 25)")
    add(
        "--retrain-lr",
        type=float,
        metavar="LR",
        help="at this learning rate (default: 1e-3, for resnet18 1e-4, for resnet8 3e-3)",
    )

    group = parser.add_argument_group("output")
    options.add_out(group, "forgotten", "write weights and certificate here")
    force = "overwrite an earlier certificate; write in spite of --max-drop, and what is certified as not unlearned"
    group.add_argument("--force", action="store_true", help=force)
    signed = "sign the certificate, and the ledger's entry, with this Ed25519 private key"
    group.add_argument("--sign", **path("PEM"), help=signed)
    group.add_argument("--register", metavar="NAME", help="register the unlearned model in MLflow, ready to be served")
    options.add_tracking_uri(group)


def run(arguments: argparse.Namespace, console: Console) -> int:
    from unlearn_core.errors import BadInput

    requests: list[Path] = arguments.ids
    arguments.ids = requests[0]
    if len(requests) > 1 or (arguments.ids.is_dir() and arguments.ledger is not None):
        from workflows.batch import run_batch

        return run_batch(requests, arguments, console)
    if arguments.plan is not None:
        from workflows.many_models import OF_THE_PLAN, run_many

        options = _options()
        for name, action in options.items():
            if name not in OF_THE_PLAN and getattr(arguments, action.dest) != action.default:
                raise BadInput(
                    f"--plan names models and their data, and their options: leave --{name} out, or write it into the "
                    "tables of the plan"
                )
        return run_many(arguments, console, list(options))
    if arguments.data is None:
        raise BadInput("give what the model was trained on as --data NPZ")
    from unlearn_core.arithmetic import arithmetic
    from workflows.deletion import run_request

    with arithmetic():
        return run_request(arguments, console)


def _options() -> dict[str, argparse.Action]:
    """The options by their names, without their dashes."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    return {name[2:]: action for action in parser._actions for name in action.option_strings if name.startswith("--")}
