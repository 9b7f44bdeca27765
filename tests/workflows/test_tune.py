"""Tuning: the same trials whatever runs them and however often it is killed; what it finds is a preset that runs."""

from __future__ import annotations

import json
import math
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from tasks.step import Kind, Step, closure
from tasks.store import DONE, Store
from tests.commands import unlearn
from tests.processes import run, running, wait_until
from tracking.tree import read_entries
from unlearn_core import methods, tuned
from unlearn_core.grid import Scenario, Variant
from unlearn_core.run_settings import RunSettings
from workflows.grid import cell_step
from workflows.sources import Source, feature_source
from workflows.tuning import BUDGET, Cell, Trial, Tuning, best_trial, development_variants, penalty

# two batches, the second not full
DIGITS = ("--dataset", "digits", "--arch", "linear", "--seeds", "100", "--epochs", "10", "--trials", "6")


def arguments(out: Path, method: str, *extra: str) -> list[object]:
    return ["tune", "--method", method, *DIGITS, "--out", out, *extra]


def command(out: Path, method: str, *extra: str) -> list[object]:
    return [sys.executable, "-m", "workflows", *arguments(out, method, *extra)]


def tune(out: Path, method: str, *extra: str) -> str:
    ended = unlearn(*arguments(out, method, *extra))
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def text(out: Path, method: str) -> str:
    return (out / "tuning" / f"{method}.json").read_text()


def untimed(out: Path, method: str) -> list[dict]:
    """The trials without what was timed."""
    found = json.loads(text(out, method))["trials"]
    for part in (*found, *(cell for trial in found for cell in trial["cells"])):
        del part["cost"]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("tune") / "local"
    tune(out, "ft", "--local")
    return out


def test_what_is_kept_of_a_tuning(undisturbed):
    found = json.loads(text(undisturbed, "ft"))
    assert [trial["trial"] for trial in found["trials"]] == list(range(6))
    assert found["requests"] == ["digits/linear/class/1", "digits/linear/subclass/1", "digits/linear/random/143"]
    assert (found["seeds"], found["archs"], found["start"]) == ([100], ["linear"], "paper")
    first = found["trials"][0]
    assert first["values"].items() >= {"lr": 1, "decay": 0.95, "batch": 1}.items(), "first, the method as it is"
    assert len({json.dumps(trial["values"]) for trial in found["trials"]}) == 6
    for trial in found["trials"]:
        logs = [math.log(cell[name]) for cell in trial["cells"] for name in ("kl_f", "kl_t")]
        assert len(logs) == 6
        assert trial["objective"] == pytest.approx(sum(logs) / 6, rel=1e-12)
        assert trial["kl_f"] == pytest.approx(math.exp(sum(logs[::2]) / 3), rel=1e-12)
        assert trial["cost"] == pytest.approx(sum(cell["cost"] for cell in trial["cells"]) / 3, rel=1e-12)
    assert found["best"].items() <= found["trials"][found["best"]["trial"]].items()


def test_trials_share_base_and_retrain(undisturbed):
    kinds = {path.name: len(list(path.iterdir())) for path in (undisturbed / "store" / "steps").iterdir()}
    assert kinds == {"features": 1, "base": 2, "retrain": 3, "unlearn": 6 * 3}


def test_every_trial_is_a_run_in_mlflow_once(undisturbed):
    before = text(undisturbed, "ft")
    said = tune(undisturbed, "ft", "--local")
    assert "0 steps run, 24 cached, 0 failed" in said
    assert text(undisturbed, "ft") == before
    with sqlite3.connect(undisturbed / "mlflow.db") as db:
        runs = db.execute("select name, status from runs order by start_time, name").fetchall()
        (experiment,) = db.execute("select name from experiments where name != 'Default'").fetchone()
        learning_rates = db.execute("select count(*) from params where key = 'lr'").fetchone()
        objectives = db.execute("select value from metrics where key = 'objective' order by value").fetchall()
    assert sorted(runs) == [(f"ft trial {number}", "FINISHED") for number in range(6)]
    assert experiment == "unlearn-local-tuning"
    assert learning_rates == (6,)
    assert [value for (value,) in objectives] == sorted(trial["objective"] for trial in json.loads(before)["trials"])


def test_sync_makes_the_runs_of_trials_again(undisturbed, tmp_path):
    """Into another database, the same runs but for their times; once more, none."""
    database = tmp_path / "again.db"

    def rows(path: Path, what: str, which: str) -> list[tuple]:
        with sqlite3.connect(path) as db:
            return sorted(db.execute(f"select r.name, {what} from runs r join {which} t on r.run_uuid = t.run_uuid"))

    for _ in range(2):
        ended = unlearn("sync", "--out", undisturbed, "--tracking-uri", f"sqlite:///{database}")
        assert ended.returncode == 0, ended.stderr
        assert "6 trials from" in ended.stdout
        for what, which in (("t.key, t.value", "params"), ("t.key, t.value", "metrics")):
            assert rows(database, what, which) == rows(undisturbed / "mlflow.db", what, which) != []


def test_more_trials_begin_with_the_same_ones(undisturbed, tmp_path):
    out = tmp_path / "fewer"
    tune(out, "ft", "--local", "--no-tracking", "--trials", "3")
    assert untimed(out, "ft") == untimed(undisturbed, "ft")[:3]


def test_killed_and_resumed_it_makes_the_same_trials(undisturbed, tmp_path):
    """SIGKILL within the first batch and within the second."""
    out = tmp_path / "killed"
    for n_done in (8, 19):
        with running(command(out, "ft", "--local", "--no-tracking")) as process:

            def done(n_done=n_done) -> bool:
                return len(list((out / "store" / "steps").glob(f"*/*/{DONE}"))) >= n_done

            wait_until(done, f"{n_done} steps to be done", process)
            process.send_signal(signal.SIGKILL)
            process.wait()
    stamps = {path: path.read_bytes() for path in (out / "store" / "steps").glob(f"*/*/{DONE}")}
    tune(out, "ft", "--local", "--no-tracking")
    assert all(path.read_bytes() == stamp for path, stamp in stamps.items()), "nothing that was done ran again"
    assert untimed(out, "ft") == untimed(undisturbed, "ft")
    before = text(out, "ft")
    tune(out, "ft", "--local", "--no-tracking")
    assert text(out, "ft") == before, "from the same store the file is the same to the byte"


@pytest.mark.slow
def test_two_workers_make_the_trials_of_one_process(undisturbed, tmp_path, cluster, ray_environment):
    """That one worker does what one process does, in the same order, is shown by ``test_ray``."""
    out = tmp_path / "ray"
    options = ("--address", cluster, "--workers", "2", "--no-tracking")
    ended = run(command(out, "ft", *options), environment=ray_environment)
    assert ended.returncode == 0, ended.stderr
    assert untimed(out, "ft") == untimed(undisturbed, "ft")


def test_saved_values_are_a_preset_that_runs(tmp_path, monkeypatch, unlearn_here):
    monkeypatch.setattr(tuned, "FILE", tmp_path / "tuned.json")
    out = tmp_path / "out"
    options = [*DIGITS[:-1], "2", "--local", "--no-tracking", "--out", out]
    answer = unlearn_here("tune", "--method", "lda,ft", *options, "--save")
    assert answer.code == 0, answer.err
    assert "is now the preset 'tuned' of lda" in answer.out
    saved = tuned.read_tuned()
    assert {method: list(by_arch) for method, by_arch in saved.items()} == {"ft": ["linear"], "lda": ["linear"]}
    for method in ("ft", "lda"):
        how, found = saved[method]["linear"]["how"], json.loads(text(out, method))
        assert how["command"] == f"unlearn tune --method {method} --trials 2 --arch linear"
        assert (how["trials"], how["seeds"], how["data"]) == (2, [100], found["data"])
        assert how["objective"] == found["best"]["objective"]
    grid = ["--dataset", "digits", "--arch", "linear", "--scenario", "class", "--key", "1", "--seeds", "100"]
    how = ["--epochs", "10", "--preset", "tuned", "--methods", "lda,ft,ga", "--local", "--no-tracking", "--out", out]
    answer = unlearn_here("grid", *grid, *how)
    assert answer.code == 0, answer.err
    assert "3 steps run" in answer.out, "floor, ga and the cell's end: the best trials are the preset's steps"
    (entry,) = read_entries(out / "results", Variant("digits", "linear", Scenario.CLASS, 1), "pixels")
    assert entry["provenance"]["settings"]["preset"] == "tuned"
    assert entry["provenance"]["settings"]["untuned"] == ["ga"]
    for method in ("ft", "lda"):
        best = json.loads(text(out, method))["best"]["trial"]
        cell = json.loads(text(out, method))["trials"][best]["cells"][0]
        assert (cell["variant"], cell["kl_f"]) == ("digits/linear/class/1", entry[method]["last"]["kl_f"])
    answer = unlearn_here("plan", *grid, *how[:6], "--out", out)
    assert answer.code == 0, answer.err


def source() -> Source:
    data = Step(Kind.FEATURES, {"dataset": "cifar", "fingerprint": "f"})
    return Source("cifar", "r50", ("linear", "mlp1", "mlp2"), data, "f", 10, 50_000, 10_000, 384, True)


def test_development_requests_are_in_no_grid():
    for one in (source(), feature_source("digits")):
        for variant in development_variants(one, ["mlp1"]):
            assert variant.key not in one.keys(variant.scenario)
    assert [str(v) for v in development_variants(source(), ["mlp1"])] == [
        "cifar/mlp1/class/1", "cifar/mlp1/subclass/1", "cifar/mlp1/random/1000"
    ]  # fmt: skip


@pytest.mark.parametrize("method", methods.names())
def test_a_trial_is_other_steps_than_the_untuned_method(method):
    cifar = source()
    tuning = Tuning(method, [(cifar, development_variants(cifar, ["mlp1"]))])
    values = tuning.space.now(method, "mlp1")
    values = {p.name: values.get(p.name, (p.choices or (p.low,))[0]) for p in tuning.space.parameters}
    steps = [step for _, _, step in tuning.steps(values)]
    assert len({step.id for step in steps}) == 9
    untuned = {
        cell_step(cifar, variant, seed, [method], RunSettings(preset=tuning.space.start)).needs[method].id
        for variant in tuning.parts[0][1]
        for seed in tuning.seeds
    }
    assert not untuned & {step.id for step in steps}
    kinds = [step.kind for step in closure(steps)]
    assert (kinds.count(Kind.BASE), kinds.count(Kind.RETRAIN), kinds.count(Kind.FLOOR)) == (6, 9, 0)
    trial = tuning.measure(0, values, Store(Path("nowhere")))
    assert trial.cost == math.inf, "what is not in the store failed"
    line = methods.find(method)
    assert (trial.counted > 0) != (line.family is methods.Family.EDIT and line.schedule is None)
    assert trial.entry()["cost"] is None


def test_a_retrain_cut_short_is_counted_as_what_it_is():
    """Five of fifty epochs are a tenth; a smaller batch makes more updates."""
    cifar = source()
    tuning = Tuning("ft", [(cifar, development_variants(cifar, ["mlp1"])[:1])])

    def counted(epochs: int, batch: float) -> float:
        values = {"lr": 1.0, "decay": 1.0, "batch": batch, "epochs": epochs}
        return tuning.measure(0, values, Store(Path("nowhere"))).counted

    assert counted(5, 1.0) == pytest.approx(0.1, rel=1e-12)
    assert counted(2, 1.0) == pytest.approx(0.04, rel=1e-12)
    assert counted(5, 1.0) < counted(5, 0.5) < counted(5, 0.125)


def trial(number: int, kl: float, cost: float | None) -> Trial:
    return Trial(number, {}, [Cell("v", 0, kl, kl, cost, 0.01)])


def test_the_best_is_the_closest_within_the_budget():
    over, within, far = trial(0, 0.01, 2 * BUDGET), trial(1, 0.1, BUDGET), trial(2, 0.5, 0.01)
    assert best_trial([over, far, within]) is within
    assert best_trial([over, trial(3, 0.05, None)]) is over, "none is within: the one for which it pays most"
    assert best_trial([trial(4, 0.1, 0.05), within]).number == 1, "of equals the first"
    assert (penalty(0.0), penalty(BUDGET)) == (0.0, 0.0)
    assert 0 < penalty(1.01 * BUDGET) < 0.03 < penalty(2 * BUDGET) < penalty(4 * BUDGET), (
        "it begins at nothing and rises"
    )


def test_an_infinite_kl_is_the_worst_and_not_the_end():
    bad = Trial(0, {}, [Cell("v", 0, None, 0.1, 0.05, 0.05)])
    assert math.isfinite(bad.objective)
    assert bad.objective > trial(1, 9.0, 0.05).objective
