"""What a person sees: MLflow's own UI over a database of the tracker, in Debian's Chromium.

Browser tests run wherever Chromium is found and say so where it is not.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.processes import free_port, running, wait_until
from tracking.mlflow_tracker import MlflowTracker, links
from tracking.tracked import TrackedCell, TrackedVariant, default_tracking_uri
from unlearn_core.grid import Scenario, Variant
from unlearn_core.records import (
    EpochMetrics,
    MethodRecord,
    ReferenceRecord,
    Scores,
    cell_entry,
    method_entry,
    reference_entry,
)

STEP = 240_000  # milliseconds that any one thing on a page may take
EPOCHS = 20
VARIANT = Variant("cifar10", "mlp1", Scenario.SUBCLASS, 0)

pytestmark = pytest.mark.slow


def scores(epoch: int, farther: float = 1.0) -> Scores:
    return Scores(farther / (1 + epoch), 0.5 * farther / (1 + epoch), 0.1, 0.2, 0.9, 0.8, 0.5, 0.6)


def record(name: str, farther: float) -> MethodRecord:
    epochs = [EpochMetrics(epoch, 0.25 * epoch, scores(epoch, farther)) for epoch in range(1, EPOCHS + 1)]
    return MethodRecord(name, epochs, epochs[-1], epochs[-1], 5.0, 0.5, 0.6, 0.25)


def cell(seed: int) -> TrackedCell:
    rows: dict[str, Any] = {
        **{name: reference_entry(ReferenceRecord(scores(0), 10.0), 10.0) for name in ("base", "retrain", "floor")},
        **{
            name: method_entry(record(name, farther))
            for name, farther in (("lda-2c", 1.0), ("ft", 2.0), ("scrub", 3.0))
        },
    }
    step_ids = {name: f"{name}-{seed}" for name in rows}
    return TrackedCell(VARIANT, seed, cell_entry(seed, 5, 95, rows), step_ids, "0123456789abcdef", {"preset": "paper"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory, new_databases_are_copies: None) -> Path:
    """Two seeds of one variant."""
    folder = tmp_path_factory.mktemp("ui")
    tracker = MlflowTracker(default_tracking_uri(folder), "grid", folder / "artifacts")
    cells = [cell(seed) for seed in (42, 0)]
    tracker.log_variant(TrackedVariant(VARIANT, "r50", [item.entry for item in cells], cells))
    return folder


@pytest.fixture(scope="module")
def server(folder) -> Iterator[str]:
    """The address of an MLflow server; it and its children end with the tests."""
    port = free_port()
    command = [
        sys.executable, "-m", "mlflow", "server", "--backend-store-uri", default_tracking_uri(folder),
        "--host", "127.0.0.1", "--port", port, "--workers", 1,
    ]  # fmt: skip
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with running(command, folder, {**os.environ, **quiet, "HOME": str(folder)}) as process:
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(f"{address}/health"), "the MLflow server", process)
        yield address


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
def page(browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.set_default_timeout(STEP)
    yield page
    page.close()


def test_the_first_view_has_numbers_and_leads_to_a_variant_and_to_its_methods(page, server, folder, tmp_path):
    expect.set_options(timeout=STEP)
    shown = links(default_tracking_uri(folder), "grid")
    page.goto(f"{server}/{shown['all variants']}")
    variant = page.get_by_role("row").filter(has=page.get_by_role("link", name=str(VARIANT), exact=True))
    expect(variant).to_have_count(1)
    expect(page.get_by_role("columnheader").filter(has_text="kl_f/best").first).to_be_visible()
    cells = page.get_by_role("gridcell")
    expect(cells.filter(has_text="0.0238").first).to_be_visible()  # 0.5 / 21, KL_f of the last epoch
    expect(cells.filter(has_text="lda-2c").first).to_be_visible()  # the best method
    page.screenshot(path=tmp_path / "variants.png")

    page.get_by_role("link", name=str(VARIANT), exact=True).click()
    expect(page.get_by_role("cell", name="scrub", exact=True)).to_be_visible()  # the benchmark, as its description
    page.screenshot(path=tmp_path / "variant.png")

    page.goto(f"{server}/{shown[f'methods of the newest variant, {VARIANT}']}")
    cards = page.get_by_test_id("experiment-view-compare-runs-card")
    expect(cards).to_have_count(2)
    for method in ("lda-2c", "ft", "scrub"):  # a curve for every method
        expect(cards.first.get_by_text(f"{method} (kl_f)")).to_be_visible()
    page.screenshot(path=tmp_path / "methods.png")
