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
def served(said: str, folder: Path) -> Iterator[str]:
    """The address of what the printed line serves, pasted as it is, on loopback; it and its children end with the block.

    Nothing beside the line says where the model is, and the folder with our programs is not on the path.
    """
    port, line = free_port(), said.partition("serve it: ")[2].partition("\n")[0]
    ours = str(Path(sys.executable).parent)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment |= {
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",  # as here, so that sums have the same order
        "PATH": os.pathsep.join(place for place in os.environ["PATH"].split(os.pathsep) if place != ours),
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


def in_a_process(*arguments, cwd: Path) -> Ended:
    """MLflow changes the process that it is imported into, so that it gets one of its own."""
    root, ours = str(Path(__file__).resolve().parents[3]), str(Path(sys.executable).parent)
    path = os.pathsep.join(place for place in os.environ["PATH"].split(os.pathsep) if place != ours)
    return run([sys.executable, "-m", "workflows", *arguments], cwd, {**os.environ, "PYTHONPATH": root, "PATH": path})


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
        "forget", *black, "--out", tmp_path / "box", "--register", "a box", "--tracking-uri", uri, cwd=tmp_path
    )
    assert boxed.returncode == 0, boxed.stderr
    data = load_feature_set(digits / "features.npz")
    x = data.test_x[:5]
    network_uri = f"sqlite:///{tmp_path / 'network' / 'mlflow.db'}"
    with (
        served(registered.stdout, tmp_path) as network,
        served(boxed.stdout, tmp_path) as box,
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


@pytest.mark.slow
def test_a_package_of_several_files_is_registered_and_loads_elsewhere(conv, tmp_path):
    """A package whose module imports its neighbour, and a file beside the package; none of them is where it loads."""
    home = tmp_path / "home"
    (home / "their_package").mkdir(parents=True)
    (home / "their_package" / "__init__.py").write_text("")
    (home / "their_package" / "nets.py").write_text("from .parts import layer\n\n\ndef build():\n    return layer()\n")
    (home / "their_package" / "parts.py").write_text(
        "from their_widths import D, C\nfrom torch import nn\n\n\ndef layer():\n    return nn.Linear(D, C)\n"
    )
    (home / "their_widths.py").write_text("D, C = 64, 10\n")
    (home / "unrelated.py").write_text("")
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 10)
    torch.save(net.state_dict(), home / "w.pt")
    data, uri = load_feature_set(conv / "features.npz"), f"sqlite:///{tmp_path / 'registry.db'}"
    given = ("--data", conv / "features.npz", "--ids", conv / "rows.txt", "--method", "lda", "--epochs", 2, "--force")
    model = ("--model", "their_package.nets:build", "--weights", "w.pt")
    more = ("--out", "out", "--register", "packed", "--tracking-uri", uri)
    registered = in_a_process("forget", *model, *given, *more, cwd=home)
    # 1: not unlearned, for the network was never trained; --force has it written and registered all the same
    assert registered.returncode == 1, registered.stderr
    np.save(tmp_path / "x.npy", data.test_x[:3])
    load = (
        "import sys, numpy, mlflow\nmlflow.set_tracking_uri(sys.argv[1])\n"
        "model = mlflow.pyfunc.load_model('models:/packed/1')\n"
        "numpy.save('said.npy', model.predict(numpy.load('x.npy')))\n"
        "import their_package\nprint(their_package.__file__)\n"
    )
    loaded = run([sys.executable, "-c", load, uri], tmp_path, {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"})
    assert loaded.returncode == 0, loaded.stderr
    assert str(home / "their_package") not in loaded.stdout, "the copy that was registered"
    net.load_state_dict(torch.load(home / "out" / "w.pt", weights_only=True))
    with torch.no_grad():
        np.testing.assert_allclose(
            np.load(tmp_path / "said.npy"), net(torch.from_numpy(data.test_x[:3])).numpy(), atol=1e-5
        )
