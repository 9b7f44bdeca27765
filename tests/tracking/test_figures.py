"""Figures: what is drawn is what the tree says, from whole trees and from partial ones, in the same bytes every time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from tracking.entries import Entry
from tracking.figures import write_evolution, write_figures
from tracking.figures.catalogue import representatives
from tracking.figures.evolution import evolution_curves, evolution_figure
from tracking.figures.front import front_figure
from tracking.figures.heatmap import heat_map, write_heat_map
from tracking.figures.illustrations import write_regions, write_weights
from tracking.figures.queries import ERROR_RATES, query_curves, write_queries
from tracking.figures.shift import shift_panel
from tracking.figures.style import FigureFile, look_of, styled
from tracking.front import trajectories
from tracking.tree import TreeVariant
from unlearn_core import methods
from unlearn_core.audit.stein import min_queries
from unlearn_core.grid import PAPER_ARCHITECTURES, Scenario, Variant
from unlearn_core.illustration import DigitWeights, PlaneRegions, Region
from unlearn_core.records import (
    EpochMetrics,
    MethodRecord,
    ReferenceRecord,
    Scores,
    TargetRecord,
    cell_entry,
    method_entry,
    reference_entry,
)

SCORES = Scores(0.2, 0.4, 0.2, 0.4, 0.9, 0.8, 0.5, 0.5)
CURVE = tuple((eta, eta * (eta - 0.5)) for eta in (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0))  # zero at 0.5
RISING = tuple((eta, eta**2) for eta in (0.0, 0.5, 1.0))


def reference_row(kl: float) -> dict[str, Any]:
    return reference_entry(ReferenceRecord(replace(SCORES, kl_t=kl, kl_f=kl), seconds=2.0), retrain_seconds=2.0)


def method_row(method: str, kls: Sequence[float], eta: float | None = None) -> dict[str, Any]:
    """One epoch per value, 0.1 s each; eta 0 is a proxy that was not admissible, with the base as its only epoch."""
    first = 0 if eta == 0 else 1
    epochs = [EpochMetrics(first + i, 0.1 * (i + 1), replace(SCORES, kl_t=kl, kl_f=kl)) for i, kl in enumerate(kls)]
    target = None
    if eta is not None:
        target = TargetRecord(
            eta_max=eta,
            admissible=eta > 0,
            reason="",
            kl_net_proxy_before=0.1,
            kl_net_proxy_after=0.2,
            h_curve=CURVE if eta else RISING,
            scores=SCORES,
            bound={"h": 0.0, "tight_bound": 1.0, "measured": 0.5},
            proxy_seconds=0.01,
            ridge=1e-3,
            shrinkage="ridge",
            cap=1.0,
            finalizer="kl",
            dir_on_test="base",
        )
    seconds = epochs[-1].seconds
    share, last = seconds / 2.0, epochs[-1]
    return method_entry(MethodRecord(method, epochs, last, last, seconds, share, share, 0.01, target))


def seed_entry(seed: int, kl: float = 0.4) -> Entry:
    rows = {
        "base": reference_row(3.0),
        "retrain": reference_row(0.0),
        "floor": reference_row(kl / 4),
        "lda": method_row("lda", [3.0], eta=0.0),
        "lda-2c": method_row("lda-2c", [2 * kl, kl], eta=0.5),
        "ft": method_row("ft", [1.0 + kl, 1.0 - kl]),
    }
    return cell_entry(seed, 5, 95, rows)


def tree_variant(
    scenario: Scenario = Scenario.SUBCLASS, key: int = 0, entries: Sequence[Entry] | None = None, **where: str
) -> TreeVariant:
    variant = Variant(where.get("dataset", "cifar10"), where.get("arch", "mlp1"), scenario, key)
    if entries is None:
        entries = [seed_entry(42, 0.4), seed_entry(0, 0.6)]
    return TreeVariant(variant, "r50", tuple(entries))


def without(entry: Entry, *rows: str) -> Entry:
    return {name: value for name, value in entry.items() if name not in rows}


def texts(path: Path) -> list[str]:
    """What can be read in an SVG; fails where it is not well-formed."""
    root = ElementTree.parse(path).getroot()
    return ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]


def by_name(files: Sequence[FigureFile]) -> Mapping[str, FigureFile]:
    return {file.name: file for file in files}


GRID = [
    tree_variant(scenario, key)
    for scenario, key in ((Scenario.CLASS, 0), (Scenario.SUBCLASS, 0), (Scenario.RANDOM, 500))
]


@pytest.fixture(scope="module")
def figures(tmp_path_factory) -> Mapping[str, FigureFile]:
    return by_name(write_figures(tmp_path_factory.mktemp("figures"), GRID))


def test_every_figure_is_an_svg_and_a_png(figures):
    assert set(figures) == {
        "heat_map",
        "h_eta",
        *(
            f"{kind}_cifar10_r50_mlp1_{which}"
            for kind in ("front", "evolution", "queries")
            for which in ("class_0", "subclass_0", "random_500")
        ),
    }
    for file in figures.values():
        assert texts(file.svg)
        assert file.png.read_bytes().startswith(b"\x89PNG")
        assert file.caption.endswith(".")


def test_figures_say_what_they_show(figures):
    evolution = texts(figures["evolution_cifar10_r50_mlp1_subclass_0"].svg)
    assert {"lda-2c", "ft", "base", "floor (second retrain)"} <= set(evolution)
    assert "lda" not in evolution, "a proxy that unlearned nothing is the base"
    assert "lda." in figures["evolution_cifar10_r50_mlp1_subclass_0"].caption
    assert "2 seeds" in figures["evolution_cifar10_r50_mlp1_subclass_0"].caption
    queries = texts(figures["queries_cifar10_r50_mlp1_subclass_0"].svg)
    assert "|D_f| = 5" in queries
    assert f"lda-2c: {min_queries(0.6)}" in queries
    shift = texts(figures["h_eta"].svg)
    assert shift.count("lda-2c: η_max 0.500, min h -0.06") == 3, "one in each scenario"
    assert shift.count("lda: not admissible, max h 1") == 3
    heat = set(texts(figures["heat_map"].svg))
    assert {"cifar10/r50/mlp1", "class 0", "subclass 0", "random 500"} <= heat
    assert {"base", "lda", "lda-2c", "ft"} <= heat


def test_the_same_tree_gives_the_same_bytes_whatever_the_users_settings(figures, tmp_path):
    """One figure of every kind."""
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True, "savefig.dpi": 20}):
        again = by_name(write_figures(tmp_path, GRID, detailed=GRID[1:2]))
    assert {name.split("_")[0] for name in again} == {name.split("_")[0] for name in figures}
    for name, file in again.items():
        assert file.svg.read_bytes() == figures[name].svg.read_bytes()
        assert file.png.read_bytes() == figures[name].png.read_bytes()


@pytest.mark.parametrize("scale", [1.0, 1e-5, 1e4])
@pytest.mark.parametrize("names", [["ft"], list(methods.names())], ids=["one method", "all methods"])
def test_nothing_on_a_front_overlaps_or_leaves_the_page(names, scale):
    """Its margins are set by hand: whatever the numbers are, and however many lines the legend has."""
    rows = {name: method_row(name, [2.0 * scale, 0.03 * scale]) for name in names}
    references = {name: reference_row(scale) for name in ("base", "retrain", "floor")}
    variant = tree_variant(entries=[cell_entry(0, 5, 95, references | rows)])
    found = trajectories(variant)
    assert {one.method for one in found} == {*names}
    with styled():
        figure = front_figure(variant, found)
        figure.draw_without_rendering()
        renderer = figure.canvas.get_renderer()  # pyright: ignore[reportAttributeAccessIssue]  # an Agg canvas has one
        panels = [box for axes in figure.axes if (box := axes.get_tightbbox(renderer)) is not None]
        title = figure.texts[0].get_window_extent(renderer)
        legend = figure.legends[0].get_window_extent(renderer)
    boxes = [*panels, title, legend]
    assert len(boxes) == 4
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


def test_no_two_methods_look_alike_in_grey():
    looks = [look_of(name) for name in methods.names()]
    assert len({(look.marker, look.filled) for look in looks}) == len(looks)


# --- KL over run time


def test_evolution_is_the_mean_over_seeds_per_epoch():
    curves = {curve.method: curve for curve in evolution_curves(GRID[0].entries)}
    assert list(curves) == ["lda-2c", "ft"]
    curve = curves["lda-2c"]
    assert [kl.mean for kl in curve.kl_t] == pytest.approx([1.0, 0.5])
    assert [kl.std for kl in curve.kl_t] == pytest.approx([0.2, 0.1]), "population deviation of two seeds"
    assert curve.run_time == pytest.approx([0.05, 0.1]), "0.1 and 0.2 s over the retrain's 2 s"
    assert curve.run_time[-1] == pytest.approx(GRID[0].entries[0]["lda-2c"]["rte"])


def test_seeds_that_unlearned_nothing_have_no_part_in_a_curve(tmp_path):
    idle = {**seed_entry(0), "lda-2c": method_row("lda-2c", [3.0], eta=0.0)}
    entries = [seed_entry(42, 0.4), idle]
    curve = evolution_curves(entries)[0]
    assert (curve.method, curve.n_seeds, curve.kl_t[-1].mean) == ("lda-2c", 1, 0.4)
    [file] = evolution_figure(tmp_path, entries, "title", "name")
    assert "lda-2c (1 of 2 seeds)" in texts(file.svg)


def test_an_infinite_kl_leaves_a_gap():
    entry = {**seed_entry(42), "ft": method_row("ft", [1.0, math.inf, 0.5])}
    curve = next(curve for curve in evolution_curves([entry]) if curve.method == "ft")
    assert [kl.mean for kl in curve.kl_t] == pytest.approx([1.0, math.nan, 0.5], nan_ok=True)
    entry["ft"] = method_row("ft", [math.inf])
    assert [curve.method for curve in evolution_curves([entry])] == ["lda-2c"]


def test_seeds_with_other_numbers_of_epochs_are_compared_where_both_are():
    short = {**seed_entry(0), "ft": method_row("ft", [2.0])}
    curve = next(curve for curve in evolution_curves([seed_entry(42, 0.4), short]) if curve.method == "ft")
    assert [kl.mean for kl in curve.kl_t] == pytest.approx([(1.4 + 2.0) / 2])


def test_write_evolution_names_its_files_after_the_variant(tmp_path):
    variant = GRID[1].variant
    assert write_evolution(tmp_path / "new", GRID[1].entries, variant) == [
        tmp_path / "new" / f"evolution_subclass_mlp1_0.{suffix}" for suffix in ("svg", "png")
    ]


# --- N(alpha)


def test_queries_are_the_least_over_seeds_of_the_stein_bound():
    curves = {curve.row: curve for curve in query_curves(GRID[0].entries)}
    assert list(curves) == ["floor", "base", "lda", "lda-2c", "ft"]
    for row, of_seeds in (("floor", (0.1, 0.15)), ("base", (3.0, 3.0)), ("lda-2c", (0.4, 0.6)), ("ft", (0.6, 0.4))):
        assert curves[row].kl_f == pytest.approx(max(of_seeds))
        assert curves[row].queries == tuple(min(min_queries(kl, a) for kl in of_seeds) for a in ERROR_RATES)


def test_the_papers_number_of_queries_is_in_the_figure(tmp_path):
    entry = {**seed_entry(42), "ft": method_row("ft", [0.05])}
    [file] = write_queries(tmp_path, [entry], "title", "name")
    assert "ft: 138" in texts(file.svg)
    assert file.caption.endswith("|D_f| = 5 forget rows are too few for floor, lda-2c and ft."), "3 queries for 3 nats"
    assert "One who picks the rows" in file.caption


def test_a_kl_that_is_infinite_or_zero_has_no_curve(tmp_path):
    entry = without(seed_entry(42), "base", "floor", "lda", "lda-2c")
    for kl in (math.inf, 0.0):
        entry["ft"] = method_row("ft", [kl])
        assert query_curves([entry]) == []
        assert write_queries(tmp_path, [entry], "title", "name") == []


# --- h(eta)


def test_the_shift_is_drawn_as_recorded():
    panel = shift_panel(GRID[1])
    assert panel is not None
    assert panel.seed == 42
    rising, curve = panel.curves
    assert (rising.proxy, rising.eta_max, tuple(zip(rising.eta, rising.h, strict=True))) == ("lda", 0.0, RISING)
    assert (curve.proxy, curve.eta_max, tuple(zip(curve.eta, curve.h, strict=True))) == ("lda-2c", 0.5, CURVE)


def test_the_drawn_shift_runs_through_its_zero_in_units_of_its_depth():
    panel = shift_panel(GRID[1])
    assert panel is not None
    rising, curve = panel.curves
    eta, h = curve.drawn()
    assert h.min() == -1.0
    assert h[eta == 0.5] == [0.0], "eta_max is not one of the recorded points"
    assert rising.drawn()[1].max() == 1.0


def test_the_first_seed_with_curves_is_drawn():
    entries = [without(seed_entry(42), "lda", "lda-2c"), seed_entry(0)]
    panel = shift_panel(tree_variant(entries=entries))
    assert panel is not None
    assert panel.seed == 0
    assert shift_panel(tree_variant(entries=entries[:1])) is None


def test_where_h_at_eta_max_is_not_recorded_it_is_read_off_the_curve():
    entry = seed_entry(42)
    entry["lda-2c"]["target"] |= {"bound": None, "eta_max": 0.7}
    panel = shift_panel(tree_variant(entries=[entry]))
    assert panel is not None
    assert panel.curves[1].h_at_eta_max == pytest.approx((0.6 * 0.1 + 0.8 * 0.3) / 2)


# --- the heat map


def test_heat_cells_are_means_over_the_floors_mean():
    cells = heat_map(GRID)
    assert cells.columns == ("base", "lda", "lda-2c", "ft")
    for row in cells.rows:
        base, lda, doubled, ft = row.cells
        assert base is not None
        assert base.ratio == pytest.approx(3.0 / 0.125)
        assert lda is not None
        assert (lda.text, lda.idle) == ("(24)", True)
        assert doubled is not None
        assert (doubled.text, doubled.idle) == ("4.0", False)
        assert ft is not None
        assert ft.ratio == pytest.approx(0.5 / 0.125)


def test_cells_without_a_number_are_told_from_cells_without_a_run():
    infinite = tree_variant(key=2, entries=[{**seed_entry(42), "ft": method_row("ft", [math.inf])}])
    absent = tree_variant(key=4, entries=[without(seed_entry(42), "ft")])
    cells = heat_map([infinite, absent])
    last = [row.cells[-1] for row in cells.rows]
    assert last[0] is not None
    assert (last[0].ratio, last[0].text) == (None, "--")
    assert last[1] is None


def test_a_method_of_some_seeds_is_compared_with_the_floor_of_those():
    variant = tree_variant(entries=[seed_entry(42, 0.4), without(seed_entry(0, 0.8), "lda-2c")])
    cell = heat_map([variant]).rows[0].cells[2]
    assert cell is not None
    assert cell.ratio == pytest.approx(0.4 / 0.1)


def test_the_map_of_the_whole_grid_shows_every_variant(tmp_path):
    scenarios = {Scenario.CLASS: range(5), Scenario.SUBCLASS: range(0, 10, 2), Scenario.RANDOM: (50, 100, 500, 1000)}
    grid = [
        tree_variant(scenario, key, [seed_entry(42)], dataset=dataset, arch=arch)
        for dataset in ("cifar10", "cifar100")
        for arch in PAPER_ARCHITECTURES
        for scenario, keys in scenarios.items()
        for key in keys
    ]
    [file] = write_heat_map(tmp_path, grid)
    shown = texts(file.svg)
    assert sum(text.startswith(tuple(Scenario)) for text in shown) == len(grid) == 112
    assert {f"{dataset}/r50/{arch}" for dataset in ("cifar10", "cifar100") for arch in PAPER_ARCHITECTURES} <= set(
        shown
    )
    assert shown.count("4.0") == len(grid), "lda-2c in each"
    assert "112 variants" in file.caption


def test_long_names_are_broken_so_that_columns_do_not_run_into_each_other(tmp_path):
    long = {name: method_row(name, [0.5]) for name in ("short-hard-warm", "short-hard-group")}
    [file] = write_heat_map(tmp_path, [tree_variant(entries=[{**seed_entry(42), **long}])])
    shown = texts(file.svg)
    assert {"short-", "hard-", "warm", "group", "lda-2c"} <= set(shown)
    assert "short-hard-warm" not in shown


# --- which figures there are


def test_the_papers_variants_are_chosen_where_the_tree_has_them():
    papers = [*GRID]
    others = [
        tree_variant(Scenario.CLASS, 3),
        tree_variant(Scenario.SUBCLASS, 0, arch="linear"),
        tree_variant(Scenario.RANDOM, 50),
        tree_variant(Scenario.SUBCLASS, 0, dataset="cifar100"),
    ]
    assert representatives([*others, *papers]) == papers
    assert representatives(others) == [others[0], others[1], others[2]]
    assert representatives([others[3]]) == [others[3]]


def test_any_variants_can_be_drawn_in_detail(tmp_path):
    chosen = tree_variant(Scenario.SUBCLASS, 4)
    names = by_name(write_figures(tmp_path, [*GRID, chosen], detailed=[chosen]))
    assert set(names) == {
        "heat_map",
        "h_eta",
        "front_cifar10_r50_mlp1_subclass_4",
        "evolution_cifar10_r50_mlp1_subclass_4",
        "queries_cifar10_r50_mlp1_subclass_4",
    }


@pytest.mark.parametrize(
    ("missing", "kinds"),
    [
        ((), {"front", "heat", "h", "evolution", "queries"}),
        (("floor",), {"front", "h", "evolution", "queries"}),
        (("base",), {"front", "heat", "h", "evolution", "queries"}),
        (("lda", "lda-2c"), {"front", "heat", "evolution", "queries"}),
        (("lda-2c", "ft"), {"heat", "h", "evolution", "queries"}),
        (("lda", "lda-2c", "ft", "base"), {"evolution", "queries"}),
        (("retrain", "base", "floor"), {"h", "queries"}),
        (("base", "floor", "lda", "lda-2c", "ft"), set()),
    ],
)
def test_partial_trees_are_drawn_as_far_as_they_go(tmp_path, missing, kinds):
    """One scenario, one seed, some rows gone."""
    variant = tree_variant(entries=[without(seed_entry(42), *missing)])
    assert {file.name.split("_")[0] for file in write_figures(tmp_path, [variant])} == kinds


def test_an_empty_tree_has_no_figures(tmp_path):
    assert write_figures(tmp_path, []) == []
    assert write_evolution(tmp_path, [], GRID[0].variant) == []


# --- the illustrations


def test_weights_are_shown_class_by_class_with_what_they_share(tmp_path):
    images = np.linspace(-1.0, 1.0, 12).reshape(3, 2, 2)
    [file] = write_weights(tmp_path, DigitWeights(("a", "b", "c"), images, -images, 0.1, 50, 0.734, 0.951))
    assert {"a", "b", "c", "cross-entropy", "LDA"} <= set(texts(file.svg))
    assert "correlation is 0.73, and they agree on 95 % of" in file.caption
    again = write_weights(tmp_path / "again", DigitWeights(("a", "b", "c"), images, -images, 0.1, 50, 0.734, 0.951))
    assert file.svg.read_bytes() == again[0].svg.read_bytes()


def plane(*regions: Region) -> PlaneRegions:
    rng = np.random.default_rng(0)
    labels = np.arange(30) % 2
    forget = np.arange(30) % 4 == 1
    axis = np.linspace(-1.0, 1.0, 5)
    return PlaneRegions(rng.uniform(-1, 1, (30, 2)), labels, forget, axis, axis, regions)


def test_regions_say_what_each_target_is(tmp_path):
    slope = np.linspace(0.0, 1.0, 25).reshape(5, 5)
    drawn = plane(
        Region("base", slope, 1.5, None),
        Region("retrain", slope.T, 0.0, None),
        Region("lda", slope, 1.5, 0.0),
        Region("lda-2c", slope.T, 0.25, 0.93),
    )
    [file] = write_regions(tmp_path, drawn)
    shown = texts(file.svg)
    assert {"base", "retrain", "lda", "not admissible, KL_f 1.5", "lda-2c", "η_max 0.93, KL_f 0.25"} <= set(shown)
    assert {"class 0", "class 1, kept", "class 1, forgotten", "the same, retrain"} <= set(shown)
    assert file.caption.endswith("Not admissible, so the base itself: lda.")


def test_regions_are_drawn_without_a_retrain_and_not_without_any_model(tmp_path):
    [file] = write_regions(tmp_path, plane(Region("base", np.linspace(0.0, 1.0, 25).reshape(5, 5), 1.5, None)))
    assert "the same, retrain" not in texts(file.svg)
    assert write_regions(tmp_path, plane()) == []
