"""scikit-learn's classifiers go in and out as plain arrays or skops; its own ``predict_proba`` is the oracle."""

from __future__ import annotations

import copy
import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from unlearn_core.errors import BadInput
from unlearn_core.forgetting.model_files import LoadedModel, load_model
from unlearn_core.nets.heads import HeadStack

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = np.arange(120) % 3
X[np.arange(120), Y] += 2
ROWS = torch.from_numpy(X).float()


def fitted(classifier: Any, n_classes: int = 3) -> Any:
    rows = n_classes > Y
    with warnings.catch_warnings(action="ignore"):  # few iterations do here
        return copy.deepcopy(classifier).fit(X[rows], np.array(["ant", "bee", "cat"])[Y[rows]])


CLASSIFIERS = {
    "linear": LogisticRegression(),
    "one against all": SGDClassifier(loss="log_loss", random_state=0, average=True),
    "mlp1": MLPClassifier((5,), max_iter=20, random_state=0, early_stopping=True),
    "mlp2": MLPClassifier((5, 4), max_iter=20, random_state=0, solver="sgd"),
    "no hidden layer": MLPClassifier((), max_iter=20, random_state=0, solver="lbfgs"),
}


def save_arrays(path: Path, classifier: Any) -> None:
    """The lines that docs/forget.md tells users to run."""
    if isinstance(classifier, MLPClassifier):
        arrays = {f"coefs_{i}": w for i, w in enumerate(classifier.coefs_)}
        arrays |= {f"intercepts_{i}": b for i, b in enumerate(classifier.intercepts_)}
    else:
        arrays = {"coef_": classifier.coef_, "intercept_": classifier.intercept_}
    np.savez(path, allow_pickle=False, **arrays, classes_=classifier.classes_)


def load_back(path: Path, classifier: Any) -> Any:
    """The classifier that a written file holds."""
    if path.suffix == ".skops":
        return skops.io.load(path)  # nothing in it that needs to be trusted
    with np.load(path) as arrays:
        if isinstance(classifier, MLPClassifier):
            n_layers = len(classifier.coefs_)
            classifier.coefs_ = [arrays[f"coefs_{i}"] for i in range(n_layers)]
            classifier.intercepts_ = [arrays[f"intercepts_{i}"] for i in range(n_layers)]
        else:
            classifier.coef_, classifier.intercept_ = arrays["coef_"], arrays["intercept_"]
        assert arrays["classes_"].tolist() == classifier.classes_.tolist()
    return classifier


def moved(model: LoadedModel) -> HeadStack:
    state = {name: tensor + 0.1 * torch.randn(tensor.shape) for name, tensor in model.net.state(0).items()}
    stored = model.as_stored(HeadStack.from_states([state]))
    assert isinstance(stored, HeadStack)
    return stored


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("suffix", ["npz", "skops"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_answers_as_scikit_learn_does_before_and_after(tmp_path, name, suffix, n_classes):
    classifier = fitted(CLASSIFIERS[name], n_classes)
    path = tmp_path / f"classifier.{suffix}"
    save_arrays(path, classifier) if suffix == "npz" else skops.io.dump(classifier, path)
    model = load_model(path, None, ROWS)
    assert model.blueprint.name == (name if name in ("mlp1", "mlp2") else "linear")
    torch.manual_seed(0)
    other = moved(model)
    (tmp_path / "out").mkdir()
    written = model.write(tmp_path / "out", other)
    one_against_all = name == "one against all" and n_classes == 3
    for net, oracle in ((model.net, classifier), (other, load_back(written, fitted(CLASSIFIERS[name], n_classes)))):
        logits = net.logits(0, ROWS).double()
        if one_against_all:  # the decisions are the logits; their softmax is not what predict_proba says
            np.testing.assert_allclose(logits.numpy(), oracle.decision_function(X), rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_allclose(logits.softmax(1).numpy(), oracle.predict_proba(X), atol=1e-5)
        assert (oracle.classes_[logits.argmax(1).numpy()] == oracle.predict(X)).mean() > 0.99
    assert ("one against all" in model.understood) == (one_against_all and suffix == "skops")
    assert model.write(tmp_path / "out", model.net).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_what_was_fitted_beside_the_layers_is_not_written(tmp_path, name):
    """An optimiser's moments, the averages and best weights of the base: each has seen the records."""
    classifier = fitted(CLASSIFIERS[name])
    skops.io.dump(classifier, tmp_path / "c.skops")
    model = load_model(tmp_path / "c.skops", None, ROWS)
    (tmp_path / "out").mkdir()
    written = skops.io.load(model.write(tmp_path / "out", moved(model)))
    gone = vars(classifier).keys() - vars(written).keys()
    assert gone == set(model.weights.dropped)
    assert gone.isdisjoint(classifier.get_params())
    seen = {"_optimizer", "_best_coefs", "_standard_coef", "_average_coef", "loss_curve_", "validation_scores_"}
    assert vars(written).keys().isdisjoint(seen)
    assert written.get_params() == classifier.get_params()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_pipeline(StandardScaler(), LogisticRegression()), "holds a Pipeline: .* save its last step"),
        (lambda: SGDClassifier(loss="hinge"), "loss 'hinge', which gives no probabilities"),
        (lambda: MLPClassifier((5,), activation="tanh", max_iter=5), "activation 'tanh'; only relu"),
        (lambda: MLPClassifier((5, 5, 5), max_iter=5), "hold 4 layers and heads have 1 to 3"),
        (lambda: RidgeClassifier(), "holds a RidgeClassifier; only LogisticRegression"),
    ],
)
def test_other_classifiers_are_refused_by_name(tmp_path, make, message):
    skops.io.dump(fitted(make()), tmp_path / "c.skops")
    with pytest.raises(BadInput, match=message):
        load_model(tmp_path / "c.skops", None, ROWS)


def test_an_unfitted_classifier_and_a_damaged_file_are_refused(tmp_path):
    path = tmp_path / "c.skops"
    skops.io.dump(LogisticRegression(), path)
    with pytest.raises(BadInput, match="the LogisticRegression is not fitted"):
        load_model(path, None, ROWS)
    skops.io.dump(fitted(LogisticRegression()), path)
    good = path.read_bytes()
    for content in (b"", b"hello", good[: len(good) // 2]):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=r"c\.skops"):
            load_model(path, None, ROWS)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.json", "{}")
    with pytest.raises(BadInput, match=r"has no schema.json"):
        load_model(path, None, ROWS)


class Trap:
    def __init__(self, place: Path) -> None:
        self.place: str = str(place)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.place,)


def test_types_that_are_not_trusted_are_refused_and_never_made(tmp_path):
    """Also where they hide within a classifier; and a pickle that is called skops is no archive."""
    import pickle

    classifier = fitted(LogisticRegression())
    classifier.extra = Trap(tmp_path / "sprung")
    skops.io.dump(classifier, tmp_path / "c.skops")
    with pytest.raises(BadInput, match="Trap, which is not trusted and not loaded"):
        load_model(tmp_path / "c.skops", None, ROWS)
    (tmp_path / "p.skops").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(BadInput, match=r"p.skops"):
        load_model(tmp_path / "p.skops", None, ROWS)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"coef_": np.ones((3, 4))}, "array 'intercept_' is missing; a classifier needs coef_, intercept_"),
        ({"coef_": np.ones((3, 4)), "intercept_": np.ones(2)}, "the layers fit no head"),
        ({"coef_": np.ones(4), "intercept_": np.ones(1)}, r"coef_ has shape \(4,\)"),
        ({"coef_": np.ones((3, 4), int), "intercept_": np.ones(3)}, "coef_ has shape .* dtype int64"),
        ({"coefs_0": np.ones((4, 3)), "intercepts_1": np.ones(3)}, "unknown array 'intercepts_1'"),
        (
            {"coefs_0": np.ones((4, 5)), "intercepts_0": np.ones(5), "coefs_1": np.ones((6, 3)), "intercepts_1": np.ones(3)},
            "coefs_1 maps 6 numbers to 3",
        ),
        ({"coef_": np.ones((3, 4)), "intercept_": np.ones(3), "classes_": np.arange(2)}, "classes_ has shape"),
        ({"coef_": np.ones((3, 4)), "intercept_": np.array([object()] * 3)}, "'intercept_' is pickled"),
        ({"coef_": np.ones((3, 7)), "intercept_": np.ones(3)}, "the data has 4 features and the model reads 7"),
        ({"train_x": np.ones((3, 7))}, "unknown array 'train_x'"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_classifier_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "c.npz", **arrays)
    with pytest.raises(BadInput, match=message):
        load_model(tmp_path / "c.npz", None, ROWS)
