"""Commands that only read or print load nothing heavy: torch alone takes longer than all that they do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.commands import unlearn
from tests.processes import Ended, run
from unlearn_core.data import load_dataset, save_feature_set
from unlearn_core.forgetting.ledger import Entry, Identity, Ledger
from unlearn_core.proxies.statistics import compute_moments
from workflows.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent.parent
METHODS = ("run", "grid", "plan", "tune", "audit", "forget")
"""Commands that list methods: they read their table, and with it numpy and scipy."""
HEAVY = {"torch", "ray", "mlflow", "polars", "matplotlib"}
NAMES = [command.__name__.rpartition(".")[2] for _, group in COMMANDS for command in group]
DIGITS = ("--dataset", "digits", "--arch", "linear", "--scenario", "class", "--key", "0", "--seeds", "0")


def succeeded(ended: Ended) -> Ended:
    assert ended.returncode == 0, ended.stderr.splitlines()[-1]
    return ended


# Commands one after the other in one process, light ones first: nothing of what a later one may load is there yet.
SCRIPT = """
import contextlib, io, json, sys
from workflows import cli
for name, words in json.loads(sys.argv[1]):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            cli.main(words)
    except SystemExit as ended:
        assert not ended.code, (words, said.getvalue())
    print(json.dumps([name, sorted({module.partition(".")[0] for module in sys.modules})]))
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """A grid of one cell."""
    folder = tmp_path_factory.mktemp("light") / "grid"
    options = ("--methods", "lda,ga", "--epochs", 2, "--local", "--no-tracking", "--out", folder)
    succeeded(unlearn("grid", *DIGITS, *options))
    return folder


@pytest.fixture(scope="module")
def ledger(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("light") / "ledger"
    entry = Entry(1, "2026", "unlearned", 1, 1, 1, "lda", 1.0, "none", None, "c" * 64)
    left = compute_moments(np.eye(3), np.arange(3), 3)
    Ledger(folder).append(Identity("b", "d", "given"), entry, [3], left, None, None)
    return folder


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """Of a real request, to a black box that knows the labels of digits."""
    data, folder = load_dataset("digits"), tmp_path_factory.mktemp("light")
    save_feature_set(folder / "digits.npz", data)
    train, test = (4.0 * np.eye(data.n_fine)[labels] for labels in (data.train_y, data.test_y))
    np.savez(folder / "logits.npz", train_logits=train, test_logits=test)
    (folder / "ids.txt").write_text("3\n14\n15\n")
    options = ("--logits", "logits.npz", "--data", "digits.npz", "--ids", "ids.txt", "--proxy", "lda", "--out", "out")
    succeeded(unlearn("forget", *options, cwd=folder))
    return folder / "out" / "certificate.json"


@pytest.fixture(scope="module")
def loaded(out, ledger, certificate, tmp_path_factory) -> dict[str, set[str]]:
    """The packages that are loaded once a command, and those before it, ran."""
    step = next((out / "store" / "steps" / "retrain").iterdir()).name
    elsewhere = tmp_path_factory.mktemp("light")
    helps = sorted(["", *NAMES], key=lambda name: name in METHODS)
    commands = [
        *((f"{name} --help", [*filter(None, [name]), "--help"]) for name in helps),
        ("status", ["status", "--out", out]),
        ("ledger verify", ["ledger", "verify", ledger]),
        ("explain", ["explain", step, "--out", out]),
        ("verify", ["verify", certificate]),
        ("plan from this machine's speed", ["plan", *DIGITS, "--out", elsewhere / "grid"]),
        ("plan from measured times", ["plan", *DIGITS, "--out", out, "--steps"]),
        (
            "report",
            ["report", "--results", out / "results", "--out", elsewhere, "--no-illustrations", "--no-tracking"],
        ),
    ]
    ended = succeeded(run([sys.executable, "-c", SCRIPT, json.dumps(commands, default=str)], ROOT))
    found = {name: set(packages) for name, packages in map(json.loads, ended.stdout.splitlines())}
    assert list(found) == [name for name, _ in commands]
    assert all("workflows" in packages for packages in found.values())
    return found


@pytest.mark.parametrize("command", ["", *NAMES])
def test_help(loaded, command):
    assert not loaded[f"{command} --help"] & (HEAVY if command in METHODS else HEAVY | {"numpy", "scipy"})


@pytest.mark.parametrize("command", ["status", "ledger verify", "explain", "verify"])
def test_what_reads(loaded, command):
    assert not loaded[command] & HEAVY


@pytest.mark.parametrize("command", ["plan from measured times", "plan from this machine's speed", "report"])
def test_what_computes_without_torch(loaded, command):
    """A plan on a feature set: its sizes are all that it needs. To describe a backbone for images, torch is loaded."""
    assert "torch" not in loaded[command]
