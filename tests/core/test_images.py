"""Image sets: files and folders give the images that went in, and what is wrong is refused with its name and remedy."""

from __future__ import annotations

import pkgutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

import unlearn_core.data
from tests.processes import run
from unlearn_core.data import (
    LabelledSet,
    fingerprint,
    holds_images,
    load_dataset,
    load_image_file,
    load_images,
    save_image_file,
)
from unlearn_core.data.datasets import PUBLISHED
from unlearn_core.data.image_folder import load_image_folder
from unlearn_core.errors import BadInput
from unlearn_core.grid import LabelSpace

SHARED_EXAMPLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10_images_5k.npz"
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def good_arrays(n_classes: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(0, 256, size=(3 * n_classes, 5, 6, 3), dtype=np.uint8),
        "train_y": (np.arange(3 * n_classes) % n_classes).astype(np.int16),
        "test_images": rng.integers(0, 256, size=(5, 5, 6, 3), dtype=np.uint8),
        "test_y": np.array([0, 1, 2, 3, 0], dtype=np.int16),
    }


def optional_arrays() -> dict[str, np.ndarray]:
    return {
        "superclass": np.array([0, 0, 1, 1]),
        "class_names": np.array(["ant", "bee", "car", "dog"]),
        "ids": np.array([f"r{i}" for i in range(12)]),
    }


def write(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def test_round_trip(tmp_path):
    arrays = good_arrays() | optional_arrays()
    save_image_file(tmp_path / "again.npz", load_image_file(write(tmp_path / "set.npz", arrays)))
    again = load_image_file(tmp_path / "again.npz")
    for attribute, name in {
        "train_x": "train_images",
        "test_x": "test_images",
        "train_y": "train_y",
        "test_y": "test_y",
    }.items():
        np.testing.assert_array_equal(getattr(again, attribute), arrays[name])
    assert again.train_x.dtype == np.uint8
    assert again.train_y.dtype == np.int64
    for name in ("superclass", "ids"):
        np.testing.assert_array_equal(getattr(again, name), arrays[name])
    assert again.class_names == ("ant", "bee", "car", "dog")
    assert again.name == "again"
    assert again.n_classes(LabelSpace.SUPERCLASS) == 2
    np.testing.assert_array_equal(again.test_labels(LabelSpace.SUPERCLASS), [0, 0, 1, 1, 0])


def spoilt(name, value):
    return lambda arrays: arrays.__setitem__(name, value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            spoilt("train_images", np.zeros((12, 5, 6), np.uint8)),
            r"train_images has shape \(12, 5, 6\); it must be \(rows",
        ),
        (spoilt("train_images", np.zeros((12, 3, 5, 6), np.uint8)), r"train_images has shape \(12, 3, 5, 6\)"),
        (spoilt("test_images", np.zeros((0, 5, 6, 3), np.uint8)), r"test_images has shape \(0, 5, 6, 3\)"),
        (
            spoilt("train_images", np.zeros((12, 5, 6, 3), np.float32)),
            r"train_images has dtype float32; save pixels as",
        ),
        (spoilt("test_images", np.zeros((5, 6, 5, 3), np.uint8)), r"test_images are 6x5 and train_images 5x6; resize"),
        (
            spoilt("train_y", np.arange(11) % 4),
            r"train_y has shape \(11,\); it needs one label for each of the 12 rows",
        ),
        (spoilt("test_y", np.array([0, 1, 2, 9, 0])), r"test_y has 1 labels outside 0..3, the first is 9 in row 3"),
        (spoilt("train_x", np.ones(3)), r"unknown array 'train_x'; an image file holds train_images"),
        (spoilt("train_y", np.array([object()] * 12)), r"array 'train_y' is pickled \(dtype object\)"),
        (lambda arrays: arrays.pop("test_images"), r"array 'test_images' is missing; an image file needs"),
    ],
)
def test_refused(tmp_path, spoil, message):
    arrays = good_arrays() | optional_arrays()
    spoil(arrays)
    with pytest.raises(BadInput, match=message):
        load_image_file(write(tmp_path / "set.npz", arrays))


def test_missing_foreign_and_damaged_files_are_refused_by_name(tmp_path):
    with pytest.raises(BadInput, match=r"no image file at .*nowhere\.npz"):
        load_image_file(tmp_path / "nowhere.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(
        BadInput, match=r"text\.npz is not an \.npz archive; write it with numpy.savez or save_image_file"
    ):
        load_image_file(tmp_path / "text.npz")
    path = write(tmp_path / "set.npz", good_arrays())
    content = path.read_bytes()
    for at in range(100, 1000, 100):  # some of these break the compression, some only the checksum
        damaged = bytearray(content)
        damaged[at] ^= 0xFF
        path.write_bytes(bytes(damaged))
        with pytest.raises(BadInput, match=r"set\.npz: array 'train_images' (is damaged|cannot be read)"):
            load_image_file(path)


@pytest.mark.parametrize("file_name", ["cifar10_part.npz", "cifar10.npz"])
def test_a_file_named_after_cifar10_has_its_classes(tmp_path, file_name):
    images = load_image_file(write(tmp_path / file_name, good_arrays(n_classes=10)))
    assert images.name == "cifar10"
    assert images.class_names == CIFAR10_NAMES
    assert images.superclass is not None
    assert images.superclass.tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 1, 1]


def test_nothing_is_invented_for_other_files(tmp_path):
    ten, four = good_arrays(n_classes=10), good_arrays(n_classes=4)
    for file_name, arrays in {"cifar100_part.npz": ten, "mine_cifar10.npz": ten, "cifar10_few.npz": four}.items():
        images = load_image_file(write(tmp_path / file_name, arrays))
        assert images.superclass is None
        assert images.class_names == tuple(str(i) for i in range(images.n_fine))
    reordered = np.array(CIFAR10_NAMES[::-1])
    images = load_image_file(write(tmp_path / "cifar10_reordered.npz", ten | {"class_names": reordered}))
    assert images.class_names == CIFAR10_NAMES[::-1]
    assert images.superclass is None


@pytest.mark.skipif(not SHARED_EXAMPLE.exists(), reason="the shared CIFAR-10 sample is not on this machine")
def test_the_shared_sample_is_cifar10():
    images = load_images(str(SHARED_EXAMPLE), data_root=Path("unused"))
    assert images.name == "cifar10"
    assert images.train_x.shape == (5000, 32, 32, 3)
    assert images.class_names == CIFAR10_NAMES


def test_the_fingerprint_tells_data_apart_and_not_files(tmp_path):
    arrays = good_arrays()
    images = load_image_file(write(tmp_path / "set.npz", arrays))
    assert fingerprint(load_image_file(write(tmp_path / "copy.npz", arrays))) == fingerprint(images)
    for name, at in {"train_images": (0, 0, 0, 0), "test_images": (4, 4, 5, 2), "test_y": 4}.items():
        changed = arrays | {name: arrays[name].copy()}
        changed[name][at] ^= 1
        assert fingerprint(load_image_file(write(tmp_path / "set.npz", changed))) != fingerprint(images)


def write_folder(root: Path, sizes: dict[str, tuple[int, int]], mode: str = "RGB") -> Path:
    """Random images of the given (height, width) at the given places."""
    rng = np.random.default_rng(0)
    for place, (height, width) in sizes.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, size=(height, width, 3), dtype=np.uint8)).convert(mode).save(path)
    return root


PLACES = (
    "train/cat/b.png",
    "train/cat/a.PNG",
    "train/ant/1.png",
    "train/bus/x.bmp",
    "test/cat/a.png",
    "test/bus/0.tif",
)
ONE_SIZE: dict[str, tuple[int, int]] = dict.fromkeys(PLACES, (6, 7))
MIXED = {
    "train/cat/tall.png": (31, 20),
    "train/dog/wide.png": (9, 40),
    "test/cat/exact.png": (16, 16),
    "test/dog/odd.png": (17, 18),
}


def assert_same_as_torchvision(ours: LabelledSet, folder: Path, transform: Any = None) -> None:
    for part, x, y in (("train", ours.train_x, ours.train_y), ("test", ours.test_x, ours.test_y)):
        theirs = ImageFolder(folder / part, transform, allow_empty=True)
        assert len(theirs) == len(x)
        for row in range(len(x)):
            np.testing.assert_array_equal(x[row], np.asarray(theirs[row][0]))
        assert [ours.class_names[label] for label in y] == [theirs.classes[label] for label in theirs.targets]


@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_a_folder_of_one_size_is_kept_as_it_is(tmp_path, mode):
    folder = write_folder(tmp_path / "zoo", ONE_SIZE, mode)
    (folder / "train" / "cat" / ".DS_Store").write_text("left by a file browser")
    ours = load_image_folder(folder)
    assert ours.name == "zoo"
    assert ours.class_names == ("ant", "bus", "cat")
    assert ours.train_x.shape == (4, 6, 7, 3)
    assert ours.ids is not None
    assert ours.ids.tolist() == ["train/ant/1.png", "train/bus/x.bmp", "train/cat/a.PNG", "train/cat/b.png"]
    assert ours.superclass is None
    assert_same_as_torchvision(ours, folder)


def test_a_jpeg_is_decoded_as_torchvision_does(tmp_path):
    folder = write_folder(
        tmp_path, {"train/cat/a.jpg": (20, 30), "train/dog/a.JPEG": (20, 30), "test/cat/b.jpg": (20, 30)}
    )
    assert_same_as_torchvision(load_image_folder(folder), folder)


@pytest.mark.parametrize("size", [1, 7, 16, 33])
def test_resizing_is_torchvisions(tmp_path, size):
    folder = write_folder(tmp_path, MIXED)
    ours = load_image_folder(folder, size)
    assert ours.train_x.shape == (2, size, size, 3)
    assert_same_as_torchvision(ours, folder, transforms.Compose([transforms.Resize(size), transforms.CenterCrop(size)]))


def test_mixed_sizes_need_a_size(tmp_path):
    folder = write_folder(tmp_path, MIXED)
    with pytest.raises(BadInput, match=r"tall\.png is 31x20 and .*wide\.png is 9x40 .*--image-size"):
        load_image_folder(folder)
    with pytest.raises(BadInput, match="--image-size 0 is no size"):
        load_image_folder(folder, 0)


def test_superclasses_of_a_folder(tmp_path):
    folder = write_folder(tmp_path, ONE_SIZE)
    (folder / "superclasses.csv").write_text("\ufeffclass,superclass\ncat,pet\nant, animal\nbus,vehicle\n\n", "utf-8")
    superclass = load_image_folder(folder).superclass
    assert superclass is not None
    assert superclass.tolist() == [0, 2, 1]  # ant animal, bus vehicle, cat pet


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ant,animal\n", r"superclasses\.csv does not start with the line class,superclass"),
        ("", r"does not start with the line class,superclass"),
        ("class,superclass\nant,animal\nbus,vehicle\n", r"'cat' has no superclass; add a line for each of 3 classes"),
        ("class,superclass\nant,animal\n\nant,insect\n", r"line 4 gives 'ant' a second superclass"),
        ("class,superclass\ncow,animal\n", r"line 2 names 'cow', which is no class folder of train"),
        ("class,superclass\nant\n", r"line 2 has 1 fields"),
        ("class,superclass\n\xff", r"is not a CSV file in UTF-8"),
    ],
)
def test_unusable_superclasses_are_refused(tmp_path, text, message):
    folder = write_folder(tmp_path, ONE_SIZE)
    (folder / "superclasses.csv").write_bytes(text.encode("latin1"))
    with pytest.raises(BadInput, match=message):
        load_image_folder(folder)


def truncated(folder: Path) -> None:
    file = folder / "train/cat/b.png"
    file.write_bytes(file.read_bytes()[:-40])


def sixteen_bits(folder: Path) -> None:
    Image.fromarray(np.full((6, 7), 4000, np.uint16)).save(folder / "train/cat/b.png")


def emptied(folder: Path) -> None:
    (folder / "train/ant/1.png").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncated, r"train/cat/b\.png cannot be decoded \(.*\); replace it or delete it"),
        (lambda folder: (folder / "test/cat/a.png").write_text("hello"), r"test/cat/a\.png cannot be decoded"),
        (sixteen_bits, r"b\.png has pixels of mode I;16; save it with 8 bits per channel"),
        (emptied, r"train/ant holds no image; fill the folder or delete it"),
        (lambda folder: (folder / "test/cow").mkdir(), r"test/cow is no class of .*train"),
        (lambda folder: (folder / "train/stray.png").touch(), r"train/stray\.png is in no class"),
        (lambda folder: (folder / "train/cat/c.gif").touch(), r"train/cat/c\.gif is no image file \(\.png, "),
        (lambda folder: (folder / "train/cat/more").mkdir(), r"train/cat/more is no image file"),
        (
            lambda folder: (folder / "test").rename(folder / "valid"),
            r"test is missing; an image folder has train/CLASS",
        ),
        (
            lambda folder: (folder / "train").rename(folder / "old"),
            r"train is missing; an image folder has train/CLASS",
        ),
    ],
)
@pytest.mark.parametrize("size", [None, 6])
def test_unusable_folders_are_refused_by_the_file_at_fault(tmp_path, spoil, message, size):
    folder = write_folder(tmp_path, ONE_SIZE)
    spoil(folder)
    with pytest.raises(BadInput, match=message):
        load_image_folder(folder, size)


def test_an_empty_part_or_no_folder_is_refused(tmp_path):
    folder = write_folder(tmp_path / "zoo", {"train/cat/a.png": (4, 4)})
    (folder / "test").mkdir()
    with pytest.raises(BadInput, match="test is empty; it needs a folder of images for each class"):
        load_image_folder(folder)
    (folder / "test" / "cat").mkdir()
    with pytest.raises(BadInput, match="test holds no image"):
        load_image_folder(folder)
    with pytest.raises(BadInput, match=r"no image folder at .*nowhere"):
        load_image_folder(tmp_path / "nowhere")


def test_what_holds_images(tmp_path):
    image_file = write(tmp_path / "images.npz", good_arrays())
    feature_file = write(tmp_path / "features.npz", {"train_x": np.ones((2, 2))})
    (tmp_path / "text.npz").write_text("hello")
    assert all(holds_images(name) for name in ("cifar10", "cifar100", str(tmp_path), str(image_file)))
    missing = str(tmp_path / "missing.npz")
    others = ("digits", "mnist", str(feature_file), str(tmp_path / "text.npz"), missing)
    assert not any(holds_images(name) for name in others)


def test_load_images_reads_files_and_folders_by_path(tmp_path):
    path = write(tmp_path / "set.npz", good_arrays())
    assert fingerprint(load_images(str(path), tmp_path)) == fingerprint(load_image_file(path))
    folder = write_folder(tmp_path / "zoo", MIXED)
    assert fingerprint(load_images(str(folder), tmp_path, image_size=8)) == fingerprint(load_image_folder(folder, 8))


def test_load_images_looks_for_cifar_in_the_data_root(tmp_path):
    for name in PUBLISHED:
        with pytest.raises(BadInput, match=rf"{name} is not in {tmp_path}"):
            load_images(name, tmp_path)


def test_names_and_options_that_do_not_fit_are_refused(tmp_path):
    for load in (load_dataset, lambda name: load_images(name, tmp_path)):
        with pytest.raises(
            BadInput, match=r"unknown data set 'mnist'; there are digits, cifar10, cifar100, or give the path"
        ):
            load("mnist")
    with pytest.raises(BadInput, match="digits holds features"):
        load_images("digits", tmp_path)
    path = str(write(tmp_path / "set.npz", good_arrays()))
    for name in ("cifar10", path, str(tmp_path)):
        with pytest.raises(BadInput, match=f"{name} holds images"):
            load_dataset(name)
    with pytest.raises(BadInput, match=r"--image-size 32: the images of .*set\.npz are 5x6, and only image folders"):
        load_images(path, tmp_path, image_size=32)


def test_the_data_package_loads_without_the_libraries_of_its_loaders():
    light = {found.name for found in pkgutil.iter_modules(unlearn_core.data.__path__)} - {"backbones", "sketch"}
    assert {"datasets", "weights"} <= light
    code = "import " + ", ".join(f"unlearn_core.data.{name}" for name in sorted(light))
    assert loaded_after(code, {"torch", "torchvision", "timm", "PIL", "sklearn"}) == set()


def test_digits_are_read_and_identified_without_torch_or_scikit_learn():
    code = "from unlearn_core.data import fingerprint, load_dataset; fingerprint(load_dataset('digits'))"
    assert loaded_after(code, {"torch", "torchvision", "timm", "sklearn"}) == set()


def loaded_after(code: str, modules: set[str]) -> set[str]:
    """Which of some modules a fresh Python has loaded once it ran ``code``."""
    code = f"import sys; {code}; print(*({modules} & set(sys.modules)))"
    ended = run([sys.executable, "-c", code])
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())
