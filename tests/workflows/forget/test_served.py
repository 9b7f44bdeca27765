"""An unlearned model in MLflow's registry answers over HTTP what its files say."""

from __future__ import annotations

import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.commands import unlearn
from tests.processes import PATIENCE, free_port, running, wait_until
from unlearn_core.data import (
    load_feature_set,
)
from unlearn_core.finalize import load_processor

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # MLflow warns of models of its own

# urlopen would keep the proxies of its first call for all tests after this one
LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def served(said: str, folder: Path) -> Iterator[str]:
    """The address of what the printed line serves, pasted as it is, on loopback; it and its children end with the block.

    Nothing beside the line says where the model is.
    """
    port, line = free_port(), said.partition("serve it: ")[2].partition("\n")[0]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment |= {
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",  # as here, so that sums have the same order
    }
    with running(["sh", "-c", f"{line} --host 127.0.0.1 --port {port}"], folder, environment) as process:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/ping"), f"'{line}' to serve", process)
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


@pytest.fixture(autouse=True)
def without_our_programs(monkeypatch) -> None:
    """The folder with our programs, MLflow's among them, is not on the path."""
    ours = str(Path(sys.executable).parent)
    places = os.environ["PATH"].split(os.pathsep)
    monkeypatch.setenv("PATH", os.pathsep.join(place for place in places if place != ours))


def test_mlflow_serves_a_network_from_a_package_of_several_files_that_lie_elsewhere_now(conv, tmp_path):
    """A package whose module imports its neighbour, and a file beside the package: gone when MLflow loads them."""
    home, out = tmp_path / "home", tmp_path / "network"
    (home / "their_package").mkdir(parents=True)
    (home / "their_package" / "__init__.py").write_text("")
    (home / "their_package" / "nets.py").write_text(
        "from .parts import layers\n\n\ndef build():\n    return layers()\n"
    )
    (home / "their_package" / "parts.py").write_text(
        "from their_layers import Conv\n\n\ndef layers():\n    return Conv()\n"
    )
    shutil.copy(conv / "their_nets.py", home / "their_layers.py")
    (home / "unrelated.py").write_text("")
    model = ("--model", "their_package.nets:build", "--weights", conv / "weights.pt", "--features-from", "embed")
    request = ("--data", conv / "features.npz", "--ids", conv / "rows.txt", "--proxy", "lda", "--epochs", 5)
    registered = unlearn("forget", *model, *request, "--out", out, "--register", "their-model", cwd=home)
    assert registered.returncode == 0, registered.stderr
    assert "registered: models:/their-model/1 in sqlite:///" in registered.stdout
    shutil.rmtree(home)
    x = load_feature_set(conv / "features.npz").test_x[:5]
    with served(registered.stdout, tmp_path) as network:
        said = ask(network, x.tolist())
    net = sys.modules["their_nets"].build()
    net.load_state_dict(torch.load(out / "weights.pt", weights_only=True))
    with torch.no_grad():
        np.testing.assert_allclose(said, net.eval()(torch.from_numpy(x)).numpy(), atol=1e-6)
    from mlflow import MlflowClient

    from tracking.mlflow_tracker import quiet_migration

    uri = f"sqlite:///{out / 'mlflow.db'}"
    with quiet_migration():
        client = MlflowClient(uri, registry_uri=uri)
        run = client.get_model_version("their-model", "1").run_id
        assert run is not None
        assert "certificate.json" in {artifact.path for artifact in client.list_artifacts(run)}
    assert not list(out.rglob("unrelated.py"))
    assert list(out.rglob("their_layers.py"))


def test_mlflow_serves_the_processor_around_a_black_box(digits, tmp_path):
    """From a database of one's own."""
    uri = f"sqlite:///{tmp_path / 'registry.db'}"
    black = ("--logits", digits / "super_logits.npz", "--data", digits / "features.npz")
    more = ("--ids", digits / "subclass.csv", "--out", tmp_path / "box", "--register", "a box", "--tracking-uri", uri)
    boxed = unlearn("forget", *black, *more, cwd=tmp_path)
    assert boxed.returncode == 0, boxed.stderr
    x = load_feature_set(digits / "features.npz").test_x[:5]
    with np.load(digits / "super_logits.npz") as logits:
        test_logits = logits["test_logits"][:5]
    with served(boxed.stdout, tmp_path) as box:
        said = ask(box, {"logits": test_logits.tolist(), "features": x.tolist()})
    np.testing.assert_allclose(said, load_processor(tmp_path / "box" / "processor.npz")(test_logits, x), atol=1e-6)
