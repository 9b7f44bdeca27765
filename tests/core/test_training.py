"""The one loop: its losses against autograd, its steps against a hand-written loop, its streams, its masks."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from unlearn_core import methods
from unlearn_core.grid import HEADS, head_widths
from unlearn_core.methods import Family
from unlearn_core.nets.heads import HeadStack
from unlearn_core.optimizers import SGD, Adam
from unlearn_core.recipes import (
    ASCEND_CROSS_ENTROPY,
    CROSS_ENTROPY,
    HEAD_TRAINING,
    HEAD_UNLEARNING,
    PAPER_SCHEDULE,
    TOWARD_TARGET,
    ForgetLabels,
    Optimization,
    Pass,
    Phase,
    Recipe,
    Term,
    Toward,
    Visit,
    training_recipe,
)
from unlearn_core.training import Member, loss_gradient, train

RECIPES = {
    name: line.presets for name in methods.baselines() if (line := methods.TABLE[name]).family is Family.BASELINE
}

N, DIM, C = 157, 20, 4  # odd sizes: no batch divides them


def make_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(N) % C
    centres = torch.randn(C, DIM, generator=generator)
    return centres[labels] + torch.randn(N, DIM, generator=generator), labels


def make_net(seeds=(0,), arch="mlp1", n_classes=C) -> HeadStack:
    return HeadStack.initialise(head_widths(arch, DIM, n_classes), [torch.Generator().manual_seed(s) for s in seeds])


def make_member(seed=0, labels=None, soft=None) -> Member:
    forget = torch.arange(N) % C == 1
    forget[N // 2 :] = False
    chances = torch.linspace(0.1, 2.0, N)
    return Member(seed, "unlearn", make_inputs()[1] if labels is None else labels, forget, soft or {}, chances)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("n_classes", [2, 10])
def test_loss_gradient_is_autograds(temperature, n_classes):
    """weight * T^2 * KL(q || softmax(z/T)), averaged over the batch, summed over terms."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 17, n_classes, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, n_classes, (3, 17), generator=generator)
    q = torch.softmax(torch.randn(3, 17, n_classes, generator=generator, dtype=torch.float64), 2)
    loss = (Term(Toward.TEACHER, weight=-0.7, temperature=temperature), Term(Toward.LABELS, weight=1.3))
    divergence = functional.kl_div(torch.log_softmax(logits / temperature, 2), q, reduction="sum") * temperature**2
    entropy = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    ((-0.7 * divergence + 1.3 * entropy) / 17).backward()
    torch.testing.assert_close(loss_gradient(logits.detach(), loss, [q, labels]), logits.grad)


def hand_written(state, arch, inputs, labels, orders, lr, decay, batch):
    """An ordinary loop over an ordinary module."""
    widths = head_widths(arch, DIM, C)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    module = nn.Sequential(*layers[:-1])
    linear = [layer for layer in module if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for i, layer in enumerate(linear):
            layer.weight.copy_(state[f"layers.{i}.weight"])
            layer.bias.copy_(state[f"layers.{i}.bias"])
    optimizer = torch.optim.Adam(module.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
    for order in orders:
        for rows in order.split(batch):
            optimizer.zero_grad()
            functional.cross_entropy(module(inputs[rows]), labels[rows]).backward()
            optimizer.step()
        scheduler.step()
    return module(inputs).detach()


@pytest.mark.parametrize("arch", HEADS)
def test_training_is_an_ordinary_adam_loop(arch):
    inputs, labels = make_inputs()
    net = make_net((5,), arch)
    before = net.state(0)
    member = Member(5, "base", labels)
    generator = member.generator("order")
    orders = [torch.randperm(N, generator=generator) for _ in range(3)]
    how = Optimization(lr=1e-2, batch_size=50, decay=0.5)
    recipe = Recipe(phases=training_recipe(Visit.ALL, epochs=3).phases)
    train(net, inputs, [member], recipe, how)
    expected = hand_written(before, arch, inputs, labels, orders, 1e-2, 0.5, 50)
    # logits, not weights: Adam divides by |gradient|, so a weight whose gradient is rounding error may step either way
    torch.testing.assert_close(net.logits(0, inputs), expected, atol=1e-4, rtol=1e-4)


def soft_targets(n_classes=C) -> dict[Toward, torch.Tensor]:
    logits = torch.randn(N, n_classes, generator=torch.Generator().manual_seed(4))
    return {Toward.TEACHER: logits, Toward.TWO_TEACHERS: -logits, Toward.TARGET: torch.softmax(logits, 1)}


EVERY_RECIPE = {f"{name}/{preset}": RECIPES[name][preset] for name in RECIPES for preset in methods.PRESETS} | {
    "distillation": PAPER_SCHEDULE.build(HEAD_UNLEARNING, 1)[0],
    "base": training_recipe(Visit.ALL, 5),
    "retrain": training_recipe(Visit.RETAIN, 5),
}


@pytest.mark.parametrize("arch", HEADS)
@pytest.mark.parametrize("name", EVERY_RECIPE)
def test_a_member_trains_alike_alone_and_in_a_stack(name, arch):
    """To the bit, whatever its place in the stack and its neighbours."""
    inputs, _ = make_inputs()
    seeds = (42, 0, 1)
    how = Optimization(lr=1e-3, batch_size=37, decay=0.95)

    def trained(chosen):
        net = make_net(chosen, arch)
        train(net, inputs, [make_member(seed, soft=soft_targets()) for seed in chosen], EVERY_RECIPE[name], how)
        return [net.parameters()[k][0].clone() for k in range(len(chosen))]

    together = trained(seeds)
    for k, seed in enumerate(seeds):
        assert torch.equal(trained((seed,))[0], together[k])


def test_the_same_training_twice_gives_the_same_bits_and_seed_zero_is_a_seed():
    inputs, labels = make_inputs()

    def trained(seed):
        net = make_net((7,))
        train(net, inputs, [Member(seed, "base", labels)], training_recipe(Visit.ALL, 2), HEAD_TRAINING)
        return net.parameters()[0][0].clone()

    assert torch.equal(trained(0), trained(0))
    assert not torch.equal(trained(0), trained(42))
    assert not torch.equal(trained(0), trained(1))


class Recorder:
    """A network that learns nothing and remembers what it was shown."""

    n_members: int = 1
    n_classes: int = C
    device: torch.device = torch.device("cpu")

    def __init__(self):
        self.weights = torch.zeros(3)
        self.weights.grad = torch.zeros(3)
        self.batches = []

    def parameters(self):
        return [[self.weights]]

    def running_statistics(self):
        return []

    def use_batch_statistics(self, yes):
        pass

    def forward(self, inputs, rows):
        self.batches.append(rows[0].tolist())
        return torch.zeros(1, rows.shape[1], C)

    def backward(self, logit_gradient):
        self.last_gradient = logit_gradient


def visited(visit, epochs=1, batch=1000, seed=0, least_retained=0):
    net = Recorder()
    recipe = Recipe(phases=(Phase((Pass(visit, CROSS_ENTROPY, least_retained=least_retained),), epochs),))
    train(net, make_inputs()[0], [make_member(seed)], recipe, Optimization(lr=1.0, batch_size=batch))  # pyright: ignore[reportArgumentType]
    return net.batches


FORGET = set(torch.nonzero(make_member().forget).flatten().tolist())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("visit", "expected"),
    [(Visit.ALL, set(range(N))), (Visit.FORGET, FORGET), (Visit.RETAIN, set(range(N)) - FORGET)],
)
def test_whole_sets_are_visited_once_in_a_fresh_order(visit, expected):
    first, second = visited(visit, epochs=2)
    for epoch in (first, second):
        assert sorted(epoch) == sorted(expected)
    assert first != second


def test_distillation_visits_the_forget_set_and_a_fresh_retain_sample_of_its_size():
    epochs = visited(Visit.FORGET_AND_RETAIN_SAMPLE, epochs=5)
    samples = []
    for rows in epochs:
        assert len(rows) == len(set(rows)) == 2 * len(FORGET)
        assert set(rows) >= FORGET
        assert rows[: len(FORGET)] != sorted(FORGET), "shuffled together"
        samples.append(frozenset(set(rows) - FORGET))
    assert len(set(samples)) == 5
    only = visited(Visit.RETAIN_SAMPLE)[0]
    assert len(only) == len(FORGET)
    assert not set(only) & FORGET


@pytest.mark.parametrize(("least", "extra"), [(len(FORGET) + 3, 3), (1, 0), (10 * N, N - 2 * len(FORGET))])
def test_a_retain_sample_may_be_larger_than_the_forget_set(least, extra):
    rows = visited(Visit.FORGET_AND_RETAIN_SAMPLE, least_retained=least)[0]
    assert len(rows) == len(set(rows)) == 2 * len(FORGET) + extra
    assert set(rows) >= FORGET


def test_batches_have_the_size_asked_for():
    assert [len(batch) for batch in visited(Visit.ALL, batch=50)] == [50, 50, 50, 7]


@pytest.mark.parametrize("method", ["rl-ft", "salun"])
def test_random_labels_are_other_labels_drawn_once(method):
    """Seen through the gradient of a network that says nothing: +1/C - 1 at the label, 1/C elsewhere."""
    net = Recorder()
    shown: list[tuple[list[int], torch.Tensor]] = []
    net.backward = lambda logit_gradient: shown.append((net.batches[-1], logit_gradient[0].argmin(1)))
    phases = RECIPES[method]["paper"].phases
    recipe = Recipe(phases=phases, forget_labels=ForgetLabels.OTHER_ONCE)
    train(net, make_inputs()[0], [make_member()], recipe, Optimization(lr=1.0, batch_size=1000))  # pyright: ignore[reportArgumentType]
    labels = make_inputs()[1]
    per_epoch = [dict(zip(rows, given.tolist(), strict=True)) for rows, given in shown]
    for row in FORGET:
        drawn = {epoch[row] for epoch in per_epoch}
        assert len(drawn) == 1
        assert drawn != {int(labels[row])}
    assert {epoch[row] for epoch in per_epoch for row in FORGET} == set(range(C)) - {1}, "uniform over the others"
    for epoch in per_epoch:
        assert all(given == labels[row] for row, given in epoch.items() if row not in FORGET)


@pytest.mark.parametrize("method", ["rl-ft", "salun"])
def test_the_authors_random_labels_are_any_labels_drawn_every_epoch(method):
    recipe = RECIPES[method]["original"]
    net = Recorder()
    shown: list[tuple[list[int], torch.Tensor]] = []
    net.backward = lambda logit_gradient: shown.append((net.batches[-1], logit_gradient[0].argmin(1)))
    masks_nothing = Recipe(recipe.phases, recipe.optimization, forget_labels=recipe.forget_labels)
    train(net, make_inputs()[0], [make_member()], masks_nothing, HEAD_UNLEARNING)  # pyright: ignore[reportArgumentType]
    labels, forgotten = make_inputs()[1], shown[0::2]
    assert len(forgotten) == recipe.epochs
    for rows, _ in forgotten:
        assert set(rows) == FORGET
    for rows, given in shown[1::2]:
        assert torch.equal(given, labels[rows])
    drawn = torch.stack([given[torch.tensor(rows).argsort()] for rows, given in forgotten])
    assert len({tuple(epoch.tolist()) for epoch in drawn}) == recipe.epochs, "anew every epoch"
    assert (drawn == 1).float().mean().item() == pytest.approx(1 / C, abs=0.1), "the true label as often as any other"


def test_with_two_classes_random_labels_and_dir_walk_the_forget_side_together():
    """The only other label is what dir's target puts all mass on: same rows, same gradients, same bits."""
    inputs, labels = make_inputs()
    binary = labels % 2
    forget = make_member().forget
    assert forget is not None
    target = torch.softmax(torch.randn(N, 2, generator=torch.Generator().manual_seed(1)), 1)
    target[forget] = functional.one_hot(1 - binary[forget], 2).float()
    results = []
    for loss, labels_drawn, soft in (
        (CROSS_ENTROPY, ForgetLabels.OTHER_ONCE, {}),
        (TOWARD_TARGET, ForgetLabels.TRUE, {Toward.TARGET: target}),
    ):
        net = make_net((3,), n_classes=2)
        recipe = Recipe(phases=(Phase((Pass(Visit.FORGET, loss),), 20),), forget_labels=labels_drawn)
        member = make_member(0, binary, soft)
        train(net, inputs, [member], recipe, HEAD_UNLEARNING)
        results.append(net.parameters()[0][0].clone())
    assert torch.equal(*results)
    rows = [visited(Visit.FORGET_AND_RETAIN_SAMPLE, epochs=3, seed=0) for _ in range(2)]
    assert rows[0] == rows[1], "and with the retain sample they still visit the same rows"


@pytest.mark.parametrize("preset", methods.PRESETS)
def test_salun_moves_the_top_half_and_nothing_else(preset):
    """The half is that of |sum of forget-loss gradients| at the base, ranked over all weights together."""
    inputs, labels = make_inputs()
    net = make_net((3,))
    before = net.parameters()[0][0].clone()
    forget = make_member().forget
    assert forget is not None
    weights = before.clone().requires_grad_()
    w1, b1, w2, b2 = torch.split(weights, [DIM * 256, 256, 256 * C, C])
    hidden = torch.relu(inputs[forget] @ w1.view(DIM, 256) + b1)
    functional.cross_entropy(hidden @ w2.view(256, C) + b2, labels[forget], reduction="sum").backward()
    assert weights.grad is not None
    threshold = weights.grad.abs().sort(descending=True).values[len(before) // 2 - 1]
    train(net, inputs, [make_member()], RECIPES["salun"][preset], HEAD_UNLEARNING)
    moved = net.parameters()[0][0] != before
    assert not moved[weights.grad.abs() < threshold * 0.999].any()
    salient = weights.grad.abs() > threshold * 1.001
    assert moved[salient].float().mean() > 0.99


def test_gradient_ascent_ascends():
    inputs, labels = make_inputs()
    net = make_net((3,))
    forget = make_member().forget
    assert forget is not None
    loss = lambda: functional.cross_entropy(net.logits(0, inputs)[forget], labels[forget]).item()  # noqa: E731
    before = loss()
    recipe = Recipe(phases=(Phase((Pass(Visit.FORGET, ASCEND_CROSS_ENTROPY),), 5),))
    train(net, inputs, [make_member()], recipe, HEAD_UNLEARNING)
    assert loss() > before


def test_seconds_leave_out_what_happens_between_epochs(monkeypatch):
    """On a clock that goes on by one second whenever it is read."""
    ticks = itertools.count()
    monkeypatch.setattr("unlearn_core.training.clock_for", lambda device: lambda: next(ticks))
    inputs, labels = make_inputs()
    calls = []

    def slow(epoch, seconds):
        calls.append((epoch, seconds))
        for _ in range(1000):
            next(ticks)

    seconds = train(make_net(), inputs, [Member(0, "base", labels)], training_recipe(Visit.ALL, 3), HEAD_TRAINING, slow)
    assert calls == [(1, 1), (2, 2), (3, 3)], "one second from each call to the next"
    assert seconds == 4


def test_members_with_requests_of_different_sizes_are_refused():
    inputs, labels = make_inputs()
    members = [make_member(0), Member(1, "unlearn", labels, torch.arange(N) < 3)]
    with pytest.raises(ValueError, match="members of one stack forget"):
        train(make_net((0, 1)), inputs, members, RECIPES["ft"]["paper"], HEAD_UNLEARNING)


@pytest.mark.parametrize(
    ("ours", "torchs", "begins"),
    [
        (partial(Adam, weight_decay=0.1), partial(torch.optim.Adam, weight_decay=0.1, fused=True), 1),
        (*(partial(kind, weight_decay=0.1, momentum=0.9, fused=True) for kind in (SGD, torch.optim.SGD)), 0),
    ],
)
def test_an_optimiser_without_the_compiler_makes_torchs_updates(ours, torchs, begins):
    """To the bit, over steps whose learning rate changes; with Adam, one tensor has no gradient at first."""
    generator = torch.Generator().manual_seed(0)
    weights, gradients = torch.randn(3, 5, generator=generator), torch.randn(4, 3, 5, generator=generator)
    moved = []
    for kind in (ours, torchs):
        parameter, late = weights.clone().requires_grad_(), weights.clone().requires_grad_()
        optimizer = kind([parameter, late], lr=0.1)
        for step, gradient in enumerate(gradients):
            parameter.grad = gradient.clone()
            late.grad = None if step < begins else gradient.clone()
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= 0.9
        moved.append(torch.stack([parameter.detach(), late.detach()]))
    assert torch.equal(*moved)
    assert torch.equal(moved[0][0], moved[0][1]) == (begins == 0)
    assert not torch.equal(moved[0][0], weights)
