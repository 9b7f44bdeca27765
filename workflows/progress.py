"""Progress for people: a bar on a terminal, a line per step in a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from workflows.variant import StepStart


@contextmanager
def step_progress(console: Console, title: str, n_steps: int) -> Iterator[StepStart]:
    """Gives a function to call with the name of each step before it starts."""
    if not console.is_terminal:
        started = 0

        def log(name: str) -> None:
            nonlocal started
            started += 1
            console.print(f"{title}: {started}/{n_steps} {name}", highlight=False, soft_wrap=True)

        yield log
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=n_steps)
        begun = False

        def show(name: str) -> None:
            nonlocal begun
            progress.update(task, description=f"{title}: {name}", advance=1 if begun else 0)
            begun = True

        yield show
