"""Per-worker LRU cache of features, prepared state and network weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Cached = TypeVar("Cached")


class Cache:
    """Keeps what is expensive to load between jobs. ``limit`` counts entries: features are few, weights are small."""

    def __init__(self, device: str | torch.device, limit: int = 64) -> None:
        self.device: torch.device = torch.device(device)
        self.limit: int = limit
        self._entries: OrderedDict[str, Any] = OrderedDict()

    def get(self, name: str, load: Callable[[], Cached]) -> Cached:
        """The entry of that name; ``load`` is called only if there is none."""
        if name not in self._entries:
            self._entries[name] = load()
            while len(self._entries) > self.limit:
                self._entries.popitem(last=False)
        self._entries.move_to_end(name)
        return self._entries[name]

    def clear(self) -> None:
        """Give all memory back, the device's too."""
        self._entries.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
