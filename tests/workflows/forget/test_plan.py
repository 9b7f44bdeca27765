"""One subject in many models: the example of docs/forget.md, with what can go wrong."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from tasks.compute import request
from tests.commands import unlearn
from tests.processes import Ended, run

ROOT = Path(__file__).resolve().parents[3]
SUBJECT = 30


def example() -> str:
    """The plan that docs/forget.md shows."""
    found = re.search(r"`models.toml`:\n\n```toml\n(.*?)```", (ROOT / "docs" / "forget.md").read_text(), re.S)
    assert found is not None
    return found[1]


@pytest.fixture
def plan(tmp_path) -> Path:
    """Two models with the subject's records, under other ids in the second, where a third of them are."""
    x, y = rows()
    np.savez(tmp_path / "churn_data.npz", train_x=x, train_y=y, ids=np.array([f"p{i}" for i in range(len(y))]))
    np.savez(tmp_path / "fraud_data.npz", train_x=x[20:], train_y=y[20:], ids=1000 + np.arange(20, len(y)))
    np.savez(tmp_path / "churn.npz", coef_=fitted(x, y)[:1, :-1], intercept_=fitted(x, y)[0, -1:])
    weight = torch.from_numpy(fitted(x[20:], y[20:])).float()
    both = torch.cat([torch.zeros_like(weight), weight])
    torch.save({"weight": both[:, :-1].clone(), "bias": both[:, -1].clone()}, tmp_path / "fraud.pt")
    lines = ["id,account", *(f"p{i},{1000 + i}" for i in range(SUBJECT))]
    (tmp_path / "request.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "models.toml").write_text(example())
    return tmp_path


def rows() -> tuple[np.ndarray, np.ndarray]:
    """(300, 5) features and their labels; the subject's records, the first, are of class 1 and lie apart."""
    rng = np.random.default_rng(0)
    y = np.arange(300) % 2
    x = (rng.normal(size=(300, 5)) + 1.5 * np.eye(5)[y]).astype(np.float32)
    y[:SUBJECT] = 1
    x[:SUBJECT, 2] += 2
    return x, y


def fitted(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(1, d + 1) weights and intercept of scikit-learn's logistic regression."""
    classifier = LogisticRegression(C=100.0).fit(x, y)
    return np.hstack([classifier.coef_, classifier.intercept_[:, None]])


def weights(path: Path) -> np.ndarray:
    """(1, d + 1) weights and intercept of a file, as the difference of two logits if it has two."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return np.hstack([arrays["coef_"], arrays["intercept_"][:, None]])
    state = torch.load(path, weights_only=True)
    both = torch.cat([state["weight"], state["bias"][:, None]], 1)
    return (both[1:] - both[:1]).double().numpy()


def asked(folder: Path, *more: object) -> list[object]:
    given = ["--plan", folder / "models.toml", "--ids", folder / "request.csv", "--out", folder / "forgotten"]
    return ["forget", *given, "--local", *more]


def certificate(folder: Path, name: str) -> dict:
    return json.loads((folder / "forgotten" / name / "certificate.json").read_text())["certificate"]


@pytest.fixture
def in_this_process(monkeypatch) -> None:
    """What a model's process would run, run here; that it is another process is shown on Ray."""

    def stand_in(command: Sequence[str], cwd: str, **_how: Any) -> Ended:
        assert command[:4] == [sys.executable, "-P", "-m", "workflows"]
        return unlearn(*command[4:], cwd=Path(cwd))

    monkeypatch.setattr(request, "subprocess", SimpleNamespace(run=stand_in, DEVNULL=None))


@pytest.mark.usefixtures("in_this_process")
def test_the_example_of_the_docs_a_failure_and_a_resumed_run(unlearn_here, plan):
    """One broken model, one without the records: the others are done, and only the mended one runs again."""
    more = '\n["<b>"]\nmodel = "fraud.pt"\ndata = "fraud_data.npz"\n'
    (plan / "models.toml").write_text(example() + more)
    assert unlearn_here(*asked(plan)).code == 2, "no name for a folder"
    extra = '\n[broken]\nmodel = "broken.pt"\ndata = "fraud_data.npz"\nid_column = "account"\nmethod = "newton"\n'
    extra += '[stranger]\nmodel = "fraud.pt"\ndata = "fraud_data.npz"\n'
    (plan / "models.toml").write_text(example() + extra)
    (plan / "broken.pt").write_text("<script>")
    first = unlearn_here(*asked(plan))
    assert first.code == 1, first.err
    x, y = rows()
    for name, model, start in (("churn", "churn.npz", 0), ("fraud", "fraud.pt", 20)):
        content = certificate(plan, name)
        assert content["outcome"] == "unlearned"
        assert content["request"]["n_forget"] == SUBJECT - start
        was, now = weights(plan / model), weights(plan / "forgotten" / name / model)
        retrained = fitted(x[SUBJECT:], y[SUBJECT:])
        assert np.linalg.norm(now - retrained) < np.linalg.norm(was - retrained), "closer to a retrain than it was"
        assert f"{name}: unlearned; {SUBJECT - start} of {SUBJECT} ids found in this model" in first.out
    table = first.out.partition("churn: ")[0]
    assert "30 of 30" in table
    assert "10 of 30" in table
    assert "stranger: has none of the records" in first.out
    assert "broken: " in first.out
    assert "is neither safetensors nor a PyTorch state dict" in first.out
    assert not (plan / "forgotten" / "stranger").exists()
    page = (plan / "forgotten" / "summary.html").read_text()
    assert "forgotten in 2 of 3 models" in page
    assert "<th>records found</th>" in page
    assert 'href="churn/certificate.html"' in page
    found = dict(re.findall(r"<tr><td>(?:<a [^>]*>)?(\w+)(?:</a>)?</td><td>[^<]*</td><td>([^<]*)</td>", page))
    assert found == {"churn": "30 of 30", "fraud": "10 of 30", "broken": "10 of 30", "stranger": "0 of 30"}
    before = {name: certificate(plan, name) for name in ("churn", "fraud")}
    (plan / "broken.pt").write_bytes((plan / "fraud.pt").read_bytes())
    again = unlearn_here(*asked(plan))
    assert again.code == 0, again.out
    assert again.out.count("(done before)") == 2
    assert {name: certificate(plan, name) for name in before} == before
    for name in ("churn", "fraud", "broken"):
        checked = unlearn_here("verify", plan / "forgotten" / name / "certificate.json")
        assert checked.code == 0, checked.out


WHO = """import os
from pathlib import Path
from torch import nn
Path("who").write_bytes(Path(f"/proc/{os.getppid()}/cmdline").read_bytes())


def build():
    return nn.Linear(5, 2)
"""


@pytest.mark.slow
def test_the_models_of_a_plan_are_steps_on_ray(plan, cluster, ray_environment):
    """One of them is built by a function, which notes whose child it runs in."""
    (plan / "nets_of_the_plan.py").write_text(WHO)
    built = 'model = "nets_of_the_plan:build"\nweights = "fraud.pt"'
    (plan / "models.toml").write_text(example().replace('model = "fraud.pt"', built))
    words = [word for word in asked(plan, "--address", cluster, "--workers", 2) if word != "--local"]
    for done_before in (0, 2):
        ended = run([sys.executable, "-m", "workflows", *words], plan, ray_environment)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert ended.stdout.count("(done before)") == done_before
    assert (plan / "who").read_bytes().startswith(b"ray::Worker")
    assert [certificate(plan, name)["outcome"] for name in ("churn", "fraud")] == ["unlearned"] * 2
    assert "forgotten in 2 of 2 models" in (plan / "forgotten" / "summary.html").read_text()


@pytest.mark.usefixtures("in_this_process")
def test_a_model_that_has_not_unlearned_is_no_failure(unlearn_here, plan):
    """truncate takes out classes, and the subject is none: no certificate, or with force one that says so."""
    table = '[churn]\nmodel = "churn.npz"\ndata = "churn_data.npz"\nmethod = "truncate"\n'
    (plan / "models.toml").write_text(table)
    answer = unlearn_here(*asked(plan))
    assert answer.code == 1, answer.err
    assert "churn: not unlearned, nothing was written: it has no answer to this request" in answer.out
    assert not any(word in answer.out for word in ("failed", "exit code", "Traceback", "BadInput"))
    assert not (plan / "forgotten" / "churn").exists()
    page = (plan / "forgotten" / "summary.html").read_text()
    assert "<td>churn</td><td>not unlearned</td><td>30 of 30</td>" in page
    assert "forgotten in 0 of 1 models" in page
    (plan / "models.toml").write_text(table + "force = true\n")
    for said in ("churn: not unlearned; 30 of 30", "churn: not unlearned (done before); 30 of 30"):
        forced = unlearn_here(*asked(plan))
        assert forced.code == 1, forced.err
        assert said in forced.out
        assert certificate(plan, "churn")["outcome"] == "not unlearned"
    (plan / "models.toml").write_text(table.replace("truncate", "newton"))
    other = unlearn_here(*asked(plan))
    assert other.code == 1
    assert "holds the certificate of another request" in other.out, "and is not taken for an answer to this one"


def test_a_dry_run_says_who_has_what_and_writes_nothing(unlearn_here, plan):
    before = sorted(plan.iterdir())
    answer = unlearn_here(*asked(plan, "--dry-run"))
    assert answer.code == 0, answer.err
    assert "churn: to be done; 30 of 30 ids found in this model" in answer.out
    assert "fraud: to be done; 10 of 30 ids found in this model" in answer.out
    assert sorted(plan.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no models"),
        ("[a", "is no TOML"),
        ("a = 1", "'a' is no table"),
        ('[a]\nmodel = "fraud.pt"', "has no data"),
        ('[a]\ndata = "churn_data.npz"\nout = "x"', "unknown option 'out'"),
        ('[a]\ndata = "churn_data.npz"\nmodle = "x"', "unknown option 'modle'"),
        ('[a]\ndata = ["churn_data.npz"]', "data of \\[a\\] is a list"),
        ('["../a"]\ndata = "churn_data.npz"', "cannot be called"),
        ("[store]\ndata = 'churn_data.npz'", "cannot be called"),
        ('[a]\ndata = "churn_data.npz"\nid_column = 3', "is the name of a column"),
        ('[a]\nmodel = "fraud.pt"\ndata = "fraud_data.npz"', "none of its records is in any of the 1 models"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_a_line(unlearn_here, plan, text, message):
    (plan / "models.toml").write_text(text)
    answer = unlearn_here(*asked(plan))
    assert answer.code == 2
    assert re.search(message, answer.err), answer.err
    assert len(answer.err.splitlines()) == 1
    assert not (plan / "forgotten").exists()


@pytest.mark.parametrize("option", [("--model", "fraud.pt"), ("--method", "newton"), ("--force",), ("--epochs", 3)])
def test_options_of_a_model_are_in_its_table_or_refused(unlearn_here, plan, option):
    answer = unlearn_here(*asked(plan, *option))
    assert answer.code == 2
    assert "--plan names models and their data" in answer.err
    assert not (plan / "forgotten").exists()
