"""An unlearned model in MLflow's registry answers over HTTP what its files say."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.processes import PATIENCE, Ended, free_port, run, running, wait_until
from unlearn_core.data import (
    load_feature_set,
)
from unlearn_core.finalize import load_processor

# urlopen would keep the proxies of its first call for all tests after this one
LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def served(model: str, tracking_uri: str, folder: Path) -> Iterator[str]:
    """The address of ``mlflow models serve`` on loopback; it and its children end with the block."""
    port = free_port()
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": tracking_uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",  # as here, so that sums have the same order
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [
        sys.executable, "-m", "mlflow", "models", "serve", "-m", model, "--env-manager", "local",
        "--host", "127.0.0.1", "--port", port,
    ]  # fmt: skip
    with running(command, folder, environment) as process:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/ping"), f"{model} to be served", process)
        yield f"http://127.0.0.1:{port}/invocations"


def answers(address: str) -> bool:
    try:
        with LOOPBACK.open(address, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def ask(address: str, inputs: object) -> np.ndarray:
    body = json.dumps({"inputs": inputs}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with LOOPBACK.open(request, timeout=PATIENCE) as response:
        return np.array(json.loads(response.read())["predictions"])


def in_a_process(*arguments, cwd: Path) -> Ended:
    """MLflow changes the process that it is imported into, so that it gets one of its own."""
    root = str(Path(__file__).resolve().parents[3])
    return run([sys.executable, "-m", "workflows", *arguments], cwd, {**os.environ, "PYTHONPATH": root})


@pytest.mark.slow
def test_mlflow_serves_the_unlearned_model_and_the_processor_around_a_black_box(digits, conv, tmp_path):
    """Both registered under one database, both really served, the answers those of the written files."""
    uri = f"sqlite:///{tmp_path / 'registry.db'}"
    registered = in_a_process(
        *(
            "forget",
            "--model",
            "their_nets:build",
            "--weights",
            "weights.pt",
            "--data",
            "features.npz",
            "--features-from",
            "embed",
        ),
        *(
            "--ids",
            "rows.txt",
            "--proxy",
            "lda",
            "--epochs",
            5,
            "--out",
            tmp_path / "network",
            "--register",
            "their-model",
        ),
        cwd=conv,
    )
    assert registered.returncode == 0, registered.stderr
    assert "registered: models:/their-model/1 in sqlite:///" in registered.stdout
    black = (
        "--logits",
        digits / "super_logits.npz",
        "--data",
        digits / "features.npz",
        "--ids",
        digits / "subclass.csv",
    )
    boxed = in_a_process(
        "forget", *black, "--out", tmp_path / "box", "--register", "box", "--tracking-uri", uri, cwd=tmp_path
    )
    assert boxed.returncode == 0, boxed.stderr
    data = load_feature_set(digits / "features.npz")
    x = data.test_x[:5]
    network_uri = f"sqlite:///{tmp_path / 'network' / 'mlflow.db'}"
    with (
        served("models:/their-model/1", network_uri, tmp_path) as network,
        served("models:/box/1", uri, tmp_path) as box,
    ):
        said = ask(network, x.tolist())
        with np.load(digits / "super_logits.npz") as logits:
            test_logits = logits["test_logits"][:5]
        boxed_answer = ask(box, {"logits": test_logits.tolist(), "features": x.tolist()})
    their_nets = sys.modules["their_nets"]
    net = their_nets.build()
    net.load_state_dict(torch.load(tmp_path / "network" / "weights.pt", weights_only=True))
    with torch.no_grad():
        np.testing.assert_allclose(said, net.eval()(torch.from_numpy(x)).numpy(), atol=1e-6)
    np.testing.assert_allclose(
        boxed_answer, load_processor(tmp_path / "box" / "processor.npz")(test_logits, x), atol=1e-6
    )
    from mlflow import MlflowClient

    from tracking.mlflow_tracker import quiet_migration

    with quiet_migration():
        client = MlflowClient(network_uri, registry_uri=network_uri)
        run = client.get_model_version("their-model", "1").run_id
        assert run is not None
        assert "certificate.json" in {artifact.path for artifact in client.list_artifacts(run)}
