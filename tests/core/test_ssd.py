"""Selective synaptic dampening beside its authors' loop, which is written here from their code as plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from unlearn_core.data.digits import load_digits
from unlearn_core.edits.ssd import SsdConstants, dampen, importances
from unlearn_core.grid import head_widths
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.module import ModuleStack
from unlearn_core.recipes import HEAD_TRAINING, Visit, training_recipe
from unlearn_core.training import Member, train

DIGITS = load_digits()
INPUTS, LABELS = torch.from_numpy(DIGITS.train_x), torch.from_numpy(DIGITS.train_y)
FORGET = LABELS == 3
ORDER = torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def base() -> HeadStack:
    """Two members, of which the second one is edited."""
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    net = HeadStack.initialise(head_widths("mlp1", INPUTS.shape[1], 10), generators)
    members = [Member(seed, "base", LABELS) for seed in (0, 1)]
    train(net, INPUTS, members, training_recipe(Visit.ALL, 10), HEAD_TRAINING)
    return net


def as_module(net: HeadStack, member: int) -> nn.Sequential:
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    state = net.state(member)
    module.load_state_dict(
        {f"{2 * i}.{part}": state[f"layers.{i}.{part}"] for i in (0, 1) for part in ("weight", "bias")}
    )
    return module


def calc_importance(module: nn.Module, rows: torch.Tensor, batch_size: int) -> dict[str, torch.Tensor]:
    """ssd.py's: squared gradients of the mean loss, averaged over the batches of a loader."""
    found = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    loader = rows.split(batch_size)
    for batch in loader:
        module.zero_grad()
        functional.cross_entropy(module(INPUTS[batch]), LABELS[batch]).backward()
        for name, p in module.named_parameters():
            assert p.grad is not None
            found[name] += p.grad.clone().pow(2)
    return {name: importance / len(loader) for name, importance in found.items()}


def modify_weight(module: nn.Module, original, forget, alpha: float, dampening: float) -> None:
    """ssd.py's, with its exponent and lower bound of 1."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            locations = torch.where(forget[name] > original[name].mul(alpha))
            update = original[name].mul(dampening).div(forget[name])[locations]
            update[torch.where(update > 1)] = 1
            p[locations] = p[locations].mul(update)


@pytest.mark.parametrize(("alpha", "lambda_"), [(10.0, 1.0), (2.0, 0.5), (1.0, 1.5)])
def test_ssd_is_its_authors_loop(base, alpha, lambda_):
    module, forgotten = as_module(base, 1), torch.arange(len(LABELS))[FORGET]
    of_d, of_f = calc_importance(module, ORDER, 64), calc_importance(module, forgotten, 64)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    modify_weight(module, of_d, of_f, alpha, lambda_)
    changed = torch.cat([(p != before[name]).flatten() for name, p in module.named_parameters()])
    assert 0 < changed.float().mean() < 1, "some are dampened, some are not"
    ours = importances(base, 1, INPUTS, LABELS, ORDER, 64)
    untouched = base.state(1)
    edited = dampen(base, 1, ours, INPUTS[FORGET], LABELS[FORGET], SsdConstants(alpha, lambda_))
    assert all(torch.equal(base.state(1)[name], value) for name, value in untouched.items()), "the base stays as it is"
    for i in (0, 1):
        for part in ("weight", "bias"):
            theirs = dict(module.named_parameters())[f"{2 * i}.{part}"].detach()
            torch.testing.assert_close(edited.state(0)[f"layers.{i}.{part}"], theirs, atol=1e-5, rtol=1e-3)


def test_importances_in_batches_of_one_row_are_the_diagonal_of_the_fisher_information(base):
    rows = ORDER[:12]
    ours = importances(base, 0, INPUTS, LABELS, rows, batch_size=1)["0"]
    module = as_module(base, 0)
    gradients = []
    for row in rows:
        module.zero_grad()
        functional.cross_entropy(module(INPUTS[row][None]), LABELS[row][None]).backward()
        weights = [p.grad.T if p.dim() == 2 else p.grad for p in module.parameters() if p.grad is not None]
        gradients.append(torch.cat([gradient.flatten() for gradient in weights]))
    torch.testing.assert_close(ours, torch.stack(gradients).square().mean(0), atol=1e-7, rtol=1e-4)


def test_it_edits_any_network_that_torch_differentiates(base):
    """The same weights as a user's module are dampened to the same outputs."""
    module = ModuleStack(as_module(base, 1), INPUTS[:2])
    found = []
    for net, member in ((base, 1), (module, 0)):
        of_d = importances(net, member, INPUTS, LABELS, ORDER, 64)
        edited = dampen(net, member, of_d, INPUTS[FORGET], LABELS[FORGET], SsdConstants(alpha=2.0))
        found.append(edited.logits(0, INPUTS))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-3)


def test_no_weight_grows_and_none_changes_that_is_not_selected(base):
    of_d = importances(base, 1, INPUTS, LABELS, ORDER, 64)
    [before] = base.parameters()[1]
    [grown] = dampen(base, 1, of_d, INPUTS[FORGET], LABELS[FORGET], SsdConstants(1.0, lambda_=50.0)).parameters()[0]
    assert (grown.abs() <= before.abs()).all()
    [same] = dampen(base, 1, of_d, INPUTS[FORGET], LABELS[FORGET], SsdConstants(alpha=1e9)).parameters()[0]
    assert torch.equal(same, before)
