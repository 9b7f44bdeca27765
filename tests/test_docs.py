"""The documentation: it builds strictly, opens in a browser without asking anybody else, and shows what happens."""

from __future__ import annotations

import doctest
import os
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.processes import free_port, listens, run, running, wait_until
from tracking.tree_writer import write_entries
from unlearn_core.grid import Scenario, Variant
from unlearn_core.records import ReferenceRecord, Scores, cell_entry, reference_entry
from workflows.publishing import MADES, STAMP, stamp_problem
from workflows.quoting import QUOTED, documents, quoted_problem

ROOT = Path(__file__).resolve().parent.parent
STEP = 240_000  # milliseconds that any one thing on a page may take
FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\|\s*\**[-+]?(\d+\.\d|[\d,]+( ?%)?\**\s*\|)")
"""A cell that is a number, or begins with a decimal."""
SCORES = Scores(0.1, 0.2, 0.1, 0.2, 0.9, 0.5, 0.5, 0.5)
SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    built = run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder], ROOT, environment)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.slow
def test_every_page_of_the_navigation_and_every_command_is_there(site):
    pages = {page.relative_to(site).as_posix() for page in site.rglob("*.html")}
    assert {
        "index.html",
        "start.html",
        "tutorials/grid.html",
        "method.html",
        "reference/python.html",
        "changelog.html",
    } <= pages
    commands = (site / "reference" / "commands.html").read_text()
    for name in ("prepare", "forget", "verify", "run", "grid", "report", "ui"):
        assert f"unlearn {name}</a>" in commands or f">unlearn {name}<" in commands, name
    assert "--dry-run" in commands
    assert "<math" in (site / "method.html").read_text()
    assert "find_eta_max" in (site / "reference" / "python.html").read_text()
    assert "| :--" not in (site / "results.html").read_text(), "folded tables are tables, too"


@pytest.fixture(scope="module")
def address(site) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "http.server", port, "--bind", "127.0.0.1", "--directory", site]
    with running(command) as process:
        wait_until(lambda: listens(port), "the server", process)
        yield f"http://127.0.0.1:{port}"


@pytest.mark.slow
def test_it_opens_on_a_desktop_and_on_a_phone_its_search_finds_and_nothing_is_fetched_from_elsewhere(
    browser, address, tmp_path
):
    expect.set_options(timeout=STEP)
    for width in (375, 1280):
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.set_default_timeout(STEP)
        requests: list[str] = []
        page.on("request", lambda request, seen=requests: seen.append(request.url))
        page.goto(f"{address}/index.html")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=tmp_path / f"site_{width}.png")
        if width == 375:
            page.locator("label[for=__search]").first.click()
        expect(page.locator(".md-search-result__meta")).to_have_text("Type to start searching")
        page.get_by_role("textbox", name="Search").press_sequentially("eta_max")  # it listens to keys
        expect(page.locator(".md-search-result__item").first).to_be_visible()
        assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []
        page.close()


def test_every_example_of_the_reference_runs(tmp_path, monkeypatch):
    """All that is shown of the Python interface has an example; those on results find a tree where the demo leaves it."""
    rows = {name: reference_entry(ReferenceRecord(SCORES, 10.0), 10.0) for name in ("base", "retrain", "floor")}
    variant = Variant("digits", "mlp1", Scenario.SUBCLASS, 0)
    write_entries(tmp_path / "runs" / "demo" / "results", variant, "pixels", [cell_entry(42, 5, 95, rows)])
    monkeypatch.chdir(tmp_path)
    names = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "reference" / "python.md").read_text(), re.MULTILINE)
    assert len(names) >= 9
    runner = doctest.DocTestRunner(optionflags=SHOWN)
    for name in names:
        shown = pkgutil.resolve_name(name)
        [example] = doctest.DocTestFinder(recurse=False).find(shown, name, globs=dict(shown.__globals__))
        assert example.examples, f"{name} has none"
        said: list[str] = []
        assert runner.run(example, out=said.append).failed == 0, "".join(said)


def test_a_published_document_is_of_its_numbers():
    """The numbers that it was written with are there, unchanged, and so is the text."""
    made = {path for path in documents(ROOT) if any(sentence in path.read_text() for sentence in MADES)}
    before_stamps = {ROOT / "docs" / f"results_{name}.md" for name in ("paper", "resnet")}  # their trees are gone
    assert len(made - before_stamps) >= 2
    assert {path.name: stamp_problem(path) for path in made - before_stamps if stamp_problem(path)} == {}


def test_quotations_are_what_the_quoted_file_says():
    problems = {path.name: quoted_problem(path, ROOT) for path in documents(ROOT)}
    assert {name: problem for name, problem in problems.items() if problem} == {}
    assert sum(len(QUOTED.findall(path.read_text())) for path in documents(ROOT)) >= 10


def test_a_table_of_measured_numbers_is_a_quotation():
    """By hand it would age unseen."""
    for document in documents(ROOT):
        text = document.read_text()
        if not any(sentence in text for sentence in MADES):
            own = FENCE.sub("", QUOTED.sub("", text)).splitlines()
            assert [line for line in own if line.startswith("|") and NUMBER.search(line)] == [], document.name


def test_every_file_of_numbers_says_where_they_come_from_and_is_quoted():
    quoted = {found["file"] for path in documents(ROOT) for found in QUOTED.finditer(path.read_text())}
    stamped = {f"docs/data/{path.stem}.csv" for path in documents(ROOT) if STAMP.search(path.read_text())}
    for folder, source in (("data", "command"), ("records", "trial")):
        for file in sorted((ROOT / "docs" / folder).glob("*.csv")):
            name = file.relative_to(ROOT).as_posix()
            header = file.read_text().splitlines()[0].split(",")
            assert name in stamped or (name in quoted and header[-2:] == [source, "date"]), name


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
