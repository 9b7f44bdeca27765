"""Out-of-fold posteriors: each is of a model that never saw its row, and that model is a plain training without the fold."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from unlearn_core.crossfit import CrossFit, CrossFitConstants, Folds, cross_fit, draw_folds
from unlearn_core.data import load_dataset
from unlearn_core.errors import BadInput
from unlearn_core.nets.heads import HeadStack
from unlearn_core.seeding import derive_seed
from unlearn_core.training import Member, train

DIGITS = load_dataset("digits")
X, Y = DIGITS.train_x.astype(np.float32), DIGITS.train_y
SETTINGS = CrossFitConstants(batch_size=128, least_steps=360)


def fit(x=X, y=Y, hidden=(32,), constants=SETTINGS) -> CrossFit:
    return cross_fit(Folds(x, y, 10, hidden, constants))


@pytest.fixture(scope="module")
def fitted() -> CrossFit:
    return fit()


@pytest.mark.parametrize(("n", "folds"), [(1000, 5), (1003, 5), (11, 4), (7, 7)])
def test_folds_are_equal_to_within_one_row_overall_and_in_every_class(n, folds):
    labels = np.random.default_rng(n).choice(3, n, p=(0.6, 0.3, 0.1))
    drawn = draw_folds(labels, CrossFitConstants(folds=folds))
    for rows in (np.ones(n, dtype=bool), *(labels == c for c in range(3))):
        sizes = np.bincount(drawn[rows], minlength=folds)
        assert sizes.max() - sizes.min() <= 1


def test_folds_are_drawn_by_the_seed_and_not_by_the_order_of_rows():
    first, again, other = (draw_folds(Y, CrossFitConstants(seed=seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    # as dice that ignore each other: agreement of 1 in 5, to within four standard deviations
    assert np.mean(first == other) == pytest.approx(0.2, abs=4 * 0.4 / np.sqrt(len(Y)))
    assert np.mean(first[1:] == first[:-1]) == pytest.approx(0.2, abs=4 * 0.4 / np.sqrt(len(Y)))


@pytest.mark.parametrize("hidden", [(), (32,), (16, 16)])
@pytest.mark.parametrize("k", [0, 4])  # folds of 288 and of 287 rows, so of either stack
def test_a_fold_model_is_the_same_training_without_the_fold_to_the_bit(k, hidden):
    fitted = fit(hidden=hidden)
    out = fitted.folds == k
    stream = f"crossfit/{k}"
    generator = torch.Generator().manual_seed(derive_seed(0, stream, "weights"))
    alone = HeadStack.initialise((64, *hidden, 10), [generator])
    recipe = SETTINGS.recipe(int((~out).sum()))
    assert recipe.optimization is not None
    member = Member(0, stream, torch.from_numpy(Y), torch.from_numpy(out))
    train(alone, torch.from_numpy(X), [member], recipe, recipe.optimization)
    assert np.array_equal(alone.parameters()[0][0].numpy(), fitted.weights[k])
    ours = torch.log_softmax(alone.logits(0, torch.from_numpy(X[out])).double(), 1).numpy()
    np.testing.assert_allclose(fitted.log_q[out], ours, atol=1e-5)


@pytest.mark.parametrize("n_removed", [0, 7])
def test_fold_models_trained_apart_are_those_trained_together_to_the_bit(n_removed):
    """Whatever else is left out: the folds are then of unequal sizes."""
    removed = np.isin(np.arange(len(X)), np.random.default_rng(0).permutation(len(X))[:n_removed])
    folds = Folds(X, Y, 10, (16,), CrossFitConstants(least_steps=20), removed if n_removed else None)
    together = cross_fit(folds)
    apart = folds.joined([folds.train([k])[0] for k in range(5)])
    for field in fields(CrossFit):
        assert np.array_equal(getattr(together, field.name), getattr(apart, field.name))


def test_a_poisoned_row_changes_every_model_but_its_own(fitted):
    row = 17
    x, y = X.copy(), Y.copy()
    x[row] = 1e3
    other = np.flatnonzero((fitted.folds == fitted.folds[row]) & (Y[row] != Y))[0]
    y[row], y[other] = Y[other], Y[row]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unlearn_core.crossfit.draw_folds", lambda *_: fitted.folds)
        poisoned = fit(x, y)
    same = [np.array_equal(a, b) for a, b in zip(fitted.weights, poisoned.weights, strict=True)]
    assert same == [k == fitted.folds[row] for k in range(5)]


def test_the_models_say_anywhere_what_they_said_of_their_own_fold(fitted):
    everywhere = fitted.ask(X)
    assert everywhere.shape == (5, len(X), 10)
    np.testing.assert_allclose(everywhere[fitted.folds, np.arange(len(X))], fitted.log_q, atol=1e-5)
    np.testing.assert_allclose(np.exp(everywhere).sum(-1), 1, atol=1e-5)
    assert np.array_equal(fitted.ask(X[:40].astype(np.float64)), fitted.ask(X[:40]))


def test_out_of_fold_losses_are_those_of_rows_never_seen(fitted):
    """Not those of rows that were trained on; about those of held-out rows, and of scikit-learn's own cross-fit."""

    def loss(log_q, labels):
        return -log_q[np.arange(len(labels)), labels]

    seen = fitted.ask(X)[(fitted.folds + 1) % 5, np.arange(len(X))]
    heldout = fitted.ask(DIGITS.test_x)
    unseen = loss(fitted.log_q, Y)
    more = unseen - loss(seen, Y)
    assert more.mean() > 4 * more.std() / np.sqrt(len(Y))
    elsewhere = np.concatenate([loss(log_q, DIGITS.test_y) for log_q in heldout])
    error = np.hypot(unseen.std() / np.sqrt(len(Y)), elsewhere.std() / np.sqrt(len(DIGITS.test_y)))
    assert unseen.mean() == pytest.approx(elsewhere.mean(), abs=4 * error)
    theirs = cross_val_predict(LogisticRegression(max_iter=500), X, Y, cv=5)
    assert np.mean(fitted.log_q.argmax(1) == Y) >= np.mean(theirs == Y) - 0.02


def test_a_small_data_set_gets_more_epochs_and_a_large_one_two():
    constants = CrossFitConstants()
    assert [constants.recipe(n).epochs for n in (1000, 20_000, 40_000, 10**6)] == [50, 3, 2, 2]


def test_what_cannot_be_split_is_named():
    with pytest.raises(BadInput, match="3 rows are too few for 5 folds"):
        fit(X[:3], Y[:3])
    with pytest.raises(BadInput, match="1 folds"):
        replace(SETTINGS, folds=1)
