"""The command line: ``unlearn``, or ``python -m workflows``. Parsing and exit codes; the commands are in ``commands``."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from unlearn_core.errors import BadInput
from unlearn_core.spec import ARCHITECTURES, METHODS, SEEDS, DirOnTest, ProxySettings, RunSettings, Scenario
from workflows.forget_cli import add_forget_commands

EXIT_FAILED_STEPS = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

RESUMING = ("run", "grid", "features")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 done, 1 some steps failed, 2 bad input (one line says what and how to mend it)."""
    arguments = build_parser().parse_args(argv)
    # also where a shell started us with SIGINT ignored; and 'ray job stop', which sends SIGTERM, ends a run as Ctrl-C does
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    errors = Console(stderr=True)
    try:
        # torch and Ray take seconds to load: not before the arguments are known to be good
        from workflows import commands

        code = getattr(commands, arguments.command)(arguments, make_console())
    except BadInput as error:
        errors.print(f"unlearn: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(EXIT_BAD_INPUT)
    except KeyboardInterrupt:
        resumes = arguments.command in RESUMING
        kept = "; finished steps are kept, the same command goes on from here" if resumes else ""
        errors.print(f"unlearn: stopped{kept}", soft_wrap=True)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(code)


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

    def command(name: str, summary: str, description: str, example: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=summary,
            description=description,
            epilog=f"example: {example}",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        added.set_defaults(command=name)
        return added

    run = command(
        "run",
        "run one variant and print its benchmark table",
        "Run one variant: base, retrain, floor and the methods, over several seeds. With no option: digits, mlp1, "
        "subclass 0. Running it again continues where it stopped and repeats nothing.",
        "unlearn run --dataset features.npz --scenario class --key 3 --methods lda-2c,ft --seeds 0,1",
    )
    run.add_argument("--dataset", default="digits", help=_DATASETS)
    run.add_argument(
        "--arch", default="mlp1", type=_one_of(ARCHITECTURES), metavar="ARCH", help=", ".join(ARCHITECTURES)
    )
    run.add_argument(
        "--scenario", default="subclass", type=_one_of(tuple(Scenario)), metavar="SCENARIO", help=_SCENARIOS
    )
    run.add_argument("--key", default=0, type=int, help="the label to forget, or for random the number of rows")
    _add_data(run)
    _add_common(run, out="runs/latest")
    _add_machine(run)

    grid = command(
        "grid",
        "run many variants as a DAG on Ray",
        "Run any part of the grid. Lists are comma-separated or repeated options; with none, the paper's 112 variants: "
        "CIFAR-10 and CIFAR-100, heads on DINOv2 features and ResNet-18, all scenarios and keys. Running it again "
        "continues where it stopped and repeats nothing.",
        "unlearn grid --dataset digits --arch mlp1,linear --scenario class --scenario random --out runs/digits",
    )
    _add_selection(grid)
    _add_data(grid)
    _add_common(grid, out="runs/grid")
    _add_machine(grid)

    plan = command(
        "plan",
        "what a grid would run: steps, what is done, what is shared, how long",
        "Show the same selection as 'grid' without running it: steps by kind, how many are done already, what is shared "
        "between cells, and an estimate of the time left from rates measured in this store or on this machine. CIFAR can be "
        "planned before it is there.",
        "unlearn plan --dataset digits --arch mlp1 --out runs/digits",
    )
    _add_selection(plan)
    _add_data(plan)
    _add_common(plan, out="runs/grid")
    plan.add_argument("--workers", default=2, type=_positive, help="workers to estimate for")
    plan.add_argument("--steps", action="store_true", help="list every step with its id")

    features = command(
        "features",
        "compute a backbone's features of a data set and write them to a file",
        "Run a frozen backbone over a data set's images, shard by shard, and write a feature set file for 'grid "
        "--features' and 'run --dataset'. A run that stopped goes on where it was, and a grid on the same --out uses the "
        "same shards.",
        "unlearn features --dataset cifar10 --data-root data --download --file cifar10_dinov2.npz",
    )
    features.add_argument("--dataset", default="cifar10", help=_DATASETS)
    features.add_argument(
        "--file", type=Path, help="the feature set to write; by default DATASET_BACKBONE.npz in the current folder"
    )
    _add_data(features, trains=False)
    features.add_argument("--out", default=Path("runs/grid"), type=Path, help="the step store that keeps the shards")
    _add_machine(features, tracks=False)

    add_forget_commands(command)
    status = command(
        "status",
        "where a running or finished grid stands",
        "Show the state of a grid from another terminal.",
        "unlearn status --out runs/grid",
    )
    explain = command(
        "explain",
        "why a step is, or is not, cached",
        "Compare a step of the last plan, field by field, with the nearest one in the store.",
        "unlearn explain 3f2a --out runs/grid",
    )
    explain.add_argument(
        "step", metavar="STEP", help="the beginning of a step id, as plan --steps and failures show it"
    )
    sync = command(
        "sync",
        "make the results tree and MLflow again from the store alone",
        "Make the results tree and MLflow's runs again from the step store. What is there already is left as it is.",
        "unlearn sync --out runs/grid",
    )
    report = command(
        "report",
        "tables, figures and one page from a results tree",
        "Turn a results tree into what people look at: tables (Markdown, LaTeX, CSV, Parquet), figures (SVG, PNG), polars "
        "frames, a Markdown document and one self-contained HTML page, with the paper's numbers and claims beside ours. It "
        "needs the tree alone, no models. A damaged or partial tree is reported and the rest is rendered.",
        "unlearn report --results runs/grid/results --table 'benchmark_*subclass_0'",
    )
    report.add_argument("--results", default=Path("runs/grid/results"), type=Path, help="the results tree")
    report.add_argument("--out", type=Path, help="where the report goes; by default 'report' beside the tree")
    report.add_argument(
        "--table",
        action="append",
        type=_names,
        metavar="T,T",
        help="print these tables here too; * stands for anything",
    )
    report.add_argument(
        "--document", type=Path, metavar="FILE.md", help="also put the Markdown document, and its figures, here"
    )
    report.add_argument(
        "--notes", type=Path, metavar="FILE.md", help="text on how the runs were made, for the document"
    )
    report.add_argument(
        "--no-illustrations", action="store_true", help="only what comes from the tree: no torch needed"
    )
    report.add_argument(
        "--tracking-uri", help="MLflow to log the report to; by default the grid's own database, if any"
    )
    report.add_argument("--no-tracking", action="store_true", help="do not log the report to MLflow")

    ui = command(
        "ui",
        "open the MLflow UI on this machine",
        "Serve the MLflow UI of a grid on 127.0.0.1 until Ctrl-C.",
        "unlearn ui --out runs/grid",
    )
    ui.add_argument("--port", default=5000, type=_positive, help="port on 127.0.0.1")
    for added in (status, explain, sync, ui):
        added.add_argument("--out", default=Path("runs/grid"), type=Path, help="the output directory of the grid")
    for added in (sync, ui):
        added.add_argument("--tracking-uri", help=_TRACKING)
    return parser


_DATASETS = "digits, cifar10, cifar100, the path of a feature set or of images (.npz), or a folder of images"
_SCENARIOS = "class: forget a label; subclass: train on superclasses, forget a fine label; random: forget rows"
_TRACKING = "MLflow server or database; by default sqlite below --out"


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which part of the grid")
    group.add_argument(
        "--dataset",
        action="append",
        type=_names,
        metavar="D,D",
        help=f"{_DATASETS}; by default cifar10,cifar100",
    )
    group.add_argument(
        "--features", type=Path, metavar="FILE", help="a feature set (.npz) in the place of a backbone's features"
    )
    group.add_argument(
        "--arch",
        action="append",
        type=_list_of(ARCHITECTURES),
        metavar="A,A",
        help=f"{', '.join(ARCHITECTURES)}; by default all that the data allows",
    )
    group.add_argument("--scenario", action="append", type=_list_of(tuple(Scenario)), metavar="S,S", help=_SCENARIOS)
    group.add_argument("--key", action="append", type=_integers, metavar="K,K", help="labels, or numbers of rows")


def _add_data(parser: argparse.ArgumentParser, trains: bool = True) -> None:
    data = parser.add_argument_group("images and backbones")
    data.add_argument("--data-root", default=Path("data"), type=Path, help="where CIFAR and weights lie")
    data.add_argument("--download", action="store_true", help="fetch data sets and weights that are not there")
    data.add_argument(
        "--image-size",
        type=_positive,
        metavar="PX",
        help="side to which a folder's images of different sizes are brought",
    )
    data.add_argument(
        "--backbone",
        default="dinov2-small",
        metavar="NAME",
        help="dinov2-small, or any classifier of timm or torchvision, such as timm/vit_base_patch16_224",
    )
    data.add_argument("--weights", type=Path, metavar="FILE", help="its weights: safetensors or a state dict")
    data.add_argument("--resolution", type=_positive, metavar="PX", help="what it sees; by default its own")
    data.add_argument("--interpolation", choices=("bicubic", "bilinear"), help="by default its own")
    data.add_argument("--mean", type=_colour, metavar="R,G,B", help="of its input in [0, 1]; by default its own")
    data.add_argument("--std", type=_colour, metavar="R,G,B", help="by default its own")
    data.add_argument("--half", action="store_true", help="store features as float16")
    data.add_argument(
        "--shard-images",
        default=1024,
        type=_positive,
        metavar="N",
        help="images that are computed and resumed as one step",
    )
    if not trains:
        return
    resnet = parser.add_argument_group("ResNet-18")
    resnet.add_argument(
        "--resnet-weights", default="imagenet", metavar="W", help="what it starts from: imagenet, random or a file"
    )
    resnet.add_argument("--resnet-size", default=64, type=_positive, metavar="PX", help="side of the images it sees")
    resnet.add_argument("--sketch-layer", default="layer3", metavar="NAME", help="the layer that its proxies see")
    resnet.add_argument("--sketch-dim", default=512, type=_positive, metavar="K", help="dimensions of the sketch")


def _add_common(parser: argparse.ArgumentParser, out: str) -> None:
    what = parser.add_argument_group("methods and settings")
    what.add_argument(
        "--methods",
        action="append",
        type=_list_of(METHODS),
        metavar="M,M",
        help=f"{', '.join(METHODS)}; by default the paper's 13: all but probe and fresh",
    )
    what.add_argument("--seeds", action="append", type=_integers, metavar="S,S", help=f"by default {_joined(SEEDS)}")
    what.add_argument("--preset", default="paper", choices=("paper", "original"), help="settings of the baselines")
    what.add_argument("--ridge", default=1e-3, type=float, help="regularisation of the proxies' covariances")
    what.add_argument("--shrinkage", default="ridge", choices=("ridge", "ledoit-wolf", "oas"), help="its kind")
    what.add_argument("--cap", type=float, help="largest eta, inf for no limit; by default the paper's 1, for probe 32")
    what.add_argument(
        "--finalizer", default="kl", choices=("kl", "mse", "none"), help="distil, least squares, or logit processor"
    )
    what.add_argument(
        "--dir-on-test",
        default=DirOnTest.BASE.value,
        choices=[str(choice) for choice in DirOnTest],
        help="what dir and dir-2c say of test points, for their target rows",
    )
    what.add_argument(
        "--epochs", type=_positive, help="training epochs of base, retrain and floor; by default 50, for ResNet-18 20"
    )
    parser.add_argument("--out", default=Path(out), type=Path, help="step store, results, figures and MLflow database")


def _add_machine(parser: argparse.ArgumentParser, tracks: bool = True) -> None:
    where = parser.add_argument_group("where to run")
    where.add_argument(
        "--address", help="a Ray cluster, 'auto' within a job; by default a local Ray, started and stopped"
    )
    where.add_argument("--workers", type=_positive, help="by default one per CPU, or four per GPU")
    where.add_argument(
        "--gpus-per-worker",
        type=float,
        help="such as 0.25, also of GPUs that an autoscaler has yet to bring; by default a share of the cluster's",
    )
    where.add_argument("--local", action="store_true", help="in this process, without Ray: the same results")
    where.add_argument("--device", default="cpu", help="with --local: where networks train, such as cuda:0")
    where.add_argument(
        "--deterministic",
        action="store_true",
        help="on GPUs: float32 and reproducible kernels only; on CPUs results are reproducible anyway",
    )
    if not tracks:
        return
    where.add_argument("--tracking-uri", help=_TRACKING)
    where.add_argument("--no-tracking", action="store_true", help="leave MLflow out; 'unlearn sync' can add it later")


def settings_of(arguments: argparse.Namespace) -> RunSettings:
    """The recipe that the options describe."""
    if not (arguments.ridge >= 0 and math.isfinite(arguments.ridge)):
        raise BadInput(f"--ridge {arguments.ridge} must be a number of at least 0; 1e-3 is the default")
    if arguments.cap is not None and not arguments.cap > 0:
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


def chosen(values: Sequence[Sequence] | None, default: Sequence) -> tuple:
    """The values of an option that may be repeated, each once; ``default`` where it was not given."""
    return tuple(default) if values is None else tuple(dict.fromkeys(value for part in values for value in part))


def _one_of(known: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text in known:
            return text
        from workflows.nearest import nearest

        raise argparse.ArgumentTypeError(f"{text!r} does not exist; did you mean {nearest(text, known)}?")

    return parse


def _list_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    one = _one_of(known)

    def parse(text: str) -> tuple[str, ...]:
        names = [one(part.strip()) for part in text.split(",") if part.strip()]
        if not names:
            raise argparse.ArgumentTypeError("names nothing")
        return tuple(names)

    return parse


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise argparse.ArgumentTypeError("names nothing")
    return names


def _colour(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not three numbers such as 0.485,0.456,0.406")
    return values


def _integers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 42,0,1")
    return tuple(int(part) for part in parts)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least 1")
    return int(text)


def _joined(values: Sequence[int]) -> str:
    return ",".join(str(value) for value in values)
