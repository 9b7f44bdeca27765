"""``unlearn report`` as a stranger runs it: on a real small grid, on a damaged one, on none."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from tests.commands import unlearn
from tests.processes import Ended
from tracking.document import END_OF_PART, MADE, PART
from tracking.tree import Tree
from unlearn_core.errors import BadInput
from workflows.publishing import publish, stamp_problem
from workflows.quoting import quoted_problem
from workflows.report import Report


@pytest.fixture(scope="module")
def grid(tmp_path_factory) -> Path:
    """A grid of two variants with its MLflow database."""
    out = tmp_path_factory.mktemp("grid") / "small"
    result = unlearn(
        "grid", "--dataset", "digits", "--arch", "linear", "--scenario", "subclass", "--key", "0,2", "--seeds", "0,1",
        "--methods", "lda,lda-2c,dir-2c,probe,ft,ga", "--epochs", 3, "--local", "--out", out,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return out


@pytest.fixture(scope="module")
def report(grid) -> Ended:
    return unlearn("report", "--results", grid / "results", "--table", "benchmark_*_subclass_0")


def test_it_prints_the_table_the_summary_and_where_things_are(report, grid):
    assert report.returncode == 0, report.stderr
    for words in ("digits/pixels/linear/subclass/0", "lda-2c", "probe", "2 variants", "claims of the paper"):
        assert words in report.stdout, words
    assert f"page: {grid / 'report' / 'report.html'}" in report.stdout
    assert "subclass/2: mean" not in report.stdout, "only the table that was asked for"


def test_every_form_of_every_table_is_there_and_they_agree(report, grid):
    out = grid / "report"
    tables = sorted(path.stem for path in (out / "tables").glob("*.md"))
    for suffix in ("tex", "csv", "parquet"):
        assert sorted(path.stem for path in (out / "tables").glob(f"*.{suffix}")) == tables
    entries = json.loads((grid / "results/digits/pixels/subclass_linear_raw.json").read_text())
    seeds = entries["linear"]["results"]["0"]
    table = pl.read_parquet(out / "tables" / "benchmark_digits_pixels_linear_subclass_0.parquet")
    probe = table.filter(pl.col("method") == "probe")
    for block, column in (("last", "kl_f"), ("best", "oracle_kl_f")):
        mean = sum(entry["probe"][block]["kl_f"] for entry in seeds) / 2
        assert probe[column].item() == pytest.approx(mean)
    rows = pl.read_parquet(out / "rows.parquet")
    assert rows.height == 2 * 2 * (3 + 6)
    assert pl.read_parquet(out / "epochs.parquet").height > 0


def test_figures_come_from_the_tree_and_from_the_illustrations(report, grid):
    names = {path.stem for path in (grid / "report" / "figures").glob("*.svg")}
    for kind in ("evolution", "queries", "h_eta", "heat_map", "weights", "illustration"):
        assert any(kind in name for name in names), (kind, names)
    assert {path.stem for path in (grid / "report" / "figures").glob("*.png")} == names


def test_the_report_is_an_artifact_of_the_grids_run(report, grid):
    assert "the report is an artifact of the run 'grid'" in report.stdout
    assert list(grid.glob("mlartifacts/**/artifacts/report/report.html"))
    assert list(grid.glob("mlartifacts/**/artifacts/report/tables/*.tex"))


@pytest.fixture(scope="module")
def damaged(grid, tmp_path_factory) -> tuple[Ended, Path]:
    """A report on a tree with a damaged file, with notes and with its document at a place of its own."""
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copytree(grid / "results", folder / "results")
    (folder / "results" / "digits" / "pixels" / "class_linear_raw.json").write_text('{"linear": {"0": [{"seed"')
    (folder / "notes.md").write_text("Made on a *toaster*.")
    ended = unlearn(
        "report", "--results", folder / "results", "--out", folder / "out", "--document", folder / "docs.md",
        "--notes", folder / "notes.md", "--no-illustrations", "--no-tracking",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended, folder


def test_a_document_and_its_figures_at_a_place_of_their_own(damaged):
    _, folder = damaged
    text = (folder / "docs.md").read_text()
    assert "Made on a *toaster*." in text
    links = re.findall(r"^!\[.*\]\((.*)\)$", text, re.MULTILINE)
    assert links
    assert all((folder / link).exists() for link in links)


def test_a_damaged_tree_is_named_and_the_rest_rendered(damaged):
    ended, folder = damaged
    assert "problem in the tree: digits/pixels/class_linear_raw.json" in ended.stdout
    page = (folder / "out" / "report.html").read_text()
    assert "subclass/0" in page


@pytest.fixture
def published(tmp_path):
    """Publishes a report of some figures as docs/x.md, where a user keeps figures of their own."""
    docs = tmp_path / "docs"
    (docs / "figures" / "x").mkdir(parents=True)
    for name in ("mine.svg", "x/mine.svg"):
        (docs / "figures" / name).write_text("mine")

    def publish_these(*figures: str) -> Path:
        out = tmp_path / "out"
        (out / "figures").mkdir(parents=True, exist_ok=True)
        files = [out / "figures" / f"{name}.svg" for name in figures]
        for file in files:
            file.write_text("drawn")
        links = (f"![{name}](figures/{name}.svg)" for name in figures)
        text = "\n".join([MADE, PART, *links, END_OF_PART])
        (out / "report.md").write_text(text)
        publish(Report(Tree(()), (), (), (), tuple(files), out / "report.html"), docs / "x.md")
        return docs

    return publish_these


def test_a_document_knows_its_numbers_and_renews_who_quotes_it(published, tmp_path):
    quoting = tmp_path / "README.md"
    quoting.write_text("# Mine\n\n<!-- part of docs/x.md: headline -->\nold\n<!-- /part -->\nEnd\n")
    document = published("a") / "x.md"
    assert stamp_problem(document) is None
    assert quoting.read_text() == (
        "# Mine\n\n<!-- part of docs/x.md: headline -->\n![a](docs/figures/x/a.svg)\n<!-- /part -->\nEnd\n"
    )
    assert quoted_problem(quoting, tmp_path) is None
    quoting.write_text(quoting.read_text().replace("![a]", "![b]"))
    assert "its quotation of docs/x.md is old" in str(quoted_problem(quoting, tmp_path))
    text = document.read_text()
    document.write_text(text + "by hand")
    assert "edited by hand" in str(stamp_problem(document))
    document.write_text(text)
    (document.parent / "data" / "x.csv").write_text("newer")
    assert "not of the numbers" in str(stamp_problem(document))


def test_a_document_replaces_its_own_figures_and_nothing_else(published):
    docs = published("a", "b")
    assert "(figures/x/b.svg)" in (docs / "x.md").read_text()
    published("b", "c")
    assert {path.name for path in (docs / "figures" / "x").iterdir()} == {"b.svg", "c.svg", "mine.svg"}
    assert (docs / "figures" / "mine.svg").read_text() == (docs / "figures" / "x" / "mine.svg").read_text() == "mine"
    with pytest.raises(BadInput, match="is not of an earlier report"):
        published("mine")
    assert (docs / "figures" / "x" / "mine.svg").read_text() == "mine"
    (docs / "x.md").write_text("my notes")
    with pytest.raises(BadInput, match="was not made by 'unlearn report'"):
        published("a")


@pytest.mark.parametrize("document", [".", "..", "figures", "notes.txt", "theirs.md"])
def test_a_document_is_never_put_where_something_else_is(document, tmp_path, monkeypatch, unlearn_here):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "holiday.svg").write_text("mine")
    (tmp_path / "theirs.md").write_text("theirs")
    answer = unlearn_here("report", "--results", "nowhere", "--document", document)
    assert answer.code == 2
    assert re.search(rf"--document {re.escape(document)} names no|theirs.md was not made by", answer.err), answer.err
    assert (tmp_path / "figures" / "holiday.svg").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--results", "nowhere"), "nowhere"),
        (("--table", "no_such_table"), "no table is called 'no_such_table'"),
        (("--notes", "nowhere.md"), "there is no file nowhere.md"),
    ],
)
def test_what_cannot_be_is_one_line(grid, tmp_path, options, message):
    given = () if "--results" in options else ("--results", grid / "results")
    result = unlearn("report", *given, *options, "--out", tmp_path, "--no-illustrations", "--no-tracking")
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing is written"
