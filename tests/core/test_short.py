"""A retrain cut short, beside a loop written by hand; and every second of a cell found in its cost or its preparation."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from unlearn_core import unlearning
from unlearn_core.audit.divergence import log_probabilities, mean_kl
from unlearn_core.audit.scoring import Scorer
from unlearn_core.baselines.short import SHORT, SMALL, WARM
from unlearn_core.data import load_dataset
from unlearn_core.grid import RESNET, Scenario, Variant
from unlearn_core.nets.heads import HeadStack
from unlearn_core.preparations import Kept
from unlearn_core.problem import Inputs, make_cells, make_problem
from unlearn_core.recipes import HEAD_TRAINING, optimization_of, training_optimization
from unlearn_core.references import make_scorers, train_reference
from unlearn_core.run_settings import RunSettings
from unlearn_core.seeding import derive_seed
from unlearn_core.training import Member, train
from unlearn_core.unlearning import Reference, run_method

DIGITS = load_dataset("digits")
VARIANT = Variant("digits", "mlp1", Scenario.SUBCLASS, 0)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return reference_of(VARIANT, [0, 1])


def reference_of(variant: Variant, seeds: list[int]) -> Reference:
    problem, cells = make_problem(Inputs(DIGITS), variant.label_space), make_cells(DIGITS, variant, seeds)
    base, retrain = (train_reference(role, problem, "mlp1", cells, epochs=30) for role in ("base", "retrain"))
    return Reference(problem, "mlp1", cells, base, retrain, make_scorers(problem, cells, retrain))


def by_hand(
    reference: Reference,
    k: int,
    base_share: float,
    epochs: int,
    last: float,
    power: float | None,
    name: str = "short",
    batch_size: int = HEAD_TRAINING.batch_size,
    lost: int | None = None,
):
    """The weights after every step: plain torch, with the same first weights and the same row orders."""
    cell, problem = reference.cells[k], reference.problem
    x, y = problem.train.inputs, problem.train.label_tensor
    generator = torch.Generator().manual_seed(derive_seed(cell.seed, name, "weights"))
    layers = (nn.Linear(64, 256), nn.Linear(256, problem.n_classes))
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1])
    with torch.no_grad():
        for layer in layers:
            bound = 1 / math.sqrt(layer.in_features)
            layer.weight.copy_(
                torch.empty(layer.in_features, layer.out_features).uniform_(-bound, bound, generator=generator).T
            )
            layer.bias.copy_(torch.empty(layer.out_features).uniform_(-bound, bound, generator=generator))
        old = reference.base.net.state(k)
        for number, layer in enumerate(layers):
            for part in ("weight", "bias"):
                tensor = getattr(layer, part)
                share = torch.full_like(tensor, base_share)
                if number == 1 and lost is not None:
                    share[lost] = 0.0
                tensor.copy_((1 - share) * tensor + share * old[f"layers.{number}.{part}"])
    retained = torch.from_numpy(np.flatnonzero(~cell.forget))
    order = torch.Generator().manual_seed(derive_seed(cell.seed, "unlearn", "order"))
    rate = 3 * HEAD_TRAINING.lr
    optimizer = torch.optim.Adam(net.parameters(), rate)
    n_steps = epochs * math.ceil(len(retained) / batch_size)
    history: list[list[torch.Tensor]] = []
    for _ in range(epochs):
        rows = retained[torch.randperm(len(retained), generator=order)]
        for batch in rows.split(batch_size):
            optimizer.zero_grad()
            functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
            history.append([p.detach().clone() for p in net.parameters()])
            optimizer.param_groups[0]["lr"] = rate * last ** (len(history) / n_steps)
    weights = torch.ones(0)
    if power is not None:  # what the running update comes to: the mean under these weights
        weights = torch.tensor([math.exp(math.lgamma(t + power) - math.lgamma(t)) for t in range(1, len(history) + 1)])
    return net, history, weights


def put(net: nn.Module, tensors) -> nn.Module:
    with torch.no_grad():
        for parameter, tensor in zip(net.parameters(), tensors, strict=True):
            parameter.copy_(tensor)
    return net


@pytest.mark.parametrize(("name", "recipe", "batch_size"), [("short", SHORT, 512), ("short-small", SMALL, 128)])
@pytest.mark.parametrize("k", [0, 1])
def test_short_is_a_loop_written_by_hand(reference, k, name, recipe, batch_size):
    record = run_method(name, reference, RunSettings())[k]
    made = by_hand(reference, k, 0.0, recipe.epochs, last=1.0, power=2.0, name=name, batch_size=batch_size)
    net, history, weights = made
    per_epoch = len(history) // recipe.epochs
    within_a_step = [at for at in recipe.record_at if round(at * per_epoch) <= 1][-1]
    assert [epoch.epoch for epoch in record.epochs] == [at for at in recipe.record_at if at >= within_a_step]
    rows = reference.cells[k].forget
    x = reference.problem.train.inputs
    log_retrain = log_probabilities(reference.retrain.net.logits(k, x).numpy())[rows]
    for epoch in record.epochs:
        steps = max(1, round(epoch.epoch * per_epoch))
        share = weights[:steps] / weights[:steps].sum()
        mean = [sum(w * step[i] for w, step in zip(share, history, strict=False)) for i in range(4)]
        with torch.no_grad():
            ours = log_probabilities(put(net, mean)(x).numpy())[rows]
        assert epoch.scores.kl_f == pytest.approx(mean_kl(log_retrain, ours), rel=2e-3, abs=1e-4)  # float32 products


@pytest.mark.parametrize("lost", [None, 3])
def test_short_warm_is_a_loop_written_by_hand(reference, lost):
    """If a class is forgotten, nothing of the base's is mixed into its output.

    Each record ends a training of its own, in which the rate has fallen to a tenth by then, whatever comes after.
    """
    if lost is not None:
        reference = reference_of(Variant("digits", "mlp1", Scenario.CLASS, lost), [0])
    name, recipe = "short-warm", WARM
    record = run_method(name, reference, RunSettings())[0]
    x, rows = reference.problem.train.inputs, reference.cells[0].forget
    per_epoch = math.ceil((~rows).sum() / HEAD_TRAINING.batch_size)
    log_retrain = log_probabilities(reference.retrain.net.logits(0, x).numpy())[rows]
    assert [epoch.epoch for epoch in record.epochs] == list(recipe.record_at)
    for epoch in record.epochs:
        steps = max(1, round(epoch.epoch * per_epoch))
        whole = math.ceil(epoch.epoch)
        last = recipe.last_rate ** (whole / epoch.epoch)  # so that it is a tenth after the steps that are made
        net, history, _ = by_hand(reference, 0, recipe.base_share, whole, last=last, power=None, name=name, lost=lost)
        with torch.no_grad():
            theirs = log_probabilities(put(net, history[steps - 1])(x).numpy())[rows]
        assert epoch.scores.kl_f == pytest.approx(mean_kl(log_retrain, theirs), rel=2e-3, abs=1e-4)


def test_short_starts_from_weights_of_its_own_and_sees_no_forgotten_row(reference):
    """Other values in the forgotten rows change nothing; the first weights are neither the retrain's nor the floor's."""
    changed = replace(
        DIGITS, train_x=np.where(reference.cells[0].forget[:, None], 9.0, DIGITS.train_x).astype(np.float32)
    )

    def after(data, draw: str) -> dict[str, torch.Tensor]:
        problem = make_problem(Inputs(data), VARIANT.label_space)
        generator = torch.Generator().manual_seed(derive_seed(0, draw, "weights"))
        net = HeadStack.initialise((64, 256, problem.n_classes), [generator])
        forget = torch.from_numpy(reference.cells[0].forget)
        member = Member(0, "unlearn", problem.train.label_tensor, forget)
        train(net, problem.train.inputs, [member], SHORT, optimization_of(SHORT, "mlp1"))
        return net.state(0)

    ours = after(DIGITS, "short")
    assert all(torch.equal(ours[name], value) for name, value in after(changed, "short").items())
    for draw in ("network", "floor"):
        assert any(not torch.equal(ours[name], value) for name, value in after(DIGITS, draw).items())


def test_the_rate_is_three_times_the_retrains_whatever_the_architecture():
    for arch in ("mlp1", RESNET):
        how, own = optimization_of(SHORT, arch), training_optimization(arch)
        assert (how.lr, how.batch_size) == (pytest.approx(3 * own.lr), own.batch_size)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On one thread costs are the process's own CPU time, whatever else the machine does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def many_rows() -> Reference:
    """Enough rows that the work, and not Python around it, is what is measured."""
    rng = np.random.default_rng(0)
    x = np.concatenate([DIGITS.train_x + 0.1 * rng.normal(size=DIGITS.train_x.shape) for _ in range(8)])
    data = replace(DIGITS, train_x=x.astype(np.float32), train_y=np.tile(DIGITS.train_y, 8))
    cells = make_cells(data, VARIANT, [0])
    problem = make_problem(Inputs(data), VARIANT.label_space)
    base, retrain = (train_reference(role, problem, "mlp1", cells, epochs=3) for role in ("base", "retrain"))
    return Reference(problem, "mlp1", cells, base, retrain, make_scorers(problem, cells, retrain))


@pytest.mark.parametrize("method", ["short", "ga", "scrub", "bad-teacher", "lda-2c", "probe", "fresh", "dir"])
def test_every_second_of_a_cell_is_in_its_cost_or_its_preparation(monkeypatch, many_rows, one_thread, method):
    """All processor time of a run, but that of scoring and of describing targets, which a request does without."""
    nobodys = [0.0]

    def timed(original):
        def call(*arguments):
            started = time.process_time()
            found = original(*arguments)
            nobodys[0] += time.process_time() - started
            return found

        return call

    run_method(method, many_rows, RunSettings())  # what is loaded once in a process is nobody's cost either
    reference = replace(many_rows, problem=replace(many_rows.problem, prepared=Kept()), of_networks=())
    monkeypatch.setattr(unlearning, "_target_record", timed(unlearning._target_record))
    monkeypatch.setattr(Scorer, "score", timed(Scorer.score))
    started = time.process_time()
    record = run_method(method, reference, RunSettings())[0]
    spent = time.process_time() - started - nobodys[0]
    assert (record.cost + record.preparation) * reference.retrain.seconds[0] == pytest.approx(spent, rel=0.05)
    assert (record.preparation > 0) == (method in ("lda-2c", "probe", "fresh"))
