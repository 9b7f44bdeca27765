"""Shared small problems; everything is seeded and single-threaded, so that every run gives the same bits."""

from __future__ import annotations

import os

# Before numpy loads its BLAS and polars its pool, and for processes that tests start. On two busy cores threads wait for one
# another more than they compute: a logistic regression on the digits took 5 s of CPU with two, 0.1 s with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("POLARS_MAX_THREADS", "1")

import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest_plugins = ["tests.limits"]


def pytest_configure() -> None:
    """Interrupt as Python does, also if a shell started the tests in the background, where SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, so that no process is left alone with one at the end."""
    import torch  # here, where tests will run: the process that hands them out to others need not load it

    torch.set_num_threads(1)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@dataclass(frozen=True)
class GaussianData:
    """Three Gaussian classes, the first made of two subclasses; some rows of it are to be forgotten."""

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    forget: NDArray[np.bool_]
    logits: NDArray[np.float64]
    n_classes: int = 3


@pytest.fixture(scope="session")
def data() -> GaussianData:
    rng = np.random.default_rng(7)
    n, d = 600, 6
    y = np.arange(n) % 3
    x = rng.normal(size=(n, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d))) + 0.7 * rng.normal(size=(3, d))[y]
    second_half = (y == 0) & (np.arange(n) % 2 == 0)
    x[second_half, :2] += 1.5
    forget = second_half & (rng.random(n) < 0.8)
    forget[1] = True  # one row of class 1, so that a class loses very little
    logits = 3.0 * np.eye(3)[y] + rng.normal(size=(n, 3))
    return GaussianData(x, y, forget, logits)


@pytest.fixture(scope="session")
def new_databases_are_copies(tmp_path_factory) -> Iterator[None]:
    """MLflow makes a database by some fifty migrations, which take seconds: here it does so once for all test processes."""
    import sqlalchemy

    from tracking.mlflow_tracker import quiet_migration

    with quiet_migration():
        from mlflow.store.db import utils
    own = tmp_path_factory.getbasetemp()  # of a process of several: the folder above is of all of them, and of this run
    template = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "migrated.db"
    migrate = utils._initialize_tables

    def initialize(engine: sqlalchemy.Engine) -> None:
        file, tables = engine.url.database, sqlalchemy.inspect(engine).get_table_names()
        if engine.dialect.name != "sqlite" or file is None or tables:
            migrate(engine)
        elif template.exists():
            copy(template, file)
        else:
            migrate(engine)
            copy(file, whole := own / "migrated.db.new")
            whole.replace(template)  # at once, for another process may look

    def copy(source: str | Path, to: str | Path) -> None:
        with closing(sqlite3.connect(source)) as full, closing(sqlite3.connect(to)) as empty:
            full.backup(empty)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_initialize_tables", initialize)
        yield


CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    """Debian's Chromium with a home of its own; where there is none, its tests say so."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no `chromium` on the PATH; install Debian's to run the browser tests")
    from playwright.sync_api import sync_playwright

    environment: dict[str, str | float | bool] = {**os.environ, "HOME": str(tmp_path_factory.mktemp("home"))}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=CHROMIUM_ARGS, env=environment, timeout=240_000
        )
        try:
            yield browser
        finally:
            browser.close()
