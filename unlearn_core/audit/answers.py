"""What a network says of chosen rows: its margins, and how far it is from the retrain, row by row.

A margin is the logit-scaled confidence of LiRA and the margin of KLOM, which are one number:
log(p_y / (1 - p_y)) = f_y - logsumexp of the other classes' f.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.audit.attack import ShadowAnswers
from unlearn_core.audit.rows import AuditRows, RowNumbers
from unlearn_core.audit.scoring import Scorer, log_posterior
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.problem import Problem, Rows
from unlearn_core.records import MethodRecord, Scores
from unlearn_core.run_settings import RunSettings
from unlearn_core.unlearning import Reference, run_method

Margins = NDArray[np.float32]
Member = tuple[NetworkStack, int]
"""A network: a stack and its place there."""
NOT_SCORED = Scores(*[float("nan")] * len(fields(Scores)))


@dataclass(frozen=True, eq=False)
class Answers:
    """Of one network.

    Attributes:
        forget, retain, test: (n,) margins on the rows of that name.
        kl_rows: (n,) KL(retrain || network) on the ``forget`` rows, in nats.
    """

    forget: Margins
    retain: Margins
    test: Margins
    kl_rows: NDArray[np.float32]


def margins(logits: torch.Tensor, labels: torch.Tensor) -> Margins:
    """(N,) f_y - logsumexp over the other classes, of (N, C) logits; float32, computed in float64."""
    logits = logits.double()
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return (own - others).float().cpu().numpy()


def answers_of(network: Member, retrain: Member, problem: Problem, rows: AuditRows) -> Answers:
    """What one network says beside a retrain; without held-out rows, nothing of them."""
    train = problem.train

    def asked(member: Member, where: RowNumbers, of: Rows) -> torch.Tensor:
        net, place = member
        return net.logits(place, of.inputs, torch.from_numpy(where).to(of.inputs.device))

    found = {"test": np.zeros(0, dtype=np.float32)}
    for part, where, of in (
        ("forget", rows.forget, train),
        ("retain", rows.retain, train),
        ("test", rows.test, problem.heldout),
    ):
        if of is not None:
            labels = of.label_tensor[torch.from_numpy(where).to(of.inputs.device)]
            found[part] = margins(asked(network, where, of), labels)
    log_p, log_q = (log_posterior(asked(member, rows.forget, train)) for member in (retrain, network))
    p = log_p.exp()
    kl_rows = torch.where(p > 0, p * (log_p - log_q), 0.0).sum(0).float().cpu().numpy()
    return Answers(**found, kl_rows=kl_rows)


def stacked(answers: Sequence[Answers]) -> ShadowAnswers:
    """The answers of one network for each shadow, all of which forget the same rows."""
    parts = (field.name for field in fields(Answers))
    return ShadowAnswers(**{part: np.array([getattr(one, part) for one in answers], np.float64) for part in parts})


class _Listener(Scorer):
    """In the place of a scorer: remembers the network that was to be scored last, and scores none.

    Scoring every epoch takes longer than many methods do, and an audit reads the last network only.
    """

    def __init__(self) -> None:  # the scorer's own would ask the retrain
        self.last: Member | None = None

    def score(self, net: NetworkStack, member: int) -> Scores:
        self.last = net, member
        return NOT_SCORED

    def score_arrays(self, log_test: NDArray[np.float64], log_forget: NDArray[np.float64]) -> Scores:
        return NOT_SCORED


def final_networks(
    method: str, reference: Reference, settings: RunSettings
) -> tuple[list[Member], Sequence[MethodRecord]]:
    """The network that a method ends with in each cell, and its records, whose scores are undefined."""
    listeners = [_Listener() for _ in reference.cells]
    records = run_method(method, replace(reference, scorers=listeners), settings)
    networks = [listener.last for listener in listeners if listener.last is not None]
    if len(networks) != len(listeners):
        raise ValueError(f"{method} gives outputs, not a network; audit it with the finalizer kl or mse")
    return networks, records
