"""The command line: ``unlearn``, or ``python -m workflows``."""

from __future__ import annotations

import argparse
import difflib
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from unlearn_core.errors import BadInput
from unlearn_core.spec import (
    ARCHITECTURES,
    METHODS,
    SEEDS,
    DirOnTest,
    ProxySettings,
    RunSettings,
    Scenario,
    Variant,
)

if TYPE_CHECKING:
    from unlearn_core.data.feature_set import FeatureSet

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 done, 2 bad input (one line says what and how to mend it)."""
    console = make_console()
    arguments = build_parser().parse_args(argv)
    try:
        arguments.command(arguments, console)
    except BadInput as error:
        Console(stderr=True).print(f"unlearn: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(EXIT_BAD_INPUT)
    except KeyboardInterrupt:
        Console(stderr=True).print("unlearn: interrupted; nothing of this run was written")
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


def make_console() -> Console:
    """A terminal keeps its width; a log gets room for the widest table."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unlearn",
        description="Machine unlearning by closed-form proxies, beside six gradient baselines and a retrain.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run one variant: base, retrain, floor and all methods, over several seeds",
        description="Run one variant and print its benchmark table. With no option: digits, mlp1, subclass 0.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog="example: unlearn run --dataset features.npz --scenario class --key 3 --methods lda-2c,ft --seeds 0,1",
    )
    run.set_defaults(command=run_command)
    what = run.add_argument_group("what to run")
    what.add_argument("--dataset", default="digits", help="a name (digits) or the path of a feature set (.npz)")
    what.add_argument(
        "--arch", default="mlp1", type=_one_of(ARCHITECTURES), metavar="ARCH", help=", ".join(ARCHITECTURES)
    )
    what.add_argument(
        "--scenario",
        default="subclass",
        type=_one_of(tuple(Scenario)),
        metavar="SCENARIO",
        help="class: forget a label; subclass: train on superclasses, forget a fine label; random: forget rows",
    )
    what.add_argument("--key", default=0, type=int, help="the label to forget, or for random the number of rows")
    what.add_argument("--methods", default=METHODS, type=_list_of(METHODS), metavar="M,M", help=", ".join(METHODS))
    what.add_argument("--seeds", default=SEEDS, type=_seeds, metavar="S,S", help="whole numbers")
    how = run.add_argument_group("how")
    how.add_argument("--preset", default="paper", choices=("paper", "original"), help="settings of the baselines")
    how.add_argument("--ridge", default=1e-3, type=float, help="regularisation of the proxies' covariances")
    how.add_argument("--shrinkage", default="ridge", choices=("ridge", "ledoit-wolf", "oas"), help="its kind")
    how.add_argument("--cap", default=1.0, type=float, help="largest eta; 1 as in the paper, inf for no limit")
    how.add_argument(
        "--finalizer", default="kl", choices=("kl", "mse", "none"), help="distil, least squares, or logit processor"
    )
    how.add_argument(
        "--dir-on-test",
        default=DirOnTest.BASE.value,
        choices=[str(choice) for choice in DirOnTest],
        help="what dir and dir-2c say of test points, for their target rows",
    )
    how.add_argument("--epochs", default=50, type=int, help="training epochs of base, retrain and floor")
    how.add_argument("--threads", default=1, type=int, help="CPU threads; another number changes the last digits")
    how.add_argument("--device", default="cpu", help="where networks train, such as cpu or cuda:0")
    run.add_argument("--out", default=Path("runs/latest"), type=Path, help="where the results tree is written")
    return parser


def run_command(arguments: argparse.Namespace, console: Console) -> None:
    """``unlearn run``."""
    settings = _settings(arguments)
    console.print(f"loading {arguments.dataset}", highlight=False)
    # torch takes a second to load: not before the arguments are known to be good
    from unlearn_core.data import load_dataset

    features = load_dataset(arguments.dataset)
    variant = Variant(features.name, arguments.arch, Scenario(arguments.scenario), arguments.key)
    _run_and_report(features, variant, arguments, settings, console)


def _run_and_report(
    features: FeatureSet, variant: Variant, arguments: argparse.Namespace, settings: RunSettings, console: Console
) -> None:
    import torch
    from threadpoolctl import threadpool_limits

    from tracking.figures import write_evolution
    from tracking.results_tree import read_entries, write_cells
    from tracking.tables import benchmark, render
    from unlearn_core.references import ROLES
    from workflows.progress import step_progress
    from workflows.variant import run_variant

    _check_device(arguments.device)
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    n_steps = len(ROLES) + len(arguments.methods)
    with threadpool_limits(arguments.threads), step_progress(console, str(variant), n_steps) as on_step:
        cells = run_variant(features, variant, arguments.seeds, arguments.methods, settings, on_step, arguments.device)
    path = write_cells(arguments.out / "results", variant, features.backbone, cells)
    entries = [
        e for e in read_entries(arguments.out / "results", variant, features.backbone) if e["seed"] in arguments.seeds
    ]
    table = benchmark(entries)
    console.print(render(table, variant, len(entries)))
    for note in table.notes:
        console.print(note, highlight=False)
    figures = write_evolution(arguments.out / "figures", entries, variant)
    console.print(f"{time.perf_counter() - started:.1f} s", highlight=False)
    for what, where in (("results", path), ("figure", figures[-1])):
        console.print(f"{what}: {where}", highlight=False, soft_wrap=True)


def _settings(arguments: argparse.Namespace) -> RunSettings:
    for name in ("epochs", "threads"):
        if getattr(arguments, name) < 1:
            raise BadInput(f"--{name} {getattr(arguments, name)} must be at least 1")
    if not (arguments.ridge >= 0 and math.isfinite(arguments.ridge)):
        raise BadInput(f"--ridge {arguments.ridge} must be a number of at least 0; 1e-3 is the default")
    if not arguments.cap > 0:
        raise BadInput(f"--cap {arguments.cap} must be positive; 1 is the paper's")
    return RunSettings(
        training_epochs=arguments.epochs,
        preset=arguments.preset,
        proxy=ProxySettings(
            ridge=arguments.ridge,
            shrinkage=arguments.shrinkage,
            cap=arguments.cap,
            finalizer=arguments.finalizer,
            dir_on_test=DirOnTest(arguments.dir_on_test),
        ),
    )


def _check_device(device: str) -> None:
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"--device {device} cannot be used here ({reason}); cpu always can") from error


def _one_of(known: Sequence[str]):
    def parse(text: str) -> str:
        if text in known:
            return text
        near = difflib.get_close_matches(text, known, n=3) or list(known)
        raise argparse.ArgumentTypeError(f"{text!r} does not exist; did you mean {', '.join(near)}?")

    return parse


def _list_of(known: Sequence[str]):
    one = _one_of(known)

    def parse(text: str) -> tuple[str, ...]:
        names = [one(part.strip()) for part in text.split(",") if part.strip()]
        if not names:
            raise argparse.ArgumentTypeError("names nothing")
        return tuple(dict.fromkeys(names))

    return parse


def _seeds(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 42,0,1")
    return tuple(dict.fromkeys(int(part) for part in parts))
