"""Open the MLflow UI of a grid on this machine.

Serve the MLflow UI of a grid on 127.0.0.1 until Ctrl-C. Once it answers, print where to look: all variants with their
numbers, the methods of the newest variant as charts, the report.

unlearn ui --out runs/grid --open
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path

from rich.console import Console

from tracking.tracked import default_tracking_uri
from unlearn_core.errors import BadInput
from workflows.commands import options
from workflows.commands.values import at_least
from workflows.display import speaker
from workflows.layout import Layout

END_SECONDS = 8.0
"""How long the server has to end by itself."""
QUIET: dict[str, str] = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""It shows runs: nothing is reported, and no processes wait for jobs, which would take most of its start."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", default=5000, type=at_least(1), help="port on 127.0.0.1")
    parser.add_argument("--open", action="store_true", help="open it in a browser once it answers")
    options.add_out(parser, "runs/grid")
    options.add_tracking_uri(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    layout = Layout(arguments.out)
    uri = arguments.tracking_uri or default_tracking_uri(layout.out)
    database = uri.removeprefix("sqlite:///")
    if database != uri and not Path(database).exists():
        raise BadInput(f"no MLflow database at {database}; run a grid first, or 'unlearn sync'")
    say = speaker(console)
    address = f"http://127.0.0.1:{arguments.port}"
    say(f"MLflow is starting on {address}, which takes a while (Ctrl-C ends it)")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--host", "127.0.0.1", "--port", str(arguments.port), "--workers", "1"]
    command += ["--uvicorn-opts", "--log-level warning"]  # a line for every request would hide the links
    # the server starts processes of its own: a group, so that all of them end with this command
    server = subprocess.Popen(command, start_new_session=True, env={**QUIET, **os.environ})
    try:
        shown = _links(uri, layout.experiment)  # while it starts: importing MLflow takes as long here as there
        # in short waits: a signal may reach a library's thread first, and a long wait would then never hear of it
        while server.poll() is None and not _answers(f"{address}/health"):
            time.sleep(0.2)
        if server.poll() is None:
            for what, link in shown.items():
                say(f"{what}: {address}/{link}")
            if not shown:
                say(f"nothing is tracked yet: {address}")
            if arguments.open:
                webbrowser.open(f"{address}/{next(iter(shown.values()), '')}")
        while server.poll() is None:
            time.sleep(0.2)
        return server.returncode
    finally:
        _end_group(server)


def _links(uri: str, experiment: str) -> dict[str, str]:
    from tracking.mlflow_tracker import links

    return links(uri, experiment)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask all of a process's group to end, and make it if it does not."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=END_SECONDS)
            return
