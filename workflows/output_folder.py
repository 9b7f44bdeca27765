"""A folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from unlearn_core.errors import BadInput
from unlearn_core.forgetting.certificate import FILE_NAME


class OutputFolder:
    """Files are written into a folder beside or within ``out``, and take their places in it on ``commit``.

    Making that folder is also the proof that ``out`` can be written, before any work is done.
    """

    def __init__(self, out: Path, force: bool) -> None:
        self.out: Path = out.absolute()
        if (self.out / FILE_NAME).exists() and not force:
            raise BadInput(f"{out} already holds a certificate; name another --out, or write over it with --force")
        place = self.out
        while not os.path.lexists(place):
            place = place.parent
        if not place.is_dir():
            raise BadInput(f"cannot write to {out}: {place} is no folder; name another --out")
        try:
            self.staging: Path = Path(tempfile.mkdtemp(prefix=".unlearn-", dir=place))
        except OSError as error:
            raise BadInput(f"cannot write to {out} ({error.strerror or error}); name another --out") from error

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)

    def commit(self, obsolete: Iterable[str]) -> None:
        """Put the files in place, the certificate last: where it is, all is. What is ``obsolete`` and not new goes."""
        self.out.mkdir(parents=True, exist_ok=True)
        files = sorted(self.staging.iterdir(), key=lambda path: path.name == FILE_NAME)
        for name in set(obsolete) - {path.name for path in files}:
            (self.out / name).unlink(missing_ok=True)
        for path in files:
            path.replace(self.out / path.name)
