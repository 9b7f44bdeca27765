"""Read ``.npz`` files of plain arrays: nothing is unpickled, and what is wrong is refused by its name."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput


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
    if not zipfile.is_zipfile(path):
        raise BadInput(f"{path} is not an .npz archive; write it with {writer}")
    with np.load(path, allow_pickle=False) as archive:
        names = set(archive.files)
        if optional is None:
            names &= set(required)
        elif unknown := sorted(names - set(required) - set(optional)):
            raise BadInput(
                f"{path}: unknown array {unknown[0]!r}; {a_kind} holds {', '.join(required)} and optionally "
                f"{', '.join(optional)}"
            )
        if absent := [name for name in required if name not in names]:
            raise BadInput(f"{path}: array {absent[0]!r} is missing; {a_kind} needs {', '.join(required)}")
        return {name: _read_array(archive, name, path) for name in names}


def _read_array(archive: np.lib.npyio.NpzFile, name: str, path: Path) -> NDArray:
    try:
        array = archive[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise BadInput(f"{path}: array {name!r} cannot be read ({error}); write the file again") from error
        raise BadInput(
            f"{path}: array {name!r} is pickled (dtype object) and is not loaded; save it as plain numbers or strings"
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BadInput(f"{path}: array {name!r} is damaged ({error}); write the file again") from error
    if not isinstance(array, np.ndarray):  # numpy gives the bytes of a member that is no .npy
        raise BadInput(f"{path}: {name!r} is not a numpy array; write the file with numpy.savez")
    return array
