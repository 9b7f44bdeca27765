"""Choose a method's settings on requests that are in no grid.

Try a method's settings (learning rate, epochs, batch, its own numbers) on development requests: class 1, subclass 1
and 1000 random rows, seeds 100 to 102. The best within a tenth of a retrain's cost can be saved as the preset 'tuned' of
'unlearn grid' and 'unlearn run'. Give every method as many trials. Rerun the same command to resume: the same trials
come again, and finished steps are kept.

unlearn tune --method ft --trials 20 --dataset digits --out runs/tune
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from unlearn_core.errors import first_line
from unlearn_core.grid import ARCHITECTURES
from workflows.commands import options
from workflows.commands.values import COUNT, FILE, chosen, integers, list_of, names, repeated
from workflows.display import speaker
from workflows.layout import Layout

if TYPE_CHECKING:
    from tasks.state import State
    from tasks.step import Step
    from tracking.mlflow_tracker import MlflowTracker
    from workflows.run import Outcome, Workers
    from workflows.sources import Source
    from workflows.tuning import Trial, Tuning


def add_options(parser: argparse.ArgumentParser) -> None:
    from unlearn_core import methods

    options.add_out(parser, "runs/tune", "write steps, trials and the MLflow database here")
    add = parser.add_argument_group("what to tune", "Separate values by commas, or repeat the option.").add_argument
    known = ", ".join(methods.names())
    one = repeated(list_of(methods.names(), {"all": methods.names()}), "M,M")
    add("--method", required=True, **one, help=f"methods, each by itself: {known}; or all")
    add("--trials", default=20, **COUNT, help="how many choices to try of each method")
    add("--save", action="store_true", help="make the best choice the preset 'tuned'")
    add("--dataset", **repeated(names, "D,D"), help=f"data sets: {options.DATASETS} (default: cifar10)")
    add("--features", **FILE, help="train heads on this feature set (.npz) instead of --dataset")
    together = f"networks that share one choice: {', '.join(ARCHITECTURES)} (default: mlp1)"
    add("--arch", **repeated(list_of(ARCHITECTURES), "A,A"), help=together)
    add("--seeds", **repeated(integers, "S,S"), help="measure with each of these (default: 100,101,102)")
    add("--epochs", **COUNT, help="train base and retrain this long (default: 50, for resnet18 20, for resnet8 25)")
    options.add_data(parser)
    options.add_resnet(parser)
    options.add_machine(parser)
    options.add_tracking(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    from workflows.commands.running import check_device, conclude, driving, machine_of
    from workflows.run import Workers

    check_device(arguments)
    tunings = _tunings(arguments)
    with driving(arguments, console), Workers(Layout(arguments.out).store, machine_of(arguments)) as workers:
        session = _Session(arguments, console, workers)
        try:
            for tuning in tunings:
                session.tune(tuning)
        except _Stopped:
            pass  # what failed is said below
    following = f"unlearn grid --preset tuned --methods {','.join(tuning.method for tuning in tunings)}"
    return conclude(session.outcome, arguments, console, following)


def _tunings(arguments: argparse.Namespace) -> list[Tuning]:
    from unlearn_core.errors import BadInput
    from unlearn_core.search_spaces import search_space
    from workflows.commands.selection import data_options
    from workflows.sources import open_sources
    from workflows.tuning import DEVELOPMENT_SEEDS, Tuning, development_variants

    archs = chosen(arguments.arch, ("mlp1",))
    sources = open_sources(data_options(arguments, chosen(arguments.dataset, ("cifar10",))), archs)
    parts = [
        (source, development_variants(source, [arch for arch in archs if arch in source.archs])) for source in sources
    ]
    seeds, asked = chosen(arguments.seeds, DEVELOPMENT_SEEDS), chosen(arguments.method, ())
    tunable = [method for method in asked if search_space(method).parameters]
    if not tunable:
        raise BadInput(f"{', '.join(asked)} has nothing to choose")
    return [Tuning(method, parts, seeds, arguments.epochs) for method in tunable]


class _Stopped(Exception):
    """Steps failed for reasons that are not the trial's."""


class _Session:
    """Tunes methods one after the other on the same workers, and shows and keeps what they come to."""

    outcome: Outcome
    """Of all that ran so far."""

    def __init__(self, arguments: argparse.Namespace, console: Console, workers: Workers) -> None:
        self.arguments: argparse.Namespace = arguments
        self.console: Console = console
        self.workers: Workers = workers
        self.layout: Layout = Layout(arguments.out)
        self.say: Callable[[str], None] = speaker(console)
        self._ran: set[str] = set()
        self._seconds: float = 0.0
        self._tracker: MlflowTracker | None = None
        self._behind: str | None = None

    def tune(self, tuning: Tuning) -> None:
        from tasks.store import Store
        from unlearn_core import tuned
        from unlearn_core.writing import write_atomically
        from workflows.tuning import best_trial

        file, said = self.layout.tuning / f"{tuning.method}.json", 0

        def keep(trials: Sequence[Trial]) -> None:
            nonlocal said
            entry = tuning.entry(trials)
            write_atomically(file, json.dumps(entry, indent=1, allow_nan=False) + "\n")
            for trial in trials[said:]:
                self.say(_described(trial))
            if not self.arguments.no_tracking:
                self._track(entry, said)
            said = len(trials)

        def compute(steps: Sequence[Step], title: str) -> None:
            self._compute(steps, [source for source, _ in tuning.parts], title)

        trials = tuning.run(self.arguments.trials, Store(self.layout.store), compute, keep)
        self.say(f"best: {_described(best_trial(trials))}")
        self.say(f"trials: {file}")
        if self.arguments.save:
            best = tuning.save(trials, datetime.datetime.now(datetime.UTC).date().isoformat())
            self.say(f"trial {best.number} is now the preset 'tuned' of {tuning.method}: {tuned.FILE}")

    def _compute(self, steps: Sequence[Step], sources: Sequence[Source], title: str) -> None:
        from workflows.commands.running import run_steps
        from workflows.results import Recorder

        recorder = Recorder(self.layout, None, track=False)
        outcome = run_steps(steps, sources, title, recorder, self.arguments, self.console, self.workers)
        self._ran |= outcome.state.done
        self._seconds += outcome.seconds
        outcome.state.done |= self._ran & outcome.state.cached
        outcome.state.cached -= self._ran
        where = (
            "not tracked"
            if self.arguments.no_tracking
            else f"trials are runs of experiment '{self.layout.tuning_experiment}'"
        )
        self.outcome = dataclasses.replace(
            outcome,
            seconds=self._seconds,
            tracking=self._behind or f"MLflow: {where}",
            tracking_behind=self._behind is not None,
        )
        if _stops(outcome.state):
            raise _Stopped

    def _track(self, entry: dict[str, Any], done: int) -> None:
        """Write the trials that are not among the first ``done``."""
        from workflows.results import log_trials, open_tracker

        if self._behind is not None:
            return
        try:
            if self._tracker is None:
                self._tracker = open_tracker(self.layout, self.arguments.tracking_uri, self.layout.tuning_experiment)
            log_trials(self._tracker, entry, entry["trials"][done:])
        except Exception as error:  # MLflow's trouble, whatever it is, must not stop the trials
            self._behind = (
                f"MLflow fell behind ({type(error).__name__}: {first_line(error)}); catch up with: unlearn sync"
            )
            self.say(self._behind)
            self.outcome = dataclasses.replace(self.outcome, tracking=self._behind, tracking_behind=True)


def _stops(state: State) -> bool:
    """Whether something failed that is not an error of a method under a trial's values, which only fails that trial."""
    from tasks.step import Kind

    return any(failure.step.kind is not Kind.UNLEARN or not failure.traceback for failure in state.failures.values())


def _described(trial: Trial) -> str:
    values = ", ".join(f"{name} {value:g}" for name, value in trial.values.items())
    reached = f"KL_f {trial.kl_f:.3g}, KL_t {trial.kl_t:.3g} at {100 * trial.cost:.2g} % of a retrain"
    return f"trial {trial.number}: {trial.objective:.3f} ({reached}): {values}"
