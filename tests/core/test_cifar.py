"""CIFAR from its published files: torchvision reads the same, both versions agree, and nothing foreign is executed."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
import tarfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, CIFAR100

from unlearn_core.data import fingerprint
from unlearn_core.data.cifar import BINARY, PUBLISHED, BinaryVersion, load_cifar
from unlearn_core.errors import BadInput

TORCHVISION = {"cifar10": CIFAR10, "cifar100": CIFAR100}
NAMES = {
    "cifar10": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
    "cifar100": [f"kind_{i}" for i in range(100)],
}


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2 and its numpy wrote: all strings as BINSTRING, dtype flags as 0 and 1."""

    write: Any  # the stubs do not know it

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if not isinstance(obj, (str, bytes)):
            return super().save(obj, save_persistent_id)  # pyright: ignore[reportAttributeAccessIssue]
        data = obj.encode("latin1") if isinstance(obj, str) else obj
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, np.dtype):
            return NotImplemented
        make, (kind, *_), state = obj.__reduce__()  # pyright: ignore[reportAssignmentType]
        return make, (kind, 0, 1), state


def pickled_by_python_2(content: Any) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(content)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def pickled_by_numpy_2(content: Any) -> bytes:
    return pickle.dumps(content, protocol=4)


def md5(content: bytes | bytearray) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Rows:
    """Records as both versions store them: pixels channel by channel."""

    pixels: np.ndarray
    fine: np.ndarray
    coarse: np.ndarray


def make_rows(name: str, copies: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    published = PUBLISHED[name]
    fine = rng.permutation(np.tile(np.arange(published.n_fine), copies))
    pixels = rng.integers(0, 256, size=(len(fine), 3072), dtype=np.uint8)
    return Rows(pixels, fine, fine * 7 % published.n_super)


def split(rows: Rows, n_files: int) -> list[Rows]:
    parts = zip(*(np.array_split(array, n_files) for array in (rows.pixels, rows.fine, rows.coarse)), strict=True)
    return [Rows(*part) for part in parts]


@pytest.fixture(params=["cifar10", "cifar100"])
def name(request) -> str:
    return request.param


def train_and_test(name: str) -> tuple[Rows, Rows]:
    return make_rows(name, copies=3, seed=0), make_rows(name, copies=1, seed=1)


def write_python(root: Path, name: str, pickled=pickled_by_python_2, spoiled: dict[str, bytes] | None = None) -> Any:
    """Write the python version; gives the torchvision class that vouches for these files."""
    official = TORCHVISION[name]
    folder = root / official.base_folder
    folder.mkdir()

    def write(filename: str, content: Any) -> str:
        data = (spoiled or {}).get(filename) or pickled(content)
        (folder / filename).write_bytes(data)
        return md5(data)

    def write_part(rows: Rows, listed: list[list[str]]) -> list[list[str]]:
        sums = []
        for (filename, _), part in zip(listed, split(rows, len(listed)), strict=True):
            labels = (
                {"labels": part.fine.tolist()}
                if name == "cifar10"
                else {"fine_labels": part.fine.tolist(), "coarse_labels": part.coarse.tolist()}
            )
            sums.append([filename, write(filename, {"batch_label": filename, "data": part.pixels, **labels})])
        return sums

    train, test = train_and_test(name)
    meta = {official.meta["key"]: NAMES[name], "num_vis": 3072}
    overrides = {
        "train_list": write_part(train, official.train_list),
        "test_list": write_part(test, official.test_list),
        "meta": {**official.meta, "md5": write(official.meta["filename"], meta)},
    }
    return type("Small", (official,), overrides)


def write_binary(root: Path, name: str) -> BinaryVersion:
    version = BINARY[name]
    folder = root / version.folder
    folder.mkdir()
    for rows, files in zip(train_and_test(name), (version.train_files, version.test_files), strict=True):
        for filename, part in zip(files, split(rows, len(files)), strict=True):
            labels = [part.fine] if name == "cifar10" else [part.coarse, part.fine]
            records = np.column_stack([*(column.astype(np.uint8) for column in labels), part.pixels])
            (folder / filename).write_bytes(records.tobytes())
    (folder / version.names_file).write_text("\n".join(NAMES[name]) + "\n\n")
    return version


def pack(root: Path, folder: str, archive: str) -> str:
    """Turn a folder into the archive that holds it; gives its md5."""
    with tarfile.open(root / archive, "w:gz") as tar:
        tar.add(root / folder, arcname=folder)
    for file in (root / folder).iterdir():
        file.unlink()
    (root / folder).rmdir()
    return md5((root / archive).read_bytes())


def vouching(authority: Any, **overrides: Any) -> Any:
    return type("Vouching", (authority,), overrides)


@pytest.mark.parametrize("pickled", [pickled_by_python_2, pickled_by_numpy_2])
def test_torchvision_reads_the_same_images_and_labels(tmp_path, name, pickled):
    authority = write_python(tmp_path, name, pickled)
    ours = load_cifar(name, tmp_path, authority=authority)
    for part in ("train", "test"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy 2.4.0 to 2.4.4 warn of dtypes as old as these; ours must not
            theirs = authority(tmp_path, train=part == "train")
        np.testing.assert_array_equal(getattr(ours, f"{part}_x"), theirs.data)
        np.testing.assert_array_equal(getattr(ours, f"{part}_y"), theirs.targets)
        assert list(ours.class_names) == theirs.classes
    assert ours.name == name
    assert ours.train_x.flags.c_contiguous


def test_the_binary_version_is_the_same_data_set(tmp_path, name):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    python = load_cifar(name, tmp_path / "a", authority=write_python(tmp_path / "a", name))
    write_binary(tmp_path / "b", name)
    assert fingerprint(load_cifar(name, tmp_path / "b")) == fingerprint(python)


def test_superclasses(tmp_path):
    ten = load_cifar("cifar10", tmp_path, authority=write_python(tmp_path, "cifar10"))
    hundred = load_cifar("cifar100", tmp_path, authority=write_python(tmp_path, "cifar100"))
    assert ten.superclass is not None
    assert hundred.superclass is not None
    vehicles = {label for label, superclass in zip(ten.class_names, ten.superclass, strict=True) if superclass == 1}
    assert vehicles == {"airplane", "automobile", "ship", "truck"}
    np.testing.assert_array_equal(hundred.superclass, np.arange(100) * 7 % 20)


def test_class_names_are_known_for_cifar10_and_numbers_for_cifar100_where_their_file_is_missing(tmp_path, name):
    expected = NAMES[name] if name == "cifar10" else [str(i) for i in range(100)]
    authority = write_python(tmp_path, name)
    (tmp_path / authority.base_folder / authority.meta["filename"]).unlink()
    assert list(load_cifar(name, tmp_path, authority=authority).class_names) == expected
    (tmp_path / authority.base_folder).rename(tmp_path / "elsewhere")
    version = write_binary(tmp_path, name)
    (tmp_path / version.folder / version.names_file).unlink()
    assert list(load_cifar(name, tmp_path).class_names) == expected


@pytest.mark.parametrize("filename", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_changed_file_is_refused_by_name(tmp_path, filename):
    authority = write_python(tmp_path, "cifar10")
    file = tmp_path / authority.base_folder / filename
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(BadInput, match=rf"{filename} is damaged \(md5 {md5(content)}, published .*--download"):
        load_cifar("cifar10", tmp_path, authority=authority)


def test_files_that_torchvision_does_not_vouch_for_are_refused(tmp_path, name):
    write_python(tmp_path, name)
    first, published = TORCHVISION[name].train_list[0]
    with pytest.raises(BadInput, match=rf"{first} is damaged \(md5 .*, published {published}\)"):
        load_cifar(name, tmp_path)


def test_a_missing_file_is_named(tmp_path):
    authority = write_python(tmp_path, "cifar10")
    (tmp_path / authority.base_folder / "data_batch_5").unlink()
    with pytest.raises(
        BadInput, match=r"data_batch_5 is missing; delete .*cifar-10-batches-py and put cifar-10-python"
    ):
        load_cifar("cifar10", tmp_path, authority=authority)


@dataclass(frozen=True)
class Touch:
    """Unpickled without care, it makes a file."""

    path: Path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("filename", ["data_batch_1", "batches.meta"])
def test_a_file_that_would_act_is_refused_and_does_not_act(tmp_path, protocol, filename):
    """Even where its md5 is the expected one."""
    marker = tmp_path / "executed"
    harmful = pickle.dumps({"data": Touch(marker), "labels": []}, protocol=protocol)
    authority = write_python(tmp_path, "cifar10", spoiled={filename: harmful})
    with pytest.raises(BadInput, match=rf"{filename} is not loaded \(it asks for {os.name}\.system\)"):
        load_cifar("cifar10", tmp_path, authority=authority)
    assert not marker.exists()


@pytest.mark.parametrize("reference", [b"cnumpy\nload\n.", b"cnumpy\ndtype.__class__\n.", b"cbuiltins\neval\n."])
def test_no_other_name_is_admitted(tmp_path, reference):
    authority = write_python(tmp_path, "cifar10", spoiled={"data_batch_1": reference})
    with pytest.raises(BadInput, match=r"data_batch_1 is not loaded \(it asks for "):
        load_cifar("cifar10", tmp_path, authority=authority)


def test_a_truncated_binary_file_is_refused_by_name(tmp_path, name):
    version = write_binary(tmp_path, name)
    file = tmp_path / version.folder / version.train_files[-1]
    for size in (file.stat().st_size - 1, 0):
        os.truncate(file, size)
        record = 3072 + version.label_bytes
        with pytest.raises(BadInput, match=rf"{file.name} has {size} bytes, not a whole number of records of {record}"):
            load_cifar(name, tmp_path)
    file.unlink()
    with pytest.raises(BadInput, match=rf"{file.name} is missing; delete .* and put {version.archive} beside it"):
        load_cifar(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "at", "what"), [("cifar10", 0, "label"), ("cifar100", 0, "coarse label"), ("cifar100", 1, "label")]
)
def test_a_label_out_of_range_is_refused_with_its_record(tmp_path, name, at, what):
    version = write_binary(tmp_path, name)
    file = tmp_path / version.folder / version.test_files[0]
    content = bytearray(file.read_bytes())
    content[4 * (3072 + version.label_bytes) + at] = 200
    file.write_bytes(bytes(content))
    with pytest.raises(BadInput, match=rf"{file.name}: record 4 has the {what} 200, outside 0\.\."):
        load_cifar(name, tmp_path)


def test_a_class_of_two_superclasses_is_refused(tmp_path):
    version = write_binary(tmp_path, "cifar100")
    file = tmp_path / version.folder / "test.bin"
    content = bytearray(file.read_bytes())
    coarse, fine = content[:2]
    content[0] = (coarse + 1) % 20
    file.write_bytes(bytes(content))
    with pytest.raises(BadInput, match=rf"class {fine} has the coarse labels {coarse} and {content[0]}"):
        load_cifar("cifar100", tmp_path)


def test_a_wrong_number_of_class_names_is_refused(tmp_path):
    version = write_binary(tmp_path, "cifar10")
    (tmp_path / version.folder / version.names_file).write_text("cat\ndog\n")
    with pytest.raises(BadInput, match=r"batches\.meta\.txt has 2 class names, not 10"):
        load_cifar("cifar10", tmp_path)


def test_missing_data_says_what_to_put_where(tmp_path, name):
    archive = TORCHVISION[name].filename
    with pytest.raises(BadInput, match=rf"{name} is not in {tmp_path}; put {archive} there, .*--data-root.*--download"):
        load_cifar(name, tmp_path)
    with pytest.raises(BadInput, match="unknown CIFAR 'cifar1000'; there are cifar10, cifar100"):
        load_cifar("cifar1000", tmp_path)


def test_an_archive_is_extracted_once(tmp_path, name):
    authority = write_python(tmp_path, name)
    loose = load_cifar(name, tmp_path, authority=authority)
    authority = vouching(authority, tgz_md5=pack(tmp_path, authority.base_folder, authority.filename))
    packed = load_cifar(name, tmp_path, authority=authority)
    assert fingerprint(packed) == fingerprint(loose)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([authority.base_folder, authority.filename])
    (tmp_path / authority.filename).unlink()
    assert fingerprint(load_cifar(name, tmp_path, authority=authority)) == fingerprint(loose)


def test_a_binary_archive_is_extracted(tmp_path, name):
    version = write_binary(tmp_path, name)
    loose = load_cifar(name, tmp_path)
    version = replace(version, md5=pack(tmp_path, version.folder, version.archive))
    assert fingerprint(load_cifar(name, tmp_path, binary=version)) == fingerprint(loose)


def test_a_damaged_archive_is_refused_by_name_and_not_extracted(tmp_path, name):
    authority, version = TORCHVISION[name], BINARY[name]
    for archive, published in ((version.archive, version.md5), (authority.filename, authority.tgz_md5)):
        (tmp_path / archive).write_bytes(b"half an arch")
        with pytest.raises(BadInput, match=rf"{archive} is damaged \(md5 .*, published {published}\)"):
            load_cifar(name, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {authority.filename, version.archive}


def a_link() -> tarfile.TarInfo:
    link = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    link.type, link.linkname = tarfile.SYMTYPE, "../../outside"
    return link


@pytest.mark.parametrize(
    "member", [tarfile.TarInfo("../../outside"), tarfile.TarInfo("/tmp/outside"), a_link()], ids=lambda m: m.name
)
def test_an_archive_that_writes_outside_its_folder_is_refused(tmp_path, member):
    root = tmp_path / "root"
    root.mkdir()
    with tarfile.open(root / CIFAR10.filename, "w:gz") as tar:
        tar.addfile(member, io.BytesIO())
    authority = vouching(CIFAR10, tgz_md5=md5((root / CIFAR10.filename).read_bytes()))
    with pytest.raises(BadInput, match=r"cifar-10-python\.tar\.gz cannot be extracted to .*outside the destination"):
        load_cifar("cifar10", root, authority=authority)
    assert not (tmp_path / "outside").exists()
    assert [path.name for path in root.iterdir()] == [CIFAR10.filename]


@pytest.fixture
def served(tmp_path, monkeypatch) -> Iterator[str]:
    """The address at which ``tmp_path`` is served on this machine."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_download_fetches_the_archive_and_reads_it(tmp_path, served, name):
    authority = write_python(tmp_path, name)
    loose = load_cifar(name, tmp_path, authority=authority)
    checksum = pack(tmp_path, authority.base_folder, authority.filename)
    authority = vouching(authority, url=f"{served}/{authority.filename}", tgz_md5=checksum)
    root = tmp_path / "new" / "root"
    assert fingerprint(load_cifar(name, root, download=True, authority=authority)) == fingerprint(loose)
    assert sorted(path.name for path in root.iterdir()) == sorted([authority.base_folder, authority.filename])


def test_a_failed_download_is_one_line_and_leaves_nothing(tmp_path, served):
    (tmp_path / "other").write_text("not the archive")
    root = tmp_path / "root"
    for url in (f"{served}/nowhere", f"{served}/other", "http://127.0.0.1:1/refused"):
        authority = vouching(CIFAR10, url=url)
        with pytest.raises(BadInput, match=rf"--download tried {url} and failed .*; get {CIFAR10.filename} .* {root}$"):
            load_cifar("cifar10", root, download=True, authority=authority)
        assert list(root.iterdir()) == []
