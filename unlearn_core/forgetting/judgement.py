"""Whether a request was unlearned: what was achieved beside what was asked for, by a stated rule. No torch.

What a method asks for is its target; of one that has none, it is the network that it computed, before its numbers were
rounded to those of the weights' file. On the records of the request the model must have gone most of the way to it:

    1 - KL(asked||model) / KL(asked||base) >= REQUIRED

KL is taken from what was asked for, as the distillation does: it stays finite where a class leaves the data. The base is the
one that was trained on the records, also for a later request of a ledger, which starts from another network; and the rule
must hold for the records of the request alone, which would be lost among those of earlier ones, and for all of them.

An edit is its own judge by that, so more is asked of it. A network that never saw the records does worse on them than the
base: their mean loss must rise. If they are like held-out rows, it must go most of the way to the loss that the base has on
such rows of their classes, within two standard errors of that comparison.

So is training that starts from weights that saw the records. It moves all answers, those on held-out rows too, so that its
losses on both are compared: most of what the records' mean loss is less by must be gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearn_core.audit.divergence import mean_kl
from unlearn_core.forgetting.certificate import NOT_UNLEARNED, NOTHING, UNLEARNED
from unlearn_core.methods import Family, Method
from unlearn_core.recipes import REQUIRED

Array = NDArray[np.float64]

LEAST_KL = 1e-6
"""Nats on the records: less cannot be measured again on another machine, and asks for nothing."""

OF_TARGET = f"on the records, at least {REQUIRED:.0%} of the way in KL from the base to the target"
OF_EDIT = (
    f"on the records, at least {REQUIRED:.0%} of the way in KL from the base to what the method computed; and their mean "
    f"loss rises, within two standard errors by at least {REQUIRED:.0%} of the way to that of held-out rows of their classes"
)
AS_STORED = f"as stored at least {REQUIRED:.0%} of the way in KL from the base to that"
OF_TRAINING = f"trained from fresh weights on no record; {AS_STORED}"
OF_TRAINING_ON = (
    f"trained on no record, from weights that had seen them; {AS_STORED}; and of what the records' mean loss was below that "
    f"of held-out rows of their classes at least {REQUIRED:.0%} is gone, within two standard errors, or, if they are not "
    "like such rows, their mean loss rises"
)
JUDGED_BY_LOSS = (OF_EDIT, OF_TRAINING_ON)


def rule_for(line: Method) -> str:
    """By which a method is judged."""
    if line.family is Family.PROXY:
        return OF_TARGET
    if line.family is Family.EDIT:
        return OF_EDIT
    return OF_TRAINING if line.starts_fresh else OF_TRAINING_ON


@dataclass(frozen=True)
class Progress:
    """How far a model has come on some records, in nats.

    Attributes:
        asked: KL(asked||base).
        left: KL(asked||model).
    """

    n_records: int
    asked: float
    left: float

    @staticmethod
    def of(log_asked: Array, log_base: Array, log_model: Array) -> Progress:
        """From (n, C) log posteriors on the records."""
        return Progress(len(log_asked), mean_kl(log_asked, log_base), mean_kl(log_asked, log_model))

    @property
    def asks_for_something(self) -> bool:
        return not self.asked <= LEAST_KL

    @property
    def share(self) -> float:
        """Of the way that is behind the model; below 0 if it went the other way."""
        if self.left <= LEAST_KL:
            return 1.0
        return 1 - self.left / self.asked if self.asked > 0 else -np.inf

    @property
    def is_enough(self) -> bool:
        return self.share >= REQUIRED

    def __str__(self) -> str:
        return f"{100 * self.share:.3g} % of the way, KL {self.asked:.4g} -> {self.left:.4g}"


@dataclass(frozen=True)
class Losses:
    """Mean losses on the records, beside that of held-out rows of their classes under the base, in nats.

    Attributes:
        heldout: None if there are no such rows, or if the records are known not to be like them.
        margin: two standard errors of the difference between both; None likewise.
        heldout_after: of those rows under the model; None if it is an edit's, which leaves them alone, or there are none.
    """

    before: float
    after: float
    heldout: float | None = None
    margin: float | None = None
    heldout_after: float | None = None

    @staticmethod
    def of(
        before: Array,
        after: Array,
        heldout: Array | None = None,
        weights: Array | None = None,
        heldout_after: Array | None = None,
    ) -> Losses:
        """From (n,) losses on the records, and (m,) on held-out rows with their weights, under the base and the model."""
        if heldout is None or weights is None:
            return Losses(float(before.mean()), float(after.mean()))
        shares = weights / weights.sum()
        compared = heldout if heldout_after is None else heldout_after
        variance = float(shares @ (compared - shares @ compared) ** 2)
        error = np.sqrt(variance * (1 / len(before) + float((shares**2).sum())))
        now = None if heldout_after is None else float(shares @ heldout_after)
        return Losses(float(before.mean()), float(after.mean()), float(shares @ heldout), 2 * float(error), now)

    @property
    def what_is_wrong(self) -> str | None:
        if self.heldout_after is not None and self.heldout is not None and self.margin is not None:
            was, left = self.heldout - self.before, self.heldout_after - self.after
            if left - (1 - REQUIRED) * was > self.margin:
                return (
                    f"the records' mean loss was {was:.4g} below that of held-out rows of their classes, and is {left:.4g} "
                    "below it"
                )
            return None
        if self.after < self.before - LEAST_KL:
            return f"the records' mean loss falls, from {self.before:.4g} to {self.after:.4g}"
        if self.heldout is None or self.margin is None:
            return None
        if REQUIRED * (self.heldout - self.before) - (self.after - self.before) > self.margin:
            return (
                f"the records' mean loss goes from {self.before:.4g} to {self.after:.4g}, and held-out rows of their "
                f"classes have {self.heldout:.4g}"
            )
        return None


@dataclass(frozen=True)
class Judgement:
    """The outcome of a request, and why.

    Attributes:
        rule: None if there was nothing to judge.
        records: on those of this request; None if the method made nothing.
        all_records: on all that are forgotten by now; None if they are the same.
    """

    outcome: str
    why: str
    rule: str | None = None
    records: Progress | None = None
    all_records: Progress | None = None
    losses: Losses | None = None

    @property
    def unlearned(self) -> bool:
        return self.outcome == UNLEARNED

    @property
    def failed(self) -> bool:
        return self.outcome == NOT_UNLEARNED


def nothing_to_unlearn(why: str) -> Judgement:
    return Judgement(NOTHING, why)


def made_nothing(why: str, rule: str) -> Judgement:
    """The method has no network to show."""
    return Judgement(NOT_UNLEARNED, why, rule)


def judge(rule: str, records: Progress, all_records: Progress | None = None, losses: Losses | None = None) -> Judgement:
    """What became of a request of which something was made.

    Args:
        losses: of an edit, or of training from weights that saw the records.
    """

    def outcome(word: str, why: str) -> Judgement:
        return Judgement(word, why, rule, records, all_records, losses)

    if losses is not None and (wrong := losses.what_is_wrong) is not None:
        return outcome(NOT_UNLEARNED, wrong)
    if not records.asks_for_something:
        return outcome(
            NOTHING, f"{records.asked:.3g} nats on the records are asked for, and {LEAST_KL:g} can be measured"
        )
    if not records.is_enough:
        return outcome(NOT_UNLEARNED, f"{records}, on the records; {REQUIRED:.0%} are required")
    if all_records is not None and not all_records.is_enough:
        return outcome(NOT_UNLEARNED, f"{all_records}, on all records forgotten by now; {REQUIRED:.0%} are required")
    return outcome(UNLEARNED, f"{records}, on the records")
