"""A head is known by the shapes of its layers, however its file names them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from unlearn_core.errors import BadInput
from unlearn_core.forgetting.model_files import LoadedModel, load_model
from unlearn_core.nets.head_layout import find_layout
from unlearn_core.nets.make import blueprint

D, H, C = 6, 5, 3
ROWS = torch.from_numpy(np.random.default_rng(0).normal(size=(20, D))).float()


class Nested(nn.Module):
    """Layers that are registered last to first, in modules of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier: nn.ModuleDict = nn.ModuleDict({"out": nn.Linear(4, C)})
        self.body: nn.ModuleDict = nn.ModuleDict({"second": nn.Linear(H, 4), "first": nn.Linear(D, H)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body["second"](self.body["first"](x).relu()).relu()
        return self.classifier["out"](hidden)


def linear() -> nn.Module:
    return nn.Linear(D, C)


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(D, H), nn.ReLU(), nn.Dropout(), nn.Linear(H, C))


def square() -> nn.Module:
    """Any two layers fit onto each other; their numbers say which comes first."""
    return nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D))


def one_logit() -> nn.Module:
    return nn.Sequential(nn.Linear(D, H), nn.ReLU(), nn.Linear(H, 1))


def save(path: Path, module: nn.Module, prefix: str, how: str) -> None:
    state = {prefix + name: tensor for name, tensor in module.state_dict().items()}
    if how == "safetensors":
        save_file(state, path, metadata={"by": "me"})
    elif how == "lightning":
        more = {"epoch": 3, "hyper_parameters": {"width": H, "lrs": [1e-3]}, "optimizer_states": [{"m": torch.ones(3)}]}
        torch.save({"pytorch-lightning_version": "2.5.0", "state_dict": state, **more}, path)
    else:
        torch.save(state, path)


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    stored = torch.load(path, weights_only=True)
    return stored.get("state_dict", stored)


def posteriors(logits: torch.Tensor) -> torch.Tensor:
    """One logit is that of the second of two classes."""
    if logits.shape[1] == 1:
        return torch.cat([torch.sigmoid(-logits), torch.sigmoid(logits)], dim=1)
    return logits.softmax(dim=1)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "model._orig_mod.", "net.deep.head."])
@pytest.mark.parametrize(("build", "arch"), [(linear, "linear"), (sequential, "mlp1"), (Nested, "mlp2")])
def test_a_head_is_read_by_shape_and_written_under_its_own_names(tmp_path, build, arch, prefix):
    """Oracle: the module itself, which answers as the network does before and after; with --arch and without."""
    torch.manual_seed(0)
    module = build().eval()
    for how, suffix in (("safetensors", "safetensors"), ("torch", "pt"), ("lightning", "ckpt")):
        path, out = tmp_path / f"w.{suffix}", tmp_path / how
        out.mkdir()
        save(path, module, prefix, how)
        for plan in (blueprint(arch), None):
            model = load_model(path, plan, ROWS)
            assert model.blueprint.name == arch
            torch.testing.assert_close(model.net.logits(0, ROWS), module(ROWS).detach())
            assert ("--arch was left out" in model.understood) == (plan is None)
        check_written(model, module, out, prefix)
        if how == "lightning":
            left = set(torch.load(path, weights_only=True)) - set(torch.load(out / path.name, weights_only=True))
            assert left == set(model.weights.dropped) == {"epoch", "optimizer_states"}


def check_written(model: LoadedModel, module: nn.Module, out: Path, prefix: str = "") -> None:
    """Other weights leave under the names, in the types and with the shapes that came in; equal ones as the same bytes."""
    same = model.write(out, model.net)
    assert same.read_bytes() == model.weights.path.read_bytes()
    moved = {name: tensor + 0.25 for name, tensor in model.net.state(0).items()}
    other = model.as_stored(type(model.net).from_states([moved]))  # pyright: ignore[reportAttributeAccessIssue]
    before, after = tensors_of(model.weights.path), tensors_of(model.write(out, other))
    assert list(before) == list(after)
    assert all(after[name].dtype == before[name].dtype and after[name].shape == before[name].shape for name in before)
    module.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in after.items()})
    with torch.no_grad():
        torch.testing.assert_close(other.logits(0, ROWS).softmax(dim=1), posteriors(module(ROWS)))
        module.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in before.items()})


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("build", [square, one_logit])
def test_square_layers_go_by_their_numbers_and_one_logit_becomes_two(tmp_path, build, dtype):
    torch.manual_seed(1)
    module = build()
    module.load_state_dict({name: tensor.to(dtype) for name, tensor in module.state_dict().items()})  # rounded
    save_file({name: tensor.to(dtype) for name, tensor in module.state_dict().items()}, tmp_path / "w.safetensors")
    model = load_model(tmp_path / "w.safetensors", None, ROWS)
    with torch.no_grad():
        torch.testing.assert_close(model.net.logits(0, ROWS).softmax(dim=1), posteriors(module(ROWS)))
    said = "in the order of their numbers" if build is square else "one output z, taken for the two logits 0 and z"
    assert said in model.understood
    (tmp_path / "out").mkdir()
    check_written(model, module, tmp_path / "out")


def test_what_was_understood_is_said(tmp_path):
    module = nn.Sequential(nn.Linear(384, 1024), nn.ReLU(), nn.Linear(1024, 10))
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    understood = load_model(tmp_path / "w.safetensors", blueprint("mlp1"), torch.zeros(2, 384)).understood
    assert understood.startswith("read as mlp1: 384 -> 1024 -> 10 from 0.weight, 2.weight")


def layers(*shapes: tuple[int, int], names: str = "abcdef") -> dict[str, torch.Tensor]:
    state = {}
    for name, (n_in, n_out) in zip(names, shapes, strict=False):
        state |= {f"{name}.weight": torch.ones(n_out, n_in), f"{name}.bias": torch.ones(n_out)}
    return state


def test_shapes_decide_in_whatever_order_a_file_lists_its_layers():
    state = layers((7, 6), (6, 5), (5, 3))
    for order in itertools.permutations(state):
        layout = find_layout({name: state[name] for name in order})
        assert layout.weights == ("a.weight", "b.weight", "c.weight")
        assert layout.widths == (7, 6, 5, 3)


def test_the_features_decide_which_of_two_orders_is_meant():
    state = layers((4, 6), (6, 4))  # a then b, or b then a
    assert find_layout(state, 4).weights == ("a.weight", "b.weight")
    assert find_layout(state, 6).weights == ("b.weight", "a.weight")
    with pytest.raises(BadInput, match=r"ambiguous: their shapes fit as a.weight, b.weight or b.weight, a.weight"):
        find_layout(state)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (layers((4, 4), (4, 4)), "order of the layers is ambiguous: .* as a.weight, b.weight or b.weight, a.weight"),
        (layers((4, 5), (6, 3)), r"no order of the layers a.weight 4 -> 5, b.weight 6 -> 3 fits"),
        (layers((4, 5), (5, 5), (5, 5), (5, 3)), "hold 4 layers and heads have 1 to 3"),
        ({"weight": torch.ones(3, 4)}, "'weight' of shape .* has no bias of 3 beside it"),
        (layers((4, 3)) | {"norm.weight": torch.ones(3)}, "'norm.weight' .* is no linear layer's bias"),
        (layers((4, 3)) | {"conv.weight": torch.ones(3, 3, 1, 1)}, "'conv.weight' .* linear layers only"),
        (layers((4, 3)) | {"steps": torch.tensor(7)}, "'steps' .* linear layers only"),
        (
            {"w": torch.ones(3, 4), "b": torch.ones(3), "c": torch.ones(3)},
            "ambiguous whether the bias of 'w' is 'b' or 'c'",
        ),
        (
            {"w1": torch.ones(4, 4), "w2": torch.ones(4, 4), "b": torch.ones(4)},
            "2 weights share 1 biases, so that it is ambiguous",
        ),
        ({"a": torch.ones(0, 4), "b": torch.ones(0)}, "fit no head"),
    ],
)
def test_what_is_no_head_or_could_be_two_is_refused(state, message):
    with pytest.raises(BadInput, match=message):
        find_layout(state, 4)


def test_a_module_keeps_the_prefix_that_is_its_own(tmp_path, monkeypatch):
    """A module that calls its own layer ``model`` has such names itself; a wrapper's prefix is read past."""
    (tmp_path / "wrapped_net.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.model = nn.Linear({D}, {C})\n    def forward(self, x):\n        return self.model(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import wrapped_net  # pyright: ignore[reportMissingImports]

    module = wrapped_net.Net()
    for prefix in ("", "_orig_mod.", "module.model."):
        path = tmp_path / "w.pt"
        torch.save({prefix + name: tensor for name, tensor in module.state_dict().items()}, path)
        model = load_model(path, blueprint("wrapped_net:Net"), ROWS)
        torch.testing.assert_close(model.net.logits(0, ROWS), module(ROWS).detach())
        assert (f"without the prefix '{prefix}'" in model.understood) == bool(prefix)
