"""What does a deletion request on a prepared state cost, and does it grow with the data?

Generated features (N x 384, ten classes, a tenth of the labels drawn at random so that a head has something to memorise)
lie in an ``.npz`` that is mapped, as the command line does. An mlp1 is trained on them and prepared; then requests for a few
random records are carried out: model, data and state opened from their files, records found by id, their kind tested, the
step, closeness and measurements, the certificate. "With files" is the whole command, with what it writes. Beside it are one
epoch of ``short``, a retrain of 50 epochs and a request without a state.

CPU seconds of one thread, imports excluded, the best of some turns with other records each. Memory is the peak of a process
that does nothing else, imports included (the first line), sampled; in brackets with the pages of mapped files, which the
system may take back. Of more than 50,000 rows one epoch of a retrain is timed and multiplied, and the base makes only as
many steps as 50 epochs of 50,000 rows have: what a request costs does not depend on it. The test of kinds takes one random
request in twenty for a group, which then gets a retrain cut short: such turns are named and not timed. Within ``--budget``
(5 %) a request goes on from the Newton step to what fold models say; with 0.5 % it ends with the step.

    python -m benchmarks.requests [--rows 50000 200000 1000000] [--records 1 50 500] [--budget 0.05] [--folder KEPT]
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from rich.console import Console
from threadpoolctl import threadpool_limits

from unlearn_core.auto import DEFAULT_BUDGET
from unlearn_core.baselines.short import SHORT
from unlearn_core.data.feature_set import FeatureSet, load_feature_set
from unlearn_core.data.weights import save_safetensors
from unlearn_core.forgetting.forget import forget
from unlearn_core.forgetting.model_files import load_model
from unlearn_core.forgetting.opening import Heldout, prepare
from unlearn_core.grid import head_widths
from unlearn_core.methods import cut_short
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.make import blueprint
from unlearn_core.problem import as_inputs
from unlearn_core.recipes import HEAD_EPOCHS, HEAD_TRAINING, Recipe, Visit, training_recipe
from unlearn_core.training import Member, train
from workflows.cli import build_parser

DIM, CLASSES, N_HELDOUT, NOISE, CHUNK = 384, 10, 10_000, 0.1, 50_000
TIMED_WHOLE = 50_000
"""Up to so many rows a retrain is timed whole, and a request is also made without a state."""
TURNS = 7
WATCHED_EVERY = 0.01
"""Seconds between two looks at the memory."""
DATA, BASE, STATE = "data.npz", "base.safetensors", "state"


@dataclass(frozen=True)
class Cost:
    seconds: float
    note: str = ""
    megabytes: float = 0.0
    with_mapped: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 50_000], help="sizes of the data")
    parser.add_argument("--records", type=int, nargs="+", default=[1, 50, 500], help="sizes of the requests")
    parser.add_argument("--folder", type=Path, help="keep data, base and state here, and use those that it has")
    parser.add_argument("--budget", type=float, default=DEFAULT_BUDGET, help="share of a retrain that auto may spend")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = options.folder or Path(temporary)
        costs = {rows: measure(place, rows, options.records, options.budget) for rows in options.rows}
    print_ratios(costs, options.records)


def measure(place: Path, rows: int, records: Sequence[int], budget: float) -> dict[str, Cost]:
    """All costs for one size of data; a table of them is printed as they come."""
    folder = place / str(rows)
    folder.mkdir(parents=True, exist_ok=True)
    print(f"\n{f'{rows} rows x {DIM}':30} {'CPU s':>9}   peak MB", flush=True)
    found: dict[str, Cost] = {}

    def note(name: str, cost: Cost) -> None:
        found[name] = cost
        memory = f"{cost.megabytes:9.0f} {f'({cost.with_mapped:.0f})':>7}"
        print(f"  {name:28} {cost.seconds:9.3f} {memory}   {cost.note}", flush=True)

    whole = rows <= TIMED_WHOLE
    note("imports", apart(nothing)(folder))
    _kept(folder, "data", lambda: apart(make_data, rows))
    _kept(folder, "base", lambda: apart(train_base, max(1, HEAD_EPOCHS * min(rows, TIMED_WHOLE) // rows)))
    note("retrain", _kept(folder, "retrain", lambda: apart(retrain, 500, HEAD_EPOCHS if whole else 1)))
    note("short 1", _kept(folder, "short", lambda: apart(short, 500)))
    note("prepare", _kept(folder, "prepare", lambda: apart(prepare_state)))
    for count in records:
        note(f"request, {count} records", apart(prepared_request, count, budget)(folder))
        note(f"  with files, {count} records", apart(written_request, count, budget)(folder))
    if whole:
        note("no state, 50 records", _kept(folder, "plain", lambda: apart(plain_request, 50)))
    return found


def print_ratios(costs: dict[int, dict[str, Cost]], records: Sequence[int]) -> None:
    print("\nratios")
    for rows, of in costs.items():
        retrain = of["retrain"].seconds
        shares = ", ".join(f"{of[f'request, {n} records'].seconds / retrain:.2%} ({n})" for n in records)
        print(f"{rows:9} rows: request / retrain {shares} (target at 50,000 rows: at most 1 %)")
        print(f"{'':9}       prepare / training {of['prepare'].seconds / retrain:.0%} (target: at most 40 %)")
    if len(costs) > 1:
        few, many = min(costs), max(costs)
        for n in records:
            name = f"request, {n} records"
            ratio = costs[many][name].seconds / costs[few][name].seconds
            print(f"request of {n}, {many} rows / {few} rows: {ratio:.2f} (target: at most 1.5)")


def apart(work: Callable[..., Cost], *arguments: Any) -> Callable[[Path], Cost]:
    """The work in a process of its own, whose peak memory is then the work's."""

    def run(folder: Path) -> Cost:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(_alone, work, folder, arguments).result()

    return run


def _alone(work: Callable[..., Cost], folder: Path, arguments: Sequence[Any]) -> Cost:
    torch.set_num_threads(1)
    peak, done = [_megabytes("RssAnon")], threading.Event()

    def watch() -> None:
        while not done.wait(WATCHED_EVERY):
            peak[0] = max(peak[0], _megabytes("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with threadpool_limits(1):
            cost = work(folder, *arguments)
    finally:
        done.set()
        watcher.join()
    return replace(cost, megabytes=peak[0], with_mapped=_megabytes("VmHWM"))


def _megabytes(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{what}:"))


def _kept(folder: Path, name: str, run: Callable[[], Callable[[Path], Cost]]) -> Cost:
    """What was measured before in this folder, or now."""
    file = folder / f"{name}.json"
    if not file.exists():
        file.write_text(json.dumps(asdict(run()(folder))))
    return Cost(**json.loads(file.read_text()))


def nothing(folder: Path) -> Cost:
    return Cost(0.0)


def make_data(folder: Path, rows: int) -> Cost:
    """Written piece by piece, as ``save_feature_set`` would."""
    rng = np.random.default_rng(0)
    centres = (0.25 * rng.normal(size=(CLASSES, DIM))).astype(np.float32)
    labels = {part: rng.permutation(np.arange(count) % CLASSES) for part, count in _parts(rows)}
    arrays = {f"{part}_y": np.where(_redrawn(rng, y), rng.permutation(y), y) for part, y in labels.items()}
    arrays |= {"class_names": np.array([str(c) for c in range(CLASSES)]), "ids": 7 * rng.permutation(rows)}
    with zipfile.ZipFile(folder / DATA, "w") as archive:
        for part, count in _parts(rows):
            with archive.open(f"{part}_x.npy", "w", force_zip64=True) as file:
                shape = {"descr": "<f4", "fortran_order": False, "shape": (count, DIM)}
                npy.write_array_header_1_0(file, shape)
                for start in range(0, count, CHUNK):
                    centre = centres[labels[part][start : start + CHUNK]]
                    file.write((centre + rng.standard_normal(centre.shape, dtype=np.float32)).tobytes())
        for name, array in arrays.items():
            written = io.BytesIO()
            npy.write_array(written, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", written.getvalue())
    return Cost(0.0)


def _parts(rows: int) -> Iterator[tuple[str, int]]:
    return iter((("train", rows), ("test", N_HELDOUT)))


def _redrawn(rng: np.random.Generator, labels: NDArray) -> NDArray[np.bool_]:
    return rng.random(len(labels)) < NOISE


def train_base(folder: Path, epochs: int) -> Cost:
    net, seconds = _train(folder, training_recipe(Visit.ALL, epochs), 0)
    save_safetensors(folder / BASE, net.state(0), None)
    return Cost(seconds)


def retrain(folder: Path, n_forget: int, epochs: int) -> Cost:
    _, seconds = _train(folder, training_recipe(Visit.RETAIN, epochs), n_forget)
    note = f"{HEAD_EPOCHS} epochs" if epochs == HEAD_EPOCHS else f"{HEAD_EPOCHS} times {epochs} epoch"
    return Cost(seconds * HEAD_EPOCHS / epochs, note)


def short(folder: Path, n_forget: int) -> Cost:
    recipe = replace(SHORT, phases=(replace(SHORT.phases[0], epochs=1),), record_at=())
    return Cost(_train(folder, recipe, n_forget)[1], "training alone")


def _train(folder: Path, recipe: Recipe, n_forget: int) -> tuple[HeadStack, float]:
    data = _data(folder)
    rows = np.zeros(len(data.train_y), dtype=bool)
    rows[np.random.default_rng(n_forget).choice(len(rows), n_forget, replace=False)] = True
    net = HeadStack.initialise(head_widths("mlp1", DIM, CLASSES), [torch.Generator().manual_seed(0)])
    member = Member(0, "base", torch.from_numpy(np.array(data.train_y)), torch.from_numpy(rows))
    return net, train(net, as_inputs(data.train_x), [member], recipe, HEAD_TRAINING)


def prepare_state(folder: Path) -> Cost:
    data = _data(folder)
    started = time.process_time()
    state = prepare(**_given(folder, data), out=folder / STATE, ids=data.ids, sources=(folder / DATA, folder / BASE))
    took = ", ".join(f"{name} {seconds:.1f}" for name, seconds in state.seconds.items())
    return Cost(time.process_time() - started, f"{took} s; {state.bytes / 1e6:.0f} MB on disk")


def prepared_request(folder: Path, count: int, budget: float) -> Cost:
    methods: Counter[str] = Counter()

    def once(records: NDArray) -> bool:
        data = _data(folder)
        given = _given(folder, data)
        result = forget(**given, ids=data.ids, forget_ids=records, prepared=folder / STATE, budget=budget)
        method = str(result.certificate.content["proxy"]["method"])
        methods[method] += 1
        return method not in cut_short()

    seconds = _best(folder, count, once, TURNS)
    return Cost(seconds, ", ".join(f"{method} {turns}" for method, turns in methods.items()))


def written_request(folder: Path, count: int, budget: float) -> Cost:
    """Through the command line, with all that it writes."""
    files = {"--model": folder / BASE, "--arch": "mlp1", "--data": folder / DATA, "--prepared": folder / STATE}
    parser, quiet = build_parser(), Console(file=io.StringIO())
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)

        def once(records: NDArray) -> bool:
            (out / "request.txt").write_text("\n".join(str(record) for record in records))
            named = files | {"--ids": out / "request.txt", "--out": out / "forgotten", "--budget": f"{100 * budget:g}%"}
            arguments = parser.parse_args(["forget", "--force", *(str(x) for pair in named.items() for x in pair)])
            arguments.command.run(arguments, quiet)
            written = json.loads((out / "forgotten" / "certificate.json").read_text())
            return written["certificate"]["proxy"]["method"] not in cut_short()

        return Cost(_best(folder, count, once, TURNS))


def plain_request(folder: Path, count: int) -> Cost:
    """Without a state, which reads and checks all of the data."""

    def once(records: NDArray) -> bool:
        data = load_feature_set(folder / DATA)
        forget(**_given(folder, data), ids=data.ids, forget_ids=records)
        return True

    return Cost(_best(folder, count, once, turns=0), "one turn")


def _best(folder: Path, count: int, once: Callable[[NDArray], bool], turns: int) -> float:
    """CPU seconds of the fastest turn that counts, each with records of its own; the first of several warms up."""
    ids, seconds = np.array(_data(folder).ids), []
    for turn in range(turns + 1):
        records = np.random.default_rng([turn, count]).choice(ids, count, replace=False)
        started = time.process_time()
        counts = once(records)
        seconds.append(time.process_time() - started if counts else np.inf)
    return min(seconds[min(1, turns) :])


def _data(folder: Path) -> FeatureSet:
    return FeatureSet.mapped("generated", folder / DATA)


def _given(folder: Path, data: FeatureSet) -> dict[str, Any]:
    """The arguments that ``prepare`` and ``forget`` share."""
    loaded = load_model(folder / BASE, blueprint("mlp1"), as_inputs(data.train_x[:2]))
    heldout = Heldout(data.test_x, data.test_y)
    return {"model": loaded, "features": data.train_x, "labels": data.train_y, "heldout": heldout}


if __name__ == "__main__":
    main()
