"""The options that several commands share. Light: what takes long to load is in ``selection`` and ``running``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from unlearn_core.grid import ARCHITECTURES, PAPER_DATASETS, SEEDS, Scenario
from unlearn_core.precision import Precision
from workflows.commands.values import (
    COUNT,
    DIR,
    FILE,
    PIXELS,
    at_least,
    colour,
    integers,
    list_of,
    names,
    path,
    repeated,
)

if TYPE_CHECKING:
    from unlearn_core.run_settings import RunSettings

DATASETS = "digits, cifar10, cifar100, a feature set or images in an .npz file, or a folder of images"
SCENARIOS = "class: forget a label; subclass: train on superclasses, forget a fine label; random: forget random rows"

Options = argparse._ActionsContainer
"""A parser, or a group of its options."""


def add_model(group: Options) -> None:
    """A network of the user's own."""
    add = group.add_argument
    model = (
        "weights of --arch (safetensors, a state dict or checkpoint; .npz or .skops of a scikit-learn classifier), or "
        "timm:NAME or hf:FOLDER (a transformers image classifier), never downloaded, or "
        "PACKAGE.MODULE:FUNCTION that builds a torch.nn.Module whose output is its logits: it is imported and run, so "
        "that it must be code that you trust"
    )
    add("--model", metavar="M", help=model)
    add("--arch", choices=ARCHITECTURES, help="the network of the weights (default: for a head, what their shapes say)")
    add("--weights", **FILE, help="weights of timm:NAME, hf:FOLDER or of the module that FUNCTION builds")


def add_training_data(group: Options, required: bool = True) -> None:
    """What that network was trained on, and what proxies see of it."""
    add, npz = group.add_argument, path("NPZ")
    arrays = (
        "train_x or train_images, train_y, and optionally test_x or test_images, test_y, without which nothing is said of "
        "held-out rows, ids, superclass, class_names"
    )
    add("--data", required=required, **npz, help=f"what the model was trained on: {arrays}")
    layer = "let proxies see this layer of the model, such as penultimate (default: the data itself)"
    add("--features-from", metavar="LAYER", help=layer)
    features = "let proxies see these features of the same rows, such as 'unlearn features' writes"
    add("--features", **npz, help=features)


def add_wait(add: Callable[..., object]) -> None:
    wait = "seconds to wait for a ledger that another request is using"
    add("--wait", default=600, type=at_least(0), metavar="SECONDS", help=wait)


def add_out(parser: Options, default: str, what: str = "the output folder of the grid") -> None:
    parser.add_argument("--out", default=Path(default), **DIR, help=what)


def add_selection(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "which part of the grid", "Separate values by commas, or repeat the option."
    ).add_argument
    default = ",".join(PAPER_DATASETS)
    add("--dataset", **repeated(names, "D,D"), help=f"data sets: {DATASETS} (default: {default})")
    add("--features", **FILE, help="train heads on this feature set (.npz) instead of --dataset")
    networks = f"networks: {', '.join(ARCHITECTURES)} (default: all of the paper's that the data allows)"
    add("--arch", **repeated(list_of(ARCHITECTURES), "A,A"), help=networks)
    forgotten = f"what to forget. {SCENARIOS} (default: all three)"
    add("--scenario", **repeated(list_of(tuple(Scenario)), "S,S"), help=forgotten)
    keys = "labels to forget; for random, numbers of rows (default: the paper's)"
    add("--key", **repeated(integers, "K,K"), help=keys)


def add_data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "images and backbones", "A backbone is a frozen network that makes features of images."
    ).add_argument
    add("--data-root", default=Path("data"), **DIR, help="look for CIFAR and weights here")
    add("--download", action="store_true", help="download data sets and weights that are missing")
    add("--image-size", **PIXELS, help="resize a folder's images to this side; needed if their sizes differ")
    backbones = "dinov2-small, or a classifier of timm or torchvision such as timm/vit_base_patch16_224"
    add("--backbone", default="dinov2-small", metavar="NAME", help=backbones)
    add("--weights", **FILE, help="its weights: safetensors or a state dict (default: those in --data-root)")
    add("--resolution", **PIXELS, help="resize images to this for it (default: its own)")
    add("--interpolation", choices=("bicubic", "bilinear"), help="how to resize (default: its own)")
    add("--mean", type=colour, metavar="R,G,B", help="subtract this from colours in [0, 1] (default: its own)")
    add("--std", type=colour, metavar="R,G,B", help="then divide by this (default: its own)")
    add("--half", action="store_true", help="store features as float16, not float32")
    add("--shard-images", default=1024, **COUNT, help="images per step: what an interruption costs at most")


def add_resnet(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "ResNets", "Proxies see a random projection, or sketch, of one of its layers."
    ).add_argument
    add(
        "--resnet-weights",
        default="imagenet",
        metavar="W",
        help="start resnet18 from these: imagenet, random or a file",
    )
    add(
        "--resnet-size",
        default=64,
        **PIXELS,
        help="resize images to this for resnet18; resnet8 sees 32 x 32, and starts from random weights",
    )
    add("--sketch-layer", default="layer3", metavar="NAME", help="sketch this layer")
    add("--sketch-dim", default=512, **COUNT, help="to this many dimensions")


def add_running(parser: argparse.ArgumentParser, out: str) -> None:
    """What ``run`` and ``grid`` share: all but which variants."""
    add_out(parser, out, "write steps, results, figures and the MLflow database here")
    add_data(parser)
    add_resnet(parser)
    add_settings(parser)
    add_machine(parser)
    add_tracking(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    from unlearn_core import methods
    from unlearn_core.methods import PRESETS
    from unlearn_core.run_settings import FINALIZERS, SCHEDULES, DirOnTest
    from unlearn_core.tuned import TUNED

    group = parser.add_argument_group(
        "methods and settings",
        "A proxy is a simple model of the features; it predicts how the network's outputs change when records are "
        "forgotten. Baselines train the network further.",
    )
    add, paper = group.add_argument, methods.paper_methods()
    others = ", ".join(name for name in methods.names() if name not in paper)
    families = {"proxies": methods.proxies(), "edits": methods.edits(), "baselines": methods.baselines()}
    known = "; ".join(f"{family}: {', '.join(names)}" for family, names in families.items())
    chosen = f"{known}; or all, or paper (default: the paper's {len(paper)}, all but {others})"
    groups = {"all": methods.names(), "paper": paper}
    add("--methods", **repeated(list_of(methods.names(), groups), "M,M"), help=chosen)
    seeds = f"run every variant with each of these (default: {','.join(map(str, SEEDS))})"
    add("--seeds", **repeated(integers, "S,S"), help=seeds)
    presets = (
        "run baselines as the paper does, or as their authors published them; tuned: run every method as 'unlearn tune' "
        "found it best, as in paper if it was not tuned"
    )
    add("--preset", default="paper", choices=(*PRESETS, TUNED), help=presets)
    add_proxy_settings(group)
    finalizers = (
        "write a proxy's change into the network by distillation (kl) or by least squares on its last layer (mse), or "
        "leave the network alone and correct its outputs (none)"
    )
    add("--finalizer", default="kl", choices=FINALIZERS, help=finalizers)
    schedules = "request: distil as 'unlearn forget' does, with its stopping rule"
    add("--schedule", default="grid", choices=SCHEDULES, help=schedules)
    tested = "the target rows of dir and dir-2c: treat test points as the base network does, or those of the forgotten "
    tested += "class as forgotten"
    add("--dir-on-test", default=DirOnTest.BASE.value, choices=[str(choice) for choice in DirOnTest], help=tested)
    numbers = (
        "arithmetic of networks on GPUs: tf32 rounds factors to 10 bits, bf16 runs ResNets in bfloat16 and heads in "
        "float32; results are kept apart"
    )
    add("--precision", default=Precision.FLOAT32.value, choices=[str(choice) for choice in Precision], help=numbers)
    add(
        "--epochs",
        **COUNT,
        help="train base, retrain and floor this long (default: 50, for resnet18 20, for resnet8 25)",
    )


def add_proxy_settings(group: Options) -> None:
    from unlearn_core.run_settings import SHRINKAGES

    add = group.add_argument
    add("--ridge", default=1e-3, type=float, help="regularise the proxies' covariances this much")
    add("--shrinkage", default="ridge", choices=SHRINKAGES, help="how to regularise them")
    cap = "largest eta, the factor on the change that a proxy predicts; inf: no limit (default: 1, for probe 32)"
    add("--cap", type=float, help=cap)


def add_machine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("where to run").add_argument
    cluster = (
        "join the Ray cluster whose head is at HOST:PORT; auto, inside a Ray job: its own (default: start a local Ray, if "
        "that pays)"
    )
    add("--address", metavar="A", help=cluster)
    add("--workers", **COUNT, help="start this many, on Ray in any case (default: one per CPU, or four per GPU)")
    share = "such as 0.25; also asks an autoscaler for GPUs (default: an equal share of the cluster's)"
    add("--gpus-per-worker", type=float, metavar="G", help=share)
    add("--local", action="store_true", help="run in this process, without Ray: the same results")
    add("--device", default="cpu", help="with --local: train networks here, such as cuda:0")
    reproducible = "on GPUs, use reproducible kernels only; CPUs are always reproducible"
    add("--deterministic", action="store_true", help=reproducible)


def add_tracking(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("MLflow")
    add_tracking_uri(group)
    group.add_argument("--no-tracking", action="store_true", help="do not write to it; 'unlearn sync' can do so later")


def add_tracking_uri(parser: Options) -> None:
    place = "MLflow server or database (default: an SQLite file in --out)"
    parser.add_argument("--tracking-uri", metavar="URI", help=place)


def settings_of(arguments: argparse.Namespace) -> RunSettings:
    """What ``add_settings`` asked for."""
    from unlearn_core.run_settings import DirOnTest, ProxySettings, RunSettings

    proxy = ProxySettings(
        arguments.ridge, arguments.shrinkage, arguments.cap, arguments.finalizer, DirOnTest(arguments.dir_on_test)
    )
    precision = Precision(arguments.precision)
    return RunSettings(arguments.epochs, arguments.preset, proxy, arguments.schedule, precision=precision)
