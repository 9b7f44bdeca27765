"""``unlearn forget --audit``: what it says, what is certified, and that ``verify`` knows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import unlearn
from unlearn_core.forgetting.certificate import Certificate

SECTION = "Can a trained attacker tell it from a retrain?"


@pytest.fixture(scope="module")
def certified(digits, tmp_path_factory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("certified") / "out"
    ended = unlearn(
        "forget",
        *("--model", digits / "fine.safetensors", "--data", digits / "features.npz", "--ids", digits / "subclass.csv"),
        *("--method", "truncate", "--audit", 16, "--retrain-epochs", 10, "--out", out),
    )
    assert ended.returncode == 0, ended.stderr
    return out / "certificate.json", ended.stdout


def test_an_audit_is_said_certified_shown_and_verified(unlearn_here, certified):
    file, said = certified
    audit = json.loads(file.read_text())["certificate"]["audit"]
    assert (audit["shadows"], audit["method"], audit["epochs"], audit["left_alone"]) == (16, "truncate", 10, 0)
    assert "2403.01218" in audit["definitions"]["U-LiRA"]
    assert "not this model's own weights" in audit["of"]
    assert audit["results"]["base"]["ulira"]["auc"][1] > 0.9, "a whole class is known to who has seen it"
    value, low, high = audit["results"]["unlearned"]["ulira"]["auc"]
    line = f"U-LiRA's AUC {value:.3f} ({low:.3f} to {high:.3f})"
    cost = said.index("about 32 trainings")
    assert cost < said.index("16 of 16 shadows") < said.index(line)
    page = file.with_suffix(".html").read_text()
    assert SECTION in page
    assert f"{low:.3f} to {high:.3f}" in page
    verified = unlearn_here("verify", file)
    assert verified.code == 0
    assert line in verified.out


def test_an_edited_number_is_noticed_and_a_certificate_without_an_audit_holds(unlearn_here, certified):
    text = certified[0].read_text()
    content = json.loads(text)["certificate"]
    file = certified[0].with_name("edited.json")
    certified[0].with_suffix(".html").unlink()
    auc = content["audit"]["results"]["unlearned"]["ulira"]["auc"]
    file.write_text(text.replace(f"{auc[0]!r},", f"{auc[0] / 2!r},", 1))
    answer = unlearn_here("verify", file)
    assert answer.code == 1
    assert "FAILED   certificate: the text does not match its digest" in answer.out
    auc[0], auc[1] = 0.5, 0.6  # by somebody who mends the digest
    file.write_text(Certificate(content).text())
    answer = unlearn_here("verify", file)
    assert answer.code == 1
    assert "FAILED   audit: unlearned: auc 0.5 is not within its interval, 0.6" in answer.out
    del content["audit"]
    file.write_text(Certificate(content).text())
    answer = unlearn_here("verify", file)
    assert answer.code == 0
    assert "audit:" not in answer.out
