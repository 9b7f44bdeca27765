"""The paper's whole grid, 112 variants of 5 seeds and every method: read, tabulated and written."""

from __future__ import annotations

import numpy as np
import pytest

from tracking.claims import judge_all
from tracking.frames import frames
from tracking.tables.exports import write_table
from tracking.tables.report import report_tables
from tracking.tree import read_tree
from unlearn_core import methods
from unlearn_core.grid import PAPER_ARCHITECTURES, SEEDS
from unlearn_core.records import EpochMetrics, MethodRecord, method_entry

EPOCHS = 3  # of 20: of these there are only more
KEYS = {"cifar10": (0, 2, 4, 6, 8), "cifar100": (0, 20, 40, 60, 80)}


def write_grid(made, root, datasets=KEYS, archs=PAPER_ARCHITECTURES):
    """Numbers with all their digits, as a run writes them: they are what makes reading slow."""
    rng = np.random.default_rng(0)

    def scores():
        return made.scores(*rng.random(4).tolist())

    def method(name):
        epochs = [EpochMetrics(epoch, rng.random(), scores()) for epoch in range(1, EPOCHS + 1)]
        taught = None
        if name in methods.proxies():
            curve = tuple(zip(np.linspace(0, 1, 5).tolist(), rng.random(5).tolist(), strict=True))
            eta = None if name in methods.closed_forms() else rng.random()
            taught = made.target(eta, h_curve=curve)
        seconds, rte, cost, preparation = rng.random(4).tolist()
        return method_entry(MethodRecord(name, epochs, epochs[0], epochs[-1], seconds, rte, cost, preparation, taught))

    variants = []
    for dataset in datasets:
        for arch in archs:
            classes = KEYS[dataset]
            for scenario, keys in (("class", classes), ("subclass", classes), ("random", (1, 50, 500, 5000))):
                for key in keys:
                    rows = {
                        name.replace("-", "_"): method(name) for name in methods.names()
                    }  # the same for all seeds: no matter
                    cells = [made.cell(seed, **rows) for seed in SEEDS]
                    variants.append(made.variant(*cells, dataset=dataset, arch=arch, scenario=scenario, key=key))
    made.write(root, *variants)


def tabulate(root, out):
    """What a report reads and writes, figures and page aside."""
    tree = read_tree(root)
    tables = report_tables(tree, judge_all(tree))
    for table in tables:
        write_table(table, out)
    return tree, frames(tree), tables


@pytest.mark.slow
def test_the_whole_grid(made, tmp_path):
    write_grid(made, tmp_path / "results")
    tree, data, tables = tabulate(tmp_path / "results", tmp_path / "tables")
    assert len(tree.variants) == 112
    assert tree.problems == ()
    assert data.rows.height == 112 * 5 * (3 + len(methods.names()))
    assert data.epochs.height == 112 * 5 * len(methods.names()) * EPOCHS
    assert len({table.name for table in tables}) == len(tables) > 112


@pytest.mark.slow
def test_twice_the_grid_is_twice_the_work(made, tmp_path, count_calls):
    calls = []
    for archs in (PAPER_ARCHITECTURES[:1], PAPER_ARCHITECTURES[:2]):
        root = tmp_path / str(len(archs))
        write_grid(made, root / "results", ("cifar10",), archs)
        calls.append(count_calls(lambda root=root: tabulate(root / "results", root / "tables")))
    assert calls[1] < 2.2 * calls[0]
