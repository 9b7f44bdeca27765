"""ResNet-18 in the one loop: against a loop written by hand, batch normalisation on purpose, the sketch, all methods."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional
from torchvision.models import ResNet, resnet18

from unlearn_core.data.images import ImageSet, resize_images
from unlearn_core.data.sketch import Sketch, semi_orthogonal, sketch, sketch_width
from unlearn_core.errors import BadInput
from unlearn_core.grid import RESNET, LabelSpace, Scenario, Variant
from unlearn_core.nets.resnet import IMAGENET_MEAN, IMAGENET_STD, ResNetStack
from unlearn_core.problem import Inputs, make_cells, make_problem
from unlearn_core.recipes import Algorithm, Optimization, Visit, training_recipe
from unlearn_core.references import make_scorers, train_reference
from unlearn_core.run_settings import ProxySettings, RunSettings
from unlearn_core.training import Member, train
from unlearn_core.unlearning import Reference, run_method

SIDE = 32
N, N_TEST, C = 32, 16, 3


def make_images(n_train: int = N, n_test: int = N_TEST) -> ImageSet:
    """Three classes told apart by colour, the first made of two kinds (fine labels 0 and 1)."""
    rng = np.random.default_rng(0)
    colours = np.array([[200, 40, 40], [200, 120, 40], [40, 200, 40], [40, 40, 200]])

    def part(count):
        y = np.arange(count) % 4
        noise = rng.normal(scale=40, size=(count, SIDE, SIDE, 3))
        return (colours[y][:, None, None] + noise).clip(0, 255).astype(np.uint8), y.astype(np.int64)

    train_x, train_y = part(n_train)
    test_x, test_y = part(n_test)
    names = ("red", "orange", "green", "blue")
    superclass = np.array([0, 0, 1, 2])
    return ImageSet("colours", train_x, train_y, test_x, test_y, names, superclass)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normalised(images: np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).to(dtype) / 255
    mean, std = torch.tensor([IMAGENET_MEAN, IMAGENET_STD], dtype=dtype)[..., None, None]
    return (pixels - mean) / std


def twin(stack: ResNetStack) -> ResNet:
    """torchvision's own network with the same weights."""
    net = resnet18(weights=None, num_classes=stack.n_classes)
    net.load_state_dict(stack.state(0))
    return net


def test_training_equals_a_loop_written_by_hand_batch_statistics_included():
    images = make_images()
    labels = torch.from_numpy(images.train_labels(LabelSpace.SUPERCLASS))
    stack = ResNetStack.initialise(C, generator(3))
    net = twin(stack)
    member = Member(5, "base", labels)
    order = member.generator("order")
    # not Adam: it divides by |gradient|, so that weights whose gradient is rounding error step either way
    # and whole batches: in small ones a random network's normalised activations amplify rounding a thousandfold
    how = Optimization(lr=1e-3, batch_size=N, algorithm=Algorithm.SGD, momentum=0.9)
    train(stack, torch.from_numpy(images.train_x), [member], training_recipe(Visit.ALL, 2), how)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    net.train()
    for _ in range(2):
        rows = torch.randperm(N, generator=order)
        optimizer.zero_grad()
        functional.cross_entropy(net(normalised(images.train_x)[rows]), labels[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        expected = net(normalised(images.test_x))
    torch.testing.assert_close(stack.logits(0, torch.from_numpy(images.test_x)), expected, atol=1e-5, rtol=1e-4)
    running = "layer3.0.bn1.running_mean"
    torch.testing.assert_close(stack.state(0)[running], net.state_dict()[running], atol=1e-4, rtol=1e-4)


def test_evaluation_equals_torchvision_and_some_rows_equal_those_of_all():
    images = make_images()
    stack = ResNetStack.initialise(C, generator(1))
    net = twin(stack).eval()
    inputs = torch.from_numpy(images.train_x)
    with torch.no_grad():
        torch.testing.assert_close(stack.logits(0, inputs), net(normalised(images.train_x)), atol=1e-5, rtol=1e-5)
    rows = torch.tensor([7, 3, 30])
    torch.testing.assert_close(stack.logits(0, inputs, rows), stack.logits(0, inputs)[rows], atol=1e-5, rtol=1e-5)
    state = stack.state(0)
    expected = stack.penultimate(0, inputs) @ state["fc.weight"].T + state["fc.bias"]
    torch.testing.assert_close(stack.logits(0, inputs), expected, atol=1e-5, rtol=1e-5)


def test_running_statistics_move_in_training_and_stay_in_unlearning():
    images = make_images(16, 8)
    labels = torch.from_numpy(images.train_labels(LabelSpace.SUPERCLASS))
    inputs, how = torch.from_numpy(images.train_x), Optimization(lr=1e-3, batch_size=16)
    stack = ResNetStack.initialise(C, generator(0))
    fresh = stack.state(0)
    train(stack, inputs, [Member(0, "base", labels)], training_recipe(Visit.ALL, 1), how)
    trained = stack.state(0)
    assert not torch.equal(trained["bn1.running_mean"], fresh["bn1.running_mean"])
    from unlearn_core.baselines import ga

    forget = torch.from_numpy(images.train_y == 0)
    # one epoch: the others are alike
    once = replace(ga.PAPER, phases=tuple(replace(phase, epochs=1) for phase in ga.PAPER.phases))
    train(stack, inputs, [Member(0, "unlearn", labels, forget)], once, how)
    unlearned = stack.state(0)
    for name in trained:
        if "running" in name:
            assert torch.equal(unlearned[name], trained[name]), name
    assert not torch.equal(unlearned["bn1.weight"], trained["bn1.weight"])  # scale and offset are weights like others
    assert not torch.equal(unlearned["conv1.weight"], trained["conv1.weight"])


def test_pretrained_weights_are_kept_and_the_classifier_is_fresh():
    body = resnet18(weights=None, num_classes=1000).state_dict()
    first, same, other = (ResNetStack.initialise(C, generator(seed), pretrained=body).state(0) for seed in (1, 1, 2))
    assert torch.equal(first["conv1.weight"], body["conv1.weight"])
    assert torch.equal(other["layer4.1.conv2.weight"], body["layer4.1.conv2.weight"])
    assert first["fc.weight"].shape == (C, 512)
    assert torch.equal(first["fc.weight"], same["fc.weight"])
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


def test_weights_that_do_not_fit_are_refused():
    body = resnet18(weights=None, num_classes=1000).state_dict()
    del body["layer2.0.conv1.weight"]
    with pytest.raises(BadInput, match=r"layer2\.0\.conv1\.weight is missing, unknown or of another shape \(1 such\)"):
        ResNetStack.initialise(C, generator(0), pretrained=body)
    with pytest.raises(BadInput, match="no layer 'layer9'"):
        ResNetStack(C).activations(torch.zeros(1, 32, 32, 3, dtype=torch.uint8), "layer9", lambda a: a)


def test_mixed_precision_is_close_and_its_gradients_are_float32():
    images = make_images(4)  # float16 is slow where there are no instructions for it
    exact = ResNetStack.initialise(C, generator(1))
    # float16, because some CPUs claim bfloat16 instructions that they do not have; GPUs take bfloat16
    half = ResNetStack.from_states([exact.state(0)], autocast=torch.float16)
    inputs = torch.from_numpy(images.train_x)
    full = exact.logits(0, inputs)
    assert (half.logits(0, inputs) - full).abs().max() < 0.05 * full.abs().max()
    rows = torch.arange(2)[None]
    half.backward(torch.ones_like(half.forward(inputs, rows)))
    assert all(tensor.grad is not None and tensor.grad.dtype == torch.float32 for tensor in half.parameters()[0])


# --- the sketch ---


def test_omega_is_semi_orthogonal_and_a_function_of_its_seed():
    omega = semi_orthogonal(64, 300)
    np.testing.assert_allclose(omega @ omega.T, np.eye(64), atol=1e-6)
    np.testing.assert_array_equal(omega, semi_orthogonal(64, 300))
    assert not np.array_equal(omega, semi_orthogonal(64, 300, seed=1))
    with pytest.raises(BadInput, match="300 numbers in 301 dimensions"):
        semi_orthogonal(301, 300)


def test_a_sketch_is_omega_times_the_layer():
    images = make_images()
    stack = ResNetStack.initialise(C, generator(1))
    net = twin(stack).eval()
    with torch.no_grad():
        x = net.maxpool(net.relu(net.bn1(net.conv1(normalised(images.train_x)))))
        layer = net.layer3(net.layer2(net.layer1(x))).flatten(1)
    assert layer.shape[1] == sketch_width(SIDE) == 1024
    omega = semi_orthogonal(32, 1024)
    got = sketch(stack, torch.from_numpy(images.train_x), omega)
    np.testing.assert_allclose(got, layer.numpy() @ omega.T, atol=1e-4)


def test_the_papers_layer_at_the_papers_size():
    assert sketch_width(64, "layer3") == 256 * 4 * 4


@pytest.mark.parametrize(("side", "size"), [(32, 64), (48, 32), (32, 32)])
def test_images_are_resized_as_torch_does_one_by_one(side, size):
    images = np.random.default_rng(0).integers(0, 256, (5, side, side, 3), dtype=np.uint8)
    out = np.empty((5, size, size, 3), dtype=np.uint8)
    resize_images(images, size, out)
    for image, got in zip(images, out, strict=True):
        pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
        expected = functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True)[0].permute(1, 2, 0)
        assert np.abs(got.astype(float) - expected.numpy()).max() <= 0.5


# --- end to end ---


@pytest.fixture(scope="module")
def reference() -> Reference:
    """On few images: a method computes most of its time, and all that is asked of it is that it does."""
    images = make_images(16, 8)
    variant = Variant("colours", RESNET, Scenario.SUBCLASS, 0)
    plain = make_problem(Inputs(images), variant.label_space)
    cells = make_cells(images, variant, [42])
    base, retrain = (train_reference(role, plain, RESNET, cells, epochs=4) for role in ("base", "retrain"))
    assert isinstance(base.net, ResNetStack)
    omega = semi_orthogonal(16, sketch_width(SIDE))
    seen = Sketch(*(sketch(base.net, inputs, omega) for inputs in (plain.train.inputs, plain.test.inputs)))
    problem = make_problem(Inputs(images), variant.label_space, sketch=seen)
    return Reference(problem, RESNET, cells, base, retrain, make_scorers(problem, cells, retrain))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lda-2c", "short"])  # many on a small one of the same class: test_small_resnet.py
def test_methods_leave_the_base_alone(reference, method):
    before = reference.base.net.state(0)
    record = run_method(method, reference, RunSettings())[0]
    # an epoch of one step has one record, where one of several steps has a record within it too
    assert len(record.epochs) in (4, 20) or record.epochs[0].epoch == 0
    assert math.isfinite(record.best.scores.kl_f)
    assert record.best.scores.kl_f <= record.epochs[-1].scores.kl_f
    after = reference.base.net.state(0)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_least_squares_writes_the_shift_into_the_last_layer(reference):
    """With as many representation dimensions as rows, the fit is exact: the network then says what its target says."""
    record = run_method("dir-2c", reference, RunSettings(proxy=ProxySettings(finalizer="mse")))[0]
    assert record.target is not None
    assert record.best.scores.kl_f == pytest.approx(record.target.scores.kl_f, abs=1e-3)
