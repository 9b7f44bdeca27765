"""The command line: ``unlearn``, or ``python -m workflows``. Each command is a file in ``commands``."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from rich.console import Console

from unlearn_core.errors import BadInput, first_line, printable
from unlearn_core.room import disk_full
from workflows.commands import (
    audit,
    explain,
    features,
    forget,
    grid,
    ledger,
    plan,
    prepare,
    register,
    report,
    run,
    status,
    sync,
    tune,
    ui,
    verify,
)

EXIT_BAD_INPUT = 2
EXIT_INTERNAL_ERROR = 3
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
THE_USERS: frozenset[int] = frozenset(
    {errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT}
    | {errno.ENOSPC, errno.ENOTDIR, errno.ENOTEMPTY, errno.EPERM, errno.EROFS}
)
"""What a system answers where a path or a disk is the thing to mend."""


class Command(Protocol):
    """A module in ``commands``, called as the command is.

    Its docstring is the help: a line for the list of commands, a paragraph, an example.
    """

    __name__: str

    def add_options(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace, console: Console) -> int:
        """Returns the exit code."""
        ...


COMMANDS: tuple[tuple[str, tuple[Command, ...]], ...] = (
    ("forget records with a model of your own", (prepare, forget, verify, ledger, register)),
    ("compare methods", (run, grid, plan, tune, audit, features)),
    ("follow a run and look at results", (status, explain, report, ui, sync)),
)
RESUMABLE: tuple[Command, ...] = (run, grid, tune, audit, features)

WHAT_IT_IS = """\
Make a classifier forget training records without retraining it, and certify it.
Measure how close methods for this come to networks retrained from scratch."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 done; 1 some steps or checks failed; 2 refused, with a line on what and how to mend it; 3 a
    bug, with where its traceback is; 4 all was computed, and MLflow lacks some of it."""
    arguments = build_parser().parse_args(argv)
    command: Command = arguments.command
    # also if a shell started us with SIGINT ignored; and 'ray job stop', which sends SIGTERM, ends a run as Ctrl-C does
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    try:
        code = command.run(arguments, make_console())
        sys.stdout.flush()
    except BadInput as error:
        _complain(str(error))
        sys.exit(EXIT_BAD_INPUT)
    except KeyboardInterrupt:
        kept = "; finished steps are kept: rerun the same command to resume" if command in RESUMABLE else ""
        _complain(f"stopped{kept}")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # whoever read the output has left; what is still to be flushed goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_BROKEN_PIPE)
    except Exception as error:
        full = disk_full(error, Path(str(getattr(error, "filename", None) or getattr(arguments, "out", "."))))
        if full is not None:
            _complain(str(full))
            sys.exit(EXIT_BAD_INPUT)
        if isinstance(error, OSError) and error.errno in THE_USERS:
            place = "" if error.filename is None else f"{_short(str(error.filename))}: "
            _complain(f"{place}{error.strerror}; mend that, or name another place")
            sys.exit(EXIT_BAD_INPUT)
        said = f"{type(error).__name__}: {_short(first_line(error))}"
        _complain(f"internal error ({said}); this is a bug, please report it with {_keep_traceback()}")
        sys.exit(EXIT_INTERNAL_ERROR)
    sys.exit(code)


def _complain(text: str) -> None:
    Console(stderr=True).print(printable(f"unlearn: {text}"), markup=False, highlight=False, soft_wrap=True)


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def _keep_traceback() -> str:
    """Where the traceback of the error at hand is kept; itself if there is no place."""
    text = traceback.format_exc()
    try:
        with tempfile.NamedTemporaryFile("w", prefix="unlearn-traceback-", suffix=".txt", delete=False) as file:
            file.write(text)
    except (OSError, UnicodeError):
        return f"its traceback: {text}"
    return f"the traceback in {file.name}"


def make_console() -> Console:
    """A terminal keeps its width; a log gets room for the widest table."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unlearn",
        usage="unlearn COMMAND [options]",
        description=f"{WHAT_IT_IS}\n\n{_listed_commands()}",
        epilog="'unlearn COMMAND --help' describes a command. Try 'unlearn run' first: it needs no files.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added = parser.add_subparsers(required=True, metavar="COMMAND", help=argparse.SUPPRESS, parser_class=CommandParser)
    for command in (command for _, group in COMMANDS for command in group):
        name = _name(command)
        _, description, example = _help(command)
        options = added.add_parser(
            name,
            usage=f"unlearn {name} [options]",
            description=description,
            epilog=f"example: {example}",
            formatter_class=HelpFormatter,
        )
        options.set_defaults(command=command)
    return parser


class CommandParser(argparse.ArgumentParser):
    """Adds a command's options once it is the one to run: those of others may take a while to load."""

    _complete: bool = False

    def parse_known_args(self, args=None, namespace=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        if not self._complete:
            self._complete = True
            self.get_default("command").add_options(self)
        if empty := next((word for word in args or () if word.startswith("--") and word.endswith("=--")), None):
            self.error(f"{empty!r}: -- is no value")  # argparse would pass an empty list
        return super().parse_known_args(args, namespace)


class HelpFormatter(argparse.HelpFormatter):
    """States the default of every option that has one, unless its help does. Keeps names such as ``short-warm`` whole."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if default is None or default is False or default == argparse.SUPPRESS or "(default:" in text:
            return text
        return f"{text} (default: %(default)s)"


def _name(command: Command) -> str:
    return command.__name__.rpartition(".")[2]


def _help(command: Command) -> tuple[str, str, str]:
    summary, description, example = str(command.__doc__).strip().split("\n\n")
    return summary.removesuffix("."), description, example


def _listed_commands() -> str:
    """The commands by what they are for, which argparse cannot group."""
    lines = []
    for purpose, commands in COMMANDS:
        lines += [f"{purpose}:", *(f"  {_name(command):10}{_help(command)[0]}" for command in commands), ""]
    return "\n".join(lines).rstrip()
