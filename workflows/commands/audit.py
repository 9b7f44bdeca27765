"""Attack unlearned networks as the strongest tests do.

Train many pairs of networks, with the records and without them, let every method forget the records, and ask whether an
attacker who knows all this can tell an unlearned network from a retrained one, record by record: U-LiRA and KLOM. Rerun
the same command to resume, or with more --shadows: finished steps are kept and none runs twice.

unlearn audit --dataset digits --scenario class --key 0 --methods lda-2c,ft --shadows 16
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from unlearn_core.errors import BadInput
from unlearn_core.grid import ARCHITECTURES, Scenario
from workflows.commands import options
from workflows.commands.values import FILE, at_least, chosen, integers, list_of, names, path, repeated
from workflows.display import speaker
from workflows.layout import Layout, read_text

if TYPE_CHECKING:
    from workflows.audit import AuditPlan

SHADOWS = 64


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what to audit", "Separate values by commas, or repeat the option.").add_argument
    add("--dataset", **repeated(names, "D,D"), help=f"data sets: {options.DATASETS} (default: digits)")
    add("--features", **FILE, help="train heads on this feature set (.npz) instead of --dataset")
    networks = f"networks: {', '.join(ARCHITECTURES)} (default: mlp1)"
    add("--arch", **repeated(list_of(ARCHITECTURES), "A,A"), help=networks)
    forgotten = f"what to forget. {options.SCENARIOS} (default: class)"
    add("--scenario", **repeated(list_of(tuple(Scenario)), "S,S"), help=forgotten)
    add("--key", **repeated(integers, "K,K"), help="labels to forget; for random, numbers of rows (default: 0)")
    shadows = "train this many pairs of base and retrain: seeds from 1000 on, in the place of --seeds"
    add("--shadows", default=SHADOWS, type=at_least(8), metavar="N", help=shadows)
    rows = "ask about at most so many forgotten, retained and test rows each"
    add("--rows", default=1000, type=at_least(2), metavar="N", help=rows)
    fits = "fit a record's margins by a normal distribution or by a kernel estimate"
    add("--fit", default="gaussian", choices=("gaussian", "kernel"), help=fits)
    document = "also write all audits in --out as one Markdown document, with figures and numbers, here"
    add("--document", **path("FILE.md"), help=document)
    add("--notes", **path("FILE.md"), help="put this text, on how they were run, into the document")
    options.add_running(parser, "runs/audit")


def run(arguments: argparse.Namespace, console: Console) -> int:
    from workflows.commands.running import check_device, conclude, driving, run_steps
    from workflows.publishing import check_document
    from workflows.results import Recorder

    check_device(arguments)
    if arguments.seeds is not None:
        raise BadInput("a shadow is a seed, from 1000 on; say how many by --shadows, and leave --seeds out")
    notes = "" if arguments.notes is None else read_text(arguments.notes)
    if arguments.document is not None:
        check_document(arguments.document)
    plans, layout = _plans(arguments), Layout(arguments.out)
    targets = [step for plan in plans for steps in plan.steps.values() for step in steps]
    title = f"{', '.join(str(plan.variant) for plan in plans)}: {arguments.shadows} shadows"
    with driving(arguments, console):
        recorder = Recorder(layout, None, track=False)
        outcome = run_steps(targets, [plan.source for plan in plans], title, recorder, arguments, console)
        for plan in plans:
            _show(plan, layout, arguments, console)
    if arguments.document is not None:
        _publish(layout, arguments.document, notes, console)
    return conclude(
        outcome, arguments, console, f"unlearn audit ... --shadows {2 * arguments.shadows}, which keeps these"
    )


def _plans(arguments: argparse.Namespace) -> list[AuditPlan]:
    from unlearn_core import methods
    from workflows.audit import AuditPlan
    from workflows.commands.selection import data_options
    from workflows.grid import choose_variants
    from workflows.sources import open_sources

    archs = chosen(arguments.arch, ("mlp1",))
    scenarios = [Scenario(name) for name in chosen(arguments.scenario, (Scenario.CLASS,))]
    settings, wanted = options.settings_of(arguments), chosen(arguments.methods, methods.paper_methods())
    sources = open_sources(data_options(arguments, chosen(arguments.dataset, ("digits",))), archs)
    return [
        AuditPlan(source, variant, wanted, settings, arguments.shadows, arguments.rows)
        for source in sources
        for variant in choose_variants(
            source, [arch for arch in archs if arch in source.archs], scenarios, chosen(arguments.key, (0,))
        )
    ]


def _show(plan: AuditPlan, layout: Layout, arguments: argparse.Namespace, console: Console) -> None:
    """Compute what the answers come to; keep it, print it, draw it, track it."""
    from tasks.store import Store
    from tracking.audits import Audit, sentences
    from tracking.figures.roc import write_roc
    from tracking.tables.exports import rich_table
    from tracking.tables.shadows import audit_table
    from tracking.tree import slug
    from unlearn_core.writing import write_atomically
    from workflows.results import log_audit, open_tracker

    say, store = speaker(console), Store(layout.store)
    if not plan.complete(store):
        say(f"{plan.variant}: bases or retrains are missing, so that there is nothing to compare with")
        return
    audit = Audit(plan.entry(store, arguments.fit))
    file = layout.audits / f"{slug(audit.name)}.json"
    write_atomically(file, json.dumps(audit.entry, indent=1, allow_nan=False) + "\n")
    table = audit_table(audit)
    console.print(rich_table(table))
    for line in (*table.notes, *sentences(audit)):
        say(line)
    say(f"audit: {file}")
    say(f"figure: {write_roc(layout.audits / 'figures', audit).png}")
    if not arguments.no_tracking:
        tracker = open_tracker(layout, arguments.tracking_uri, layout.audit_experiment)
        log_audit(tracker, audit.entry)
        say(f"MLflow: its methods are runs of experiment '{layout.audit_experiment}'")


def _publish(layout: Layout, document: Path, notes: str, console: Console) -> None:
    from tracking.audits import read_audits
    from workflows.publishing import publish_audits

    audits, problems = read_audits(layout.audits)
    publish_audits(audits, layout.audits / "figures", document, notes)
    say = speaker(console)
    for problem in problems:
        say(f"left out of the document: {problem}")
    say(f"document: {document}")
