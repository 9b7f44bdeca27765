"""``truncate``: a class that nobody may know any more is taken out of the answer, in the last layer's bias.

The posterior over the other classes is the base's own, renormalised: what every proxy says of a network that separates
its classes. It answers whole classes alone; of any other request it says nothing, and the network stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unlearn_core.audit.divergence import log_probabilities
from unlearn_core.edits.request import EditRequest
from unlearn_core.logspace import log_sum

if TYPE_CHECKING:
    from unlearn_core.nets.stack import NetworkStack


@dataclass(frozen=True)
class TruncateConstants:
    left: float = 1e-12
    """The most that a record may still give to its class; nothing at all would be infinitely far from a retrain, whose
    unused output is small and not zero."""


def truncate(request: EditRequest, constants: TruncateConstants) -> NetworkStack | None:
    """Lower the biases of the classes that are asked for, by as much as the surest record needs."""
    lost = request.lost_classes
    if not request.is_whole_classes:
        return None
    net, member = request.net, request.member
    log_p = log_probabilities(net.logits(member, request.inputs).double().cpu().numpy())
    margin = log_sum(log_p[:, lost].T) - log_sum(log_p[:, ~lost].T)
    width = net.penultimate(member, request.inputs[:1]).shape[1]
    bias = np.where(lost, np.log(constants.left) - max(float(margin.max()), 0.0), 0.0)
    return net.with_shifted_last_layer(member, np.zeros((width, len(lost))), bias)
