"""What comes back from a worker. Light to import: drivers and displays need no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class JobResult:
    """``error`` is None where all steps of the job are now in the store; otherwise its first line, and the traceback."""

    seconds: float
    error: str | None = None
    traceback: str = ""
