"""The command line as a stranger meets it: a subprocess, its output, its exit code."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from unlearn_core.spec import METHODS


def unlearn(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "workflows", *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=cwd
    )


def quick(out, *arguments):
    return unlearn("run", "--epochs", 3, "--seeds", "0,42", "--out", out, *arguments)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    return quick(out), out


def test_a_run_prints_progress_the_table_and_where_the_results_are(finished):
    result, out = finished
    assert result.returncode == 0, result.stderr
    assert "16/16 salun" in result.stdout
    for row in ("base", "retrain", "floor", *METHODS):
        assert f"\n {row} " in result.stdout or f"\n{row} " in result.stdout
    path = out / "results" / "digits" / "pixels" / "subclass_mlp1_raw.json"
    assert str(path) in result.stdout
    figure = out / "figures" / "evolution_subclass_mlp1_0.png"
    assert str(figure) in result.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")
    entries = json.loads(path.read_text())["mlp1"]["results"]["0"]
    assert [entry["seed"] for entry in entries] == [0, 42]
    assert all(set(METHODS) | {"base", "retrain", "floor"} <= set(entry) for entry in entries)
    assert all(len(entry["lda-2c"]["epochs"]) in (1, 20) for entry in entries)
    assert entries[0]["retrain"]["acc_t"] != entries[1]["retrain"]["acc_t"] or entries[0]["base"] != entries[1]["base"]


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
    result = quick(tmp_path / "out", *options)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "results" / "own" / "features" / "random_mlp1_raw.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "lda2c"], "'lda2c' does not exist; did you mean lda-2c"),
        (["--arch", "mlp9"], "'mlp9' does not exist; did you mean mlp"),
        (["--scenario", "klass"], "'klass' does not exist; did you mean class"),
        (["--seeds", "a,b"], "'a,b' is not a list of whole numbers"),
        (["--dataset", "nowhere.npz"], "no feature set at nowhere.npz"),
        (["--dataset", "mnist"], "unknown data set 'mnist'"),
        (["--key", "10"], "subclass key 10 is not a label; labels are 0..9"),
        (["--scenario", "random", "--key", "0"], "cannot forget 0 random rows of 1437"),
        (["--ridge", "nan"], "--ridge nan must be"),
        (["--cap", "0"], "--cap 0.0 must be positive"),
        (["--epochs", "0"], "--epochs 0 must be at least 1"),
        (["--device", "cuda:99"], "--device cuda:99 cannot be used here"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_nothing_is_written(tmp_path, arguments, message):
    result = unlearn("run", "--out", tmp_path / "out", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_help_teaches():
    text = " ".join(unlearn("run", "--help").stdout.split())
    for word in ("--dataset", "--scenario", "example:", "(default: digits)", "subclass: train on superclasses"):
        assert word in text
