"""The embedded data set: scikit-learn's 8x8 digits, so that everything runs with no download."""

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unlearn_core.data.feature_set import FeatureSet

N_TEST = 360
SPLIT_SEED = 0


def load_digits() -> FeatureSet:
    """1,437 training and 360 test images as 64 pixel features in [0, 1]; superclasses 0-4 and 5-9."""
    table = _table()
    images, labels = (table[:, :-1] / 16.0).astype(np.float32), table[:, -1].astype(np.int64)
    train, test = stratified_split(labels, N_TEST, SPLIT_SEED)
    return FeatureSet(
        name="digits",
        train_x=images[train],
        train_y=labels[train],
        test_x=images[test],
        test_y=labels[test],
        class_names=tuple(str(digit) for digit in range(10)),
        superclass=np.repeat(np.arange(2), 5),
        backbone="pixels",
    )


def _table() -> NDArray[np.float64]:
    """(1797, 65) pixels and labels: scikit-learn's file, if it is where it was, for to load scikit-learn takes seconds."""
    package = importlib.util.find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits as sklearn_digits

    images, labels = sklearn_digits(return_X_y=True)
    return np.column_stack([images, labels])


def stratified_split(labels: NDArray[np.int64], n_test: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of scikit-learn's ``train_test_split(..., test_size=n_test, stratify=labels, random_state=seed)``."""
    rng = np.random.RandomState(seed)
    counts = np.bincount(labels)
    n_train = _shares(counts, len(labels) - n_test, rng)
    n_tested = _shares(counts - n_train, n_test, rng)
    train, test = [], []
    for label, count in enumerate(counts):
        rows = np.flatnonzero(labels == label)[rng.permutation(count)]
        train.append(rows[: n_train[label]])
        test.append(rows[n_train[label] : n_train[label] + n_tested[label]])
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))


def _shares(counts: NDArray[np.int64], n: int, rng: np.random.RandomState) -> NDArray[np.int64]:
    """``n`` shared out as ``counts`` are: rounded down, then one more for the largest remainders, among equals by lot."""
    exact = counts / counts.sum() * n
    shares = np.floor(exact).astype(np.int64)
    left = n - int(shares.sum())
    for remainder in np.unique(exact - shares)[::-1]:
        if left > 0:
            (equals,) = np.where(exact - np.floor(exact) == remainder)
            chosen = rng.choice(equals, size=min(len(equals), left), replace=False)
            shares[chosen] += 1
            left -= len(chosen)
    return shares
