"""Write the files of a request so that they appear together or not at all; with a ledger, when the ledger takes the request.

Files are written into a scratch folder and take their places at the end, the certificate last. With a ledger, its new
entry is what makes the request count; a note in its folder, ``delivery-0003.json``, says where the files of request 3
wait and where they go. A process that dies leaves the note. The same command, given again, finds it: if the ledger
has the entry, it puts the files in place; if not, it removes them and begins anew.

One request at a time writes into a folder: it holds the folder's lock (``hold_output``).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from unlearn_core.durable import replace_text, sync
from unlearn_core.errors import BadInput, first_line
from unlearn_core.forgetting.certificate import FILE_NAME, Certificate, read_certificate
from unlearn_core.forgetting.ledger import Entry, Ledger
from unlearn_core.forgetting.locks import FileLock, NoLocks, hold_folder
from unlearn_core.forgetting.model_files import OUTPUT_NAMES
from unlearn_core.forgetting.scratch import NAME, Keep, Scratch, clean_scratch, remove_scratch

NOTE = re.compile(r"delivery-[0-9]+\.json")


@dataclass(frozen=True)
class Delivery:
    """The note: files in ``scratch`` that go to ``out`` if the ledger has the certificate."""

    note: Path
    certificate: str
    scratch: Path
    out: Path

    def write(self) -> None:
        content = {"certificate": self.certificate, "scratch": str(self.scratch), "out": str(self.out)}
        replace_text(self.note, json.dumps(content, indent=1) + "\n")

    @staticmethod
    def read_all(ledger: Path) -> Iterator[Delivery]:
        """Those of a ledger that can be read; they say where things are, and are not believed further than that."""
        for path in sorted(ledger.glob("delivery-*.json")):
            try:
                known = json.loads(path.read_bytes())
                delivery = Delivery(path, known["certificate"], Path(known["scratch"]), Path(known["out"]))
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue
            if NOTE.fullmatch(path.name) and NAME.fullmatch(delivery.scratch.name):
                yield delivery


def hold_output(out: Path) -> contextlib.AbstractContextManager[None]:
    """Hold a folder against other requests; whoever comes second is refused, for the first leaves a certificate there."""

    def take(lock: FileLock) -> None:
        with contextlib.suppress(NoLocks):  # it is written all the same
            if not lock.acquire():
                raise BadInput(f"{out} is being written by {lock.holder()}; name another --out, or try again later")

    return hold_folder(out, f"to {out}", take)


class OutputFolder:
    """Files are written into ``staging``, a folder within ``out``, and take their places in it on ``commit``.

    Making that folder is also the proof that ``out`` can be written, before any work is done. What dead processes
    left there is removed. ``out`` and ``ledger`` must be held by the caller.
    """

    def __init__(self, out: Path, force: bool, ledger: Path | None = None) -> None:
        self.out: Path = out.absolute()
        self._ledger: Path | None = None if ledger is None else ledger.resolve()
        self._delivery: Delivery | None = None
        self._committed: bool = False
        if (self.out / FILE_NAME).exists() and not force:
            raise BadInput(f"{out} already holds a certificate; name another --out, or write over it with --force")
        _clean(self.out)
        try:
            self._scratch: Scratch = Scratch(self.out, "" if self._ledger is None else str(self._ledger))
        except OSError as error:
            raise BadInput(f"cannot write to {out} ({error.strerror or error}); name another --out") from error
        self.staging: Path = self._scratch.path

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._delivery is not None and not self._committed and self._counts(self._delivery):
            self._scratch.leave()  # the ledger has it, and it is not in place: the same command goes on from here
            return
        if self._delivery is not None:  # before its files, which the next run removes if nothing speaks for them
            self._delivery.note.unlink(missing_ok=True)
        self._scratch.remove()

    def _counts(self, delivery: Delivery) -> bool:
        """Whether the ledger has the request; also if that cannot be told."""
        try:
            return Ledger.read(delivery.note.parent).find(delivery.certificate) is not None
        except (BadInput, OSError):
            return True

    def announce(self, number: int, certificate: str) -> None:
        """All files are written: wait until they are on the disk and note, in the ledger's folder, where they are to go."""
        for path in (*self.staging.iterdir(), self.staging):
            sync(path)
        if self._ledger is not None:
            note = self._ledger / f"delivery-{number:04d}.json"
            self._delivery = Delivery(note, certificate, self.staging.resolve(), self.out.resolve())
            self._delivery.write()

    def commit(self, obsolete: Iterable[str]) -> None:
        """Put the files in place, the certificate last: where it is, all is. What is ``obsolete`` and not new goes."""
        _place(self.staging, self.out, obsolete)
        self._committed = True


def _place(staging: Path, out: Path, obsolete: Iterable[str]) -> None:
    files = sorted(staging.iterdir(), key=lambda path: path.name == FILE_NAME)
    for name in set(obsolete) - {path.name for path in files}:
        (out / name).unlink(missing_ok=True)
    for path in files:
        path.replace(out / path.name)
    sync(out)


def _clean(out: Path) -> None:
    """Remove what dead processes left in a folder, and beside it, where it was written before folders were held."""
    for left in (out, out.parent):
        clean_scratch(left, _is_awaited)


def _is_awaited(scratch: Path, ledger: str) -> bool:
    """Whether a dead process's folder holds what is to be delivered: its ledger's note says so, or the ledger is away."""
    if not ledger:
        return False
    if not Path(ledger).is_dir():
        return (scratch / FILE_NAME).exists()
    return any(delivery.scratch.name == scratch.name for delivery in Delivery.read_all(Path(ledger)))


def settle(ledger: Ledger, out: Path) -> None:
    """Finish or undo what interrupted requests of a ledger left.

    What the ledger has not taken is undone. What it has taken is put in place if it was meant for ``out``, and else
    waits for its own command. The ledger must be held.
    """
    for delivery in Delivery.read_all(ledger.folder.resolve()):
        entry = ledger.find(delivery.certificate)
        if entry is not None and delivery.out != out.resolve():
            continue
        if entry is not None:
            _finish(delivery)
        delivery.note.unlink(missing_ok=True)
        remove_scratch(delivery.scratch, _is_another_ledgers(ledger.folder))
    _clean(out.absolute())


def request_in(out: Path, ledger: Ledger) -> tuple[Entry, Certificate] | None:
    """The request of the ledger whose certificate a folder holds."""
    try:
        certificate = read_certificate(out / FILE_NAME)
    except BadInput:
        return None
    entry = ledger.find(certificate.digest)
    return None if entry is None else (entry, certificate)


def _finish(delivery: Delivery) -> None:
    """Put files in place that are of the certificate which the ledger has, and no others."""
    waits = delivery.scratch / FILE_NAME
    place = waits if waits.exists() else delivery.out / FILE_NAME
    try:
        certificate = read_certificate(place)
    except BadInput as error:
        raise BadInput(
            f"the ledger has a request whose files are neither in {delivery.scratch} nor in {delivery.out} "
            f"({first_line(error)}); restore them, or remove {delivery.note} to go on without them"
        ) from error
    ours = OUTPUT_NAMES | {file.path for file in certificate.files}
    strange = [path.name for path in delivery.scratch.glob("*") if path.name not in ours]
    if certificate.digest != delivery.certificate or strange:
        what = f"has {strange[0]}, which is not part" if strange else "is not the certificate"
        raise BadInput(f"{place.parent} {what} of what {delivery.note} announces; remove that note to go on without it")
    if waits.exists():
        _place(delivery.scratch, delivery.out, OUTPUT_NAMES)


def _is_another_ledgers(ledger: Path) -> Keep:
    """A note in one ledger is no reason to remove the folder of another."""
    return lambda folder, note: note != str(ledger.resolve())
