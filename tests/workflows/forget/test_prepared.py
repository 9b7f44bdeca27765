"""``unlearn prepare`` and ``unlearn forget --prepared`` as an engineer with many small requests meets them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from threadpoolctl import threadpool_limits

from tasks.compute import parts
from tasks.local_backend import LocalBackend
from unlearn_core.data import load_feature_set, save_feature_set
from unlearn_core.forgetting.ledger import hold_ledger
from unlearn_core.preparations import CURVATURE, PREPARATIONS
from workflows.cli import build_parser, main

MODEL = ("--model", "fine.safetensors", "--arch", "mlp1", "--data", "features.npz")


def content_of(out: Path) -> dict:
    return json.loads((out / "certificate.json").read_text())["certificate"]


def flip(path: Path, put_time_back: bool) -> None:
    times, changed = path.stat(), bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(bytes(changed))
    if put_time_back:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def copied(folder: Path, place: Path) -> Path:
    """A folder of files as they were, times included: what a state knows them by; their paths it knows too."""
    return Path(shutil.copytree(folder, place, dirs_exist_ok=True))


@pytest.fixture(scope="session")
def case(digits, tmp_path_factory) -> Path:
    """The digits in a folder of their own, with a network that was trained to the end."""
    folder = copied(digits, tmp_path_factory.mktemp("case"))
    data = load_feature_set(folder / "features.npz")
    state = {name: tensor.clone().requires_grad_() for name, tensor in load_file(folder / "fine.safetensors").items()}
    x, y = torch.from_numpy(data.train_x).float(), torch.from_numpy(data.train_y)
    optimizer = torch.optim.Adam(state.values(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        hidden = torch.relu(x @ state["layers.0.weight"].T + state["layers.0.bias"])
        logits = hidden @ state["layers.1.weight"].T + state["layers.1.bias"]
        torch.nn.functional.cross_entropy(logits, y).backward()
        optimizer.step()
    save_file({name: tensor.detach() for name, tensor in state.items()}, folder / "fine.safetensors")
    assert data.ids is not None
    half = data.ids[data.train_y == 4][::2]
    (folder / "half.csv").write_text("id\n" + "\n".join(half) + "\n")
    return folder


@pytest.fixture(scope="session")
def prepared(case) -> Path:
    """Prepared by the command, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(case)
        with pytest.raises(SystemExit) as ended:
            main(["prepare", *MODEL, "--out", "state"])
    assert ended.value.code == 0
    return case / "state"


@pytest.fixture
def own(prepared, tmp_path, monkeypatch) -> Iterator[Path]:
    """The prepared files, for a test to change where they lie: preparing copies of them would take seconds each time."""
    folder = prepared.parent
    document = json.loads((prepared / "state.json").read_text())
    assert {Path(name).name for name in document["sources"]} == {"fine.safetensors", "features.npz"}
    kept = copied(folder, tmp_path / "kept")
    monkeypatch.chdir(folder)
    yield folder
    shutil.rmtree(folder)
    copied(kept, folder)


def ask(unlearn_here, request: str, *more, out: str = "out"):
    return unlearn_here("forget", *MODEL, "--ids", request, "--prepared", "state", "--out", out, *more)


@pytest.fixture
def here(case, prepared, monkeypatch) -> Path:
    monkeypatch.chdir(case)
    return case


@pytest.mark.parametrize(
    ("request_file", "kind", "method"),
    [
        ("fifty.jsonl", "exchangeable", "newton"),
        ("subclass.csv", "whole class", "truncate"),
        ("half.csv", "group", "short"),
    ],
)
def test_each_kind_of_request_gets_what_fits_it_and_a_certificate_that_verifies(
    unlearn_here, here, tmp_path, request_file, kind, method
):
    out = tmp_path / "out"
    answer = ask(unlearn_here, request_file, "--max-drop", 100, out=str(out))
    assert answer.code == 0, answer.err
    content = content_of(out)
    assert (content["kind"]["kind"], content["proxy"]["method"]) == (kind, method)
    assert content["outcome"] == "unlearned"
    assert f"kind of request: {kind}" in answer.out
    estimated = "estimated without a retrain" in answer.out
    assert estimated == (kind == "exchangeable") == (content["closeness"]["after"] is not None)
    if not estimated:
        assert "no estimate" in answer.out
    page = (out / "certificate.html").read_text()
    assert kind in page
    assert unlearn_here("verify", out / "certificate.json").code == 0
    before, after = load_file("fine.safetensors"), load_file(out / "fine.safetensors")
    assert any(not torch.equal(before[name], tensor) for name, tensor in after.items())


def test_what_is_trained_anew_is_judged_by_rows_that_nobody_trained_on(unlearn_here, here, tmp_path):
    """It knows fewer training rows by heart than the base, and as much of others."""
    refused = ask(unlearn_here, "half.csv", "--method", "short-hard-warm", "--max-drop", -50, out=str(tmp_path / "out"))
    assert refused.code == 2
    assert "held-out accuracy fell by" in refused.err
    edited = ask(unlearn_here, "half.csv", "--method", "newton", "--max-drop", -50, out=str(tmp_path / "out"))
    assert edited.code == 2
    assert "retained accuracy fell by" in edited.err
    before, after = (
        int(float(part) * 100) for part in re.findall(r"held out ([\d.]+) % -> ([\d.]+) %", refused.out)[0]
    )
    lost = float(re.findall(r"held-out accuracy fell by (-?[\d.]+) points", refused.err)[0])
    assert lost == pytest.approx((before - after) / 100, abs=0.02), "half of a class is left, so that all of them count"
    assert not list(tmp_path.iterdir())


def test_a_budget_is_named_with_the_runner_up_and_what_more_would_buy(unlearn_here, here, tmp_path):
    """Half a class at half a per cent: a retrain cut short, and the same in other batches is next."""
    answer = ask(unlearn_here, "half.csv", "--max-drop", 100, "--budget", "0.5%", out=str(tmp_path / "out"))
    assert answer.code == 0, answer.err
    said = content_of(tmp_path / "out")["proxy"]
    assert said["method"] == "short-small"
    assert "within 0.5 % of a retrain" in said["why"]
    assert "next: short;" in said["why"]
    assert "a larger budget buys" in said["why"]


@pytest.mark.parametrize("budget", ["0", "7", "150%", "much"])
def test_a_budget_is_a_share(unlearn_here, here, tmp_path, budget):
    answer = ask(unlearn_here, "half.csv", "--budget", budget, out=str(tmp_path / "out"))
    assert answer.code == 2
    assert "such as 0.05 or 5%" in answer.err


def test_what_preparing_took_is_said_beside_training_and_a_state_is_not_replaced_unasked(unlearn_here, own):
    again = unlearn_here("prepare", *MODEL, "--out", "state")
    assert (again.code, len(again.err.splitlines())) == (2, 1)
    assert "already holds a prepared state" in again.err
    (own / "notes").mkdir()
    (own / "notes" / "mine.txt").write_text("mine")
    other = unlearn_here("prepare", *MODEL, "--out", "notes", "--force")
    assert (other.code, len(other.err.splitlines())) == (2, 1)
    assert (own / "notes" / "mine.txt").exists()
    done = unlearn_here("prepare", *MODEL, "--out", "state", "--force")
    assert done.code == 0, done.err
    for part in ("crossfit", "curvature", "heldout", "% of training the model", "MB in state", "next: unlearn forget"):
        assert part in done.out
    checked = ask(unlearn_here, "one.txt", "--check-prepared", "--dry-run")
    assert checked.code == 0, checked.err


def test_the_truth_is_put_beside_the_estimate(unlearn_here, here, tmp_path):
    out = tmp_path / "out"
    answer = ask(unlearn_here, "fifty.jsonl", "--verify-retrain", "--retrain-epochs", 3, out=str(out))
    assert answer.code == 0, answer.err
    content = content_of(out)
    assert content["closeness"]["after"] is not None
    [check] = content["retrain"]["checks"]
    assert check["kl_f"] >= 0
    assert check["kl_retrain_to"]["unlearned"]["forget"] == check["kl_f"]


def _other_model(folder: Path) -> None:
    shutil.copyfile(folder / "super.safetensors", folder / "fine.safetensors")


def _touched_data(folder: Path) -> None:
    os.utime(folder / "features.npz", ns=(1, 1))


def _fewer_rows(folder: Path) -> None:
    with np.load(folder / "features.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name in ("train_x", "train_y", "ids"):
        arrays[name] = arrays[name][:-1]
    np.savez(folder / "features.npz", **arrays)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: flip(folder / "fine.safetensors", False), "was prepared of another model"),
        (_touched_data, "is not, or no longer, what state was prepared of"),
        (_fewer_rows, "is not, or no longer, what state was prepared of"),
        (
            lambda folder: flip(folder / "state" / "curvature" / "inputs.layers.0.npy", False),
            "is not as it was prepared",
        ),
        (lambda folder: (folder / "state" / "state.json").write_text("{"), "is damaged"),
        (lambda folder: shutil.rmtree(folder / "state"), "no prepared state at state"),
    ],
    ids=["model", "time of the data", "rows", "an array", "state.json", "no state"],
)
def test_what_is_not_as_it_was_prepared_is_refused_in_one_line(unlearn_here, own, damage, message):
    damage(own)
    answer = ask(unlearn_here, "one.txt")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1), answer.err
    assert message in answer.err
    assert not (own / "out").exists()


@pytest.mark.parametrize("name", ["features.npz", "state/crossfit/log_q.npy", "state/curvature/moments.layers.1.npy"])
def test_a_byte_changed_with_the_time_put_back_is_noticed_if_asked_to_look(unlearn_here, own, name):
    assert ask(unlearn_here, "one.txt", "--check-prepared", "--dry-run").code == 0
    flip(own / name, True)
    answer = ask(unlearn_here, "one.txt", "--check-prepared")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1), answer.err
    assert Path(name).name in answer.err
    assert not (own / "out").exists()


def test_a_check_of_no_state_and_a_state_of_a_black_box_are_refused(unlearn_here, here, tmp_path):
    request = ("--ids", "one.txt", "--out", tmp_path / "out")
    answer = unlearn_here("forget", *MODEL, *request, "--check-prepared")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    black_box = ("--logits", "fine_logits.npz", "--data", "features.npz", "--prepared", "state")
    answer = unlearn_here("forget", *black_box, *request)
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "a prepared state is of a network" in answer.err
    answer = unlearn_here("prepare", "--data", "features.npz", "--out", tmp_path / "out")
    assert answer.code == 2
    assert "a black box cannot be prepared" in answer.err


def test_requests_one_after_another_end_where_one_does(unlearn_here, here, tmp_path):
    ids = [json.loads(line)["id"] for line in Path("fifty.jsonl").read_text().splitlines()]
    for number, part in enumerate((ids[:20], ids[20:])):
        (tmp_path / f"{number}.txt").write_text("\n".join(part))
        answer = ask(
            unlearn_here,
            str(tmp_path / f"{number}.txt"),
            "--ledger",
            tmp_path / "ledger",
            out=str(tmp_path / str(number)),
        )
        assert answer.code == 0, answer.err
    assert ask(unlearn_here, "fifty.jsonl", out=str(tmp_path / "once")).code == 0
    several, once = (load_file(tmp_path / name / "fine.safetensors") for name in ("1", "once"))
    assert all(torch.equal(tensor, once[name]) for name, tensor in several.items())


def test_features_of_the_images_are_those_that_were_prepared(unlearn_here, own):
    """Given beside the data: known by their file, mapped, and others are refused."""
    data = load_feature_set(own / "features.npz")
    save_feature_set(own / "seen.npz", data)
    seen = ("--features", "seen.npz")
    assert unlearn_here("prepare", *MODEL, *seen, "--out", "state", "--force").code == 0
    assert ask(unlearn_here, "fifty.jsonl", *seen, "--dry-run").code == 0
    shutil.copyfile(own / "seen.npz", own / "other.npz")
    answer = ask(unlearn_here, "fifty.jsonl", "--features", "other.npz")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "other.npz is not, or no longer, what state was prepared of" in answer.err


def test_a_network_of_ones_own_on_images(unlearn_here, conv, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(conv))
    monkeypatch.chdir(tmp_path)
    model = ("--model", "their_nets:on_normed_images", "--weights", conv / "on_normed_images.pt")
    data = ("--data", conv / "images.npz", "--features-from", "penultimate")
    done = unlearn_here("prepare", *model, *data, "--out", "state")
    assert done.code == 0, done.err
    assert (
        "newton leaves as they are, for they are in no linear or convolutional layer: norm.weight, norm.bias"
        in done.out
    )
    rows = np.random.default_rng(1).permutation(1437)[:20]
    Path("twenty.txt").write_text("\n".join(map(str, rows)))
    answer = unlearn_here("forget", *model, *data, "--ids", "twenty.txt", "--prepared", "state", "--out", "out")
    assert answer.code == 0, answer.err
    content = content_of(Path("out"))
    assert content["proxy"]["method"] == "newton"
    before, after = (
        torch.load(path, weights_only=True) for path in (conv / "on_normed_images.pt", "out/on_normed_images.pt")
    )
    same = {name for name, tensor in after.items() if torch.equal(tensor, before[name])}
    assert content["outcome"] == "unlearned"
    assert same == {name for name in before if name.startswith("norm.")}
    assert unlearn_here("verify", "out/certificate.json").code == 0
    (tmp_path / "one.txt").write_text("3\n")
    other = ("--data", conv / "images.npz", "--features-from", "conv")
    answer = unlearn_here("forget", *model, *other, "--ids", "one.txt", "--prepared", "state", "--out", "out2")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "these are others (layer conv" in answer.err


# what is asked for beside the usual, and where it is computed


def arrays_in(state: Path) -> dict[str, bytes]:
    return {str(path.relative_to(state)): path.read_bytes() for path in sorted(state.rglob("*.npy"))}


def test_a_state_prepared_in_steps_is_that_of_one_process_to_the_bit(unlearn_here, case, tmp_path, monkeypatch):
    """With the probe, and after a worker failed at one part: what is prepared by then is not prepared again."""
    monkeypatch.chdir(case)
    asked = ("prepare", *MODEL, "--with", "probe", "--out")
    with threadpool_limits(1):  # as a worker: a sum's bits depend on how many threads share it
        alone = unlearn_here(*asked, tmp_path / "alone")
    assert alone.code == 0, alone.err
    out, steps = tmp_path / "parted", tmp_path / "parted.steps"
    monkeypatch.setattr("workflows.run._backend", lambda store, _machine: contextlib.nullcontext(LocalBackend(store)))
    with monkeypatch.context() as patch:
        broken = replace(PREPARATIONS[CURVATURE], compute=_fails)
        patch.setattr(parts, "PREPARATIONS", {**PREPARATIONS, CURVATURE: broken})
        failed = unlearn_here(*asked, out, "--workers", 2)
    assert (failed.code, len(failed.err.splitlines())) == (2, 1), failed.err
    assert "part curvature mlp1" in failed.err
    assert "no memory of it" in (steps / "failure.txt").read_text()
    assert not out.exists()
    assert steps.stat().st_mode & 0o077 == 0, "it holds rows of D"
    done = unlearn_here(*asked, out, "--workers", 2)
    assert done.code == 0, done.err
    assert "9 of 10 parts were prepared before" in done.out
    assert arrays_in(out) == arrays_in(tmp_path / "alone")
    assert not steps.exists()
    answer = unlearn_here(
        *("forget", *MODEL, "--ids", "fifty.jsonl", "--prepared", out, "--method", "probe", "--out", tmp_path / "out")
    )
    assert answer.code == 0, answer.err


def _fails(*_given):
    raise RuntimeError("no memory of it")


def test_a_method_without_its_part_is_told_how_to_prepare_it(unlearn_here, here, tmp_path):
    answer = ask(unlearn_here, "fifty.jsonl", "--method", "fresh", out=str(tmp_path / "out"))
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "fresh starts from the probe of all rows, which state does not hold" in answer.err
    assert "--with probe" in answer.err


@pytest.mark.parametrize(("method", "more"), [("newton-crossfit", ""), ("auto", ""), ("probe", " --with probe")])
def test_without_a_state_it_prepares_what_it_needs_and_says_how_to_keep_it(unlearn_here, here, tmp_path, method, more):
    """The command that it says is one that can be given."""
    quick = ("--method", method, "--epochs", 1, "--force")
    answer = unlearn_here("forget", *MODEL, "--ids", "fifty.jsonl", *quick, "--out", tmp_path / "out")
    assert answer.code in (0, 1), answer.err
    [said] = [line for line in answer.out.splitlines() if "the next ones need not" in line]
    command = f"unlearn prepare {' '.join(MODEL)}{more} --out state"
    assert said.endswith(f"with --prepared state after: {command}")
    build_parser().parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize("method", ["ssd", "lda"])
def test_what_no_state_keeps_is_not_said_to_be_kept(unlearn_here, here, tmp_path, method):
    """ssd starts from importances; of a black box there is no state."""
    model = ("--logits", "fine_logits.npz", "--data", "features.npz") if method == "lda" else MODEL
    request = ("--ids", "fifty.jsonl", "--method", method, "--force", "--out", tmp_path / "out")
    answer = unlearn_here("forget", *model, *request)
    assert "prepared for this request alone" in answer.out, answer.err
    assert "unlearn prepare" not in answer.out


def test_a_ledger_that_a_request_holds_is_waited_for(unlearn_here, here, tmp_path):
    """What it reads of a ledger, rows and weights, is of one moment."""
    book = tmp_path / "ledger"
    assert ask(unlearn_here, "one.txt", "--ledger", book, out=str(tmp_path / "out")).code == 0
    with hold_ledger(book):
        answer = unlearn_here("prepare", *MODEL, "--ledger", book, "--wait", 0, "--out", tmp_path / "state")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1), answer.err
    assert "ledger is still in use after 0 s" in answer.err
    assert not (tmp_path / "state").exists()
    done = unlearn_here("prepare", *MODEL, "--ledger", book, "--out", tmp_path / "state")
    assert done.code == 0, done.err
    assert "1 rows are forgotten by now" in done.out
    assert not (book / ".lock").exists()
