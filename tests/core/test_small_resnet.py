"""ResNet-8: beside a network written out by hand, and what methods need of a network that is trained end to end."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.func import jacrev, vmap
from torch.nn import functional

from tests.core.test_resnet import C, generator, make_images, normalised
from unlearn_core.curvature import measure_curvature
from unlearn_core.data.sketch import Sketch, semi_orthogonal, sketch, sketch_width
from unlearn_core.edits.newton_last import NewtonLastConstants, last_layers, step
from unlearn_core.edits.request import EditRequest
from unlearn_core.errors import BadInput
from unlearn_core.fold_networks import FoldNetworkConstants, train_fold_networks
from unlearn_core.forgetting.forget import forget
from unlearn_core.forgetting.model_files import load_model
from unlearn_core.forgetting.opening import Heldout, prepare
from unlearn_core.grid import RESNET, SMALL_CHANNELS, SMALL_RESNET, SMALL_SIZE, LabelSpace, Scenario, Variant
from unlearn_core.nets.make import blueprint, fresh_network, stored_network, with_state
from unlearn_core.nets.resnet import IMAGENET_MEAN, IMAGENET_STD, RESNET_STACKS, ResNetStack, SmallResNetStack
from unlearn_core.precision import Precision, precision_of
from unlearn_core.preparations import CURVATURE, PREPARATIONS, YOUNG, Given, arrays_of
from unlearn_core.problem import Inputs, Problem, make_cells, make_problem
from unlearn_core.recipes import Algorithm, Optimization, Visit, optimization_of, training_config, training_recipe
from unlearn_core.references import make_scorers, train_reference, weights_seed
from unlearn_core.run_settings import RunSettings
from unlearn_core.seeding import derive_seed
from unlearn_core.training import Member, train
from unlearn_core.unlearning import Reference, run_method
from unlearn_core.young import YoungConstants, YoungNetwork, train_young
from workflows.rates import PER_PIXEL

State = dict[str, torch.Tensor]


def by_hand(state: State, images: torch.Tensor, batch_statistics: bool = False) -> torch.Tensor:
    """The logits of normalised (N, 3, 32, 32) images, in plain functions. Batch statistics move the running ones."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        running = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return functional.batch_norm(x, *running, state[f"{name}.weight"], state[f"{name}.bias"], batch_statistics)

    def block(x: torch.Tensor, name: str, stride: int) -> torch.Tensor:
        inner = functional.conv2d(x, state[f"{name}.conv1.weight"], stride=stride, padding=1)
        inner = functional.relu(norm(inner, f"{name}.bn1"))
        inner = norm(functional.conv2d(inner, state[f"{name}.conv2.weight"], padding=1), f"{name}.bn2")
        if stride > 1:
            shortcut = functional.conv2d(x, state[f"{name}.downsample.0.weight"], stride=stride)
            x = norm(shortcut, f"{name}.downsample.1")
        return functional.relu(inner + x)

    seen = functional.relu(norm(functional.conv2d(images, state["conv1.weight"], stride=2, padding=1), "bn1"))
    for name, stride in (("layer1.0", 1), ("layer2.0", 2), ("layer3.0", 2)):
        seen = block(seen, name, stride)
    return functional.linear(seen.mean((2, 3)), state["fc.weight"], state["fc.bias"])


def a_stack(seed: int = 1) -> SmallResNetStack:
    return SmallResNetStack.initialise(C, generator(seed))


def test_evaluation_and_penultimate_equal_the_network_written_out():
    images, stack = make_images(), a_stack()
    inputs, state = torch.from_numpy(images.train_x), stack.state(0)
    torch.testing.assert_close(
        stack.logits(0, inputs), by_hand(state, normalised(images.train_x)), atol=1e-5, rtol=1e-5
    )
    features = stack.penultimate(0, inputs)
    assert features.shape == (len(inputs), SMALL_CHANNELS[-1])
    expected = features @ state["fc.weight"].T + state["fc.bias"]
    torch.testing.assert_close(stack.logits(0, inputs), expected, atol=1e-5, rtol=1e-5)


def test_training_equals_a_loop_written_by_hand_batch_statistics_included():
    """In double precision: in single, rounding tips a rectifier to its other side on one processor and not on the next."""
    images, stack = make_images(), a_stack(3)
    stack._net.double()
    stack._mean, stack._std = 255.0 * torch.tensor([IMAGENET_MEAN, IMAGENET_STD], dtype=torch.float64)[..., None, None]
    labels = torch.from_numpy(images.train_labels(LabelSpace.SUPERCLASS))
    state = {name: tensor.clone() for name, tensor in stack.state(0).items()}
    member = Member(5, "base", labels)
    order = member.generator("order")
    # SGD and whole batches, for the reasons that test_resnet has
    how = Optimization(lr=1e-2, batch_size=len(labels), algorithm=Algorithm.SGD)
    train(stack, torch.from_numpy(images.train_x), [member], training_recipe(Visit.ALL, 3), how)
    weights = [name for name in state if name.endswith(("weight", "bias"))]
    pixels = normalised(images.train_x, torch.float64)
    for _ in range(3):
        rows = torch.randperm(len(labels), generator=order)
        moving = {name: state[name].requires_grad_() for name in weights}
        loss = functional.cross_entropy(by_hand(state, pixels[rows], True), labels[rows])
        for name, gradient in zip(weights, torch.autograd.grad(loss, list(moving.values())), strict=True):
            state[name] = (state[name] - 1e-2 * gradient).detach()
    trained = stack.state(0)
    for name in (*weights, "bn1.running_mean", "layer3.0.bn2.running_var"):
        torch.testing.assert_close(trained[name], state[name], atol=1e-10, rtol=1e-8, msg=name)


def test_copies_are_of_the_same_kind_and_other_weights_are_refused():
    stack = a_stack()
    inputs = torch.from_numpy(make_images().train_x)
    shifted = stack.with_shifted_last_layer(0, np.zeros((SMALL_CHANNELS[-1], C)), np.array([1.0, 0.0, 0.0]))
    assert torch.allclose(shifted.logits(0, inputs)[:, 0], stack.logits(0, inputs)[:, 0] + 1)
    copies = (
        stack.select([0]),
        with_state(stack, stack.state(0)),
        stored_network(SMALL_RESNET, [stack.state(0)], "cpu"),
    )
    for copy in copies:
        assert isinstance(copy, SmallResNetStack)
        assert torch.equal(copy.logits(0, inputs), stack.logits(0, inputs))
    with pytest.raises(BadInput, match="weights do not fit ResNet-8"):
        stored_network(SMALL_RESNET, [ResNetStack(C).state(0)], "cpu")
    with pytest.raises(BadInput, match="weights do not fit ResNet-18"):
        stored_network(RESNET, [stack.state(0)], "cpu")


def test_its_sketch_is_of_its_own_last_stage():
    assert sketch_width(SMALL_SIZE, "layer3", SMALL_RESNET) == 64 * 4 * 4
    assert sketch_width(SMALL_SIZE, "layer2", SMALL_RESNET) == 32 * 8 * 8


def test_it_runs_in_bfloat16_if_asked_and_its_shape_is_part_of_its_training():
    assert precision_of(SMALL_RESNET, Precision.BF16) is Precision.BF16
    assert training_config(SMALL_RESNET, "base", 2)["channels"] == list(SMALL_CHANNELS)
    assert "channels" not in training_config(RESNET, "base", 2)


@pytest.mark.parametrize(("arch", "size"), [(SMALL_RESNET, SMALL_SIZE), (RESNET, 224)])
def test_planned_operations_are_those_of_its_layers(arch, size):
    """Two for every product; all that is not counted here (norms, sums) is less than the tolerance."""
    net, _ = RESNET_STACKS[arch].initialise(10, generator(0)).as_module()
    counted = []

    def count(layer: nn.Conv2d | nn.Linear, _entering, output: torch.Tensor) -> None:
        per_output = layer.weight[0].numel()
        counted.append(2 * per_output * output[0].numel())

    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    with torch.no_grad():
        net(torch.zeros(1, 3, size, size))
    assert sum(counted) == pytest.approx(PER_PIXEL[arch] * size**2, rel=0.02)


# --- methods ---


def a_problem() -> tuple[Problem, np.ndarray]:
    images = make_images(40, 8)
    return make_problem(Inputs(images), LabelSpace.SUPERCLASS), images.train_y == 0


@pytest.fixture(scope="module")
def reference() -> Reference:
    images = make_images(40, 16)
    variant = Variant("colours", SMALL_RESNET, Scenario.SUBCLASS, 0)
    plain = make_problem(Inputs(images), variant.label_space)
    cells = make_cells(images, variant, [42])
    base, retrain = (train_reference(role, plain, SMALL_RESNET, cells, epochs=4) for role in ("base", "retrain"))
    assert isinstance(base.net, SmallResNetStack)
    omega = semi_orthogonal(16, sketch_width(SMALL_SIZE, arch=SMALL_RESNET))
    seen = Sketch(*(sketch(base.net, inputs, omega) for inputs in (plain.train.inputs, plain.test.inputs)))
    problem = make_problem(Inputs(images), variant.label_space, sketch=seen)
    return Reference(problem, SMALL_RESNET, cells, base, retrain, make_scorers(problem, cells, retrain))


@pytest.mark.parametrize(
    "method",
    [
        *("short", "short-same", "short-small", "short-warm", "lda-2c", "probe", "fresh", "crossfit", "crossfit-net"),
        *("newton", "newton-last", "newton-crossfit-net", "truncate", "ssd", "ft", "scrub", "salun", "bad-teacher"),
        "short-young",
    ],
)
def test_methods_leave_the_base_alone_and_end_at_finite_distances(reference, method):
    before = reference.base.net.state(0)
    record = run_method(method, reference, RunSettings())[0]
    assert math.isfinite(record.last.scores.kl_f)
    assert math.isfinite(record.last.scores.kl_t)
    after = reference.base.net.state(0)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_short_same_starts_where_base_and_retrain_did(reference, monkeypatch):
    started: dict[str, State] = {}

    def seen(net, *_arguments) -> float:
        started[method] = net.state(0)
        return 0.0

    monkeypatch.setattr("unlearn_core.unlearning.train", seen)
    for method in ("short-same", "short"):
        with pytest.raises(IndexError):  # nothing was recorded, for nothing was trained
            run_method(method, reference, RunSettings())
    seed = weights_seed(42, "retrain")
    own = fresh_network(SMALL_RESNET, reference.problem.train.inputs, 3, [generator(seed)]).state(0)
    assert all(torch.equal(started["short-same"][name], own[name]) for name in own)
    assert not torch.equal(started["short"]["conv1.weight"], own["conv1.weight"])


def test_the_last_layers_step_is_that_of_its_dense_gauss_newton_matrix():
    """Of ``fc`` alone: the dense matrix from torch's Jacobians, its diagonal in the layer's own basis, and the gradient."""
    problem, forget = a_problem()
    stack = SmallResNetStack.from_states([{k: v.clone() for k, v in a_stack(2).state(0).items()}])
    inputs, labels = problem.train.inputs, problem.train.label_tensor
    curvature = measure_curvature(stack, 0, inputs)
    constants = NewtonLastConstants(damping=1e-2, most_spilled=math.inf)
    after = step(EditRequest(problem, forget, stack, 0, {CURVATURE: curvature}), constants)
    assert after is not None
    moved = {name: after.state(0)[name] - tensor for name, tensor in stack.state(0).items()}
    assert all(not shift.any() for name, shift in moved.items() if not name.startswith("fc."))

    features = stack.penultimate(0, inputs).double()
    with_one = torch.cat([features, torch.ones(len(features), 1)], 1)
    fc = {name: stack.state(0)[f"fc.{name}"].double() for name in ("weight", "bias")}
    flat = torch.cat([fc["weight"], fc["bias"][:, None]], 1)  # (C, 65)

    def logits(weights: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return weights @ row

    jacobians = vmap(jacrev(logits), (None, 0))(flat, with_one).flatten(2)
    p = torch.softmax(with_one @ flat.T, 1)
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    matrix = torch.einsum("nci,ncd,ndj->ij", jacobians, middle, jacobians) / len(features)
    layer = curvature.layers["fc"]
    vectors = torch.kron(*(torch.from_numpy(part).double() for part in (layer.outputs, layer.inputs)))
    diagonal = torch.einsum("pi,pq,qi->i", vectors, matrix, vectors)
    errors = (p - functional.one_hot(labels, C))[torch.from_numpy(forget)]
    gradient = (errors.T @ with_one[torch.from_numpy(forget)]).flatten()
    expected = (vectors @ ((vectors.T @ gradient) / (diagonal + 1e-2)) / len(features)).reshape(flat.shape)
    got = torch.cat([moved["fc.weight"], moved["fc.bias"][:, None]], 1).double()
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-3)


def test_the_last_block_is_four_layers_and_the_rest_stays():
    problem, forget = a_problem()
    stack = a_stack(2)
    curvature = measure_curvature(stack, 0, problem.train.inputs)
    block = {"layer3.0.conv1", "layer3.0.conv2", "layer3.0.downsample.0", "fc"}
    assert set(last_layers(curvature, 4).layers) == block
    constants = NewtonLastConstants(damping=1e-2, most_spilled=math.inf, layers=4)
    after = step(EditRequest(problem, forget, stack, 0, {CURVATURE: curvature}), constants)
    assert after is not None
    changed = {name for name, tensor in stack.state(0).items() if not torch.equal(after.state(0)[name], tensor)}
    assert changed == {f"{name}.weight" for name in block} | {"fc.bias"}


def test_a_fold_network_is_a_plain_training_without_the_fold_to_the_bit():
    problem, _ = a_problem()
    constants = FoldNetworkConstants(folds=2, epochs=2)
    found = train_fold_networks(Given(problem, SMALL_RESNET), constants)
    rows = problem.train
    for fold in range(2):
        out = torch.from_numpy(found.folds == fold)
        net = a_stack(derive_seed(0, f"fold-networks/{fold}", "weights"))
        lesson = Member(0, f"fold-networks/{fold}", rows.label_tensor, out)
        train(net, rows.inputs, [lesson], constants.recipe, optimization_of(constants.recipe, SMALL_RESNET))
        expected = torch.log_softmax(net.logits(0, rows.inputs, out.nonzero()[:, 0]).double(), 1).float()
        assert np.array_equal(found.log_q[found.folds == fold], expected.numpy())


def test_no_record_reaches_its_own_fold_network():
    """Another image in its place: what is said of the other rows of its fold stays, to the bit."""
    problem, _ = a_problem()
    constants = FoldNetworkConstants(folds=2, epochs=1)
    before = train_fold_networks(Given(problem, SMALL_RESNET), constants)
    images = problem.train.inputs.clone()
    images[7] = 255 - images[7]
    changed = replace(problem, train=replace(problem.train, load_inputs=lambda: images))
    after = train_fold_networks(Given(changed, SMALL_RESNET), constants)
    same_fold = (before.folds == before.folds[7]) & (np.arange(len(images)) != 7)
    assert np.array_equal(before.log_q[same_fold], after.log_q[same_fold])
    assert not np.array_equal(
        before.log_q[before.folds != before.folds[7]], after.log_q[before.folds != before.folds[7]]
    )


@pytest.mark.parametrize(
    "ahead", [lambda given: train_fold_networks(given, FoldNetworkConstants()), lambda given: young_network(given)]
)
def test_an_architecture_without_a_name_has_no_networks_that_are_trained_ahead(ahead):
    problem, _ = a_problem()
    with pytest.raises(BadInput, match="the architecture has no name here"):
        ahead(Given(problem))


# --- a young network


def young_network(given: Given) -> YoungNetwork:
    return train_young(given, YoungConstants(epochs=2))


def test_a_young_network_is_a_plain_training_on_all_rows_to_the_bit():
    problem, _ = a_problem()
    rows, recipe = problem.train, YoungConstants(epochs=2).recipe
    net = a_stack(derive_seed(0, "young", "weights"))
    lesson = Member(0, "young", rows.label_tensor, torch.zeros(len(rows), dtype=torch.bool))
    train(net, rows.inputs, [lesson], recipe, optimization_of(recipe, SMALL_RESNET))
    found = young_network(Given(problem, SMALL_RESNET)).state()
    assert found.keys() == net.state(0).keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in net.state(0).items())


def test_no_removed_row_reaches_a_young_network():
    """Another image in the place of one that an earlier request removed: not a bit changes."""
    problem, _ = a_problem()
    gone = np.arange(problem.n_rows) == 7
    images = problem.train.inputs.clone()
    images[7] = 255 - images[7]
    changed = replace(problem, train=replace(problem.train, load_inputs=lambda: images))
    before, after, with_it = (
        young_network(Given(of, SMALL_RESNET, removed=removed)).state()
        for of, removed in ((problem, gone), (changed, gone), (changed, None))
    )
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not torch.equal(before["conv1.weight"], with_it["conv1.weight"])


def test_a_young_network_is_the_same_when_it_was_kept(tmp_path):
    problem, _ = a_problem()
    young = young_network(Given(problem, SMALL_RESNET))
    for name, values in arrays_of(young).items():
        np.save(tmp_path / f"{name}.npy", values, allow_pickle=False)
    again = PREPARATIONS[YOUNG].load({path.stem: np.load(path) for path in tmp_path.glob("*.npy")}).state()
    assert all(torch.equal(again[name], tensor) for name, tensor in young.state().items())


@pytest.mark.parametrize("scenario", [Scenario.CLASS, Scenario.SUBCLASS])
def test_short_young_starts_from_the_young_network_but_for_the_outputs_of_a_lost_class(scenario, monkeypatch):
    images = make_images(40, 16)
    variant = Variant("colours", SMALL_RESNET, scenario, 0)
    problem = make_problem(Inputs(images), variant.label_space)
    cells = make_cells(images, variant, [42])
    base, retrain = (train_reference(role, problem, SMALL_RESNET, cells, epochs=1) for role in ("base", "retrain"))
    reference = Reference(problem, SMALL_RESNET, cells, base, retrain, make_scorers(problem, cells, retrain))
    young = problem.prepare(YOUNG, SMALL_RESNET).state()
    started: list[State] = []

    def seen(net, *_arguments) -> float:
        started.append(net.state(0))
        return 0.0

    monkeypatch.setattr("unlearn_core.unlearning.train", seen)
    with pytest.raises(IndexError):  # nothing was recorded, for nothing was trained
        run_method("short-young", reference, RunSettings())
    lost = torch.from_numpy(problem.lost_classes(cells[0].forget))
    assert lost.any() == (scenario is Scenario.CLASS)
    last = ("fc.weight", "fc.bias")
    start, *others = started  # a training of its own for each record
    assert all(torch.equal(start[name], other[name]) for other in others for name in start)
    assert all(torch.equal(start[name], tensor) for name, tensor in young.items() if name not in last)
    for name in last:
        assert torch.equal(start[name][~lost], young[name][~lost])
        assert not (start[name][lost] == young[name][lost]).any()


def test_a_request_to_a_deep_network_goes_on_from_its_prepared_young_one(tmp_path):
    """A whole class, which is known by counting; the state stays as it was."""
    images = make_images(60, 30)
    assert images.superclass is not None
    save_file(a_stack(3).state(0), tmp_path / "base.safetensors")
    model = load_model(tmp_path / "base.safetensors", blueprint(SMALL_RESNET), torch.from_numpy(images.train_x[:2]))
    labels, test_labels = (images.superclass[fine] for fine in (images.train_y, images.test_y))
    heldout = Heldout(images.test_x, test_labels)
    state = prepare(model, images.train_x, labels, tmp_path / "state", features_from="layer3", heldout=heldout)
    assert YOUNG in state.parts
    request, given = np.flatnonzero(labels == 2), {"features_from": "layer3", "heldout": heldout, "prepared": state}
    result = forget(model, images.train_x, labels, request, budget=0.2, **given)
    assert result.certificate.content["proxy"]["method"] == "short-young"
    assert result.model is not None
    state.check()
