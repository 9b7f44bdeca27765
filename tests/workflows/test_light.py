"""Commands that only read or print load nothing heavy: torch alone takes longer than all that they do."""

from __future__ import annotations

import os
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
HEAVY = {"torch", "ray", "mlflow", "polars", "matplotlib"}
NAMES = [command.__name__.rpartition(".")[2] for _, group in COMMANDS for command in group]
DIGITS = ("--dataset", "digits", "--arch", "linear", "--scenario", "class", "--key", "0", "--seeds", "0")


def succeeded(ended: Ended) -> Ended:
    assert ended.returncode == 0, ended.stderr.splitlines()[-1]
    return ended


def imported(*arguments: object) -> set[str]:
    """The packages that a command, in a process of its own, imports, itself or through others."""
    command = [sys.executable, "-X", "importtime", "-m", "workflows", *arguments]
    lines = succeeded(run(command, environment={**os.environ, "PYTHONPATH": str(ROOT)})).stderr.splitlines()
    found = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if line.startswith("import time:")}
    assert "workflows" in found
    return found


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """A grid of one cell."""
    folder = tmp_path_factory.mktemp("light") / "grid"
    options = ("--methods", "lda,ga", "--epochs", 2, "--local", "--no-tracking", "--out", folder)
    succeeded(unlearn("grid", *DIGITS, *options))
    return folder


@pytest.mark.parametrize("command", ["", *NAMES])
def test_help(command):
    """Those that list methods read their table, and with it numpy and scipy."""
    lists_methods = command in ("run", "grid", "plan", "tune", "audit", "forget")
    assert not imported(*filter(None, [command]), "--help") & (HEAVY if lists_methods else HEAVY | {"numpy", "scipy"})


def test_status(out):
    assert not imported("status", "--out", out) & HEAVY


def test_ledger_verify(tmp_path):
    entry = Entry(1, "2026", "unlearned", 1, 1, 1, "lda", 1.0, "none", None, "c" * 64)
    left = compute_moments(np.eye(3), np.arange(3), 3)
    Ledger(tmp_path / "ledger").append(Identity("b", "d", "given"), entry, [3], left, None, None)
    assert not imported("ledger", "verify", tmp_path / "ledger") & HEAVY


def test_explain(out):
    step = next((out / "store" / "steps" / "retrain").iterdir()).name
    assert not imported("explain", step, "--out", out) & HEAVY


def test_verify(tmp_path):
    """A certificate of a real request, to a black box that knows the labels of digits."""
    data = load_dataset("digits")
    save_feature_set(tmp_path / "digits.npz", data)
    train, test = (4.0 * np.eye(data.n_fine)[labels] for labels in (data.train_y, data.test_y))
    np.savez(tmp_path / "logits.npz", train_logits=train, test_logits=test)
    (tmp_path / "ids.txt").write_text("3\n14\n15\n")
    options = ("--logits", "logits.npz", "--data", "digits.npz", "--ids", "ids.txt", "--proxy", "lda", "--out", "out")
    succeeded(unlearn("forget", *options, cwd=tmp_path))
    assert not imported("verify", tmp_path / "out" / "certificate.json") & HEAVY


def test_plan(out, tmp_path):
    """On a feature set: its sizes are all that a plan needs. To describe a backbone for images, torch is loaded."""
    assert "torch" not in imported("plan", *DIGITS, "--out", out, "--steps"), "from measured times"
    assert "torch" not in imported("plan", *DIGITS, "--out", tmp_path), "from this machine's speed"


def test_report(out, tmp_path):
    options = ("--results", out / "results", "--out", tmp_path, "--no-illustrations", "--no-tracking")
    assert "torch" not in imported("report", *options)
