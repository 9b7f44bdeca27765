"""Arrays of a file that are mapped, not read."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from unlearn_core.data.images import CIFAR10_CLASSES, ImageSet
from unlearn_core.data.mapped import map_npz
from unlearn_core.errors import BadInput


def test_mapped_arrays_are_those_of_numpy(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "train_x": rng.normal(size=(50, 7)).astype(np.float16),
        "train_y": rng.integers(0, 3, 50).astype(np.uint8),
        "test_x": np.asfortranarray(rng.normal(size=(5, 7))),
        "ids": np.array([f"é{i}" for i in range(50)]),
        "images": rng.integers(0, 255, (4, 3, 2, 3), dtype=np.uint8),
        "one": np.array(3.5),
        "none": np.zeros((0, 4)),
    }
    for save in (np.savez, np.savez_compressed):
        path = tmp_path / f"{save.__name__}.npz"
        save(path, **arrays)
        found = map_npz(path, (*arrays, "missing"))
        assert set(found) == set(arrays)
        with np.load(path) as expected:
            for name, value in found.items():
                np.testing.assert_array_equal(value, expected[name])
                assert (value.dtype, value.shape) == (expected[name].dtype, expected[name].shape)
    stored = map_npz(tmp_path / "savez.npz", ("train_x", "test_x"))
    assert all(isinstance(value, np.memmap) for value in stored.values())
    before = (tmp_path / "savez.npz").read_bytes()
    stored["train_x"][:] = 0
    assert (tmp_path / "savez.npz").read_bytes() == before, (
        "whoever writes into a mapped array does not write into the file"
    )
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "pickled.npz", ids=np.array(["a", 1], dtype=object))
        with pytest.raises(BadInput, match=r"pickled.npz: array 'ids' is pickled"):
            map_npz(tmp_path / "pickled.npz", ("ids",))


def test_mapped_images_have_the_names_that_loaded_ones_have(tmp_path):
    images = np.zeros((20, 2, 2, 3), dtype=np.uint8)
    path, labels = tmp_path / "cifar10_part.npz", np.arange(20) % 10
    np.savez(path, train_images=images, train_y=labels, test_images=images, test_y=labels)
    mapped = ImageSet.mapped(path.stem, path)
    assert (mapped.name, mapped.class_names) == ("cifar10", CIFAR10_CLASSES)
    loaded = ImageSet.from_arrays("cifar10", ImageSet.read_arrays(path), source="")
    for field in dataclasses.fields(ImageSet):
        np.testing.assert_array_equal(getattr(mapped, field.name), getattr(loaded, field.name))
