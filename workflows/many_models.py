"""One subject, many models: a plan in TOML, a request per model as a step, one summary."""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tasks.executor import execute, find_cached
from tasks.state import State
from tasks.step import Kind, Step
from tasks.store import Store
from tracking.plan_page import DONE, HEAD, NOT_CONCERNED, RECORDS, plan_page
from unlearn_core.data.mapped import map_npz
from unlearn_core.errors import BadInput, first_line, printable
from unlearn_core.forgetting.certificate import FILE_NAME, NOT_UNLEARNED, file_sha256
from unlearn_core.forgetting.request import RecordList, find_rows, read_request
from workflows.layout import check_folder
from workflows.run import Machine, Workers

COLUMN = "id_column"
"""What a table says beside the options: the column of the request that has the model's own ids."""
OF_THE_PLAN = {"ids", "out", "plan", "local", "address", "workers", "dry-run", "help"}
"""Options that are the plan's, and not a model's."""
FILES = ("model", "weights", "logits", "data", "features")
NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}", re.ASCII)
STORE, REQUESTS, SUMMARY = "store", "requests", "summary.html"
FAILED, TO_DO = "failed", "to be done"


@dataclass(frozen=True)
class Model:
    """A table of the plan. ``options`` are those of ``unlearn forget``; their paths start at the plan's folder."""

    name: str
    folder: Path
    options: Mapping[str, Any]
    column: str | None

    def file(self, option: str) -> Path | None:
        value = self.options.get(option)
        path = None if value is None else self.folder / str(value)
        return path if path is not None and path.is_file() else None

    def missing(self) -> Path | None:
        """A file that the table names and that is not there; a model may be an address, PACKAGE.MODULE:FUNCTION."""
        for option in FILES:
            value = self.options.get(option)
            if value is not None and self.file(option) is None and (option != "model" or ":" not in str(value)):
                return self.folder / str(value)
        return None

    def arguments(self) -> list[str]:
        words: list[str] = []
        for name, value in self.options.items():
            if value is True:
                words.append(f"--{name}")
            elif value is not False:
                words += [f"--{name}", str(value)]
        return words


@dataclass(frozen=True)
class Row:
    """What came of one model: ``found`` of ``asked`` records are in its data; ``asked`` 0: it could not be looked at."""

    name: str
    found: int
    asked: int
    state: str
    said: str
    content: Mapping[str, Any] | None = None

    @property
    def share(self) -> str:
        return f"{self.found} of {self.asked}" if self.asked else ""


def run_many(arguments: argparse.Namespace, console: Console, options: Sequence[str]) -> int:
    """Forget the same records in every model of the plan. ``options``: the names of the options of ``forget``."""
    models = read_models(arguments.plan, set(options) - OF_THE_PLAN)
    out: Path = arguments.out.absolute()
    check_folder(out)
    requests = {model.name: _records(arguments.ids, model.column) for model in models}
    looked = {model.name: _look(model, requests[model.name]) for model in models}
    rows = {name: row for name, (row, _) in looked.items()}
    if all(row.state == NOT_CONCERNED for row in rows.values()):
        raise BadInput(
            f"{arguments.ids}: none of its records is in any of the {len(models)} models of {arguments.plan}"
        )
    if arguments.dry_run:
        _say(list(rows.values()), console)
        console.print("dry run: nothing was written")
        return _exit_code(rows.values())
    steps: dict[str, Step] = {}
    for model in models:
        name = model.name
        if rows[name].state == TO_DO:
            try:
                place = _write_request(out / REQUESTS / f"{name}.csv", looked[name][1], requests[name].by_row)
                step = _step(model, place, out / name)
                _note(step, place.with_suffix(".step"), out / name)
                steps[name] = step
            except (BadInput, OSError) as error:
                rows[name] = replace(rows[name], state=FAILED, said=first_line(error))
    state = _execute(steps, out, Machine(arguments.local, arguments.address, arguments.workers), console)
    for name, step in steps.items():
        rows[name] = _outcome(rows[name], out / name, state, step)
    _say(list(rows.values()), console)
    (out / SUMMARY).write_text(plan_page(arguments.ids.name, [_cells(row) for row in rows.values()]), encoding="utf-8")
    console.print(f"summary: {arguments.out / SUMMARY}", markup=False, highlight=False, soft_wrap=True)
    return _exit_code(rows.values())


def _exit_code(rows: Iterable[Row]) -> int:
    return 1 if any(row.state in (FAILED, NOT_UNLEARNED) for row in rows) else 0


def read_models(path: Path, known: set[str]) -> list[Model]:
    """The models of a plan: one table each, with the options of ``unlearn forget`` that are theirs."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"no plan at {path} ({error.strerror}); it is TOML with one table per model") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no TOML ({first_line(error)}); write one table per model") from error
    models = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise BadInput(f"{path}: {name!r} is no table; write one table per model, [{name}] with its options below")
        if not NAME.fullmatch(name) or name in (STORE, REQUESTS, SUMMARY):
            raise BadInput(f"{path}: a model cannot be called {printable(name)!r}; take letters, digits, - and _")
        options = {key.replace("_", "-"): value for key, value in table.items() if key != COLUMN}
        for key, value in options.items():
            if key not in known:
                raise BadInput(
                    f"{path}: [{name}] has the unknown option {printable(key)!r}; see 'unlearn forget --help'"
                )
            if not isinstance(value, bool | int | float | str):
                raise BadInput(f"{path}: {key} of [{name}] is a {type(value).__name__}; give a text or a number")
        if "data" not in options:
            raise BadInput(f"{path}: [{name}] has no data; name what the model was trained on")
        column = table.get(COLUMN)
        if column is not None and not isinstance(column, str):
            raise BadInput(f"{path}: {COLUMN} of [{name}] is the name of a column of --ids")
        model = Model(name, path.absolute().parent, options, column)
        if (missing := model.missing()) is not None:
            raise BadInput(
                f"{path}: [{name}] names {printable(str(missing))}, and there is no such file; mend the plan"
            )
        models.append(model)
    if not models:
        raise BadInput(f"{path} has no models; write one table per model")
    return models


def _records(path: Path, column: str | None) -> RecordList:
    """The request, or another column of it; a model's empty cells are records that it does not have."""
    if column is None:
        return read_request(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.DictReader(file, strict=True))
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no CSV that can be read ({first_line(error)}); {COLUMN} needs one") from error
    if not lines or column not in lines[0]:
        raise BadInput(f"{path} has no column {printable(column)!r}; mend {COLUMN} or the request")
    return RecordList(str(path), tuple(line[column] for line in lines if line[column]), by_row=column == "row")


def _look(model: Model, records: RecordList) -> tuple[Row, list[str]]:
    """Which of the records a model has; data that cannot be read are this model's failure, and no other's."""
    try:
        found = _found(model, records)
    except (BadInput, OSError) as error:
        return Row(model.name, 0, 0, FAILED, first_line(error)), []
    state, said = (TO_DO, TO_DO) if found else (NOT_CONCERNED, "has none of the records")
    return Row(model.name, len(found), len(set(records.names)), state, said), found


def _found(model: Model, records: RecordList) -> list[str]:
    """Those of the records that the model's data has."""
    place = model.file("data")
    if place is None:
        raise BadInput(f"no data at {model.folder / str(model.options['data'])}; mend the plan")
    try:
        arrays = map_npz(place, ("ids", "train_y"))
        n_rows, ids = len(arrays["train_y"]), arrays.get("ids")
    except (OSError, ValueError, KeyError, NotImplementedError, RuntimeError) as error:
        raise BadInput(f"{place} cannot be read ({type(error).__name__}: {first_line(error)})") from error
    if ids is not None and not records.by_row:
        known = {str(one) for one in ids}
        return [name for name in dict.fromkeys(records.names) if name in known]
    found = []
    for name in dict.fromkeys(records.names):
        try:
            find_rows(RecordList(records.source, (name,)), n_rows, None)
        except BadInput:
            continue
        found.append(name)
    return found


def _write_request(path: Path, names: Sequence[str], by_row: bool) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["row" if by_row else "id"])
        writer.writerows([name] for name in names)
    return path


def _step(model: Model, request: Path, out: Path) -> Step:
    files = {name: file_sha256(path) for name in FILES if (path := model.file(name)) is not None}
    files["request"] = file_sha256(request)
    config = {"method": model.name, "options": dict(model.options), "files": files, "out": str(out)}
    words = [*model.arguments(), "--ids", str(request), "--out", str(out)]
    return Step(
        Kind.REQUEST, config, hints={"arguments": words, "folder": str(model.folder), "out": str(out)}, alone=True
    )


def _note(step: Step, noted: Path, out: Path) -> None:
    """Note which step the model's folder is of; a certificate that another plan left there is no answer to this one."""
    if (out / FILE_NAME).is_file() and noted.is_file() and noted.read_text(encoding="utf-8") != step.id:
        raise BadInput(f"{out} holds the certificate of another request; remove it, or name another --out")
    noted.write_text(step.id, encoding="utf-8")


def _execute(steps: Mapping[str, Step], out: Path, machine: Machine, console: Console) -> State:
    store = Store(out / STORE)
    for name, step in steps.items():
        if store.has(step) and not (out / name / FILE_NAME).is_file():  # removed since: it is made again
            shutil.rmtree(store.path(step))
    state = State(list(steps.values()), *find_cached(list(steps.values()), store))
    if state.left:
        with (
            console.status(f"forgetting in {state.left} of {len(steps)} models"),
            Workers(store.root, machine) as workers,
        ):
            execute(state, workers.backend(), on_done=lambda _step: None, on_change=lambda _state: None)
    return state


def _outcome(row: Row, out: Path, state: State, step: Step) -> Row:
    failure = state.failures.get(step.id)
    if failure is not None:
        said = failure.reason.removeprefix("BadInput: ")
        return replace(row, state=NOT_UNLEARNED if said.startswith(NOT_UNLEARNED) else FAILED, said=said)
    try:
        content = json.loads((out / FILE_NAME).read_bytes())["certificate"]
    except (OSError, ValueError, KeyError) as error:
        return replace(row, state=FAILED, said=f"its certificate cannot be read ({first_line(error)})")
    said = content["outcome"] + (" (done before)" if step.id in state.cached else "")
    failed = content["outcome"] == NOT_UNLEARNED
    return replace(row, state=NOT_UNLEARNED if failed else DONE, said=said, content=content)


def _cells(row: Row) -> tuple[str, ...]:
    """What ``HEAD`` names."""
    numbers = ("", "", "")
    if row.content is not None:
        accuracy, kl = row.content["accuracy"], row.content["divergence"]["base_to_unlearned"]["forget"]
        shares = (
            f"{100 * accuracy['before'][part]:.2f} % -> {100 * accuracy['after'][part]:.2f} %"
            for part in ("retained", "forgotten")
        )
        numbers = (*shares, "inf" if kl is None else f"{kl:.4g}")
    return (row.name, row.state, row.share, *numbers, printable(row.said))


def _say(rows: Sequence[Row], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for name in HEAD[:-1]:
        table.add_column(name, no_wrap=name == RECORDS)
    for row in rows:
        table.add_row(*_cells(row)[:-1])
    console.print(table, markup=False)
    for row in rows:
        found = f"; {row.share} ids found in this model" if row.share else ""
        console.print(f"{row.name}: {printable(row.said)}{found}", markup=False, highlight=False, soft_wrap=True)
