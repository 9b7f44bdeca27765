"""Arrays of an ``.npz`` without reading them: members that are not compressed are mapped where they lie in the file."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from unlearn_core.errors import BadInput

LOCAL_HEADER = struct.Struct("<26xHH")
"""Of a member's own header, the lengths of its name and extra field."""


def map_npz(path: Path, names: tuple[str, ...]) -> dict[str, NDArray]:
    """Those of the named arrays that the file holds; a compressed one is read whole."""
    found: dict[str, NDArray] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for name in names:
            try:
                member = archive.getinfo(f"{name}.npy")
            except KeyError:
                continue
            with archive.open(member) as packed:
                shape, fortran, dtype = _read_header(packed)
            if dtype.hasobject:
                raise BadInput(f"{path}: array {name!r} is pickled and is not loaded; save it as plain numbers")
            if member.compress_type != zipfile.ZIP_STORED or 0 in shape:
                with archive.open(member) as packed:
                    found[name] = npy.read_array(packed, allow_pickle=False)
                continue
            file.seek(member.header_offset)
            name_length, extra_length = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
            file.seek(name_length + extra_length, 1)
            _read_header(file)
            order = "F" if fortran else "C"
            found[name] = np.memmap(path, dtype, "c", file.tell(), shape, order)
    return found


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = npy.read_magic(file)
    return npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)
