"""What a worker keeps at hand between steps: features on its device, network weights; least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Held = TypeVar("Held")


class Holdings:
    """A small cache by name. ``limit`` counts things, of which features are few and weights small."""

    def __init__(self, device: str | torch.device, limit: int = 64) -> None:
        self.device: torch.device = torch.device(device)
        self.limit: int = limit
        self._held: OrderedDict[str, Any] = OrderedDict()

    def get(self, name: str, load: Callable[[], Held]) -> Held:
        if name not in self._held:
            self._held[name] = load()
            while len(self._held) > self.limit:
                self._held.popitem(last=False)
        self._held.move_to_end(name)
        return self._held[name]
