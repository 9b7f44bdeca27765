"""A step is *what* to compute. Its id is a hash of exactly that; where and how it runs is never part of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any


class Kind(StrEnum):
    IMAGES = "images"
    """A data set's images as they are."""
    RESIZED = "resized"
    """The same at a network's size."""
    SHARD = "shard"
    """A backbone's features of a range of images."""
    FEATURES = "features"
    PROJECTION = "projection"
    """Omega, by which a layer is sketched."""
    SKETCH = "sketch"
    """A base network's layer, sketched on all images: what its proxies see."""
    PREPARED = "prepared"
    """Something computed from D once, for all requests: its moments, its linear classifier."""
    BASE = "base"
    RETRAIN = "retrain"
    FLOOR = "floor"
    UNLEARN = "unlearn"
    AUDIT = "audit"
    ANSWERS = "answers"
    """What one network of an audit says of chosen rows: the base, the retrain, or a method's network."""
    REQUEST = "request"
    """A deletion request to one model of many: its certificate lies where the request says."""
    SUBJECT = "subject"
    """A model and its data, of which a state is prepared; the command puts it into the store, and no worker computes it."""
    PART = "part"
    """A part of a prepared state, or a piece of one."""


ANY_REQUEST = frozenset({Kind.RETRAIN, Kind.FLOOR, Kind.UNLEARN})
"""Kinds whose steps compute each member of a stack from its own request."""
FOLDS = "folds"
"""The role in which an audit has the models of folds: its cell is assessed by them."""
N_FORGET = "n_forget"
"""The hint that says how many rows a step's request forgets."""

# Raised when the code of a kind changes what it computes: old results are then no longer found.
VERSIONS: Mapping[Kind, int] = MappingProxyType(
    {
        **dict.fromkeys(Kind, 1),
        **dict.fromkeys((Kind.BASE, Kind.RETRAIN, Kind.FLOOR, Kind.PREPARED), 2),
        **dict.fromkeys((Kind.UNLEARN, Kind.ANSWERS), 3),
        Kind.AUDIT: 8,
    }
)

NAMED_BY = (
    *("dataset", "part", "start", "size", "layer", "what", "piece"),
    *("method", "arch", "scenario", "key", "seed"),
)
"""What of a step's config people know it by."""


@dataclass(frozen=True, eq=False)
class Step:
    """One node of the DAG.

    Attributes:
        config: plain JSON values; every one of them changes the id.
        needs: role -> the step whose result is read under that role.
        hints: what a worker must know to run it but the result does not depend on, such as a file's place; not hashed.
        alone: never fused with others of its shape, because its network cannot be stacked; not hashed.
    """

    kind: Kind
    config: Mapping[str, Any]
    needs: Mapping[str, Step] = field(default_factory=dict)
    hints: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0
    alone: bool = False

    def __post_init__(self) -> None:
        if self.version == 0:
            object.__setattr__(self, "version", VERSIONS[self.kind])

    @property
    def identity(self) -> dict[str, Any]:
        """Exactly what is hashed, and what the store keeps beside the result. Built anew each time, as ``shape`` is."""
        return {
            "kind": str(self.kind),
            "version": self.version,
            "config": dict(self.config),
            "needs": {role: step.id for role, step in self.needs.items()},
        }

    @cached_property
    def id(self) -> str:
        return hash_of(self.identity)

    @property
    def shape(self) -> str:
        """Steps of one shape differ in their seed only: they may train as one stack.

        Hashed anew each time: a step has few attributes, and one more would double the memory of a large plan.
        """
        return self._shape_without("seed")

    @property
    def wide_shape(self) -> str:
        """Steps of one wide shape may differ in their request too, if it forgets as many rows: then all members of a stack
        make the same steps on batches of the same sizes, and each one's bits are those that it has alone."""
        if self.kind not in ANY_REQUEST or N_FORGET not in self.hints:
            return self.shape
        return f"{self._shape_without('seed', 'scenario', 'key')}/{self.hints[N_FORGET]}"

    def _shape_without(self, *differing: str) -> str:
        if self.alone:
            return self.id
        rest = {name: value for name, value in self.config.items() if name not in differing}
        shared = {role: step.id for role, step in self.needs.items() if "seed" not in step.config}
        return hash_of({"kind": str(self.kind), "version": self.version, "config": rest, "needs": shared})

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Step) and other.id == self.id

    def __str__(self) -> str:
        words = [str(self.config[name]) for name in NAMED_BY if self.config.get(name) is not None]
        return f"{self.kind} {' '.join(words)} ({self.id[:12]})"


def check_config(step: Step, ours: Mapping[str, Any]) -> None:
    """Refuse a step that this worker's code would run otherwise than its id says."""
    for name, value in ours.items():
        if json.dumps(step.config.get(name), sort_keys=True) != json.dumps(value, sort_keys=True):
            raise RuntimeError(f"this worker's code has another {name} for {step} than the plan: update the code there")


def hash_of(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form, shortened to 128 bits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def closure(targets: Iterable[Step]) -> list[Step]:
    """The targets and all that they need, each once, needed ones first."""
    ordered: dict[str, Step] = {}

    def visit(step: Step) -> None:
        if step.id not in ordered:
            for needed in step.needs.values():
                visit(needed)
            ordered[step.id] = step

    for target in targets:
        visit(target)
    return list(ordered.values())
