"""A prepared state: what requests on one model start from, computed once and kept in a folder.

The state belongs to one base model on one data set. ``state.json`` names both by hash and every file of the folder by hash,
size and time of change; it is written last, with its own hash. A request takes a file of the same size and time for the
same and reads any other again, so that its cost does not grow with D; ``check`` reads everything.

The training rows themselves stay where they are: a request reads its own, and a few retained ones, from their file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unlearn_core.clock import Stopwatch
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.certificate import file_sha256
from unlearn_core.preparations import (
    CROSSFIT,
    CURVATURE,
    DISCRIMINANT,
    FLOW,
    FOLD_NETWORKS,
    MOMENTS,
    PREPARATIONS,
    PROBE,
    YOUNG,
    Given,
    Kept,
    Per,
    arrays_of,
    kept_as,
    prepared_config,
)
from unlearn_core.request_kind import HeldoutView, view_heldout
from unlearn_core.within_budget import young_pays

if TYPE_CHECKING:
    from unlearn_core.forgetting.subject import Subject

FILE_NAME = "state.json"
FORMAT = "unlearn-state"
VERSION = 1
PARTS: tuple[str, ...] = (MOMENTS, DISCRIMINANT, CROSSFIT, CURVATURE, FLOW)
OPTIONAL: tuple[str, ...] = (PROBE, FOLD_NETWORKS, YOUNG)
"""What is prepared only if it is asked for: it takes long, and few requests start from it. A young network is prepared for
networks that have use for one (``young_pays``), too."""
HELDOUT, IDS, REMOVED = "heldout", "ids", "removed"
HELDOUT_ROWS = 4096
"""Held-out rows that a request looks at, evenly spread."""
MAPPED = {(CROSSFIT, "log_q"), (CROSSFIT, "folds"), (IDS, "order"), (PROBE, "factors"), (FOLD_NETWORKS, "log_q")}
"""Arrays that grow with D, or are large and seldom used."""
ORDERED = "iuU"
"""Kinds of ids that are found by bisection."""
MOST_REMOVED = 0.1
"""The share of D that earlier requests may have removed since: what is prepared has seen those rows."""


@dataclass(frozen=True)
class KnownFile:
    """A file as it was when it was last read whole."""

    sha256: str
    bytes: int
    changed: int
    """Nanoseconds, as the file system has it."""

    @staticmethod
    def of(path: Path) -> KnownFile:
        found = path.stat()
        return KnownFile(file_sha256(path), found.st_size, found.st_mtime_ns)

    def is_as_it_was(self, path: Path) -> bool:
        found = path.stat()
        return (found.st_size, found.st_mtime_ns) == (self.bytes, self.changed)


@dataclass(frozen=True, eq=False)
class PreparedState:
    """A state, opened. ``of_data`` and ``of_network`` hold what was prepared."""

    folder: Path
    document: Mapping[str, Any]
    of_data: Kept
    of_network: Kept
    heldout: HeldoutView | None
    heldout_rows: NDArray[np.int64]
    """(M,) which held-out rows a request looks at."""
    heldout_labels: NDArray[np.int64]
    log_heldout: Mapping[str, NDArray[np.float32]]
    """What is said of them: ``base`` (M, C) and ``folds`` (K, M, C)."""
    ids_order: NDArray[np.int64] | None = None
    """The rows in the order of their ids."""
    removed: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Rows, ascending, that were forgotten before it was prepared: no fold model and no curvature has seen them."""

    @property
    def base_sha256(self) -> str:
        return self.document["model"]["sha256"]

    @property
    def data_sha256(self) -> str:
        return self.document["data"]["sha256"]

    @property
    def arch(self) -> str | None:
        return self.document["model"]["arch"]

    @property
    def parts(self) -> list[str]:
        """What was prepared, held-out rows aside."""
        return list(self.document["parts"])

    @property
    def digest(self) -> str:
        """Of ``state.json``, which names every other file by its hash."""
        return hashlib.sha256((self.folder / FILE_NAME).read_bytes()).hexdigest()

    @property
    def bytes(self) -> int:
        return sum(file["bytes"] for file in self.document["files"].values())

    @property
    def frozen(self) -> tuple[str, ...]:
        """Parameters that a Newton step leaves as they are."""
        return self.of_network.values[CURVATURE].frozen

    @property
    def seconds(self) -> dict[str, float]:
        """What each part took to prepare."""
        return self.document["seconds"]

    def entry(self) -> dict[str, Any]:
        """As a certificate names it."""
        return {"sha256": self.digest, "made": self.document["made"], "parts": self.parts, "seconds": self.seconds}

    def known(self, path: Path) -> str | None:
        """The hash of a source file that has not changed since; None if it has to be read again."""
        known = self.document["sources"].get(str(path.resolve()))
        return None if known is None or not KnownFile(**known).is_as_it_was(path) else known["sha256"]

    def check(self) -> None:
        """Read every file whole and refuse one that is not as it was written."""
        for name, known in self.document["files"].items():
            if file_sha256(self.folder / name) != known["sha256"]:
                raise BadInput(f"{self.folder / name} is not as it was prepared; prepare the state again")
        for name, known in self.document["sources"].items():
            if not Path(name).is_file() or file_sha256(Path(name)) != known["sha256"]:
                raise BadInput(f"{name} is not what {self.folder} was prepared of; prepare the state again")

    def check_model(self, sha256: str) -> None:
        if sha256 != self.base_sha256:
            raise BadInput(
                f"{self.folder} was prepared of another model ({self.base_sha256[:12]}; this one is {sha256[:12]}); "
                "prepare this one"
            )

    def check_parts(self, method: str, needed: Sequence[str]) -> None:
        """Refuse a method that starts from a part that was not prepared."""
        if missing := [name for name in needed if name not in self.parts]:
            raise BadInput(
                f"{method} starts from the {missing[0]} of all rows, which {self.folder} does not hold; prepare it again "
                f"--with {missing[0]}, or leave --prepared out"
            )

    def check_rows(self, n_rows: int) -> None:
        if n_rows != (prepared := self.document["data"]["n_train"]):
            raise BadInput(f"{self.folder} was prepared of {prepared} rows and there are {n_rows}; prepare it again")

    def check_features(self, seen: str, shape: tuple[int, ...] | None) -> None:
        """Refuse features of another layer, or given ones of another width."""
        known, width = self.document["data"]["features"], self.document["data"]["n_features"]
        if seen != known or shape not in (None, (width,)):
            now = seen if seen != known else f"given, {shape}"
            raise BadInput(
                f"{self.folder} was prepared of {width} features ({known}) and these are others ({now}); give the same, "
                "or prepare it again"
            )

    def check_removed(self, forgotten: Sequence[int], n_rows: int) -> None:
        """Refuse a state that has seen too many of the rows that are forgotten by now."""
        n_seen = len(np.setdiff1d(np.asarray(forgotten, dtype=np.int64), self.removed))
        if n_seen > MOST_REMOVED * n_rows:
            raise BadInput(
                f"{len(forgotten)} of {n_rows} rows are forgotten by now, and {self.folder} was prepared with {n_seen} of "
                f"them in sight, more than {MOST_REMOVED:.0%}; prepare it again with the ledger, which leaves them out"
            )


def parts_to_prepare(arch: str | None, also: Sequence[str]) -> tuple[str, ...]:
    """What a state of a network holds, held-out rows aside, if some of ``OPTIONAL`` are asked for as well."""
    asked = {*also, YOUNG} if young_pays(arch) else {*also}
    return (*PARTS, *(name for name in OPTIONAL if name in asked))


def what_is_given(subject: Subject, arch: str | None, removed: Sequence[int]) -> Given:
    """What the parts of a state are computed from."""
    if subject.net is None:
        raise BadInput("a black box cannot be prepared: its logits are all that is known of it; give the network")
    gone = np.isin(np.arange(subject.problem.n_rows), removed) if len(removed) else None
    return Given(subject.problem, arch, subject.net, removed=gone)


def keep_state(
    subject: Subject,
    arch: str | None,
    out: Path,
    ids: NDArray | None = None,
    sources: Sequence[Path] = (),
    kept: Kept | None = None,
    removed: Sequence[int] = (),
    also: Sequence[str] = (),
) -> PreparedState:
    """Prepare a model on its data for requests, and keep it in a folder.

    Args:
        arch: the architecture's name, if it has one: fold models of a head are shaped like it.
        ids: (N,) the records' own names, all different.
        sources: the files that it all came from, to be known again without being read.
        kept: what is prepared already.
        removed: rows, ascending, that earlier requests removed.
        also: which of ``OPTIONAL`` to prepare.
    """
    given, kept, parts = what_is_given(subject, arch, removed), kept or Kept(), parts_to_prepare(arch, also)
    problem, watch = subject.problem, Stopwatch(given.network.device)
    arrays = {name: arrays_of(kept.get(name, given)) for name in parts}
    seconds = {name: kept.seconds[kept_as(name, arch)] for name in parts}
    if subject.heldout is not None:
        with watch.running():
            arrays[HELDOUT] = _of_heldout(subject, kept.get(CROSSFIT, given))
        seconds[HELDOUT] = watch.seconds
    if ids is not None and ids.dtype.kind in ORDERED:
        arrays[IDS] = {"order": np.argsort(ids, kind="stable")}
    if len(removed):
        arrays[REMOVED] = {"rows": np.asarray(removed, dtype=np.int64)}
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    for part, values in arrays.items():
        (unfinished / part).mkdir(parents=True)
        for name, value in values.items():
            np.save(unfinished / part / f"{name}.npy", value, allow_pickle=False)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "model": {"arch": arch, "sha256": subject.base_sha256},
        "data": {
            "sha256": subject.data_sha256,
            "n_train": problem.n_rows,
            "n_classes": problem.n_classes,
            "class_counts": problem.class_counts.tolist(),
            "n_features": subject.train.features.shape[1],
            "features": subject.seen_by_proxies,
        },
        "parts": {name: prepared_config(name, arch) for name in parts},
        "seconds": seconds,
        "files": {
            str(path.relative_to(unfinished)): asdict(KnownFile.of(path)) for path in sorted(unfinished.rglob("*.npy"))
        },
        "sources": {str(path.resolve()): asdict(KnownFile.of(path)) for path in sources},
    }
    document["digest"] = _digest(document)
    (unfinished / FILE_NAME).write_text(json.dumps(document, indent=1) + "\n")
    if out.exists():
        shutil.rmtree(out)
    os.replace(unfinished, out)
    return open_state(out)


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _of_heldout(subject: Subject, crossfit: Any) -> dict[str, NDArray]:
    """Held-out rows, evenly spread, class by class, as the tests of a request and the estimate of closeness see them."""
    points, labels = subject.heldout, subject.problem.test.labels
    assert points is not None
    rows = np.linspace(0, len(labels) - 1, min(len(labels), HELDOUT_ROWS)).astype(np.int64)
    rows = rows[np.argsort(labels[rows], kind="stable")]  # every second one is compared with: of every class then
    log_folds = crossfit.ask(points.features[rows])
    view = view_heldout(log_folds, labels[rows], points.features[rows])
    return {
        **arrays_of(view),
        "rows": rows,
        "labels_of_rows": labels[rows],
        "log_base": points.log_base[rows].astype(np.float32),
        "log_folds": log_folds,
    }


def open_state(folder: Path) -> PreparedState:
    """A state from its folder, checked; large files are mapped, the others are read."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise BadInput(f"no prepared state at {folder}; 'unlearn prepare' makes one")
    try:
        document = json.loads(path.read_text())
        if (document["format"], document["version"]) != (FORMAT, VERSION):
            raise BadInput(f"{path} is {document['format']} version {document['version']}; this is {FORMAT} {VERSION}")
        if document.pop("digest") != _digest(document):
            raise BadInput(f"{path} is not as it was written; prepare the state again")
        files = {name: KnownFile(**known) for name, known in document["files"].items()}
        arch = document["model"]["arch"]
        arrays: dict[str, dict[str, NDArray]] = {}
        for name, known in files.items():
            part, array = Path(name).parent.name, Path(name).stem
            arrays.setdefault(part, {})[array] = _read(folder / name, known, mapped=(part, array) in MAPPED)
        of_data, of_network = Kept(), Kept()
        parts = document["parts"]
        ours = {name: prepared_config(name, arch) for name in (*PARTS, *(name for name in OPTIONAL if name in parts))}
        if parts != json.loads(json.dumps(ours)):
            raise BadInput(f"{folder} was prepared by another version of this package; prepare it again")
        for name in parts:
            kept = of_network if PREPARATIONS[name].per is Per.NETWORK else of_data
            kept.values[kept_as(name, arch)] = PREPARATIONS[name].load(arrays[name])
            kept.seconds[kept_as(name, arch)] = document["seconds"][name]
    except (ValueError, KeyError, TypeError, OSError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is damaged ({type(error).__name__}: {error}); prepare the state again") from error
    held = arrays.get(HELDOUT)
    view, rows, labels, log_heldout = None, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), {}
    if held is not None:
        rows, labels = held.pop("rows"), held.pop("labels_of_rows")
        log_heldout = {"base": held.pop("log_base"), "folds": held.pop("log_folds")}
        view = HeldoutView(**held)
    order = arrays.get(IDS, {}).get("order")
    opened = PreparedState(folder, document, of_data, of_network, view, rows, labels, log_heldout, order)
    return replace(opened, removed=arrays[REMOVED]["rows"]) if REMOVED in arrays else opened


def _read(path: Path, known: KnownFile, mapped: bool) -> NDArray:
    if not known.is_as_it_was(path) and file_sha256(path) != known.sha256:
        raise BadInput(f"{path} is not as it was prepared; prepare the state again")
    return np.load(path, mmap_mode="c" if mapped else None, allow_pickle=False)
