"""The page: all that it is given is on it, and nothing of that is taken for markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.tracking.pages import MADE_BY, PIXEL, figure, read, some_variants, written
from tracking.claims import Claim, Kind, Verdict, judge_all
from tracking.html import Html, tag, typeset
from tracking.page import write_page
from tracking.page.layout import lay_out
from tracking.page.page_tables import provenance_tables
from tracking.tables.report import report_tables
from tracking.tables.table import MISSING, Column, Group, Row, Table
from tracking.tree import Tree, TreeProblem, read_tree
from unlearn_core.grid import ARCHITECTURES, SEEDS

HOSTILE = "<script>alert('&\"')</script>"


def texts(row: Row) -> list[str]:
    """As the page prints a row."""
    cells = ((cell.text, f"±{cell.std_text}" if cell.std_text is not None else "") for cell in row.cells)
    name = f"{row.name} {row.remark}" if row.remark else row.name
    return [name, *("\N{EN DASH}" if text == "--" else f"{text}{std}" for text, std in cells)]


def test_every_row_of_every_table_is_on_the_page(made, tmp_path):
    """Also where a family has one variant only, so that its tables are named after that."""
    tree = made.tree(*some_variants(made), made.variant(made.cell(**made.every_method()), arch="linear"))
    claims = judge_all(tree)
    tables = report_tables(tree, claims)
    shown = Counter(tuple(row) for row in read(written(tmp_path / "page.html", tree)).rows)
    wanted = Counter(
        tuple(texts(row)) for table in tables if table.name not in ("claims", "identities") for row in table.rows
    )
    assert sum(wanted.values()) > 200
    assert {row: count for row, count in wanted.items() if shown[row] < count} == {}
    names = [
        table.name
        for table in tables
        if table.name.startswith(("front_cifar10", "benchmark", "queries", "bounds", "distillation"))
    ]
    assert len(names) == 5 + 4 * 2
    parts = [part.name for _, own in lay_out(tree, tables).by_variant for part in own]
    assert Counter(parts) == {name: 4 if name.endswith("mlp1") else 1 for name in names}


def test_a_variant_gets_its_own_part_of_a_table_and_its_own_notes(made):
    problem = TreeProblem(Path("cifar10/r50/subclass_mlp1_raw.json"), "mlp1.results.2[0].ft", "missing")
    class_0, subclass_0, subclass_2, random_50 = some_variants(made)
    tree = made.tree(class_0, subclass_0, replace(subclass_2, problems=(problem,)), random_50)
    unknown = Table("queries_of_old", "Old", (Column("a", "a"),), (Group((Row("x", (MISSING,)),)),))
    layout = lay_out(tree, (*report_tables(tree, ()), unknown))
    for (variant, own), mine in zip(layout.by_variant, tree.variants, strict=True):
        assert variant is mine
        assert [table.title.split(":")[0] for table in own] == ["Front", "Benchmark", "Distillation", "Audit", "Audit"]
        assert {group.name for table in own for group in table.groups} == {""}
        about_it = [any("is incomplete" in note for note in table.notes) for table in own]
        assert about_it == [not variant.complete] * 5
    assert unknown in layout.overview, "what is about no variant is not lost"
    assert not any(table.name.startswith(("benchmark", "bounds", "distillation")) for table in layout.overview)


def test_nothing_is_taken_for_markup(made, tmp_path):
    tree = made.tree(
        *(made.variant(made.cell(ft=made.method("ft")), dataset=HOSTILE, backbone=HOSTILE, key=key) for key in range(4))
    )
    problem = TreeProblem(Path(HOSTILE), HOSTILE, HOSTILE)
    tree = Tree((replace(tree.variants[0], problems=(problem,)), *tree.variants[1:]), (problem,))
    claim = Claim(HOSTILE, HOSTILE, HOSTILE, HOSTILE, Verdict.FAILS, HOSTILE, HOSTILE)
    image = replace(figure(tmp_path, caption=HOSTILE), name=HOSTILE, title=HOSTILE)
    path = written(tmp_path / "page.html", tree, [image], [claim], {HOSTILE: HOSTILE}, HOSTILE)
    seen = read(path)
    assert len(seen.all("script")) == 1
    assert seen.text.count(HOSTILE) > 20
    assert seen.all("img")[0]["alt"] == HOSTILE
    assert not [name for _, attributes in seen.elements for name in attributes if name.startswith(("on", "style"))]
    assert seen.all("html") == [{"lang": "en"}]


def test_markup_is_escaped_unless_it_is_said_to_be_html():
    assert (
        tag("p", "<b>&", Html("<br>"), title='"<', hidden=True, id=None)
        == '<p title="&quot;&lt;" hidden>&lt;b&gt;&amp;<br></p>'
    )
    assert tag("td", class_="a", aria_sort="none", data_v="1") == '<td class="a" aria-sort="none" data-v="1"></td>'


@pytest.mark.parametrize(
    ("plain", "set_as"),
    [
        ("KL_f and KL_last", "KL<sub>f</sub> and KL<sub>last</sub>"),
        ("|D_f| < N_t", "|D<sub>f</sub>| &lt; N<sub>t</sub>"),
        ("eta_max <= 1", "η<sub>max</sub> ≤ 1"),
        ("KL(retrain || P_r)", "KL(retrain ‖ P<sub>r</sub>)"),
        ("x floor", "\N{MULTIPLICATION SIGN} floor"),
        ("25 % of", "25\N{NARROW NO-BREAK SPACE}% of"),
        ("kl_retrain_base, KL_false", "kl_retrain_base, KL_false"),
    ],
)
def test_typesetting(plain, set_as):
    assert typeset(plain) == set_as


def test_the_page_asks_for_nothing_and_its_policy_fits_it(made, tmp_path):
    path = written(tmp_path / "page.html", made.tree(*some_variants(made)), [figure(tmp_path)])
    seen = read(path)
    assert all(attributes["src"].startswith("data:") for attributes in seen.all("img"))
    assert all(attributes["href"].startswith("#") for attributes in seen.all("a"))
    assert not seen.all("link")
    ids = [attributes["id"] for _, attributes in seen.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["href"][1:] for attributes in seen.all("a")} <= set(ids)
    assert {attributes["value"] for attributes in seen.all("option")} - {""} <= set(ids)
    policy = next(meta["content"] for meta in seen.all("meta") if "http-equiv" in meta)
    for element in ("style", "script"):
        (inline,) = re.findall(f"<{element}>(.*)</{element}>", path.read_text(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy


def test_figures_are_inside_as_svg_or_as_a_lighter_png(made, tmp_path):
    small = figure(tmp_path, "small", "Fewest of all")
    large = figure(tmp_path, "large", svg_bytes=400_001)
    heavier = figure(tmp_path, "heavier", svg_bytes=400_001)
    heavier.png.write_bytes(PIXEL + bytes(500_000))
    seen = read(written(tmp_path / "page.html", made.tree(*some_variants(made)), [small, large, heavier]))
    images = seen.all("img")
    expected = [("image/svg+xml", small.svg), ("image/png", large.png), ("image/svg+xml", heavier.svg)]
    for image, (kind, file) in zip(images, expected, strict=True):
        head, data = image["src"].split(",")
        assert head == f"data:{kind};base64"
        assert base64.b64decode(data) == file.read_bytes()
    assert images[0]["alt"] == "Fewest of all"
    assert "A title. Fewest of all" in seen.text


def test_what_is_incomplete_is_marked_and_every_problem_is_listed(made, tmp_path):
    root = made.write(tmp_path / "results", *some_variants(made))
    file = root / "cifar10" / "r50" / "subclass_mlp1_raw.json"
    document = json.loads(file.read_text())
    del document["mlp1"]["results"]["2"][1]["ft"]["best"]["kl_f"]
    file.write_text(json.dumps(document))
    (root / "cifar10" / "r50" / "random_mlp1_raw.json").write_text('{"mlp1": ')
    tree = read_tree(root)
    seen = read(written(tmp_path / "page.html", tree))
    assert len(tree.problems) >= 2
    listed = [row for row in seen.rows if row[0].endswith("_raw.json")]
    assert listed == [[str(p.file), p.key or "the whole file", p.what] for p in tree.problems]
    assert [row[0] for row in seen.rows if row[0].endswith(" incomplete")] == ["subclass/2 incomplete"]
    jump = (tmp_path / "page.html").read_text().split("</nav>", 1)[0]
    options = re.findall(r"<option[^>]*>([^<]*)</option>", jump)
    assert [option for option in options if "/" in option] == ["class/0", "subclass/0", "subclass/2 (incomplete)"]
    assert re.findall(
        r"cifar10/r50/mlp1/subclass/\d</h3>(?:(?!</summary>).)*incomplete", (tmp_path / "page.html").read_text()
    )
    assert f"The tree has {len(tree.problems)} problems." in seen.text


def test_a_whole_tree_has_no_warning(made, tmp_path):
    seen = read(written(tmp_path / "page.html", made.tree(*some_variants(made))))
    assert "None was found." in seen.text
    assert "incomplete" not in re.sub(r"\.\w+ ", "", seen.text.split("Summary", 1)[1])


def test_a_tree_without_a_variant_is_a_page_too(tmp_path):
    problem = TreeProblem(Path("cifar10/r50/class_mlp1_raw.json"), "", "not valid JSON")
    seen = read(write_page(tmp_path / "page.html", Tree((), (problem,)), (), (), (), MADE_BY))
    assert "No variant could be read." in seen.text
    assert [str(problem.file), "the whole file", problem.what] in seen.rows


def test_verdicts_are_told_apart_by_words_and_signs(made, tmp_path):
    claims = [Claim(v.name, "tab:x", "It is so.", "rule", v, "true in 1 of 1 cases", "not shown") for v in Verdict]
    seen = read(written(tmp_path / "page.html", made.tree(*some_variants(made)), claims=claims))
    verdicts = [row[0] for row in seen.rows if "It is so." in "".join(row)]
    assert verdicts == ["✓ holds", "✕ does not hold", "? cannot be judged"]


def test_the_front_comes_first_and_the_identities_have_a_list_of_their_own(made, tmp_path):
    cell = made.cell(
        ft=made.raced("ft", (0.005, 0.02, 0.02)), short=made.raced("short", (0.002, 1.0, 1.0), (0.02, 0.1, 0.1))
    )
    tree = made.tree(made.variant(cell))
    front = replace(figure(tmp_path, "front_a", "The front"), title="Front")
    path = written(tmp_path / "page.html", tree, [figure(tmp_path, "heat_map", "The map"), front])
    seen = read(path)
    assert [image["alt"] for image in seen.all("img")] == ["The front", "The map"]
    places = [
        path.read_text().index(part)
        for part in ("auto chooses a method", 'alt="The front"', "front_summary", 'id="summary"', "Closest at 1")
    ]
    assert places == sorted(places)
    assert seen.text.count("auto chooses a method") == 1
    (verdict,) = [row[0] for row in seen.rows if "closer-than-short-subclass-1 " in "".join(row)]
    assert verdict == "✓ holds"
    assert "Checked identities" in seen.text


def test_an_identity_is_not_said_to_hold(made, tmp_path):
    claims = [Claim(v.name, "prop:x", "It is so.", "rule", v, "true", "not shown", Kind.IDENTITY) for v in Verdict]
    seen = read(written(tmp_path / "page.html", made.tree(*some_variants(made)), claims=claims))
    verdicts = [row[0] for row in seen.rows if "It is so." in "".join(row)]
    assert verdicts == ["✓ no violation", "✕ violated", "? nothing to check"]


def test_how_it_was_computed_is_told_apart_by_what_differs(made):
    def entry(seed, fingerprint, torch):
        made_from = {"fingerprint": fingerprint, "settings": {"ridge": 0.1, "cap": None}, "versions": torch}
        return made.cell(seed) | ({"provenance": made_from} if fingerprint else {})

    tree = made.tree(
        made.variant(entry(42, "ab", {"torch": "2.9"}), entry(0, "ab", None)),
        made.variant(entry(42, "cd", {"torch": "2.9"}), arch="linear"),
        made.variant(entry(42, None, None), dataset="digits"),
    )
    data, settings, versions = provenance_tables(tree)
    assert [texts(row) for row in data.rows] == [
        ["cifar10/r50", "2", "42, 0", "ab"],
        ["cifar10/r50", "1", "42", "cd"],
        ["digits/r50", "1", "42", "not recorded"],
    ]
    assert [column.name for column in settings.columns] == ["cells", "seeds", "ridge"]
    assert [texts(row) for row in versions.rows] == [
        ["mlp1", "1", "42", "2.9"],
        ["mlp1", "2", "0, 42", "not recorded"],
        ["linear", "1", "42", "2.9"],
    ]


def test_notes_and_what_made_the_page_are_on_it(made, tmp_path):
    tree = made.tree(*some_variants(made))
    seen = read(written(tmp_path / "page.html", tree, made_by={"polars": "1.30"}, notes="One.\n\nTwo."))
    assert "polars1.30" in seen.text
    assert "One.Two." in seen.text


def test_a_baseline_that_moves_nothing_says_so_on_the_page(made, tmp_path):
    cell = made.cell(ga=made.method("ga")) | {"provenance": {"settings": {"preset": "original"}}}
    assert (
        "ga, preset original: moves next to nothing"
        in read(written(tmp_path / "a.html", made.tree(made.variant(cell)))).text
    )


def the_papers_grid(made, archs) -> Tree:
    """28 variants of 5 seeds for each architecture."""
    cells = [made.cell(seed, **made.every_method()) for seed in SEEDS]
    places = [("class", range(5)), ("subclass", range(5)), ("random", (1, 50, 500, 5000))]
    return made.tree(
        *(
            made.variant(*cells, dataset=dataset, arch=arch, scenario=scenario, key=key)
            for dataset in ("cifar10", "cifar100")
            for arch in archs
            for scenario, keys in places
            for key in keys
        )
    )


@pytest.mark.slow
def test_the_page_of_the_whole_grid_is_light_and_twice_the_grid_is_twice_the_work(made, tmp_path, count_calls):
    figures = [figure(tmp_path, f"figure_{i}", svg_bytes=400_000) for i in range(10)]
    path, calls = tmp_path / "page.html", []
    for archs in (ARCHITECTURES[:1], ARCHITECTURES[:2], ARCHITECTURES):
        tree = the_papers_grid(made, archs)
        claims = judge_all(tree)
        tables = report_tables(tree, claims)
        work = partial(write_page, path, tree, tables, figures, claims, MADE_BY)
        if len(archs) <= 2:
            calls.append(count_calls(work))
        else:
            work()
    assert calls[1] < 2.2 * calls[0]
    assert path.stat().st_size < 15e6
    assert path.read_text().count("<details") > 112
