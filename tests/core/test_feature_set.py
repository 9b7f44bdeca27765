"""The feature set file: what is written is read back, and what is wrong is refused with its name, number and remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from unlearn_core.data import FeatureSet, fingerprint, load_dataset, load_feature_set, save_feature_set
from unlearn_core.data.digits import stratified_split
from unlearn_core.errors import BadInput
from unlearn_core.grid import LabelSpace


def good_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "train_x": rng.normal(size=(12, 3)).astype(np.float32),
        "train_y": np.arange(12) % 4,
        "test_x": rng.normal(size=(5, 3)).astype(np.float32),
        "test_y": np.array([0, 1, 2, 3, 0]),
        "superclass": np.array([0, 0, 1, 1]),
        "class_names": np.array(["ant", "bee", "car", "dog"]),
        "ids": np.array([f"r{i}" for i in range(12)]),
    }


def write(tmp_path, arrays: dict[str, Any]) -> str:
    path = tmp_path / "set.npz"
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_round_trip(tmp_path, dtype):
    arrays = good_arrays()
    arrays["train_x"] = arrays["train_x"].astype(dtype)
    first = load_feature_set(write(tmp_path, arrays))
    save_feature_set(tmp_path / "again.npz", first)
    again = load_feature_set(tmp_path / "again.npz")
    for name in ("train_x", "train_y", "test_x", "test_y", "superclass", "ids"):
        np.testing.assert_array_equal(getattr(again, name), arrays[name])
        assert getattr(again, name).dtype == (arrays[name].dtype if name != "train_y" else np.int64)
    assert again.class_names == ("ant", "bee", "car", "dog")
    assert again.n_classes(LabelSpace.SUPERCLASS) == 2
    np.testing.assert_array_equal(again.train_labels(LabelSpace.SUPERCLASS), arrays["superclass"][arrays["train_y"]])


def test_only_the_four_required_arrays_are_needed(tmp_path):
    arrays = {name: good_arrays()[name] for name in ("train_x", "train_y", "test_x", "test_y")}
    loaded = load_feature_set(write(tmp_path, arrays))
    assert loaded.n_fine == 4
    with pytest.raises(BadInput, match="no 'superclass' array"):
        loaded.train_labels(LabelSpace.SUPERCLASS)


def nan_in_rows_3_and_7(arrays):
    arrays["train_x"][3, 1] = np.nan
    arrays["train_x"][7, 0] = np.inf


def drop_class_2(arrays):
    arrays["train_y"][arrays["train_y"] == 2] = 1


def replaced(name, value):
    return lambda arrays: arrays.__setitem__(name, value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (nan_in_rows_3_and_7, r"train_x has 2 NaN or infinite values in 2 rows, the first is row 3; remove"),
        (replaced("train_x", np.zeros(12, np.float32)), r"train_x has shape \(12,\); it must be \(rows, features\)"),
        (replaced("test_x", np.zeros((5, 2), np.float32)), r"test_x has 2 features and train_x 3"),
        (replaced("train_x", np.zeros((12, 3), np.int32)), r"train_x has dtype int32; save features as float16"),
        (
            replaced("train_y", np.arange(11) % 4),
            r"train_y has shape \(11,\); it needs one label for each of the 12 rows",
        ),
        (replaced("test_y", np.array([0, 1, 2, 9, -1])), r"test_y has 2 labels outside 0..3, the first is 9 in row 3"),
        (replaced("train_y", np.linspace(0, 1, 12)), r"train_y has dtype float64; labels are integers"),
        (drop_class_2, r"train_y has no row of class 2 \(1 of 4 classes are missing\); renumber"),
        (
            replaced("superclass", np.array([0, 1])),
            r"superclass has shape \(2,\); it needs one entry for each of the 4",
        ),
        (replaced("superclass", np.array([0, 0, 2, 2])), r"superclass has the values \[0, 2\]; number"),
        (replaced("class_names", np.arange(4)), r"class_names has shape \(4,\), dtype int64; it is a list of strings"),
        (replaced("ids", np.array(["a"] * 12)), r"ids has 1 duplicates, the first is a; a record id must name one row"),
        (replaced("ids", np.arange(3)), r"ids has shape \(3,\); it needs one record id for each of the 12"),
        (replaced("ids", np.linspace(0, 1, 12)), r"ids has dtype float64; record ids are integers or strings"),
        (replaced("weights", np.ones(3)), r"unknown array 'weights'; a feature set holds train_x"),
        (replaced("class_names", np.array([object()] * 4)), r"array 'class_names' is pickled \(dtype object\)"),
        (lambda arrays: arrays.pop("test_y"), r"array 'test_y' is missing; a feature set needs"),
    ],
)
def test_refused(tmp_path, spoil, message):
    arrays = good_arrays()
    spoil(arrays)
    with pytest.raises(BadInput, match=message):
        load_feature_set(write(tmp_path, arrays))


def test_missing_foreign_and_damaged_files_are_refused_by_name(tmp_path):
    with pytest.raises(BadInput, match=r"no feature set at .*nowhere\.npz"):
        load_feature_set(tmp_path / "nowhere.npz")
    text = tmp_path / "text.npz"
    text.write_text("hello")
    with pytest.raises(BadInput, match=r"text\.npz is not an \.npz archive"):
        load_feature_set(text)
    path = tmp_path / "set.npz"
    write(tmp_path, good_arrays())
    damaged = bytearray(path.read_bytes())
    at = damaged.find(good_arrays()["train_x"].tobytes()[:16])
    damaged[at] ^= 0xFF
    path.write_bytes(bytes(damaged))
    with pytest.raises(BadInput, match="array 'train_x' is damaged"):
        load_feature_set(path)


def test_digits_are_as_documented():
    digits = load_dataset("digits")
    assert digits.train_x.shape == (1437, 64)
    assert digits.test_x.shape == (360, 64)
    assert digits.superclass is not None
    assert digits.superclass.tolist() == [0] * 5 + [1] * 5
    np.testing.assert_array_equal(digits.train_x, load_dataset("digits").train_x)


def test_unknown_data_set_is_refused():
    with pytest.raises(
        BadInput, match="unknown data set 'mnist'; there are digits, cifar10, cifar100, or give the path"
    ):
        load_dataset("mnist")


def test_the_fingerprint_stays_what_it_was():
    """Finished steps are found by it: these digests were computed by the first release."""
    features = FeatureSet(
        name="any",
        train_x=np.arange(12, dtype=np.float32).reshape(6, 2),
        train_y=np.arange(6) % 3,
        test_x=np.ones((2, 2), dtype=np.float32),
        test_y=np.array([2, 0]),
        class_names=("a", "b", "c"),
    )
    assert fingerprint(features) == "6aa47f76173947c7ccd520e2a78e697d0803fbf30034477b504fbf9a222f1aac"
    grouped = replace(features, superclass=np.array([0, 0, 1]))
    assert fingerprint(grouped) == "91bb3521d6f8c20651d9b543b37db5725ccc3aca0110b197a8a5655f4f806cd6"


def test_digits_are_scikit_learns_split_by_its_rule():
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    expected = train_test_split(
        (images / 16).astype(np.float32), labels, test_size=360, stratify=labels, random_state=0
    )
    digits = load_dataset("digits")
    for got, part in zip((digits.train_x, digits.test_x, digits.train_y, digits.test_y), expected, strict=True):
        np.testing.assert_array_equal(got, part, strict=True)


@pytest.mark.parametrize("seed", range(5))
def test_a_stratified_split_is_scikit_learns(seed):
    """Classes of any sizes, some of them equal, so that lots are drawn."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2 + seed, size=60 + seed)
    expected = train_test_split(np.arange(len(labels)), test_size=17, stratify=labels, random_state=seed)
    for got, rows in zip(stratified_split(labels, 17, seed), expected, strict=True):
        np.testing.assert_array_equal(got, rows)
