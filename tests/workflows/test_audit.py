"""The attacker's audit from end to end: the base is caught, more shadows reuse the old, a kill loses nothing."""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.store import DONE
from tests.commands import unlearn
from tests.processes import run, running, wait_until
from tracking.audits import read_audits
from tracking.tree import read_entries
from unlearn_core.audit.rows import audit_rows, forgotten_by
from unlearn_core.data.splits import pool_rows, scenario_mask
from unlearn_core.grid import Scenario, Variant
from workflows.publishing import stamp_problem

METHODS = ("ft", "truncate")
SHADOWS = 8
WHOLE = 1 + 2 * SHADOWS + (2 + len(METHODS)) * SHADOWS
"""Steps: the features, bases and retrains, and the answers of both and of the methods."""
DIGITS = ("--dataset", "digits", "--arch", "linear", "--epochs", 40)
REQUEST = ("--scenario", "class", "--key", 0, "--methods", ",".join(METHODS), "--rows", 60)


def arguments(out: Path, *extra: object) -> list[object]:
    return ["audit", *DIGITS, *REQUEST, "--shadows", SHADOWS, "--out", out, *extra]


def command(out: Path, *extra: object) -> list[object]:
    return [sys.executable, "-m", "workflows", *arguments(out, *extra)]


def succeeded(*words: object) -> str:
    ended = unlearn(*words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def found(out: Path) -> dict[str, Any]:
    return json.loads((out / "audit" / "digits_pixels_linear_class_0.json").read_text())


def untimed(out: Path) -> dict[str, Any]:
    entry = found(out)
    for row in entry["results"].values():
        for name in ("seconds", "cost", "preparation"):
            row.get("scores", {}).pop(name, None)
    return entry


def stamps(out: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (out / "store" / "steps").glob(f"*/*/{DONE}")}


@pytest.fixture(scope="module")
def audited(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("audit") / "local"
    said = succeeded(*arguments(out, "--local"))
    assert f"{WHOLE} steps run, 0 cached, 0 failed" in said
    assert "the attacker's audit, 8 shadows" in said
    return out


def test_the_base_is_caught_and_retrains_are_not(audited):
    """The base knows the class: by one answer it is told from networks that never saw it."""
    results = found(audited)["results"]
    assert list(results) == ["floor", "base", *METHODS]
    value, low, _ = results["base"]["ulira"]["auc"]
    assert value > 0.99
    assert low > 0.9
    _, low, high = results["floor"]["ulira"]["auc"]
    assert low <= 0.5 <= high
    assert results["base"]["klom"]["forget"]["mean"] > results["floor"]["klom"]["forget"]["mean"] + 1
    assert results["base"]["stein"]["picked"] <= results["base"]["stein"]["drawn"]


def test_methods_share_bases_and_retrains(audited):
    kinds = {path.name: len(list(path.iterdir())) for path in (audited / "store" / "steps").iterdir()}
    assert kinds == {"features": 1, "base": SHADOWS, "retrain": SHADOWS, "answers": 4 * SHADOWS}
    sizes = [sum(file.stat().st_size for file in d.iterdir()) for d in (audited / "store/steps/answers").iterdir()]
    assert max(sizes) < 10_000, "margins of 60 rows, not networks"


def test_an_answer_is_of_the_network_that_a_grid_scores(audited):
    """The same shadow as a cell of a grid, from the same store: its base and retrain are found, its scores are the same."""
    succeeded("grid", *DIGITS, *REQUEST[:6], "--seeds", 1000, "--local", "--no-tracking", "--out", audited)
    (entry,) = read_entries(audited / "results", Variant("digits", "linear", Scenario.CLASS, 0), "pixels")
    answers = {}
    for done in (audited / "store" / "steps" / "answers").glob(f"*/{DONE}"):
        config = json.loads(done.read_text())["identity"]["config"]
        if config["seed"] == 1000:
            answers[config["method"]] = json.loads((done.parent / "entry.json").read_text())
    for name in METHODS:
        for score in ("kl_f", "kl_t", "acc_f", "mia_auc"):
            assert answers[name][score] == entry[name]["last"][score], (name, score)


def test_every_row_is_a_run_in_mlflow_once_and_sync_makes_them_again(audited, tmp_path):
    said = succeeded(*arguments(audited, "--local"))
    assert f"0 steps run, {WHOLE} cached, 0 failed" in said

    def runs(path: Path) -> list[tuple]:
        with sqlite3.connect(path) as db:
            which = (
                "select r.name, m.value from runs r join metrics m on r.run_uuid = m.run_uuid where m.key = 'ulira_auc'"
            )
            return sorted(db.execute(which))

    expected = [(f"class/0 {name}", row["ulira"]["auc"][0]) for name, row in found(audited)["results"].items()]
    assert runs(audited / "mlflow.db") == sorted(expected)
    again = tmp_path / "again.db"
    assert "1 audits from" in succeeded("sync", "--out", audited, "--tracking-uri", f"sqlite:///{again}")
    assert runs(again) == sorted(expected)


def test_it_is_in_the_report_and_in_a_document_of_its_own(audited, tmp_path):
    document = tmp_path / "docs" / "results_audit.md"
    succeeded(*arguments(audited, "--local", "--no-tracking", "--document", document))
    text = document.read_text()
    assert stamp_problem(document) is None
    assert "the attacker's audit, 8 shadows" in text
    assert (document.parent / "figures" / "results_audit" / "roc_digits_pixels_linear_class_0.svg").exists()
    succeeded("grid", *DIGITS, *REQUEST[:6], "--seeds", 1000, "--local", "--no-tracking", "--out", audited)
    report = ("report", "--results", audited / "results", "--out", tmp_path / "report", "--no-illustrations")
    said = succeeded(*report, "--no-tracking", "--table", "audit_*")
    assert "the attacker's audit, 8 shadows" in said
    assert "## The attacker's audit" in (tmp_path / "report" / "report.md").read_text()
    assert "roc_digits_pixels_linear_class_0" in (tmp_path / "report" / "report.html").read_text()


def test_damaged_audits_are_named_and_left_out(audited, tmp_path):
    whole = found(audited)
    (tmp_path / "a.json").write_text("{")
    del whole["results"]["ft"]["klom"]["test"]
    (tmp_path / "b.json").write_text(json.dumps(whole))
    (tmp_path / "c.json").write_text(json.dumps(found(audited)))
    audits, problems = read_audits(tmp_path)
    assert [audit.entry for audit in audits] == [found(audited)]
    assert [problem.split(";")[0] for problem in problems] == ["a.json: JSONDecodeError", "b.json: KeyError test"]


def test_killed_and_resumed_with_more_shadows_it_runs_nothing_twice(audited, tmp_path):
    """SIGKILL among the answers; then to the end; then four more shadows. While it lives, a second one is refused."""
    out = tmp_path / "killed"
    with running(command(out, "--local", "--no-tracking")) as process:
        wait_until(lambda: len(stamps(out)) >= 25, "25 steps to be done", process)
        process.send_signal(signal.SIGSTOP)
        second = unlearn(*arguments(out, "--local", "--no-tracking"))
        assert second.returncode == 2
        assert f"{out} is in use: process {process.pid} on " in second.stderr
        assert "rerun" not in succeeded("status", "--out", out)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert "steps left; rerun the same command to resume" in succeeded("status", "--out", out)
    before = stamps(out)
    said = succeeded(*arguments(out, "--local", "--no-tracking"))
    assert f"{WHOLE - len(before)} steps run, {len(before)} cached, 0 failed" in said
    assert before.items() <= stamps(out).items(), "nothing that was done ran again"
    assert untimed(out) == untimed(audited)
    before = stamps(out)
    said = succeeded(*arguments(out, "--local", "--no-tracking"), "--shadows", SHADOWS + 4)
    assert f"{4 * (2 + 2 + len(METHODS))} steps run, {WHOLE} cached, 0 failed" in said
    assert before.items() <= stamps(out).items()
    assert found(out)["shadows"] == SHADOWS + 4


def test_random_requests_forget_halves_of_one_pool():
    """Every record of the pool is forgotten under exactly one of shadows 2j and 2j + 1."""
    key, pool, n_rows = 30, 60, 500
    labels = np.zeros(n_rows, dtype=np.int64)
    rows = pool_rows(pool, n_rows)
    masks = [scenario_mask(Scenario.RANDOM, key, labels, seed, pool) for seed in range(1000, 1016)]
    counts = np.sum(masks, axis=0)
    assert set(np.flatnonzero(counts)) == set(rows)
    assert set(counts[rows]) == {8}
    for first, second in zip(masks[::2], masks[1::2], strict=True):
        assert first.sum() == second.sum() == key
        assert not (first & second).any()
    assert len({mask.tobytes() for mask in masks}) == 16
    chosen = audit_rows(Scenario.RANDOM, key, pool, labels, 200, 40)
    assert set(chosen.forget) <= set(rows)
    assert not set(chosen.retain) & set(rows)
    assert [len(part) for part in (chosen.forget, chosen.retain, chosen.test)] == [40, 40, 40]
    np.testing.assert_array_equal(forgotten_by(chosen, key, pool, n_rows, 1003), masks[3][chosen.forget])


def test_random_requests_are_audited_on_the_records_that_a_shadow_forgot(tmp_path):
    out = tmp_path / "random"
    request = ("--scenario", "random", "--key", 40, "--methods", "ft", "--shadows", 16, "--local", "--no-tracking")
    succeeded("audit", *DIGITS, *request, "--out", out)
    entry = json.loads((out / "audit" / "digits_pixels_linear_random_40.json").read_text())
    assert (entry["pool"], entry["rows"]["forget"]) == (80, 80)
    assert entry["results"]["base"]["stein"]["rows"] == 40
    for row in entry["results"].values():
        assert 0 <= row["ulira"]["auc"][1] <= row["ulira"]["auc"][0] <= row["ulira"]["auc"][2] <= 1


@pytest.mark.slow
def test_two_workers_find_what_one_process_does(audited, tmp_path, cluster, ray_environment):
    out = tmp_path / "ray"
    options = ("--address", cluster, "--workers", 2, "--no-tracking")
    ended = run(command(out, *options), environment=ray_environment)
    assert ended.returncode == 0, ended.stderr
    assert untimed(out) == untimed(audited)


def test_what_cannot_be_audited_is_refused_with_what_can(unlearn_here, tmp_path):
    for extra, said in (
        (("--shadows", 9), "ask for 8, 12"),
        (("--seeds", 3), "leave --seeds out"),
        (("--finalizer", "none"), "use kl or mse"),
        (("--scenario", "random", "--key", 700, "--shadows", 16), "at most"),
    ):
        answer = unlearn_here("audit", *DIGITS, "--local", "--methods", "ft", *extra, "--out", tmp_path / "out")
        assert answer.code == 2
        assert said in answer.err.replace("\n", " ")
