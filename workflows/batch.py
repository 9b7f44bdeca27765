"""Several requests in one run: one after the other on one ledger, each with its own entry and its own certificate."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from unlearn_core.errors import BadInput
from unlearn_core.forgetting.request import read_request
from workflows.deletion import run_request
from workflows.display import speaker


def run_batch(given: Sequence[Path], arguments: argparse.Namespace, console: Console) -> int:
    """Carry out every request, into a folder of ``--out`` with the name of its file; returns the highest exit code.

    Given again, requests that are done are not done again.
    """
    if arguments.plan is not None:
        raise BadInput("--plan takes one request; give one --ids")
    if arguments.ledger is None or arguments.data is None:
        raise BadInput(f"{len(given)} requests are forgotten one after the other; give --data NPZ and --ledger DIR")
    requests = [path for one in given for path in (_files(one) if one.is_dir() else [one])]
    names = [path.stem for path in requests]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"two requests are called {doubled[0]}, and their folders would be one; rename one of them")
    for path in requests:
        read_request(path)  # refuses a bad one before the first is carried out
    say, codes = speaker(console), [0]
    for n, path in enumerate(requests, start=1):
        say(f"request {n} of {len(requests)}: {path}")
        codes.append(
            run_request(
                argparse.Namespace(**vars(arguments) | {"ids": path, "out": arguments.out / path.stem}), console
            )
        )
    return max(codes)


def _files(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not found:
        raise BadInput(f"{folder} holds no request; put one file per request there")
    return found
