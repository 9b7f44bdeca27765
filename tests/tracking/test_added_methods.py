"""A method that is added to the table of methods is in every part of a report, and no other file knows of it."""

from __future__ import annotations

import json
from types import MappingProxyType

import pytest

from tracking.claims import judge_all
from tracking.figures import write_figures
from tracking.figures.style import LOOKS, look_of
from tracking.frames import frames
from tracking.page import write_page
from tracking.summary import summary
from tracking.tables.report import report_tables
from tracking.tree import read_tree
from unlearn_core import methods
from unlearn_core.methods import BaselineMethod, Family, ProxyMethod


def _never_fitted(_request, _constants):
    raise AssertionError("a report fits nothing")


ADDED = (
    ProxyMethod("toy", _never_fitted, auto=True, paper=False),
    ProxyMethod("toy-closed", _never_fitted, closed_form=True, paper=False),
    BaselineMethod("toy-baseline", {}, paper=False),
)


@pytest.fixture
def added(monkeypatch):
    lines = sorted([*methods.TABLE.values(), *ADDED], key=lambda line: line.family is Family.BASELINE)
    monkeypatch.setattr(methods, "TABLE", MappingProxyType({line.name: line for line in lines}))


@pytest.fixture
def tree(added, made, tmp_path):
    """Two variants of two seeds with every method, and the toy proxy the closest of all."""

    def cell(seed):
        closest = {"toy": made.method("toy", kl_f=0.01), "toy_baseline": made.method("toy-baseline", kl_f=0.02)}
        return made.cell(seed, **{**made.every_method(), **closest})

    variants = (made.variant(cell(42), cell(0), scenario=scenario) for scenario in ("class", "subclass"))
    return read_tree(made.write(tmp_path / "results", *variants))


def test_they_are_in_tables_figures_frames_page_and_summary(tree, tmp_path):
    assert tree.problems == ()
    names = {line.name for line in ADDED}
    assert names < set(tree.variants[0].methods)
    claims = judge_all(tree)
    tables = {table.name: table for table in report_tables(tree, claims)}
    for kind, wanted in {
        "benchmark_cifar10_r50_mlp1_class_0": names,
        "queries_cifar10_r50_mlp1": names,
        "distillation_cifar10_r50_mlp1": {"toy", "toy-closed"},
        "bounds_cifar10_r50_mlp1": {"toy"},
        "beyond_cifar10_r50_mlp1": {"toy", "toy-closed"},
    }.items():
        assert names & {row.name for row in tables[kind].rows} == wanted, kind
    assert {row.cells[1].text for row in tables["auto_cifar10_r50_mlp1"].rows} == {"toy"}, "the oracle may choose it"

    figures = write_figures(tmp_path / "figures", tree.variants)
    for figure in figures:
        if figure.name.startswith(("evolution", "queries", "heat_map")):
            # the heat map breaks long names after hyphens
            parts = [line for name in names for line in (name.replace("-", "-\n").split("\n"))]
            wanted = parts if figure.name == "heat_map" else names
            assert all(f">{name}" in figure.svg.read_text() for name in wanted), figure.name

    data = frames(tree)
    kinds = dict(data.rows.select("method", "kind").unique().iter_rows())
    assert [kinds[line.name] for line in ADDED] == ["proxy", "proxy", "baseline"]
    assert names < set(data.epochs["method"])

    page = write_page(tmp_path / "report.html", tree, tuple(tables.values()), figures, claims, {}).read_text()
    assert all(f'<th scope="row">{name}</th>' in page for name in names)
    assert any("toy in 2" in said for said in summary(tree, claims)), "the closest proxy of both variants"


def test_each_has_a_look_of_its_own(added):
    looks = [look_of(line.name) for line in ADDED]
    assert len({look.marker for look in looks}) == len(looks)
    assert not {look.marker for look in looks} & {look.marker for look in LOOKS.values()}
    assert [look.filled for look in looks] == [True, True, False], "proxies are drawn as proxies"


@pytest.mark.parametrize(
    ("name", "eta", "what"),
    [("toy", None, "None should be a valid number"), ("toy-closed", 0.5, "0.5 should be None")],
)
def test_their_entries_are_checked_by_their_line_in_the_table(added, made, tmp_path, name, eta, what):
    cell = made.cell(42, ft=made.method("ft"))
    cell[name] = made.method(name, taught=made.target(eta))
    (problem,) = read_tree(made.write(tmp_path, made.variant(cell))).problems
    assert problem.key == f"mlp1.results.0[0].{name}.target.eta_max"
    assert problem.what.startswith(what)


def test_without_their_line_they_are_unknown(made, tmp_path):
    path = made.write(tmp_path, made.variant(made.cell(42, ft=made.method("ft"))))
    file = path / "cifar10" / "r50" / "subclass_mlp1_raw.json"
    document = json.loads(file.read_text())
    document["mlp1"]["results"]["0"][0]["toy"] = document["mlp1"]["results"]["0"][0]["ft"]
    file.write_text(json.dumps(document))
    (problem,) = read_tree(tmp_path).problems
    assert problem.what.startswith("unknown method; there are lda, qda")
