"""A deletion request in one call: what is chosen, what is written, what the certificate says of it."""

from __future__ import annotations

import copy
import json
import math
import sys
import zipfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.processes import run
from unlearn_core import forget, methods
from unlearn_core.audit.divergence import log_probabilities, mean_kl
from unlearn_core.audit.stein import min_queries
from unlearn_core.auto import Candidate, choose_proxy
from unlearn_core.data import load_dataset
from unlearn_core.errors import BadInput
from unlearn_core.eta import find_eta_max
from unlearn_core.finalize import LogitProcessor, load_processor
from unlearn_core.forgetting.forget import Forgotten
from unlearn_core.forgetting.measure import RetrainSettings, check_by_retraining
from unlearn_core.forgetting.opening import Heldout
from unlearn_core.forgetting.plan import Weighed
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.make import FactoryBlueprint
from unlearn_core.nets.module import ModuleStack
from unlearn_core.nets.resnet import ResNetStack
from unlearn_core.proxies.points import Points
from unlearn_core.recipes import HEAD_UNLEARNING, Stopping, Visit, training_recipe
from unlearn_core.target import fit_proxy, shifted
from unlearn_core.training import Member, train

GAUSSIAN = tuple(name for name in methods.proxies() if methods.find_proxy(name).prepares == methods.MOMENTS)

SEED = 0
DIGITS = load_dataset("digits")
SUPERS = DIGITS.superclass
assert SUPERS is not None
LABELS, TEST_LABELS = SUPERS[DIGITS.train_y], SUPERS[DIGITS.test_y]
ZEROS, SEVENS = (np.flatnonzero(DIGITS.train_y == digit) for digit in (0, 7))
HELDOUT = Heldout(DIGITS.test_x, TEST_LABELS)
SHORT = Stopping(epochs=25, patience=5)


def rounding(method: str | None) -> float:
    """How far two ways to the same number may be apart: the probe's products are float32, all else is float64."""
    return 1e-9 if method in GAUSSIAN else 1e-6


class Conv(nn.Module):
    """A network of somebody else's: convolutions, batch normalisation, dropout."""

    def __init__(self, n_classes: int = 2) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.2)
        self.embed = nn.Linear(6 * 16, 24)
        self.out = nn.Linear(24, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.max_pool2d(torch.relu(self.norm(self.conv(x.view(-1, 1, 8, 8)))), 2)
        return self.out(torch.relu(self.embed(self.drop(hidden.flatten(1)))))


def fitted(module: nn.Module, labels: np.ndarray, steps: int = 40, lr: float = 1e-2) -> nn.Module:
    """The module, trained by a plain loop that shares nothing with ours."""
    x, y = torch.from_numpy(DIGITS.train_x), torch.from_numpy(labels)
    optimizer = torch.optim.Adam(module.parameters(), lr)
    module.train()
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module.eval()


def posteriors(module: nn.Module, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return log_probabilities(module(torch.from_numpy(x)).numpy())


def target_of(result: Forgotten) -> np.ndarray:
    target = result.outcome.plan.target
    assert target is not None
    return target.log_target


def chosen(result: Forgotten) -> Weighed:
    weighed = result.outcome.plan.chosen
    assert weighed is not None
    return weighed


def processor(result: Forgotten) -> LogitProcessor:
    assert result.logit_processor is not None
    return result.logit_processor


@pytest.fixture(scope="module")
def mlp() -> nn.Module:
    torch.manual_seed(SEED)
    return fitted(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2)), LABELS)


@pytest.fixture(scope="module")
def conv() -> nn.Module:
    torch.manual_seed(SEED)
    return fitted(Conv(), LABELS)


@pytest.fixture(scope="module")
def result(mlp):
    return forget(mlp, DIGITS.train_x, LABELS, ZEROS, heldout=HELDOUT, stopping=SHORT)


def test_importing_the_package_loads_no_torch_and_training_not_its_compiler():
    code = (
        "import sys, unlearn_core; assert 'torch' not in sys.modules; from unlearn_core import forget; print(forget)\n"
        "from unlearn_core.training import warm_up; warm_up(); print({'torch._dynamo', 'sympy'} & set(sys.modules))"
    )
    said = run([sys.executable, "-c", code]).stdout
    assert "function forget" in said
    assert said.endswith("set()\n"), "seconds of every process that trains"


def test_the_unlearned_module_is_nearer_to_the_target_and_the_given_one_is_untouched(mlp, result):
    given = copy.deepcopy(mlp.state_dict())
    again = forget(mlp, DIGITS.train_x, LABELS, ZEROS, heldout=HELDOUT, stopping=SHORT)
    assert all(torch.equal(given[name], tensor) for name, tensor in mlp.state_dict().items())
    assert all(
        torch.equal(tensor, again.model.state_dict()[name]) for name, tensor in result.model.state_dict().items()
    ), "the same request twice gives the same bits"
    assert result.model.state_dict().keys() == given.keys()
    content = result.certificate.content
    assert content["outcome"] == "unlearned"
    base, unlearned = posteriors(mlp, DIGITS.train_x), posteriors(result.model, DIGITS.train_x)
    target = target_of(result)
    rows = np.isin(np.arange(len(LABELS)), ZEROS)
    assert mean_kl(target[rows], unlearned[rows]) < 0.5 * mean_kl(target[rows], base[rows])
    said = content["divergence"]["base_to_unlearned"]
    assert said["forget"] == pytest.approx(mean_kl(base[rows], unlearned[rows]), rel=1e-4)
    assert said["retain"] == pytest.approx(mean_kl(base[~rows], unlearned[~rows]), rel=1e-4)
    test = mean_kl(posteriors(mlp, DIGITS.test_x), posteriors(result.model, DIGITS.test_x))
    assert said["heldout"] == pytest.approx(test, rel=1e-4)
    right = posteriors(result.model, DIGITS.train_x).argmax(1) == LABELS
    assert content["accuracy"]["after"]["retained"] == pytest.approx(right[~rows].mean())
    assert content["accuracy"]["after"]["forgotten"] == pytest.approx(right[rows].mean())


def test_auto_weighs_every_candidate_and_follows_the_rule(mlp, result):
    with torch.no_grad():
        logits = mlp(torch.from_numpy(DIGITS.train_x)).double().numpy()
    log_p, mask = log_probabilities(logits), DIGITS.train_y == 0
    candidates = []
    for method in methods.auto_candidates():
        proxy = fit_proxy(method, DIGITS.train_x, LABELS, mask, 2, logits=log_p)
        points = Points(DIGITS.train_x, log_p, np.arange(len(LABELS)))
        log_proxy, log_retain_proxy = proxy.log_posteriors(points)
        signal = proxy.signal(points)
        search = find_eta_max(logits, signal, result.outcome.plan.settings.cap_of(method))
        fit, after = mean_kl(log_p, log_proxy), mean_kl(log_p, log_retain_proxy)
        candidates.append(Candidate(method, search.admissible, search.eta_max, fit, after - fit))
    said = result.certificate.content["proxy"]
    assert said["method"] == choose_proxy(candidates).method
    for entry, candidate in zip(said["candidates"], candidates, strict=True):
        assert entry["method"] == candidate.method
        assert entry["eta_max"] == pytest.approx(candidate.eta_max, abs=100 * rounding(candidate.method))
        assert entry["kl_net_proxy_before"] == pytest.approx(candidate.fit, abs=rounding(candidate.method))
        assert entry["loss"] == pytest.approx(candidate.loss, abs=rounding(candidate.method))


def test_the_kept_epoch_is_the_one_closest_to_the_target(result):
    done = result.certificate.content["finalizer"]
    scores = done["scores"]
    assert scores[done["best_epoch"]] == min(scores) < scores[0]
    assert done["watched"] == {
        "n_forget": len(ZEROS),
        "n_retain": min(256, int(0.2 * (len(LABELS) - len(ZEROS)))),
        "n_heldout": 0,  # a retrain would not be at chance on a subclass that leaves whole
    }
    patience = done["stopping"]["patience"]
    assert len(scores) - 1 <= done["stopping"]["epochs"]
    if len(scores) - 1 < done["stopping"]["epochs"]:
        assert min(scores[-patience:]) >= 0.99 * min(scores[:-patience]), "it ended for want of a material gain"


def test_the_certificate_is_complete(result):
    content = json.loads(result.certificate.text())["certificate"]
    for section in (
        "made",
        "model",
        "data",
        "request",
        "classes",
        "proxy",
        "finalizer",
        "divergence",
        "accuracy",
        "stein",
    ):
        assert content[section], section
    assert content["request"]["n_forget"] == len(ZEROS)
    assert content["request"]["n_retain"] == len(LABELS) - len(ZEROS)
    assert sum(c["n_forget"] for c in content["classes"]) == len(ZEROS)
    for share in ("share_before", "share_after"):
        assert sum(c[share] for c in content["classes"]) == pytest.approx(1)
    proxy = content["proxy"]
    assert proxy["admissible"] == (proxy["kl_net_proxy_before"] < proxy["kl_net_proxy_after"])
    curve = dict(map(tuple, proxy["h_curve"]))
    assert all(h <= 1e-9 for eta, h in curve.items() if eta <= proxy["eta_max"]), "safe up to eta_max"
    queries = {row["kl"]: row["at_0.001"] for row in content["stein"]["least_queries"]}
    assert (queries[0.05], queries[0.1]) == (138, 69)  # app:stein
    limit = content["stein"]["indistinguishable_on_forget_below_kl"]["at_0.001"]
    assert min_queries(0.999 * limit) > len(ZEROS) >= min_queries(1.001 * limit)
    assert len(content["not_guaranteed"]) >= 5


def test_the_logit_processor_is_the_target_and_survives_its_file(mlp, result, tmp_path):
    processor(result).save(tmp_path / "processor.npz")
    loaded = load_processor(tmp_path / "processor.npz")
    with torch.no_grad():
        logits = mlp(torch.from_numpy(DIGITS.test_x)).numpy()
    proxy = fit_proxy(result.certificate.content["proxy"]["method"], DIGITS.train_x, LABELS, DIGITS.train_y == 0, 2)
    eta = result.certificate.content["proxy"]["eta_max"]
    expected = shifted(logits, proxy.signal(Points(DIGITS.test_x)), eta)
    np.testing.assert_allclose(loaded(logits, DIGITS.test_x), expected, atol=1e-9)
    np.testing.assert_array_equal(loaded(logits, DIGITS.test_x), processor(result)(logits, DIGITS.test_x))
    with zipfile.ZipFile(tmp_path / "processor.npz") as archive:
        for name in archive.namelist():
            np.load(archive.open(name), allow_pickle=False)


@pytest.mark.parametrize("proxy", ["qda-mix", "probe"])
def test_a_black_box_of_which_only_logits_are_known(mlp, tmp_path, proxy):
    with torch.no_grad():
        logits, test_logits = (mlp(torch.from_numpy(x)).numpy() for x in (DIGITS.train_x, DIGITS.test_x))
    heldout = Heldout(DIGITS.test_x, TEST_LABELS, logits=test_logits)
    result = forget(logits, DIGITS.train_x, LABELS, ZEROS, proxy, "none", heldout=heldout)
    assert result.model is None
    assert result.certificate.content["model"]["kind"] == "black box"
    unlearned = processor(result)(test_logits, DIGITS.test_x)
    said = result.certificate.content["divergence"]["base_to_unlearned"]["heldout"]
    assert said == pytest.approx(mean_kl(log_probabilities(test_logits), unlearned))
    processor(result).save(tmp_path / "processor.npz")
    np.testing.assert_array_equal(load_processor(tmp_path / "processor.npz")(test_logits, DIGITS.test_x), unlearned)
    with pytest.raises(BadInput, match="needs the network's weights"):
        forget(logits, DIGITS.train_x, LABELS, ZEROS, proxy, "kl", heldout=heldout)


def test_least_squares_shifts_the_last_layer_alone(conv):
    result = forget(conv, DIGITS.train_x, LABELS, SEVENS, "lda", "mse", features_from="penultimate", heldout=HELDOUT)
    before, after = conv.state_dict(), result.model.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"out.weight", "out.bias"}
    with torch.no_grad():
        design = ModuleStack(copy.deepcopy(conv), torch.from_numpy(DIGITS.train_x)).penultimate(
            0, torch.from_numpy(DIGITS.train_x)
        )
    phi = np.column_stack([design.double().numpy(), np.ones(len(LABELS))])
    solution = np.linalg.lstsq(phi, chosen(result).target.finite_shift(), rcond=None)[0]
    fitted_shift = phi @ solution
    shift = posteriors(result.model, DIGITS.train_x) - posteriors(conv, DIGITS.train_x)
    contrast = (shift[:, 0] - shift[:, 1]) - (fitted_shift[:, 0] - fitted_shift[:, 1])
    np.testing.assert_allclose(contrast, 0, atol=1e-3)  # float32 weights


@pytest.mark.parametrize("layer", ["embed", "penultimate", "conv"])
def test_a_convolutional_module_with_features_from_a_layer(conv, layer):
    result = forget(
        conv,
        DIGITS.train_x,
        LABELS,
        SEVENS,
        "lda",
        features_from=layer,
        heldout=HELDOUT,
        stopping=Stopping(epochs=5),
    )
    seen = []
    module = conv.get_submodule("out" if layer == "penultimate" else layer)
    hook = module.register_forward_hook(
        lambda _m, x, y: seen.append((x[0] if layer == "penultimate" else y).flatten(1))
    )
    posteriors(conv, DIGITS.train_x)
    hook.remove()
    features = result.outcome.plan.subject.train.features
    np.testing.assert_allclose(features, seen[0].detach().numpy(), atol=1e-5)
    assert layer in result.certificate.content["data"]["features"]
    before, after = conv.state_dict(), result.model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert "conv.weight" in moved
    assert not any("running" in name or "tracked" in name for name in moved), "batch statistics stay the base's"
    with torch.no_grad():
        torch.testing.assert_close(
            result.model(torch.from_numpy(DIGITS.test_x)),
            ModuleStack(copy.deepcopy(result.model), torch.from_numpy(DIGITS.test_x)).logits(
                0, torch.from_numpy(DIGITS.test_x)
            ),
        )


def test_a_layer_too_wide_for_a_covariance_is_projected(mlp):
    torch.manual_seed(SEED)
    wide = nn.Sequential(nn.Linear(64, 600), nn.ReLU(), nn.Linear(600, 2))
    result = forget(wide, DIGITS.train_x, LABELS, ZEROS, "lda", "none", features_from="0")
    source = result.outcome.plan.subject.feature_source
    assert source is not None
    omega = source.projection
    assert omega is not None
    assert omega.shape == (512, 600)
    np.testing.assert_allclose(omega @ omega.T, np.eye(512), atol=1e-5)
    with torch.no_grad():
        expected = wide[0](torch.from_numpy(DIGITS.train_x)).numpy() @ omega.T
    np.testing.assert_allclose(result.outcome.plan.subject.train.features, expected, atol=1e-4)


def test_a_module_trains_as_the_head_that_it_is():
    """Autograd against the backward pass written out: the same weights, rows and steps."""
    torch.manual_seed(SEED)
    module = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    names = {"0": "layers.0", "2": "layers.1"}
    head = HeadStack.from_states([{f"{names[n[0]]}{n[1:]}": t for n, t in module.state_dict().items()}])
    inputs, labels = torch.from_numpy(DIGITS.train_x), torch.from_numpy(DIGITS.train_y)
    stack = ModuleStack(module, inputs)
    for net in (head, stack):
        train(net, inputs, [Member(3, "base", labels)], training_recipe(Visit.ALL, 2), HEAD_UNLEARNING)
    state, expected = stack.state(0), head.state(0)
    for ours, theirs in names.items():
        for part in ("weight", "bias"):
            torch.testing.assert_close(state[f"{ours}.{part}"], expected[f"{theirs}.{part}"], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("finalizer", ["kl", "mse", "none"])
def test_forgetting_a_class_takes_it_out_of_the_model(finalizer):
    torch.manual_seed(SEED)
    net = fitted(nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)), DIGITS.train_y)
    threes = DIGITS.train_y == 3
    result = forget(net, DIGITS.train_x, DIGITS.train_y, np.flatnonzero(threes), finalizer=finalizer, stopping=SHORT)
    content = result.certificate.content
    assert content["accuracy"]["after"]["forgotten"] < 0.05
    assert content["accuracy"]["after"]["retained"] > content["accuracy"]["before"]["retained"] - 0.01
    assert content["proxy"]["kl_net_proxy_after"] is None, "infinite: a class left"
    assert content["divergence"]["base_to_unlearned"]["heldout"] is None


def test_a_resnet_on_images():
    """The architecture of this package that reads images, by one of its layers."""
    few = np.sort(np.random.default_rng(0).permutation(len(DIGITS.train_y))[:120])
    images = np.repeat((255 * DIGITS.train_x[few]).astype(np.uint8).reshape(-1, 8, 8, 1), 3, axis=3)
    labels = DIGITS.train_y[few]
    net = ResNetStack.initialise(10, torch.Generator().manual_seed(0))
    threes = np.flatnonzero(labels == 3)
    result = forget(net, images, labels, threes, finalizer="mse", features_from="layer4")
    assert result.outcome.plan.subject.train.features.shape == (120, 512)
    assert "layer4" in result.certificate.content["data"]["features"]
    before, after = net.state(0), result.model.state(0)
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"fc.weight", "fc.bias"}
    assert result.certificate.content["accuracy"]["after"]["forgotten"] == 0
    with pytest.raises(BadInput, match="layer of the model to take them from"):
        forget(net, images, labels, threes)


def test_nothing_to_unlearn_is_an_answer():
    """Labels that the network never learned from: without these rows it looks no worse to any proxy."""
    rng = np.random.default_rng(0)
    logits = 4.0 * np.eye(2)[LABELS] + rng.normal(size=(len(LABELS), 2))
    flipped = ZEROS[:40]
    labels = LABELS.copy()
    labels[flipped] = 1
    result = forget(logits.astype(np.float32), DIGITS.train_x, labels, flipped, finalizer="none")
    assert result.certificate.content["outcome"] == "nothing to unlearn"
    assert result.logit_processor is None
    assert "admissible" in result.certificate.content["reason"]
    assert "no influence" in result.certificate.content["not_guaranteed"][0]
    assert result.certificate.content["divergence"]["base_to_unlearned"]["forget"] == 0


def test_dir_can_be_asked_for_and_is_never_chosen(mlp):
    assert not {"dir", "dir-2c"} & set(methods.auto_candidates())
    result = forget(mlp, DIGITS.train_x, LABELS, ZEROS[:50], "dir-2c", heldout=HELDOUT, stopping=Stopping(epochs=5))
    assert result.certificate.content["proxy"]["method"] == "dir-2c"
    assert result.certificate.content["divergence"]["base_to_target"]["heldout"] == pytest.approx(0, abs=1e-12)
    assert result.logit_processor is None


def test_a_well_trained_network_gets_fresh_and_its_processor_is_a_black_boxs():
    torch.manual_seed(0)
    net = fitted(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2)), LABELS, steps=300)
    result = forget(net, DIGITS.train_x, LABELS, ZEROS, stopping=Stopping(epochs=2))
    assert result.certificate.content["proxy"]["method"] == "fresh"
    assert result.certificate.content["proxy"]["eta_max"] == pytest.approx(1.0, abs=1e-9)
    with torch.no_grad():
        logits = net(torch.from_numpy(DIGITS.train_x)).numpy()
    boxed = forget(logits, DIGITS.train_x, LABELS, ZEROS, finalizer="none")
    ours, theirs = processor(result), processor(boxed)
    assert ours.method == theirs.method == boxed.certificate.content["proxy"]["method"] != "fresh"
    assert ours.eta == pytest.approx(theirs.eta)


def test_a_retrain_measures_what_the_theory_says(result):
    plan = result.outcome.plan
    how = FactoryBlueprint(
        "here:build", lambda _n_classes: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
    )
    retrained, again = (
        check_by_retraining(plan, result.outcome.posteriors, how, RetrainSettings(epochs=15)) for _ in range(2)
    )
    checks = retrained.checks
    entry = checks[0].entry(plan.n_forget)
    assert retrained.epochs == 15
    assert entry["kl_f"] == again.checks[0].entry(plan.n_forget)["kl_f"]
    slack = rounding(plan.choice.method)
    assert entry["bound"]["measured"] == pytest.approx(entry["bound"]["decomposition"], abs=slack)
    assert entry["bound"]["measured"] <= entry["bound"]["tight_bound"] + slack
    assert entry["kl_f"] < checks[0].base.forget, "closer to the retrain than the base was"
    assert checks[0].floor.forget < checks[0].base.forget
    assert entry["stein"]["n_f_at_0.001"] == min_queries(entry["kl_f"])
    assert entry["stein"]["indistinguishable_at_0.001"] == (min_queries(entry["kl_f"]) > len(ZEROS))


def test_no_limit_on_eta_when_asked(mlp):
    capped = chosen(forget(mlp, DIGITS.train_x, LABELS, ZEROS, "qda", "mse", cap=0.01))
    free = chosen(forget(mlp, DIGITS.train_x, LABELS, ZEROS, "qda", "mse", cap=math.inf))
    assert capped.search.eta_max == 0.01 < free.search.eta_max


def bad_labels():
    labels = LABELS.copy()
    labels[5] = 2
    return labels


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forget_ids": []}, "names no record"),
        ({"ids": np.array(["a"] * len(LABELS)), "forget_ids": ["a"]}, "1437 rows and 1 different ids"),
        ({"forget_ids": [len(LABELS)]}, f"{len(LABELS)} is no row of the data"),
        ({"forget_ids": np.arange(len(LABELS))}, "delete the model instead"),
        ({"features": np.where(np.arange(64) == 3, np.nan, DIGITS.train_x)}, "NaN or infinite numbers in 1437 rows"),
        ({"features": DIGITS.train_x[:, :60]}, "given rows of shape (60,), fails"),
        ({"labels": bad_labels()}, "labels run from 0 to 2 and the model has 2 classes"),
        ({"labels": LABELS.astype(float)}, "they are integers"),
        ({"labels": LABELS[:-1]}, "1437 training rows and 1436 labels"),
        ({"proxy": "lda2c"}, "unknown method 'lda2c'"),
        ({"finalizer": "sgd"}, "unknown finalizer 'sgd'"),
        ({"cap": 0.0}, "cap 0.0 must be positive"),
        ({"ridge": -1.0}, "ridge -1.0"),
        ({"proxy": "dir", "finalizer": "none"}, "speaks of training points only"),
        ({"proxy": "fresh", "finalizer": "none"}, "speaks of training points only"),
        ({"features_from": "nowhere"}, "has no layer 'nowhere'"),
        ({"model": nn.Sequential(nn.Linear(64, 2)).half()}, "convert it with .float()"),
    ],
)
def test_bad_input_is_one_line(mlp, change, message):
    asked = {"model": mlp, "features": DIGITS.train_x, "labels": LABELS, "forget_ids": ZEROS, **change}
    with pytest.raises(BadInput) as refusal:
        forget(**asked)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
