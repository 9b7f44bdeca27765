"""One deletion request, from options to files."""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tracking.certificate_page import certificate_page
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.carry_out import carry_out
from unlearn_core.forgetting.certificate import FILE_NAME, Certificate, NamedFile
from unlearn_core.forgetting.content import Described, Outcome, make_certificate
from unlearn_core.forgetting.ledger import Identity, NewRows, new_rows
from unlearn_core.forgetting.plan import Plan
from unlearn_core.forgetting.processor_file import save_processor
from unlearn_core.forgetting.request import read_request
from unlearn_core.forgetting.retrain import RetrainSettings, check_by_retraining
from unlearn_core.forgetting.sequence import plan_request, record
from unlearn_core.forgetting.settings import ForgetSettings, Stopping
from unlearn_core.forgetting.signing import check_private_key, sign
from unlearn_core.forgetting.weights_file import WeightsFile
from unlearn_core.spec import HEAD_UNLEARNING
from workflows.forget_case import Case, open_case
from workflows.forget_words import Say, say_case, say_outcome, say_plan, say_request, say_retrain
from workflows.output_folder import OutputFolder

PAGE_NAME = "certificate.html"
PROCESSOR_NAME = "processor.npz"


def carry_out_request(arguments: argparse.Namespace, console: Console) -> int:
    """Check everything, plan, carry out, certify, write; nothing is written before all of it succeeded."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    settings = _settings(arguments)
    _check_options(arguments)
    if arguments.dry_run:
        _make_plan(arguments, settings, console, say)
        say("dry run: nothing was written")
        return 0
    with OutputFolder(arguments.out, arguments.force) as output:
        case, rows, plan = _make_plan(arguments, settings, console, say)
        _refuse_to_write_over_the_model(case, output)
        default = HEAD_UNLEARNING if case.blueprint is None else case.blueprint.unlearning
        outcome = carry_out(plan, default, case.last, case.as_stored)
        say_outcome(outcome, say)
        if outcome.measured.drop > arguments.max_drop and not arguments.force:
            raise BadInput(
                f"retained accuracy fell by {outcome.measured.drop:.2f} points, beyond --max-drop "
                f"{arguments.max_drop:g}; try another --proxy or --finalizer, or write the model all the same with "
                "--force"
            )
        retrain = _retrain(arguments, case, outcome, say)
        history = case.ledger.history() if case.ledger else []
        described = Described.of(rows, case.kind, case.class_names)
        certificate = make_certificate(outcome, described, retrain, history)
        certificate = _write(case, outcome, certificate, arguments, output)
        output.commit(_output_names(case))
    if case.ledger is not None:
        ledger = record(case.ledger, Identity.of(plan.subject), outcome, rows, certificate, case.last)
        say(f"ledger: {ledger.folder}, request {len(ledger.entries)}, {len(ledger.forgotten)} records forgotten in all")
    if arguments.register:
        from workflows.registration import register

        say(register(case, outcome, arguments))
    say(f"certificate: {arguments.out / FILE_NAME}, digest {certificate.digest}")
    say(f"page: {arguments.out / PAGE_NAME}")
    say(f"next: unlearn verify {arguments.out / FILE_NAME}")
    return 0


def _settings(arguments: argparse.Namespace) -> ForgetSettings:
    return ForgetSettings(
        proxy=arguments.proxy,
        finalizer=arguments.finalizer or ("none" if arguments.logits else "kl"),
        ridge=arguments.ridge,
        shrinkage=arguments.shrinkage,
        cap=arguments.cap,
        seed=arguments.seed,
        lr=arguments.lr,
        batch_size=arguments.batch_size,
        stopping=Stopping(arguments.epochs, arguments.patience),
    )


def _check_options(arguments: argparse.Namespace) -> None:
    """Refuse at once what would be refused after minutes."""
    if (arguments.model is None) == (arguments.logits is None):
        raise BadInput("give the model as --model, or the logits of a black box as --logits: one of the two")
    if arguments.features and arguments.features_from:
        raise BadInput("--features and --features-from both say what proxies see; give one of the two")
    if arguments.logits:
        if arguments.finalizer not in (None, "none"):
            raise BadInput(f"--finalizer {arguments.finalizer} needs the network's weights; a black box takes none")
        if arguments.verify_retrain or arguments.features_from:
            option = "--verify-retrain" if arguments.verify_retrain else "--features-from"
            raise BadInput(f"{option} needs the network; of a black box only logits are known")
    if not (math.isfinite(arguments.max_drop) or arguments.max_drop == math.inf):
        raise BadInput(f"--max-drop {arguments.max_drop} must be a number of points; 1 is the default")
    _retrain_settings(arguments)
    if arguments.sign is not None:
        check_private_key(arguments.sign)
    if arguments.register is not None and (not arguments.register.strip() or set(arguments.register) & set("/:")):
        raise BadInput(f"--register {arguments.register!r} is no name for MLflow; it is not empty and has no / or :")
    try:
        torch.zeros(1, device=arguments.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"--device {arguments.device} cannot be used here ({reason}); cpu always can") from error


def _make_plan(
    arguments: argparse.Namespace, settings: ForgetSettings, console: Console, say: Say
) -> tuple[Case, NewRows, Plan]:
    request = read_request(arguments.ids)
    case = open_case(arguments)
    rows = new_rows(request, len(case.data.train_y), case.data.ids, case.ledger.forgotten if case.ledger else ())
    say_case(case, say)
    say_request(rows, case.data, arguments.ids, say)
    plan = plan_request(case.subject, rows, settings, case.ledger)
    say_plan(plan, console, say)
    return case, rows, plan


def _refuse_to_write_over_the_model(case: Case, output: OutputFolder) -> None:
    for place in case.files.values():
        if place.absolute().parent.resolve() == output.out.resolve() and place.name in _output_names(case):
            raise BadInput(f"--out {output.out} holds {place.name}, which it would write over; name another --out")


def _output_names(case: Case) -> set[str]:
    return {FILE_NAME, PAGE_NAME, PROCESSOR_NAME, *([case.weights.name] if case.weights else [])}


def _write(
    case: Case, outcome: Outcome, certificate: Certificate, arguments: argparse.Namespace, output: OutputFolder
) -> Certificate:
    """The files of a request, and the certificate as it was written."""
    made: dict[str, Path] = {}
    if case.weights is not None:
        made["unlearned"] = _write_weights(case, case.weights, outcome, output.staging)
    processor = outcome.plan.logit_processor
    if outcome.processed and processor is not None:
        made["processor"] = output.staging / PROCESSOR_NAME
        save_processor(made["processor"], processor)
    files = [NamedFile.of(role, path, output.out) for role, path in case.files.items()]
    files += [NamedFile.of(role, path, output.staging) for role, path in made.items()]
    certificate = certificate.with_files(files)
    if arguments.sign is not None:
        certificate = dataclasses.replace(certificate, signature=sign(certificate.canonical, arguments.sign))
    (output.staging / FILE_NAME).write_text(certificate.text(), encoding="ascii")
    (output.staging / PAGE_NAME).write_text(certificate_page(certificate.document()), encoding="utf-8")
    return certificate


def _write_weights(case: Case, weights: WeightsFile, outcome: Outcome, folder: Path) -> Path:
    """The unlearned weights, in the format that came in; those that came in, to the byte, where nothing moved."""
    deployed = outcome.deployed(case.last)
    if deployed is None:
        raise ValueError("a model that came as weights is a network")
    state = weights.as_stored(deployed.state(0))
    if all(torch.equal(state[name], tensor) for name, tensor in weights.state.items()):
        return Path(shutil.copyfile(case.files["model"], folder / weights.name))
    written = weights.write(folder, state)
    shutil.copymode(case.files["model"], written)  # safetensors gives its files to their owner alone
    return written


def _retrain(arguments: argparse.Namespace, case: Case, outcome: Outcome, say: Say) -> dict[str, Any] | None:
    how = _retrain_settings(arguments)
    if how is None or case.blueprint is None:
        return None
    say(f"retraining from scratch, {2 * how.pairs} times")
    checks, optimization, epochs = check_by_retraining(outcome.plan, outcome.posteriors, case.blueprint, how)
    say_retrain(checks, outcome.plan.n_forget, say)
    entries = [check.entry(outcome.plan.n_forget) for check in checks]
    return {"optimization": dataclasses.asdict(optimization), "epochs": epochs, "checks": entries}


def _retrain_settings(arguments: argparse.Namespace) -> RetrainSettings | None:
    if arguments.verify_retrain is None:
        return None
    return RetrainSettings(arguments.verify_retrain, arguments.retrain_epochs, arguments.retrain_lr)
