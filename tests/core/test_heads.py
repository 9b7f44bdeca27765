"""A stack of heads against plain torch modules, and a member against itself alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unlearn_core.errors import BadInput
from unlearn_core.grid import HEADS, head_widths
from unlearn_core.nets.heads import HeadStack


def make_stack(arch, seeds, dim=64, n_classes=10) -> HeadStack:
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return HeadStack.initialise(head_widths(arch, dim, n_classes), generators)


def as_module(stack: HeadStack, member: int) -> nn.Sequential:
    """The same network as an ordinary module, in double precision."""
    layers: list[nn.Module] = []
    for i in range(len(stack.widths) - 1):
        layers += [nn.Linear(stack.widths[i], stack.widths[i + 1]), nn.ReLU()]
    module = nn.Sequential(*layers[:-1])
    state = stack.state(member)
    with torch.no_grad():
        for i, layer in enumerate(layer for layer in module if isinstance(layer, nn.Linear)):
            layer.weight.copy_(state[f"layers.{i}.weight"])
            layer.bias.copy_(state[f"layers.{i}.bias"])
    return module.double()


@pytest.mark.parametrize("arch", HEADS)
def test_forward_and_backward_are_those_of_torch_modules(arch):
    stack = make_stack(arch, seeds=(0, 1, 2))
    inputs = torch.randn(100, 64, generator=torch.Generator().manual_seed(0))
    rows = torch.randint(0, 100, (3, 37), generator=torch.Generator().manual_seed(1))
    gradient = torch.randn(3, 37, 10, generator=torch.Generator().manual_seed(2))
    logits = stack.forward(inputs, rows).clone()
    stack.backward(gradient)
    for member in range(3):
        module = as_module(stack, member)
        expected = module(inputs[rows[member]].double())
        torch.testing.assert_close(logits[member].double(), expected, atol=1e-5, rtol=1e-5)
        expected.backward(gradient[member].double())
        (weights,) = stack.parameters()[member]
        assert weights.grad is not None
        theirs = torch.cat(
            [
                part
                for layer in module
                if isinstance(layer, nn.Linear) and layer.weight.grad is not None and layer.bias.grad is not None
                for part in (layer.weight.grad.T.flatten(), layer.bias.grad)
            ]
        )
        torch.testing.assert_close(weights.grad.double(), theirs, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            stack.logits(member, inputs).double(), module(inputs.double()).detach(), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("arch", HEADS)
def test_initial_weights_are_torchs_distribution(arch):
    stack = make_stack(arch, seeds=(3,), dim=300, n_classes=50)
    for name, tensor in stack.state(0).items():
        layer = int(name.split(".")[1])
        bound = stack.widths[layer] ** -0.5
        assert tensor.abs().max() <= bound
        if tensor.numel() > 1000:
            assert tensor.std() == pytest.approx(bound / 3**0.5, rel=0.05)


def test_members_differ_and_are_reproducible():
    first, again = make_stack("mlp1", (0, 1)), make_stack("mlp1", (0, 1))
    assert torch.equal(first.state(0)["layers.0.weight"], again.state(0)["layers.0.weight"])
    assert not torch.equal(first.state(0)["layers.0.weight"], first.state(1)["layers.0.weight"])


@pytest.mark.parametrize("arch", HEADS)
def test_state_round_trip_and_selection(arch):
    stack = make_stack(arch, (0, 1, 2))
    rebuilt = HeadStack.from_states([stack.state(k) for k in (2, 0)])
    chosen = stack.select([2, 0])
    inputs = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    for new, old in ((0, 2), (1, 0)):
        assert torch.equal(rebuilt.logits(new, inputs), stack.logits(old, inputs))
        assert torch.equal(chosen.logits(new, inputs), stack.logits(old, inputs))
    chosen.parameters()[0][0].zero_()
    assert stack.state(2)["layers.0.weight"].abs().sum() > 0, "a selection is a copy"


def test_last_layer_is_linear_in_the_penultimate_representation():
    stack = make_stack("mlp2", (0,))
    inputs = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    state = stack.state(0)
    expected = stack.penultimate(0, inputs) @ state["layers.2.weight"].T + state["layers.2.bias"]
    torch.testing.assert_close(stack.logits(0, inputs), expected)


def test_unknown_heads_and_foreign_weights_are_refused():
    with pytest.raises(BadInput, match="unknown head 'mlp3'; there are linear, mlp1, mlp2"):
        head_widths("mlp3", 4, 2)
    with pytest.raises(BadInput, match=r"head weights have the keys \['fc.weight'\]"):
        HeadStack.from_states([{"fc.weight": torch.zeros(2, 2)}])
