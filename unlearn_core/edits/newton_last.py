"""``newton-last``: a Newton step on the last layers alone, with the layers below as they are.

Of a network that was trained end to end the last layer is linear in features, and its curvature is nearly exact; below, the
factors are not, and a step in all layers may do more harm than good. What the features remember of the records stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unlearn_core.edits import newton
from unlearn_core.edits.request import EditRequest

if TYPE_CHECKING:
    from unlearn_core.curvature import Curvature
    from unlearn_core.nets.stack import NetworkStack


@dataclass(frozen=True)
class NewtonLastConstants(newton.NewtonConstants):
    """The numbers of a step (``NewtonConstants``), and how many layers with weights it moves, counted from the last."""

    layers: int = 1


def step(request: EditRequest, constants: NewtonLastConstants) -> NetworkStack | None:
    """The step, with as much damping as leaves retained rows alone."""
    from unlearn_core.preparations import CURVATURE

    last = last_layers(request.prepared[CURVATURE], constants.layers)
    return newton.step(replace(request, prepared={CURVATURE: last}), constants)


def last_layers(curvature: Curvature, count: int) -> Curvature:
    """The curvature of the last ``count`` layers: EK-FAC has each layer's by itself, so that others can be left out."""
    return replace(curvature, layers=dict(list(curvature.layers.items())[-count:]))
