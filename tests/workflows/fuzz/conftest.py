"""Good files, beside which each case puts its bad one."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest
from safetensors.torch import save

from tests.commands import unlearn
from tests.workflows.fuzz.cases import STATE, arrays, forget, logits, npz
from tests.workflows.fuzz.documents import results
from tracking.tree_writer import write_entries
from unlearn_core.grid import Scenario, Variant
from workflows import cli


@pytest.fixture(scope="session")
def good_files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "data.npz").write_bytes(npz(**arrays()))
    (folder / "logits.npz").write_bytes(npz(**logits()))
    (folder / "w.safetensors").write_bytes(save(STATE))
    (folder / "ids.txt").write_text("rec-0\nrec-3\nrec-6\n")
    (folder / "a_file").write_text("")
    (folder / "a_file.md").write_text("mine")
    (folder / "figures").mkdir()
    (folder / "loop").symlink_to("loop")
    write_entries(folder / "tree", Variant("digits", "mlp1", Scenario.CLASS, 0), "pixels", [results()])
    certified = forget(logits="logits.npz", model=None, arch=None, proxy="lda", out="certified")
    begun = forget(ledger="ledger", proxy="lda", finalizer="mse", force="")
    for arguments in (certified.arguments, ("verify", "certified/certificate.json"), begun.arguments[:-1]):
        ended = unlearn(*arguments, cwd=folder)
        assert ended.returncode == 0, ended
    shutil.rmtree(folder / "out")
    return folder


@pytest.fixture
def folder(good_files, monkeypatch) -> Path:
    """Where commands are given."""
    monkeypatch.chdir(good_files)
    monkeypatch.setattr(cli, "build_parser", cache(cli.build_parser))  # half of the time that all of this would take
    return good_files
