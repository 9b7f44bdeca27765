"""Fair timing on a noisy machine: contestants take turns, and each is judged by its fastest turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def best_of_turns(contestants: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Seconds of the fastest turn of each; one untimed turn warms up."""
    best = dict.fromkeys(contestants, float("inf"))
    for turn in range(turns + 1):
        for name, run in contestants.items():
            started = time.perf_counter()
            run()
            if turn > 0:
                best[name] = min(best[name], time.perf_counter() - started)
    return best
