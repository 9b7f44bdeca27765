"""``newton-last``: a Newton step on the last layers alone, with the layers below as they are.

Of a network that was trained end to end the last layer is linear in features, and its curvature is nearly exact. Below, the
factors are not, and a step goes astray: with the last block it is farther from the retrain than the base, with all layers
farther still (docs/records/deep_development.csv). What the features remember of the records stays.
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
    """The numbers of a step (``NewtonConstants``), set on those requests, and how many layers it moves, from the last.

    Records look like retained rows of their class to the last layer, and what moves those moves these: ``newton``'s bound on
    what may be spilled would allow for no step at all.
    """

    damping: float = 1e-4
    most_spilled: float = 1.0
    layers: int = 1


def step(request: EditRequest, constants: NewtonLastConstants) -> NetworkStack | None:
    """The step, with as much damping as leaves retained rows alone."""
    from unlearn_core.preparations import CURVATURE

    last = last_layers(request.prepared[CURVATURE], constants.layers)
    return newton.step(replace(request, prepared={CURVATURE: last}), constants)


def last_layers(curvature: Curvature, count: int) -> Curvature:
    """The curvature of the last ``count`` layers: EK-FAC has each layer's by itself, so that others can be left out."""
    return replace(curvature, layers=dict(list(curvature.layers.items())[-count:]))
