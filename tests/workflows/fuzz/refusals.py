"""Holds that every case is refused in a line, ends in no traceback and leaves no file behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.commands import unlearn
from tests.workflows.fuzz.cases import Case


def assert_refused(folder: Path, cases: Iterable[Case]) -> None:
    wrong = []
    for case in cases:
        with _bad_file(folder, case):
            before = _everything_in(folder)
            ended = unlearn(*case.arguments)
            code, said = ended.returncode, ended.stderr
            if code not in ((1, 2) if case.arguments[:1] == ("verify",) else (2,)):
                wrong.append((case, code, said))
                break  # for what it wrote may be why the next ones are refused
            elif _everything_in(folder) != before:
                wrong.append((case, "left", _everything_in(folder) ^ before))
            elif code == 2 and not 1 <= len(said.splitlines()) <= (2 if "usage:" in said else 1):
                wrong.append((case, "lines", said))
    shown = "\n".join(f"{str(case)[:300]}: {code} {str(said)[:300]}" for case, code, said in wrong[:20])
    assert not wrong, f"{len(wrong)} of them:\n{shown}"


def _everything_in(folder: Path) -> set[tuple[str, int, int]]:
    found = set()
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            state = os.lstat(place := os.path.join(path, name))
            found.add((place, state.st_size, 0 if name in folders else state.st_mtime_ns))
    return found


@contextlib.contextmanager
def _bad_file(folder: Path, case: Case) -> Iterator[None]:
    if case.file is None:
        yield
        return
    place = folder / case.file
    place.parent.mkdir(parents=True, exist_ok=True)
    before = place.read_bytes() if place.exists() else None
    place.write_bytes(case.content)
    try:
        yield
    finally:
        place.unlink() if before is None else place.write_bytes(before)
