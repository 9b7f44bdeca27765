"""What a request did, in numbers: those that need no retrain, and the distance from retrains if some are made."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.audit.divergence import log_probabilities, mean_kl
from unlearn_core.audit.membership import Attack, Matched, threshold_attack
from unlearn_core.audit.stein import stein_block
from unlearn_core.errors import BadInput
from unlearn_core.forgetting.anew import TrainingSettings, train_anew
from unlearn_core.forgetting.judgement import Losses
from unlearn_core.forgetting.plan import Plan
from unlearn_core.forgetting.subject import Subject
from unlearn_core.nets.make import Blueprint
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.recipes import Optimization
from unlearn_core.seeding import derive_seed

Array = NDArray[np.float64]

KL_ROUNDING = 1e-15  # of two equal models it may be rounded to this, and to just below zero


@dataclass(frozen=True, eq=False)
class Posteriors:
    """What a model says: (N, C) log probabilities on the training rows and on the held-out ones."""

    train: Array
    heldout: Array | None


@dataclass(frozen=True, eq=False)
class Change:
    """KL in nats on forgotten, retained and held-out rows, KL(p||q) of what the context names."""

    forget: float
    retain: float
    heldout: float | None


@dataclass(frozen=True)
class Accuracy:
    """Shares of right answers, in [0, 1]."""

    retained: float
    forgotten: float
    heldout: float | None


@dataclass(frozen=True)
class Attacks:
    """A loss attack on the records by the base and by the unlearned model, beside held-out rows of their classes."""

    n_records: int
    n_heldout: int
    before: Attack
    after: Attack


@dataclass(frozen=True, eq=False)
class Measured:
    """A model beside the base and beside the target that it was made for."""

    before: Accuracy
    after: Accuracy
    from_base: Change
    """KL(base||unlearned)."""
    from_target: Change | None
    """KL(target||unlearned): what the finalizer left undone; None for a method without a target."""
    planned: Change | None
    """KL(base||target): how much the request should change what the model says; None if it changes nothing."""
    attacks: Attacks | None = None
    """None if there are no held-out rows of the records' classes to tell them from."""

    drop_elsewhere: float | None = None
    """Accuracy that was lost on held-out rows of the classes that are left, in points; None if there are no such rows."""

    @property
    def drop(self) -> float:
        """Retained accuracy that was lost, in points of a hundred; negative if it rose."""
        return 100 * (self.before.retained - self.after.retained)


def base_posteriors(subject: Subject) -> Posteriors:
    return Posteriors(subject.train.log_base, None if subject.heldout is None else subject.heldout.log_base)


def network_posteriors(subject: Subject, net: NetworkStack) -> Posteriors:
    def says(inputs: torch.Tensor) -> Array:
        return log_probabilities(net.logits(0, inputs).cpu().numpy())

    heldout = subject.problem.heldout
    return Posteriors(says(subject.problem.train.inputs), None if heldout is None else says(heldout.inputs))


def target_posteriors(plan: Plan) -> Posteriors:
    """The target's; the base's own if there is nothing to unlearn."""
    if plan.target is None:
        return base_posteriors(plan.subject)
    heldout = plan.subject.heldout
    return Posteriors(plan.target.log_target, None if heldout is None else plan.target.on(heldout))


def divergence(plan: Plan, p: Posteriors, q: Posteriors) -> Change:
    """KL(p||q) of two models on the three kinds of rows."""

    def kl(log_p: Array, log_q: Array) -> float:
        value = mean_kl(log_p, log_q)
        return 0.0 if abs(value) <= KL_ROUNDING else value

    forget, retain = (kl(p.train[rows], q.train[rows]) for rows in (plan.forget, ~plan.forget))
    return Change(forget, retain, None if p.heldout is None or q.heldout is None else kl(p.heldout, q.heldout))


def planned_change(plan: Plan) -> Change | None:
    if plan.target is None:
        return None
    return divergence(plan, base_posteriors(plan.subject), target_posteriors(plan))


def _matched(plan: Plan, records: NDArray[np.bool_]) -> Matched | None:
    """Held-out rows of the classes of some of the subject's rows; None if there are none."""
    heldout = plan.subject.problem.heldout
    return None if heldout is None else Matched.to(plan.subject.labels[records], heldout.labels)


def attack(plan: Plan, model: Posteriors, matched: Matched | None) -> Attack | None:
    """How well the loss tells the forgotten records from held-out rows of their classes; None if there are none."""
    if matched is None or model.heldout is None:
        return None
    rows = np.flatnonzero(plan.forget)
    records = model.train[rows, plan.subject.labels[rows]]
    return threshold_attack(records, matched.of(model.heldout), matched.weights)


def compare_losses(plan: Plan, unlearned: Posteriors, like_heldout: bool, trained: bool) -> Losses:
    """The losses of this request's records before and after, beside held-out rows if the records are like them.

    Args:
        trained: whether held-out rows moved, too, and not the records alone.
    """
    rows, base = np.flatnonzero(plan.new), base_posteriors(plan.subject)
    labels = plan.subject.labels[rows]
    before, after = (-model.train[rows, labels] for model in (base, unlearned))
    matched = _matched(plan, plan.new) if like_heldout else None
    if matched is None or base.heldout is None:
        return Losses.of(before, after)
    moved = -matched.of(unlearned.heldout) if trained and unlearned.heldout is not None else None
    return Losses.of(before, after, -matched.of(base.heldout), matched.weights, moved)


def measure(plan: Plan, unlearned: Posteriors) -> Measured:
    base, target = base_posteriors(plan.subject), target_posteriors(plan)
    matched = _matched(plan, plan.forget)
    before, after = (attack(plan, model, matched) for model in (base, unlearned))
    return Measured(
        before=_accuracy(plan, base),
        after=_accuracy(plan, unlearned),
        from_base=divergence(plan, base, unlearned),
        from_target=None if plan.target is None and plan.choice.method else divergence(plan, target, unlearned),
        planned=None if plan.target is None else divergence(plan, base, target),
        attacks=None
        if matched is None or before is None or after is None
        else Attacks(plan.n_forget, len(matched.rows), before, after),
        drop_elsewhere=_drop_elsewhere(plan, base, unlearned),
    )


def _drop_elsewhere(plan: Plan, base: Posteriors, unlearned: Posteriors) -> float | None:
    heldout = plan.subject.problem.heldout
    if heldout is None or base.heldout is None or unlearned.heldout is None:
        return None
    left = ~plan.subject.problem.lost_classes(plan.forget)[heldout.labels]
    if not left.any():
        return None
    before, after = (
        (said[left].argmax(axis=1) == heldout.labels[left]).mean() for said in (base.heldout, unlearned.heldout)
    )
    return 100 * float(before - after)


def _accuracy(plan: Plan, model: Posteriors) -> Accuracy:
    right = model.train.argmax(axis=1) == plan.subject.labels
    heldout = plan.subject.problem.heldout
    on_heldout = None
    if heldout is not None and model.heldout is not None:
        on_heldout = float((model.heldout.argmax(axis=1) == heldout.labels).mean())
    return Accuracy(float(right[~plan.forget].mean()), float(right[plan.forget].mean()), on_heldout)


def attack_entry(found: Attack) -> dict[str, float]:
    """As a certificate holds it."""
    return {"auc": found.auc, "from_chance": found.distance, "balanced_accuracy": found.two_sided_accuracy}


@dataclass(frozen=True, kw_only=True)
class RetrainSettings(TrainingSettings):
    """``pairs`` retrains, each with a second one for the floor."""

    pairs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs < 1:
            raise BadInput(f"{self.pairs} retrains are no check; ask for at least 1")


@dataclass(frozen=True, eq=False)
class RetrainCheck:
    """One retrain and its floor. KL(retrain||model), in nats; ``bound`` holds the terms of prop:tight-bound on D."""

    seed: int
    base: Change
    target: Change
    unlearned: Change
    floor: Change
    bound: dict[str, float] | None
    seconds: float
    attack: Attack | None = None
    """On the retrain itself: what an attack finds if the records were never there."""

    def entry(self, n_forget: int) -> dict[str, Any]:
        """As a certificate holds it, with Stein's bound for the measured divergences."""
        models = {name: dataclasses.asdict(getattr(self, name)) for name in ("base", "target", "unlearned", "floor")}
        scores = {"kl_f": self.unlearned.forget, "kl_t": self.unlearned.heldout}
        return {
            "seed": self.seed,
            **scores,
            "kl_retrain_to": models,
            "attack": None if self.attack is None else attack_entry(self.attack),
            "bound": self.bound,
            "stein": stein_block(scores, n_forget),
            "n_forget": n_forget,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, eq=False)
class Retrained:
    """Retrains with how they were trained."""

    checks: tuple[RetrainCheck, ...]
    optimization: Optimization
    epochs: int

    def entry(self, n_forget: int) -> dict[str, Any]:
        checks = [check.entry(n_forget) for check in self.checks]
        return {"optimization": dataclasses.asdict(self.optimization), "epochs": self.epochs, "checks": checks}


def check_by_retraining(plan: Plan, unlearned: Posteriors, how: Blueprint, settings: RetrainSettings) -> Retrained:
    """Retrain without the forgotten rows ``settings.pairs`` times, each with its floor, and measure the distance."""
    training = settings.of(how)
    checks, base, matched = [], base_posteriors(plan.subject), _matched(plan, plan.forget)
    for k in range(settings.pairs):
        started = time.perf_counter()
        seed = plan.settings.seed + k
        retrain, floor = (
            network_posteriors(plan.subject, _train(plan, how, training, seed, role)) for role in ("retrain", "floor")
        )
        models = {"base": base, "target": target_posteriors(plan), "unlearned": unlearned, "floor": floor}
        checks.append(
            RetrainCheck(
                seed=seed,
                **{name: divergence(plan, retrain, model) for name, model in models.items()},
                bound=None if plan.target is None else plan.target.bound(retrain.train),
                seconds=time.perf_counter() - started,
                attack=attack(plan, retrain, matched),
            )
        )
    return Retrained(tuple(checks), *training)


def _train(plan: Plan, how: Blueprint, training: tuple[Optimization, int], seed: int, role: str) -> NetworkStack:
    draw = derive_seed(seed, role, "weights")
    return train_anew(plan.subject, how, role, [draw], [seed], plan.forget_of_all, training).net
