"""Write the results tree and MLflow again from the step store.

Write the results tree and MLflow's runs from the step store alone, and those of trials and audits from what 'unlearn tune'
and 'unlearn audit' wrote. Runs that are there already stay as they are.

unlearn sync --out runs/grid
"""

from __future__ import annotations

import argparse

from rich.console import Console

from unlearn_core.errors import BadInput
from workflows.commands import options
from workflows.display import Periodically, speaker
from workflows.layout import Layout


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_out(parser, "runs/grid")
    options.add_tracking_uri(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    from workflows import results
    from workflows.commands.running import EXIT_TRACKING_BEHIND, driving

    layout = Layout(arguments.out)
    if not layout.store.exists():
        raise BadInput(f"{layout.out} has no step store; give the --out of a run")
    say = speaker(console)
    with driving(arguments, console):
        n_cells, tracking, whole = results.sync(layout, arguments.tracking_uri, Periodically(say))
        say(f"{n_cells} cells from {layout.store}")
        say(tracking)
        if not whole:
            return EXIT_TRACKING_BEHIND
        if n_trials := results.sync_trials(layout, arguments.tracking_uri):
            say(f"{n_trials} trials from {layout.tuning}: runs of experiment '{layout.tuning_experiment}'")
        if n_audits := results.sync_audits(layout, arguments.tracking_uri):
            say(f"{n_audits} audits from {layout.audits}: runs of experiment '{layout.audit_experiment}'")
    return 0
