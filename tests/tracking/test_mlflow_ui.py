"""What a person sees: MLflow's own UI over a database of the tracker, in Debian's Chromium.

Browser tests run wherever Chromium is found and say so where it is not.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.processes import free_port, running, wait_until
from tracking.mlflow_tracker import MlflowTracker
from tracking.tracked import TrackedCell, default_tracking_uri
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


def scores(epoch: int) -> Scores:
    return Scores(1.0 / (1 + epoch), 0.5 / (1 + epoch), 0.1, 0.2, 0.9, 0.8, 0.5, 0.6)


def cell(seed: int) -> TrackedCell:
    epochs = [EpochMetrics(epoch, 0.25 * epoch, scores(epoch)) for epoch in range(1, EPOCHS + 1)]
    rows: dict[str, Any] = {
        **{name: reference_entry(ReferenceRecord(scores(0), 10.0), 10.0) for name in ("base", "retrain", "floor")},
        **{
            name: method_entry(MethodRecord(name, epochs, epochs[-1], epochs[-1], 5.0, 0.5, 0.6, 0.25))
            for name in ("lda-2c", "ft", "scrub")
        },
    }
    step_ids = {name: f"{name}-{seed}" for name in rows}
    return TrackedCell(VARIANT, seed, cell_entry(seed, 5, 95, rows), step_ids, "0123456789abcdef", {"preset": "paper"})


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """The address of an MLflow server over two seeds of one variant; it and its children end with the tests."""
    folder = tmp_path_factory.mktemp("ui")
    tracker = MlflowTracker(default_tracking_uri(folder), "grid", folder / "artifacts")
    for seed in (42, 0):
        tracker.log_cell(cell(seed))
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


def test_a_variant_opens_into_its_runs_and_a_run_shows_its_history(page, server, tmp_path):
    expect.set_options(timeout=STEP)
    page.goto(f"{server}/#/experiments")
    page.get_by_text("Model training", exact=True).first.click()  # the other half of the UI is about traces of LLMs
    page.get_by_role("link", name="grid", exact=True).first.click()

    variant = page.get_by_role("row").filter(has=page.get_by_role("link", name=str(VARIANT), exact=True))
    child = page.get_by_role("link", name="lda-2c seed 42", exact=True)
    expect(variant).to_have_count(1)
    expect(child).to_have_count(0)  # folded below its variant
    variant.get_by_role("button").first.click()
    expect(page.get_by_role("link", name="seed 0")).to_have_count(6)
    expect(page.get_by_role("link", name="seed 42")).to_have_count(6)
    page.screenshot(path=tmp_path / "runs.png")

    child.click()
    expect(page.get_by_role("link", name=str(VARIANT), exact=True)).to_be_visible()  # "Parent run"
    page.get_by_role("tab", name="Model metrics").click()
    page.get_by_placeholder("Search metric charts").fill("kl_t")
    cards = page.get_by_test_id("experiment-view-compare-runs-card")
    chart = cards.filter(has=page.get_by_text("kl_t", exact=True))
    expect(chart).to_have_count(1)
    chart.scroll_into_view_if_needed()
    expect(chart.locator(".scatterlayer .point")).to_have_count(EPOCHS)
    page.screenshot(path=tmp_path / "run.png")
