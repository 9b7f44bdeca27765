"""``unlearn`` in this process, where one of its own would show no more: that would first load torch, for seconds."""

from __future__ import annotations

import contextlib
import io
import signal
from pathlib import Path

from tests.processes import Ended
from workflows import cli


def unlearn(*arguments: object, cwd: Path | None = None) -> Ended:
    """What became of a command: it has its own output, and leaves this process's folder and signals as they were."""
    output, errors = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            contextlib.chdir(cwd or Path.cwd()),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
        ):
            cli.main([str(argument) for argument in arguments])
    except SystemExit as ending:
        if not isinstance(ending.code, int):
            raise
        return Ended(ending.code, output.getvalue(), errors.getvalue())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
