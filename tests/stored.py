"""What a run computed, as tests compare it: everything but measured seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.store import DONE

MEASURED = ("seconds", "rte", "cost", "preparation", "proxy_seconds", "assessment_seconds")


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_seconds(v) for k, v in value.items() if k not in MEASURED}
    return [without_seconds(item) for item in value] if isinstance(value, list) else value


def content(out: Path) -> dict[str, object]:
    """Everything that a run computed: weights and arrays as bytes, records as values."""
    found: dict[str, object] = {}
    for file in sorted((out / "store" / "steps").glob("*/*/*")):
        name = str(file.relative_to(out / "store"))
        if file.suffix == ".json" and file.name != DONE:
            found[name] = without_seconds(json.loads(file.read_text()))
        elif file.suffix != ".json":
            found[name] = file.read_bytes()
    for file in sorted((out / "results").rglob("*.json")):
        found[str(file.relative_to(out))] = without_seconds(json.loads(file.read_text()))
    return found
