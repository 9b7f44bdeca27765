"""Why a step is, or is not, in the store: a field-by-field difference to the nearest step that is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from tasks.store import DONE, Store
from unlearn_core.errors import BadInput
from workflows.layout import Layout


def explain(layout: Layout, prefix: str) -> Iterator[str]:
    """Lines for people about the one step whose id begins with ``prefix``."""
    planned = _planned(layout)
    matches = [step for step in planned if step["id"].startswith(prefix)]
    if len(matches) != 1:
        what = "no step" if not matches else f"{len(matches)} steps"
        raise BadInput(
            f"{what} of the last plan in {layout.out} begin with {prefix!r}; 'unlearn plan --steps' lists ids"
        )
    step = matches[0]
    store = Store(layout.store)
    directory = store.root / "steps" / step["kind"] / step["id"]
    yield step["name"]
    if (directory / DONE).exists():
        done = json.loads((directory / DONE).read_text())
        when = datetime.fromtimestamp(done["finished"]).isoformat(" ", "seconds")
        yield f"cached: finished {when} in {done['seconds']:.2f} s, {directory}"
        return
    yield f"not cached: nothing at {directory}"
    for role, needed in step["needs"].items():
        if not any((store.root / "steps" / p["kind"] / p["id"] / DONE).exists() for p in planned if p["id"] == needed):
            yield f"  its need {role} ({needed[:12]}) is not there either"
    nearest = _nearest(store, step)
    if nearest is None:
        yield f"no {step['kind']} step was ever stored here"
        return
    yield f"the nearest stored {step['kind']} step is {nearest['id'][:12]}; it differs in"
    yield from _differences(nearest["identity"], step)


def _planned(layout: Layout) -> list[dict[str, Any]]:
    if not layout.plan.exists():
        raise BadInput(f"{layout.out} has no plan yet; run 'unlearn plan' or 'unlearn grid' with the same --out first")
    return [json.loads(line) for line in layout.plan.read_text().splitlines()]


def _nearest(store: Store, step: dict[str, Any]) -> dict[str, Any] | None:
    candidates = [{"id": d.name, "identity": done["identity"]} for d, done in store.records(step["kind"])]
    return min(candidates, key=lambda c: len(list(_differences(c["identity"], step))), default=None)


def _differences(stored: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    if stored["version"] != wanted["version"]:
        yield f"  version: {stored['version']} stored, {wanted['version']} wanted"
    for part in ("config", "needs"):
        for name in sorted(set(stored[part]) | set(wanted[part])):
            had, wants = (_short(side[part].get(name, "absent")) for side in (stored, wanted))
            if had != wants:
                yield f"  {part}.{name}: {had} stored, {wants} wanted"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text[:12] if len(text) == 32 else text
