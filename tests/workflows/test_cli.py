"""The command line as a stranger meets it: its output, its exit code, its files."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys

import numpy as np
import pytest

from tasks.step import Kind, Step
from tasks.store import Store
from tests.commands import unlearn
from tests.processes import free_port, listens, run, running, wait_until
from unlearn_core import methods
from unlearn_core.audit.stein import stein_block
from workflows.cli import COMMANDS, build_parser
from workflows.layout import Layout
from workflows.run import save_plan

QUICK = ("--local", "--epochs", 3, "--seeds", "0,42")
SMALL = ("--dataset", "digits", "--arch", "linear", "--scenario", "class", "--key", "0,1", "--methods", "lda-2c,ga")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    return unlearn("run", *QUICK, "--no-tracking", "--out", out), out


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A small grid with its MLflow database, as it ended."""
    out = tmp_path_factory.mktemp("grid") / "small"
    return unlearn("grid", *SMALL, *QUICK, "--out", out), out


def test_a_run_prints_the_table_and_where_the_results_are(finished):
    result, out = finished
    assert result.returncode == 0, result.stderr
    assert "digits/mlp1/subclass/0: 36 steps, 0 done already, 36 to run" in result.stdout
    for row in ("base", "retrain", "floor", *methods.paper_methods()):
        assert f"\n {row} " in result.stdout or f"\n{row} " in result.stdout
    path = out / "results" / "digits" / "pixels" / "subclass_mlp1_raw.json"
    assert str(path) in result.stdout
    figure = out / "figures" / "evolution_subclass_mlp1_0.png"
    assert str(figure) in result.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")
    entries = json.loads(path.read_text())["mlp1"]["results"]["0"]
    assert [entry["seed"] for entry in entries] == [42, 0]
    assert all(set(methods.paper_methods()) | {"base", "retrain", "floor"} <= set(entry) for entry in entries)
    assert all(len(entry["lda-2c"]["epochs"]) in (1, 20) for entry in entries)
    assert entries[0]["base"] != entries[1]["base"]
    for row in (entries[0][name] for name in ("base", "lda-2c", "ga")):
        assert row["stein"] == stein_block(row.get("last", row), entries[0]["n_forget"]), "of the last epoch"
    assert entries[0]["ga"]["stein"] != stein_block(entries[0]["ga"]["best"], entries[0]["n_forget"])


def test_the_same_command_again_runs_nothing(finished):
    _, out = finished
    again = unlearn("run", *QUICK, "--no-tracking", "--out", out)
    assert again.returncode == 0
    assert "0 steps run, 36 cached, 0 failed" in again.stdout
    assert "lda-2c" in again.stdout, "and the table is there all the same"


def test_a_damaged_result_is_said_and_computed_again(finished, tmp_path):
    _, original = finished
    out = tmp_path / "copy"
    shutil.copytree(original, out)
    weights = sorted((out / "store" / "steps" / "retrain").glob("*/weights.safetensors"))[0]
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    again = unlearn("run", *QUICK, "--no-tracking", "--out", out)
    assert again.returncode == 0, again.stderr
    assert "weights.safetensors does not match its checksum" in again.stdout
    assert "1 steps run, 35 cached" in again.stdout
    content[-1] ^= 1
    assert weights.read_bytes() == bytes(content), "the same bits as before the damage"


def test_grid_tracks_cells_and_a_rerun_adds_nothing(grid):
    result, out = grid
    assert result.returncode == 0, result.stderr
    assert "digits: 2 variants, 4 cells" in result.stdout
    assert "MLflow: 20 runs written" in result.stdout  # 4 cells of 3 references and 2 methods
    again = unlearn("grid", *SMALL, *QUICK, "--out", out)
    assert "MLflow: nothing new" in again.stdout
    assert "0 steps run" in again.stdout


def test_sync_makes_everything_again_from_the_store(grid, tmp_path):
    _, original = grid
    out = tmp_path / "small"
    shutil.copytree(original / "store", out / "store")
    result = unlearn("sync", "--out", out)
    assert result.returncode == 0, result.stderr
    assert "4 cells" in result.stdout
    assert "20 runs written" in result.stdout
    tree = "results/digits/pixels/class_linear_raw.json"
    assert (out / tree).read_bytes() == (original / tree).read_bytes()
    assert "0 runs written, 20 there already" in unlearn("sync", "--out", out).stdout


def test_plan_says_what_would_run_and_what_is_shared(grid):
    _, out = grid
    wider = (
        "--dataset",
        "digits",
        "--arch",
        "linear",
        "--scenario",
        "class",
        "--key",
        "0,1,2",
        "--methods",
        "lda-2c,ga",
    )
    result = unlearn("plan", *wider, *QUICK[1:], "--out", out, "--steps")
    assert result.returncode == 0, result.stderr
    assert "3 variants, 6 cells, 12 method runs" in result.stdout
    assert "each base step is shared by 6 to 6 method runs" in result.stdout
    assert "left on 2 workers" in result.stdout
    assert result.stdout.count(" cached ") >= 8
    assert result.stdout.count("to run  unlearn") == 4


def test_status_and_explain(grid):
    _, out = grid
    status = unlearn("status", "--out", out)
    assert status.returncode == 0
    assert "ended" in status.stdout
    assert "0 steps left" in status.stdout
    plan = unlearn("plan", *SMALL, *QUICK[1:], "--ridge", "0.5", "--out", out, "--steps").stdout
    line = next(line for line in plan.splitlines() if "to run" in line and "lda-2c" in line)
    why = unlearn("explain", line.split()[0], "--out", out).stdout
    assert "not cached" in why
    assert "config.ridge: 0.001 stored, 0.5 wanted" in why
    cached = next(line for line in plan.splitlines() if " cached " in line and "retrain" in line)
    assert "cached: finished" in unlearn("explain", cached.split()[0], "--out", out).stdout


def test_a_failing_step_is_named_and_the_rest_goes_on(tmp_path):
    """Four copies of one feature and no ridge: the covariance of lda is singular, and ga does not care."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    np.savez(
        tmp_path / "odd.npz",
        train_x=np.repeat(rng.normal(size=(60, 1)) + y[:, None], 4, axis=1),
        train_y=y,
        test_x=rng.normal(size=(9, 4)),
        test_y=np.arange(9) % 3,
    )
    options = ("--dataset", tmp_path / "odd.npz", "--scenario", "random", "--key", 5, "--ridge", 0)
    result = unlearn("run", *options, *QUICK, "--methods", "lda,ga", "--no-tracking", "--out", tmp_path / "out")
    assert result.returncode == 1
    assert "failed: unlearn lda mlp1 random 5 0" in result.stdout
    assert "covariance is singular; use a larger ridge" in result.stdout
    assert "2 more steps needed those" in result.stdout
    reports = list((tmp_path / "out" / "failures").glob("*.txt"))
    assert len(reports) == 2
    assert "Traceback" in reports[0].read_text()
    assert len(list((tmp_path / "out" / "store" / "steps" / "unlearn").glob("*/entry.json"))) == 2, "ga went on"


def test_a_feature_set_of_ones_own(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(80) % 4
    np.savez(
        tmp_path / "own.npz",
        train_x=(rng.normal(size=(80, 5)) + y[:, None]).astype(np.float16),
        train_y=y,
        test_x=rng.normal(size=(20, 5)).astype(np.float16),
        test_y=np.arange(20) % 4,
    )
    options = ["--dataset", tmp_path / "own.npz", "--scenario", "random", "--key", 5, "--methods", "lda-2c,ga"]
    result = unlearn("run", *QUICK, "--no-tracking", "--out", tmp_path / "out", *options)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "results" / "own" / "features" / "random_mlp1_raw.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "lda2c"], "'lda2c' does not exist; did you mean lda-2c"),
        (["--arch", "mlp9"], "'mlp9' does not exist; did you mean mlp"),
        (["--scenario", "klass"], "'klass' does not exist; did you mean class"),
        (["--seeds", "a,b"], "'a,b' is not a list of whole numbers"),
        (["--epochs", "0"], "0 must be a whole number of at least 1"),
        (["--dataset", "nowhere.npz"], "no feature set at nowhere.npz"),
        (["--dataset", "mnist"], "unknown data set 'mnist'"),
        (["--key", "10"], "subclass key 10 does not exist: digits has labels 0..9; nearest are 7, 8, 9"),
        (["--scenario", "random", "--key", "0"], "random key 0 does not exist: digits has 1437 rows"),
        (["--ridge", "nan"], "ridge nan must be"),
        (["--cap", "0"], "cap 0.0 must be positive"),
        (["--local", "--device", "cuda:99"], "--device cuda:99 cannot be used here"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_nothing_is_written(tmp_path, unlearn_here, arguments, message):
    code, _, errors = unlearn_here("run", "--out", tmp_path / "out", *arguments)
    assert code == 2
    assert message in errors
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["status"], "holds no grid"),
        (["sync"], "has no step store"),
        (["explain", "abc"], "has no plan yet"),
        (["ui"], "no MLflow database at"),
    ],
)
def test_commands_on_an_empty_directory_say_what_is_missing(tmp_path, unlearn_here, command, message):
    code, _, errors = unlearn_here(*command, "--out", tmp_path)
    assert code == 2
    assert message in errors


def test_a_refusal_is_the_same_from_a_shell(tmp_path):
    command = (sys.executable, "-m", "workflows", "run", "--dataset", "nowhere.npz", "--out", tmp_path / "out")
    result = run(command)
    assert result.returncode == 2
    assert result.stderr.startswith("unlearn: no feature set at nowhere.npz")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_ui_serves_on_loopback_opens_a_browser_and_leaves_nothing_behind(grid, tmp_path):
    _, out = grid
    port = free_port()
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > "{opened}"\n')
    browser.chmod(0o755)
    command = [sys.executable, "-m", "workflows", "ui", "--out", out, "--port", port, "--open"]
    with running(command, None, {**os.environ, "BROWSER": f"{browser} %s"}) as process:
        wait_until(lambda: opened.exists() and opened.read_text(), "the browser", process)
        assert f"all variants: {opened.read_text()}\n" in process.stdout, "the first link is what is opened"
        assert listens(port), "links come once there is something behind them"
        for what in ("all variants", "methods of the newest variant", "the grid as a whole"):
            assert re.search(
                rf"^{what}.*: http://127.0.0.1:{port}/#/experiments/\d+/runs", process.stdout, re.MULTILINE
            )
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        wait_until(lambda: not listens(port), "the server to end with its command")


def test_help_teaches():
    text = " ".join(unlearn("grid", "--help").stdout.split())
    beyond = [name for name in methods.names() if name not in methods.paper_methods()]
    for words in (
        "example: unlearn grid",
        "(default: cifar10,cifar100)",
        "subclass: train on superclasses",
        "Rerun the same command to resume",
        f"(default: the paper's 13, all but {', '.join(beyond)})",
        "distil as 'unlearn forget' does, with its stopping rule (default: grid)",
    ):
        assert words in text


def test_help_says_where_code_of_the_users_runs():
    for command, words in (
        (
            "forget",
            "PACKAGE.MODULE:FUNCTION that builds a torch.nn.Module whose output is its logits: it is imported and run",
        ),
        ("verify", "builds the model, so code that it names runs"),
    ):
        assert words in " ".join(unlearn(command, "--help").stdout.split())


def test_help_lists_every_command_with_its_purpose():
    shown = unlearn("--help").stdout
    for command in (command for _, group in COMMANDS for command in group):
        assert re.search(rf"^  {command.__name__.rpartition('.')[2]} +[A-Z]\w+ \w+", shown, re.MULTILINE), command


def test_help_states_every_default():
    """Of every option of every command that has one, 0 included."""
    subparsers = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, parser in subparsers.choices.items():
        parser.get_default("command").add_options(parser)  # which parsing would do
        assert len(parser._actions) > 1
        shown = " ".join(parser.format_help().split())
        for action in parser._actions:
            if action.default is None or action.default is False or action.default in ([], argparse.SUPPRESS):
                continue
            assert f"(default: {action.default})" in shown, (name, action.option_strings)


NESTED = {"phases": [{"epochs": 20, "passes": [{"least_retained": 512, "visit": "retain"}]}], "optimization": None}


def test_explain_names_what_differs_inside_a_nested_config(tmp_path, unlearn_here):
    def fresh(lr: float, **recipe) -> Step:
        return Step(Kind.UNLEARN, {"method": "fresh", "lr": lr, "caps": [], "recipe": NESTED | recipe})

    Store(tmp_path / "store").commit(fresh(1e-3), lambda directory: None, 1.0)
    Store(tmp_path / "store").commit(fresh(1e-4, phases=[], cap=32.0), lambda directory: None, 1.0)
    changed = json.loads(json.dumps(NESTED["phases"]).replace("512", "0"))
    wanted = fresh(1e-3, phases=changed, optimization={"lr": 0.1})
    save_plan(Layout(tmp_path), [wanted])
    code, out, _ = unlearn_here("explain", wanted.id[:8], "--out", tmp_path)
    assert code == 0
    assert out.splitlines()[-4:] == [
        f"the nearest stored unlearn step is {fresh(1e-3).id[:12]}; it differs in",
        "  config.recipe.phases.0.passes.0.least_retained: 512 stored, 0 wanted",
        "  config.recipe.optimization: null stored, absent wanted",
        "  config.recipe.optimization.lr: absent stored, 0.1 wanted",
    ]
