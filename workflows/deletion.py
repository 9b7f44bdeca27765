"""One deletion request on files: read them, call ``forget``, write what came of it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from tracking.certificate_page import certificate_page
from unlearn_core.data.datasets import holds_images
from unlearn_core.data.feature_set import FeatureSet, load_feature_set
from unlearn_core.data.images import ImageSet, load_image_file
from unlearn_core.data.labelled import LabelledSet
from unlearn_core.errors import BadInput, first_line
from unlearn_core.forgetting.certificate import (
    FILE_NAME,
    NOT_UNLEARNED,
    NOTHING,
    UNLEARNED,
    Certificate,
    NamedFile,
    check_private_key,
    file_sha256,
    read_certificate,
    sign,
)
from unlearn_core.forgetting.envelope import ENVELOPE_NAME, envelope_text
from unlearn_core.forgetting.forget import Forgotten, forget
from unlearn_core.forgetting.ledger import Entry, HeldLedger, Ledger, hold_ledger
from unlearn_core.forgetting.measure import RetrainSettings
from unlearn_core.forgetting.model_files import LoadedModel, load_logits, load_model
from unlearn_core.forgetting.open_request import open_request
from unlearn_core.forgetting.opening import Heldout
from unlearn_core.forgetting.plan import ForgetSettings
from unlearn_core.forgetting.request import read_request
from unlearn_core.forgetting.shadows import AuditSettings
from unlearn_core.forgetting.state import PreparedState, open_state
from unlearn_core.grid import LabelSpace
from unlearn_core.nets.make import Blueprint, blueprint
from unlearn_core.problem import as_inputs
from unlearn_core.recipes import Stopping
from workflows.forget_words import Say, Speaker, how_to_keep
from workflows.output_folder import OutputFolder, hold_output, request_in, settle

PAGE_NAME = "certificate.html"
PROCESSOR_NAME = "processor.npz"
EXIT_NOT_UNLEARNED = 1
ROLES = {UNLEARNED: "unlearned", NOT_UNLEARNED: "attempted", NOTHING: "unchanged"}
"""What the weights that are written are called, by what came of the request."""


@dataclass(frozen=True, eq=False)
class Files:
    """What the options name, read: the arguments of ``forget``, and where they came from."""

    given: dict[str, Any]
    data: LabelledSet
    places: dict[str, Path]
    model: LoadedModel | None

    @property
    def output_names(self) -> set[str]:
        return {FILE_NAME, PAGE_NAME, ENVELOPE_NAME, PROCESSOR_NAME, *([self.model.weights.name] if self.model else [])}


def run_request(arguments: argparse.Namespace, console: Console) -> int:
    """Check everything, forget, write; nothing is written before all of it succeeded. Given again, it goes on."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    settings, checks = _settings(arguments), _checks(arguments)
    _check_options(arguments, settings)
    if arguments.dry_run:
        files = read_files(arguments)
        speaker = _speaker(files, arguments, console, say)
        request = open_request(**files.given, method=arguments.proxy)
        speaker.opened(request)
        speaker.planned(request.plan(ForgetSettings(**settings)))
        if (audit := checks["audit"]) is not None:
            speaker.auditing(audit)
        say("dry run: nothing was written")
        return 0
    with contextlib.ExitStack() as held:
        ledger = None
        if arguments.ledger is not None:
            ledger = held.enter_context(hold_ledger(arguments.ledger, arguments.wait, say))
        held.enter_context(hold_output(arguments.out))
        if ledger is not None and (done := _answered_before(arguments, ledger)) is not None:
            say(f"this is request {done.number} of {arguments.ledger}, and {arguments.out} has what came of it")
            code = 0
        else:
            result = _answer(arguments, settings, checks, ledger, console, say)
            if result.withheld is not None:
                say(f"{NOT_UNLEARNED}, nothing was written: {result.withheld}")
                return EXIT_NOT_UNLEARNED
            code = EXIT_NOT_UNLEARNED if result.outcome.judgement.failed else 0
            if (book := result.ledger) is not None:
                now = f"request {len(book.entries)}, {len(book.forgotten)} records forgotten in all"
                say(f"ledger: {book.folder}, {now}")
    certificate = arguments.out / FILE_NAME
    if arguments.register:
        from workflows.registration import register

        say(register(certificate, arguments.register, arguments.tracking_uri))
    say(f"certificate: {certificate}, digest {read_certificate(certificate).digest}")
    say(f"page: {arguments.out / PAGE_NAME}")
    say(f"next: unlearn verify {certificate}")
    return code


def _answer(
    arguments: argparse.Namespace,
    settings: dict[str, Any],
    checks: dict[str, Any],
    ledger: HeldLedger | None,
    console: Console,
    say: Say,
) -> Forgotten:
    """Forget. The files are in place when this returns; with a ledger, the request counts from its entry on."""
    with OutputFolder(arguments.out, arguments.force, None if ledger is None else ledger.folder) as output:
        files = read_files(arguments)
        _refuse_to_write_over_the_model(files, output)
        speaker = _speaker(files, arguments, console, say)

        def deliver(result: Forgotten) -> Certificate:
            if result.outcome.retrained is not None:
                speaker.retrained(result.outcome.retrained, result.outcome.plan.n_forget)
            certificate = _write(files, result, arguments, output)
            output.announce(1 if result.ledger is None else len(result.ledger.entries) + 1, certificate.digest)
            return certificate

        result = forget(
            **files.given | {"ledger": ledger},
            **settings,
            ledger_key=arguments.sign,
            trust_ledger=arguments.trust_ledger,
            max_drop=math.inf if arguments.force else arguments.max_drop,
            force=arguments.force,
            **checks,
            observer=speaker,
            deliver=deliver,
        )
        if result.withheld is None:
            output.commit(files.output_names)
    return result


def _answered_before(arguments: argparse.Namespace, held: HeldLedger) -> Entry | None:
    """The ledger's entry of this very request, if its files are in ``--out``: finished now, or done before.

    What an interrupted request left is finished or undone first. The certificate of another request is not written over.
    """
    ledger = Ledger.read(held.folder)
    settle(ledger, arguments.out)
    if (found := request_in(arguments.out, ledger)) is None:
        return None
    entry, certificate = found
    known = {file.role: file.sha256 for file in certificate.files}
    given = {
        "request": arguments.ids,
        "data": arguments.data,
        "logits": arguments.logits,
        "features": arguments.features,
    }
    same = all(known.get(role) == _sha256(place) for role, place in given.items())
    if arguments.model is not None:
        weights = arguments.weights or Path(arguments.model.removeprefix("hf:"))
        same &= _sha256(weights / "model.safetensors" if weights.is_dir() else weights) in known.values()
    if same:
        return entry
    raise BadInput(
        f"{arguments.out} holds the certificate of request {entry.number} of {arguments.ledger}, which was another one and "
        "is not written over; name another --out"
    )


def _sha256(path: Path | None) -> str | None:
    return file_sha256(path) if path is not None and path.is_file() else None


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "proxy": arguments.proxy,
        "finalizer": arguments.finalizer or ("none" if arguments.logits else "kl"),
        "ridge": arguments.ridge,
        "shrinkage": arguments.shrinkage,
        "cap": arguments.cap,
        "seed": arguments.seed,
        "lr": arguments.lr,
        "batch_size": arguments.batch_size,
        "budget": arguments.budget,
        "stopping": Stopping(arguments.epochs, arguments.patience),
    }


def _checks(arguments: argparse.Namespace) -> dict[str, Any]:
    """What is trained anew to see how good it is."""
    pairs, shadows = arguments.verify_retrain, arguments.audit
    training = {"epochs": arguments.retrain_epochs, "lr": arguments.retrain_lr}
    return {
        "retrain": None if pairs is None else RetrainSettings(pairs=pairs, **training),
        "audit": None if shadows is None else AuditSettings(shadows=shadows, **training),
    }


def _speaker(files: Files, arguments: argparse.Namespace, console: Console, say: Say) -> Speaker:
    return Speaker(console, say, files.data, arguments.ids, files.model, how_to_keep(arguments))


def _check_options(arguments: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Refuse at once what would be refused after minutes."""
    chosen = ForgetSettings(**settings)
    if (arguments.model is None) == (arguments.logits is None):
        raise BadInput("give the model as --model, or the logits of a black box as --logits: one of the two")
    if arguments.features and arguments.features_from:
        raise BadInput("--features and --features-from both say what proxies see; give one of the two")
    if arguments.logits:
        if arguments.finalizer not in (None, "none"):
            raise BadInput(f"--finalizer {arguments.finalizer} needs the network's weights; a black box takes none")
        for option in ("verify_retrain", "audit", "features_from"):
            if getattr(arguments, option):
                name = option.replace("_", "-")
                raise BadInput(f"--{name} needs the network; of a black box only logits are known")
    if arguments.audit is not None:
        AuditSettings.check(chosen)
    if arguments.check_prepared and arguments.prepared is None:
        raise BadInput("--check-prepared reads a prepared state again; name it with --prepared")
    if math.isnan(arguments.max_drop) or arguments.max_drop == -math.inf:
        raise BadInput(f"--max-drop {arguments.max_drop} must be a number of points; 1 is the default")
    if arguments.sign is not None:
        check_private_key(arguments.sign)
    if arguments.register is not None:
        from workflows.registration import check_name

        check_name(arguments.register, "--register")
    check_device(arguments.device)


def check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BadInput(f"--device {device} cannot be used here ({first_line(error)}); cpu always can") from error


def read_files(arguments: argparse.Namespace) -> Files:
    """Read model, data and request as the options name them; with a prepared state, data that it knows are only mapped."""
    request = read_request(arguments.ids)
    state = None if arguments.prepared is None else open_state(arguments.prepared)
    if state is not None and arguments.check_prepared:
        state.check()
    data = load_data(arguments.data) if state is None else _map_data(arguments.data, state)
    given: dict[str, Any] = {"forget_ids": request, "ids": data.ids, "ledger": arguments.ledger, "prepared": state}
    if arguments.logits:
        logits = load_logits(arguments.logits, len(data.train_y), len(data.test_y) if data.has_test else None)
        seen, space = _features(arguments, data, state), _label_space(data, logits.train.shape[1])
        given |= {
            "model": logits.train,
            "features": seen[0],
            "labels": data.train_labels(space),
            "heldout": Heldout(seen[1], data.test_labels(space), None, logits.test) if data.has_test else None,
            "class_names": _class_names(data, space),
        }
        places = {"logits": arguments.logits, "data": arguments.data}
        if arguments.features:
            places["features"] = arguments.features
        return Files(given, data, places | {"request": arguments.ids}, None)
    more, places, loaded = read_model_and_data(arguments, data, state)
    return Files(given | more, data, places | {"request": arguments.ids}, loaded)


def read_model_and_data(
    arguments: argparse.Namespace, data: LabelledSet, state: PreparedState | None = None
) -> tuple[dict[str, Any], dict[str, Path], LoadedModel]:
    """The arguments that ``forget`` and ``prepare`` share, the files behind them, and the model."""
    loaded, seen = _load_model(arguments, data), _features(arguments, data, state)
    network_reads = (None, None) if arguments.features_from else (data.train_x, data.test_x)
    space = _label_space(data, loaded.net.n_classes)
    given = {
        "model": loaded,
        "features": seen[0],
        "labels": data.train_labels(space),
        "inputs": network_reads[0],
        "features_from": arguments.features_from,
        "heldout": Heldout(seen[1], data.test_labels(space), network_reads[1]) if data.has_test else None,
        "class_names": _class_names(data, space),
    }
    places = {"model": arguments.weights or Path(arguments.model), "data": arguments.data}
    if arguments.features:
        places["features"] = arguments.features
    return given, places, loaded


def load_data(path: Path) -> LabelledSet:
    if path.suffix != ".npz":
        raise BadInput(f"--data {path} must be an .npz file, of features or of images")
    load = load_image_file if holds_images(str(path)) else load_feature_set
    return load(path, needs_test=False)


def _map_data(path: Path, state: PreparedState) -> LabelledSet:
    """Data that was checked when it was prepared; whatever has changed since is refused."""
    if not path.is_file() or state.known(path) is None:
        raise BadInput(
            f"{path} is not, or no longer, what {state.folder} was prepared of; prepare it again, or leave --prepared out"
        )
    kind = ImageSet if holds_images(str(path)) else FeatureSet
    return kind.mapped(path.stem, path)


def _features(arguments: argparse.Namespace, data: LabelledSet, state: PreparedState | None) -> tuple[NDArray, NDArray]:
    """What proxies see of training and test rows: given features, or the data itself."""
    if arguments.features is None:
        if arguments.logits and data.train_x.ndim != 2:
            raise BadInput(f"{arguments.data} holds images; give features of them as --features NPZ")
        return data.train_x, data.test_x
    if state is not None:
        features = _map_data(arguments.features, state)
        return features.train_x, features.test_x
    features = load_feature_set(arguments.features, needs_test=data.has_test)
    for part in ("train_y", "test_y") if data.has_test else ("train_y",):
        if not np.array_equal(getattr(features, part), getattr(data, part)):
            raise BadInput(
                f"{arguments.features}: {part} is not that of {data.name}; features must be of the same rows in the same "
                "order"
            )
    return features.train_x, features.test_x


def _load_model(arguments: argparse.Namespace, data: LabelledSet) -> LoadedModel:
    plan = _blueprint(arguments)
    return load_model(arguments.weights or Path(arguments.model), plan, as_inputs(data.train_x[:2], arguments.device))


def _blueprint(arguments: argparse.Namespace) -> Blueprint | None:
    """What the weights are of; None: a head, which follows from their shapes."""
    if ":" in arguments.model:
        if arguments.weights is None and arguments.model.startswith("hf:"):
            arguments.weights = Path(arguments.model.removeprefix("hf:"), "model.safetensors")
        if arguments.weights is None:
            raise BadInput(f"--model {arguments.model} builds a network; give its weights as --weights FILE")
        if arguments.arch is not None:
            raise BadInput(
                f"--arch {arguments.arch} and --model {arguments.model} are two architectures; leave --arch out"
            )
        return blueprint(arguments.model)
    if arguments.weights is not None:
        raise BadInput("--weights goes with --model PACKAGE.MODULE:FUNCTION; with --arch, --model is the weights")
    return None if arguments.arch is None else blueprint(arguments.arch)


def _label_space(data: LabelledSet, n_classes: int) -> LabelSpace:
    """What the model predicts: as many classes as it has outputs."""
    if n_classes == data.n_fine:
        return LabelSpace.FINE
    if data.superclass is not None and n_classes == data.n_classes(LabelSpace.SUPERCLASS):
        return LabelSpace.SUPERCLASS
    supers = "" if data.superclass is None else f" and {data.n_classes(LabelSpace.SUPERCLASS)} superclasses"
    raise BadInput(
        f"the model has {n_classes} classes and the data {data.n_fine}{supers}; give the labels that it was trained on"
    )


def _class_names(data: LabelledSet, space: LabelSpace) -> tuple[str, ...]:
    if space is LabelSpace.FINE:
        return data.class_names
    return tuple(f"superclass {c}" for c in range(data.n_classes(space)))


def _refuse_to_write_over_the_model(files: Files, output: OutputFolder) -> None:
    for place in files.places.values():
        if place.absolute().parent.resolve() == output.out.resolve() and place.name in files.output_names:
            raise BadInput(f"--out {output.out} holds {place.name}, which it would write over; name another --out")


def _write(files: Files, result: Forgotten, arguments: argparse.Namespace, output: OutputFolder) -> Certificate:
    """The files of a request, and the certificate as it was written."""
    made: dict[str, Path] = {}
    if files.model is not None:
        if result.deployed is None:
            raise ValueError("a model that came as weights is a network")
        role = "base" if result.outcome.processed else ROLES[result.outcome.judgement.outcome]
        # a processor goes around the base, which after earlier requests need not be the model that was given
        if role != "base" or not files.model.holds(result.deployed):
            made[role] = files.model.write(output.staging, result.deployed)
    if result.outcome.processed and result.logit_processor is not None:
        made["processor"] = output.staging / PROCESSOR_NAME
        result.logit_processor.save(made["processor"])
    state: PreparedState | None = files.given["prepared"]
    named = [
        NamedFile.of(role, path, output.out, None if state is None else state.known(path))
        for role, path in files.places.items()
    ]
    named += [NamedFile.of(role, path, output.staging) for role, path in made.items()]
    certificate = result.certificate.with_files(named)
    if arguments.sign is not None:
        certificate = dataclasses.replace(certificate, signature=sign(certificate.canonical, arguments.sign))
        (output.staging / ENVELOPE_NAME).write_text(
            envelope_text(certificate.content, arguments.sign), encoding="ascii"
        )
    (output.staging / FILE_NAME).write_text(certificate.text(), encoding="ascii")
    (output.staging / PAGE_NAME).write_text(certificate_page(certificate.document()), encoding="utf-8")
    return certificate
