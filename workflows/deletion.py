"""One deletion request on files: read them, call ``forget``, write what came of it."""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from tracking.certificate_page import certificate_page
from unlearn_core.data.datasets import holds_images
from unlearn_core.data.feature_set import load_feature_set
from unlearn_core.data.images import load_image_file
from unlearn_core.data.labelled import LabelledSet
from unlearn_core.errors import BadInput, first_line
from unlearn_core.forgetting.certificate import FILE_NAME, Certificate, NamedFile, check_private_key, sign
from unlearn_core.forgetting.forget import Forgotten, Heldout, forget, open_request
from unlearn_core.forgetting.measure import RetrainSettings
from unlearn_core.forgetting.model_files import LoadedModel, load_logits, read_weights_file
from unlearn_core.forgetting.plan import ForgetSettings
from unlearn_core.forgetting.request import read_request
from unlearn_core.grid import LabelSpace
from unlearn_core.nets.make import Blueprint, blueprint
from unlearn_core.problem import as_inputs
from unlearn_core.recipes import Stopping
from workflows.forget_words import Say, Speaker
from workflows.output_folder import OutputFolder

PAGE_NAME = "certificate.html"
PROCESSOR_NAME = "processor.npz"


@dataclass(frozen=True, eq=False)
class Files:
    """What the options name, read: the arguments of ``forget``, and where they came from."""

    given: dict[str, Any]
    data: LabelledSet
    places: dict[str, Path]
    model: LoadedModel | None

    @property
    def output_names(self) -> set[str]:
        return {FILE_NAME, PAGE_NAME, PROCESSOR_NAME, *([self.model.weights.name] if self.model else [])}


def run_request(arguments: argparse.Namespace, console: Console) -> int:
    """Check everything, forget, write; nothing is written before all of it succeeded."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    settings, retrain = _settings(arguments), _retrain_settings(arguments)
    _check_options(arguments, settings)
    if arguments.dry_run:
        files = read_files(arguments)
        speaker = _speaker(files, arguments, console, say)
        request = open_request(**files.given)
        speaker.opened(request)
        speaker.planned(request.plan(ForgetSettings(**settings)))
        say("dry run: nothing was written")
        return 0
    with OutputFolder(arguments.out, arguments.force) as output:
        files = read_files(arguments)
        _refuse_to_write_over_the_model(files, output)
        speaker = _speaker(files, arguments, console, say)

        def deliver(result: Forgotten) -> Certificate:
            if result.outcome.retrained is not None:
                speaker.retrained(result.outcome.retrained, result.outcome.plan.n_forget)
            certificate = _write(files, result, arguments, output)
            output.commit(files.output_names)
            return certificate

        result = forget(
            **files.given,
            **settings,
            max_drop=math.inf if arguments.force else arguments.max_drop,
            retrain=retrain,
            observer=speaker,
            deliver=deliver,
        )
    ledger = result.ledger
    if ledger is not None:
        say(f"ledger: {ledger.folder}, request {len(ledger.entries)}, {len(ledger.forgotten)} records forgotten in all")
    if arguments.register:
        from workflows.registration import register

        say(register(files, result, arguments))
    say(f"certificate: {arguments.out / FILE_NAME}, digest {result.certificate.digest}")
    say(f"page: {arguments.out / PAGE_NAME}")
    say(f"next: unlearn verify {arguments.out / FILE_NAME}")
    return 0


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
        "stopping": Stopping(arguments.epochs, arguments.patience),
    }


def _retrain_settings(arguments: argparse.Namespace) -> RetrainSettings | None:
    if arguments.verify_retrain is None:
        return None
    return RetrainSettings(arguments.verify_retrain, arguments.retrain_epochs, arguments.retrain_lr)


def _speaker(files: Files, arguments: argparse.Namespace, console: Console, say: Say) -> Speaker:
    return Speaker(console, say, files.data, arguments.ids, None if files.model is None else files.model.weights)


def _check_options(arguments: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Refuse at once what would be refused after minutes."""
    ForgetSettings(**settings)
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
    if math.isnan(arguments.max_drop) or arguments.max_drop == -math.inf:
        raise BadInput(f"--max-drop {arguments.max_drop} must be a number of points; 1 is the default")
    if arguments.sign is not None:
        check_private_key(arguments.sign)
    if arguments.register is not None and (not arguments.register.strip() or set(arguments.register) & set("/:")):
        raise BadInput(f"--register {arguments.register!r} is no name for MLflow; it is not empty and has no / or :")
    try:
        torch.zeros(1, device=arguments.device)
    except (RuntimeError, AssertionError) as error:
        raise BadInput(
            f"--device {arguments.device} cannot be used here ({first_line(error)}); cpu always can"
        ) from error


def read_files(arguments: argparse.Namespace) -> Files:
    """Read model, data and request as the options name them."""
    request, data = read_request(arguments.ids), _load_data(arguments.data)
    places = {"data": arguments.data, "request": arguments.ids}
    if arguments.features:
        places["features"] = arguments.features
    seen = _features(arguments, data)
    given: dict[str, Any] = {
        "forget_ids": request,
        "ids": data.ids,
        "features_from": arguments.features_from,
        "ledger": arguments.ledger,
    }
    if arguments.logits:
        logits = load_logits(arguments.logits, len(data.train_y), len(data.test_y))
        model, n_classes, network_reads = logits.train, logits.train.shape[1], (None, None)
        places, loaded, test_logits = {"logits": arguments.logits, **places}, None, logits.test
    else:
        loaded = _load_model(arguments, data)
        model, n_classes, test_logits = loaded, loaded.net.n_classes, None
        network_reads = (None, None) if arguments.features_from else (data.train_x, data.test_x)
        places = {"model": arguments.weights or Path(arguments.model), **places}
    space = _label_space(data, n_classes)
    given |= {
        "model": model,
        "features": seen[0],
        "labels": data.train_labels(space),
        "inputs": network_reads[0],
        "heldout": Heldout(seen[1], data.test_labels(space), network_reads[1], test_logits),
        "class_names": _class_names(data, space),
    }
    return Files(given, data, places, loaded)


def _load_data(path: Path) -> LabelledSet:
    if path.suffix != ".npz":
        raise BadInput(f"--data {path} must be an .npz file, of features or of images")
    return load_image_file(path) if holds_images(str(path)) else load_feature_set(path)


def _features(arguments: argparse.Namespace, data: LabelledSet) -> tuple[NDArray, NDArray]:
    """What proxies see of training and test rows: given features, or the data itself."""
    if arguments.features is None:
        if arguments.logits and data.train_x.ndim != 2:
            raise BadInput(f"{arguments.data} holds images; give features of them as --features NPZ")
        return data.train_x, data.test_x
    features = load_feature_set(arguments.features)
    for part in ("train_y", "test_y"):
        if not np.array_equal(getattr(features, part), getattr(data, part)):
            raise BadInput(
                f"{arguments.features}: {part} is not that of {data.name}; features must be of the same rows in the same "
                "order"
            )
    return features.train_x, features.test_x


def _load_model(arguments: argparse.Namespace, data: LabelledSet) -> LoadedModel:
    plan = _blueprint(arguments)
    weights = read_weights_file(arguments.weights or Path(arguments.model))
    return LoadedModel(plan.restore(weights.state, as_inputs(data.train_x[:2], arguments.device)), plan, weights)


def _blueprint(arguments: argparse.Namespace) -> Blueprint:
    if ":" in arguments.model:
        if arguments.weights is None:
            raise BadInput(f"--model {arguments.model} builds a network; give its weights as --weights FILE")
        if arguments.arch is not None:
            raise BadInput(
                f"--arch {arguments.arch} and --model {arguments.model} are two architectures; leave --arch out"
            )
        return blueprint(arguments.model)
    if arguments.arch is None:
        raise BadInput(f"--model {arguments.model} is a file of weights; say with --arch what they are of")
    if arguments.weights is not None:
        raise BadInput("--weights goes with --model PACKAGE.MODULE:FUNCTION; with --arch, --model is the weights")
    return blueprint(arguments.arch)


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
        made["unlearned"] = _write_weights(files.model, files.places["model"], result, output.staging)
    if result.outcome.processed and result.logit_processor is not None:
        made["processor"] = output.staging / PROCESSOR_NAME
        result.logit_processor.save(made["processor"])
    named = [NamedFile.of(role, path, output.out) for role, path in files.places.items()]
    named += [NamedFile.of(role, path, output.staging) for role, path in made.items()]
    certificate = result.certificate.with_files(named)
    if arguments.sign is not None:
        certificate = dataclasses.replace(certificate, signature=sign(certificate.canonical, arguments.sign))
    (output.staging / FILE_NAME).write_text(certificate.text(), encoding="ascii")
    (output.staging / PAGE_NAME).write_text(certificate_page(certificate.document()), encoding="utf-8")
    return certificate


def _write_weights(model: LoadedModel, place: Path, result: Forgotten, folder: Path) -> Path:
    """The unlearned weights, in the format that came in; those that came in, to the byte, if nothing moved."""
    if result.deployed is None:
        raise ValueError("a model that came as weights is a network")
    weights = model.weights
    state = weights.as_stored(result.deployed.state(0))
    if all(torch.equal(state[name], tensor) for name, tensor in weights.state.items()):
        return Path(shutil.copyfile(place, folder / weights.name))
    written = weights.write(folder, state)
    shutil.copymode(place, written)  # safetensors gives its files to their owner alone
    return written
