"""Read ``.npz`` files of plain arrays: nothing is unpickled, and what is wrong is refused by its name.

What a file would take in memory is known from its headers, and refused before anything is read.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError

from numpy.lib import format as npy
from numpy.typing import NDArray

from unlearn_core.errors import BadInput, first_line

INFLATES = 200.0
"""Plain numbers are not compressed more than so many times, unless they are all alike."""
SMALL = 1 << 26
"""Bytes below which nobody minds."""
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, OverflowError, UnicodeError)
"""What damaged, encrypted and foreign archives end in."""
NO_ARRAY = (ValueError, TypeError, SyntaxError, KeyError, TokenError)
"""What a member that is no array ends in."""


def read_npz(
    path: Path,
    kind: str,
    required: Sequence[str],
    optional: Sequence[str] | None = None,
    writer: str = "numpy.savez",
) -> dict[str, NDArray]:
    """The arrays of a file that holds all it must.

    Args:
        kind: what the file is, for messages, such as "feature set".
        optional: the only other arrays that it may hold. None: others may be there, and are not read.
        writer: what writes such a file, for messages.
    """
    a_kind = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    if not path.is_file():
        raise BadInput(f"no {kind} at {path}; it is an .npz with {', '.join(required)}")
    with opened_zip(path, writer) as opened:
        members = _members(opened, path)
        names = set(members)
        if optional is None:
            names &= set(required)
        elif unknown := sorted(names - set(required) - set(optional)):
            raise BadInput(
                f"{path}: unknown array {unknown[0]!r}; {a_kind} holds {', '.join(required)} and optionally "
                f"{', '.join(optional)}"
            )
        if absent := [name for name in required if name not in names]:
            raise BadInput(f"{path}: array {absent[0]!r} is missing; {a_kind} needs {', '.join(required)}")
        check_memory([members[name] for name in names], path)
        for name in names:
            _check_header(opened, members[name], name, path)
        return {name: _read_array(opened, members[name], name, path) for name in names}


def npz_names(path: Path) -> set[str]:
    """The names of a file's arrays; none if it is no archive, which reading it will say."""
    if not zipfile.is_zipfile(path):
        return set()
    with opened_zip(path) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist()}


@contextmanager
def opened_zip(path: Path, writer: str = "numpy.savez") -> Iterator[zipfile.ZipFile]:
    """A zip archive; what is none, or is damaged, is refused."""
    if not zipfile.is_zipfile(path):
        raise BadInput(f"{path} is not an .npz archive; write it with {writer}")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except DAMAGE as error:
        raise BadInput(f"{path} is a damaged .npz archive ({first_line(error)}); write it with {writer}") from error


def _members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """The arrays of an archive by name."""
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name in found:
            raise BadInput(f"{path}: array {name!r} is there twice; write the file again")
        if member.flag_bits & 1:
            raise BadInput(f"{path}: array {name!r} is encrypted; write the file without a password")
        found[name] = member
    return found


def check_memory(members: Sequence[zipfile.ZipInfo], path: Path) -> None:
    """Refuse what would inflate to many times its size, or would not fit into this machine."""
    size = sum(member.file_size for member in members)
    stored = sum(member.compress_size for member in members)
    if size > SMALL and size > INFLATES * stored:
        raise BadInput(
            f"{path} holds {stored} bytes that inflate to {size}, {size / max(stored, 1):.0f} times as much; no data is so "
            "uniform: write it again with numpy.savez"
        )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise BadInput(f"{path} holds {size} bytes, and this machine has a memory of {memory}; take fewer rows")


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, path: Path) -> None:
    """An array must be as large as its header says, or numpy would make room for what is not there."""
    try:
        with archive.open(member) as file:
            read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read(file)
            whole = file.tell() + math.prod(shape) * dtype.itemsize == member.file_size
    except (*DAMAGE, *NO_ARRAY, MemoryError):
        return  # reading it will say what is wrong with it
    if not whole and not dtype.hasobject:
        raise BadInput(
            f"{path}: array {name!r} is damaged (its header says {shape} of {dtype}, and it holds {member.file_size} bytes)"
            "; write the file again"
        )


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, path: Path) -> NDArray:
    try:
        with archive.open(member) as file:
            return npy.read_array(file, allow_pickle=False)
    except DAMAGE as error:
        raise BadInput(f"{path}: array {name!r} is damaged ({first_line(error)}); write the file again") from error
    except NO_ARRAY as error:
        if "allow_pickle" not in str(error):
            raise BadInput(
                f"{path}: array {name!r} cannot be read ({first_line(error)}); write the file again"
            ) from error
        raise BadInput(
            f"{path}: array {name!r} is pickled (dtype object) and is not loaded; save it as plain numbers or strings"
        ) from error
