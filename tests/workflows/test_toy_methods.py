"""A method is one file and one line: a toy proxy and a toy baseline run in a grid, in a request and in a report."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from unlearn_core import forget, methods
from unlearn_core.data import FeatureSet, load_dataset
from unlearn_core.grid import LabelSpace, Scenario, Variant
from unlearn_core.methods import BaselineMethod, ProxyMethod
from unlearn_core.problem import Inputs, make_cells, make_problem
from unlearn_core.references import make_scorers, train_reference
from unlearn_core.run_settings import RunSettings
from unlearn_core.unlearning import Reference, run_method
from workflows.cli import main

sys.path.insert(0, str(Path(__file__).parent))
from toys import BRIEF, PriorShiftConstants, fit_prior_shift

LINES = (
    ProxyMethod("prior-shift", fit_prior_shift, PriorShiftConstants(), per_network=True, paper=False),
    BaselineMethod("brief", {"paper": BRIEF, "original": BRIEF}, paper=False),
)


@pytest.fixture
def added(monkeypatch) -> None:
    monkeypatch.setattr(methods, "TABLE", MappingProxyType({**methods.TABLE, **{line.name: line for line in LINES}}))


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_in_a_grid_and_in_a_report(added, tmp_path, capsys):
    methods_asked = "lda,prior-shift,ft,brief"
    out = tmp_path / "out"
    chosen = ["--dataset", "digits", "--arch", "mlp1", "--scenario", "subclass", "--key", "0"]
    how = ["--epochs", "5", "--seeds", "0,1", "--methods", methods_asked, "--local", "--no-tracking", "--out", str(out)]
    assert run("grid", *chosen, *how) == 0
    entries = json.loads(next((out / "results").rglob("*_raw.json")).read_text())["mlp1"]["results"]["0"]
    for entry in entries:
        proxy, baseline = entry["prior-shift"], entry["brief"]
        assert proxy["target"]["eta_max"] == pytest.approx(1), (
            "P is the network: h(eta) = log sum p^(1-eta) P_r^eta <= 0"
        )
        assert len(proxy["epochs"]) == 20
        assert len(baseline["epochs"]) == 2
        assert np.isfinite([proxy["best"]["kl_f"], baseline["best"]["kl_f"]]).all()
    capsys.readouterr()
    report = ["--results", str(out / "results"), "--no-illustrations", "--no-tracking", "--table", "benchmark_*"]
    assert run("report", *report) == 0
    printed = capsys.readouterr().out
    assert "prior-shift" in printed
    assert "brief" in printed
    page = (out / "report" / "report.html").read_text()
    assert "prior-shift" in page
    assert "brief" in page


def trained_base(digits: FeatureSet):
    problem = make_problem(Inputs(digits), LabelSpace.FINE)
    cells = make_cells(digits, Variant("digits", "mlp1", Scenario.CLASS, 3), [0])
    return problem, cells, train_reference("base", problem, "mlp1", cells, epochs=10)


def test_in_a_request(added):
    digits = load_dataset("digits")
    _, _, trained = trained_base(digits)
    rows = np.flatnonzero(digits.train_y == 3)[::2]
    result = forget(trained.net, digits.train_x, digits.train_y, rows, proxy="prior-shift")
    assert result.certificate.content["proxy"]["method"] == "prior-shift"
    assert result.certificate.content["outcome"] == "unlearned"


def test_a_cell_on_the_schedule_of_requests_is_the_request():
    """The grid measures what ``forget`` ships: the same target, schedule and network, to the bit."""
    digits = load_dataset("digits")
    digits = replace(digits, train_x=digits.train_x[:500], train_y=digits.train_y[:500])
    problem, cells, trained = trained_base(digits)
    retrain = train_reference("retrain", problem, "mlp1", cells, epochs=10)
    reference = Reference(problem, "mlp1", cells, trained, retrain, make_scorers(problem, cells, retrain))
    for method in ("lda-2c", "fresh"):
        record = run_method(method, reference, RunSettings(schedule="request"))[0]
        result = forget(
            trained.net, digits.train_x, digits.train_y, np.flatnonzero(cells[0].forget), proxy=method, seed=0
        )
        assert result.outcome.finalized is not None
        assert record.last.epoch == result.outcome.finalized.best_epoch
        assert record.last.scores == reference.scorers[0].score(result.model, 0)
        assert record.target is not None
        assert record.target.eta_max == result.certificate.content["proxy"]["eta_max"]
