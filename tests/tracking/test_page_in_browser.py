"""The page in a browser: what it shows, sorts, opens and draws, on a desktop and on a phone.

These run wherever Chromium is found and say so where it is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.tracking.pages import MADE_BY, figure, some_variants, written
from tracking.claims import Claim, Verdict
from tracking.figures.heatmap import write_heat_map
from tracking.page import write_page
from tracking.tables.table import Cell, Column, Group, Row, Table, number_cell, text_cell, two_digits
from tracking.tree import Tree, TreeProblem

STEP = 240_000  # milliseconds that any one thing on a page may take
PHONE, DESKTOP = 375, 1280

pytestmark = pytest.mark.slow


@pytest.fixture
def opened(browser) -> Iterator[Callable[..., Page]]:
    """Opens a page; at the end of the test, that it complained about nothing and asked for nothing else."""
    complaints: list[str] = []
    requests: list[str] = []
    contexts: list[Any] = []

    def open_page(path: Path, width: int = DESKTOP, fragment: str = "", scheme: Any = "light") -> Page:
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.set_default_timeout(STEP)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri() + fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in requests if url.startswith("file:")]) == len(contexts)


@pytest.fixture
def page_file(made, tmp_path) -> Path:
    """Of a hand-made tree, with a figure as matplotlib draws it."""
    tree = made.tree(*some_variants(made))
    problem = TreeProblem(Path("cifar10/r50/" + "long_" * 40 + "raw.json"), "mlp1." + "k" * 200, "missing")
    figures = [*write_heat_map(tmp_path, tree.variants), figure(tmp_path)]
    return written(tmp_path / "page.html", Tree(tree.variants, (problem,)), figures)


def test_figures_are_seen_and_nothing_is_wider_than_the_screen(page_file, opened, tmp_path):
    for width in (PHONE, DESKTOP):
        page = opened(page_file, width)
        images = page.locator("img")
        assert images.count() == 2
        for i in range(images.count()):
            assert images.nth(i).is_visible()
            assert images.nth(i).evaluate("image => image.naturalWidth") > 0
        for fold in ("Open all", "Close all"):
            page.get_by_role("button", name=fold).click()
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.locator(".variant[open]").count() == (4 if fold == "Open all" else 0)
        page.screenshot(path=tmp_path / f"page_{width}.png")


def test_sorting_by_click_and_by_keyboard(made, opened, tmp_path):
    """Up, down, back; numbers as numbers, missing ones last, equal ones in their order, groups together."""

    def row(name, value, word):
        return Row(name, (number_cell(value, two_digits), Cell(None, "--") if word is None else text_cell(word)))

    table = Table(
        "made",
        "Made by hand",
        (Column("number", "number"), Column("word", "word", prose=True)),
        (
            Group((row("a", 9.0, "b"), row("b", None, "a"), row("c", 10.0, None)), "first"),
            Group((row("d", 9.0, "random/500"), row("e", -1e-3, "random/50"), row("f", 9.001, "c")), "second"),
        ),
    )
    path = write_page(tmp_path / "page.html", made.tree(*some_variants(made)), [table], (), (), MADE_BY)
    page = opened(path)
    region = page.get_by_role("region", name="Made by hand")
    heads = region.locator("thead th")

    def names() -> str:
        rows = region.locator("tbody tr:not(.group) th")
        return "".join(text[-1] for text in rows.all_text_contents())

    def orders() -> list[str | None]:
        return [heads.nth(i).get_attribute("aria-sort") for i in range(heads.count())]

    number = region.get_by_role("button", name="number")
    assert (names(), orders()) == ("abcdef", ["none"] * 3)
    number.click()
    assert (names(), orders()) == ("eadfcb", ["none", "ascending", "none"])
    assert region.get_by_text("second", exact=False).first.is_visible(), "while sorted, every row says its group"
    assert region.locator(".group").count() == 0
    number.click()
    assert (names(), orders()) == ("cfadeb", ["none", "descending", "none"])
    number.click()
    assert (names(), orders()) == ("abcdef", ["none"] * 3)
    assert region.locator(".group").all_text_contents() == ["first", "second"]

    region.get_by_role("button", name="word").focus()
    page.keyboard.press("Enter")
    assert (names(), orders()) == ("bafedc", ["none", "none", "ascending"])
    page.keyboard.press("Space")
    assert (names(), orders()) == ("defabc", ["none", "none", "descending"])
    number.click()
    assert orders() == ["none", "ascending", "none"], "one column at a time"


def test_verdicts_are_sorted_by_what_they_say(made, opened, tmp_path):
    order = (Verdict.OPEN, Verdict.HOLDS, Verdict.FAILS, Verdict.HOLDS)
    claims = [Claim(str(i), "tab:x", "It is so.", "rule", v, "true", "not shown") for i, v in enumerate(order)]
    path = written(tmp_path / "page.html", made.tree(*some_variants(made)), claims=claims)
    for width in (PHONE, DESKTOP):
        region = opened(path, width).get_by_role("region", name="Claims")
        region.get_by_role("button", name="verdict").click()
        assert [text[0] for text in region.locator(".source").all_text_contents()] == ["1", "3", "2", "0"]


def test_jumping_to_a_variant_opens_it(page_file, opened):
    def arrived(page: Page, name: str) -> None:
        fold = page.locator(f'[id="{name}"]')
        page.wait_for_function("name => document.getElementById(name).open", arg=name)
        page.wait_for_function("name => document.getElementById(name).getBoundingClientRect().top < 100", arg=name)
        assert fold.evaluate("fold => fold.getBoundingClientRect().top") >= 0
        assert fold.get_by_role("region", name="Benchmark").is_visible()

    for width in (PHONE, DESKTOP):
        page = opened(page_file, width)
        assert page.locator(".variant[open]").count() == 0
        page.get_by_label("Jump to").select_option("subclass/2")
        arrived(page, "cifar10/r50/mlp1/subclass/2")
        page.get_by_role("link", name="class/0", exact=True).click()
        arrived(page, "cifar10/r50/mlp1/class/0")
        arrived(opened(page_file, width, "#cifar10/r50/mlp1/subclass/0"), "cifar10/r50/mlp1/subclass/0")


def test_jumping_works_whatever_a_folder_is_called(made, opened, tmp_path):
    tree = made.tree(*(made.variant(made.cell(), dataset=f"a b%20<ü>'{i}\"#") for i in range(4)))
    page = opened(written(tmp_path / "page.html", tree))
    page.get_by_label("Jump to").select_option(index=10)  # after the prompt, eight sections and the first variant
    page.wait_for_function("document.querySelectorAll('.variant')[1].open")
    page.get_by_role("link", name="subclass/0").nth(2).click()
    page.wait_for_function("document.querySelectorAll('.variant')[2].open")


def test_methods_of_any_variant_are_compared_by_pointing(page_file, opened, tmp_path):
    page = opened(page_file)
    chart = page.locator("#explorer svg")
    curves = chart.locator("polyline")
    drawn = curves.count()
    assert drawn > 10
    chart.hover()
    assert re.search(r"^\S+: 0\.2 nats at \S+ % of a retrain's cost$", page.locator("#explore-value").inner_text())
    page.get_by_label("test set (KL_t)").check()
    chart.hover()
    assert ": 0.1 nats" in page.locator("#explore-value").inner_text()
    page.get_by_label("ft", exact=True).uncheck()
    assert curves.count() == drawn - 1
    page.get_by_role("button", name="None of them").click()
    assert curves.count() == 0
    page.get_by_label("ft", exact=True).check()
    page.locator("#explore-variant").select_option("cifar10/r50/mlp1/random/50")
    assert curves.count() == 1
    page.screenshot(path=tmp_path / "explorer.png")


def test_figures_keep_their_white_card_in_the_dark(page_file, opened):
    page = opened(page_file, scheme="dark")

    def background(selector: str) -> str:
        return page.locator(selector).first.evaluate("element => getComputedStyle(element).backgroundColor")

    assert background(".card") == "rgb(255, 255, 255)"
    assert background("body") == "rgb(22, 25, 28)"
