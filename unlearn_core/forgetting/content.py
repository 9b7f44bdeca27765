"""What a certificate says."""

from __future__ import annotations

import dataclasses
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np

from unlearn_core import methods
from unlearn_core.audit.stein import ALPHAS, min_queries
from unlearn_core.closeness import Closeness
from unlearn_core.finalize import Finalized
from unlearn_core.forgetting.certificate import (
    NOT_UNLEARNED,
    NOTHING,
    UNLEARNED,
    Certificate,
    arrays_sha256,
    state_sha256,
)
from unlearn_core.forgetting.judgement import REQUIRED, Judgement, Progress
from unlearn_core.forgetting.measure import Attacks, Measured, Posteriors, Retrained, attack_entry
from unlearn_core.forgetting.plan import Plan, Weighed
from unlearn_core.forgetting.request import NewRows
from unlearn_core.forgetting.subject import Subject
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.request_kind import Verdict

SOFTWARE: tuple[str, ...] = ("unlearn-grid", "torch", "numpy", "scipy", "safetensors")
STEIN_RANGE: tuple[float, ...] = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0)
NOT_GUARANTEED: tuple[str, ...] = (
    "That the model is what retraining without the records would give. The change is what the method predicts; a "
    "proxy's is scaled to a size that pays on average by its own account. Whether it does for a retrain, and how close "
    "it comes, is known only where one was made (see 'retrain'); without one there is an estimate at best.",
    "Differential privacy, or any bound for an attacker who reads probabilities or weights. Stein's bound is for one "
    "who sees labels drawn from the model's posterior at records drawn at random.",
    "That the records cannot be reconstructed or recognised as members. The loss attack in it is a weak one, and what it "
    "finds means something only beside a retrain's. The attacks of an audit, if one was run (see 'audit'), are on other "
    "networks of the same recipe and read one answer to one record; whoever reads more may see more.",
    "Anything about features: a backbone, tokenizer or preprocessing that has seen the records still has.",
    "That the records are gone from backups, logs, caches, the data file itself, earlier copies of the model or "
    "models distilled "
    "from it.",
    "That data, labels and request are the true ones. The hashes say which files were used, not who asked.",
)
BY_OUTCOME: Mapping[str, tuple[str, ...]] = {
    UNLEARNED: (),
    NOTHING: (
        "That the records had no influence on the model. No proxy saw an influence that it could take out, and the "
        "model is unchanged.",
    ),
    NOT_UNLEARNED: ("That the records were unlearned: by the rule under 'verdict' they were not.",),
}
ATTACK = (
    "the probability that the model is surer of a record than of a held-out row of its class: 0.5 is chance, and the "
    "distance from it counts on both sides, for records that were pushed too far stand out again"
)
LEAST_SKILL = 0.1
"""Of a base model, beyond guessing the largest class; below it something is wrong with what was given."""
VACUOUS = (
    "1 by construction: on the records P is the network itself, so that the whole signal is admissible whatever P_r says; "
    "that vouches for nothing"
)
NO_HELDOUT = (
    "Anything about rows that the model was not trained on: none were given. So it is not said what the request changes "
    "there, no attack compares the records with such rows, and there is no estimate of how close to a retrain it comes."
)


@dataclass(frozen=True, eq=False)
class Described:
    """What the certificate says of a request beside its numbers.

    Attributes:
        model: such as ``mlp1``, the address of a factory, or a black box.
    """

    model: str
    rows: NewRows
    class_names: Sequence[str] = ()


@dataclass(frozen=True)
class Predicted:
    """KL(retrain||model) on the records, as far as it can be known without a retrain; None with why it cannot."""

    why: str
    before: Closeness | None = None
    after: Closeness | None = None

    @property
    def worse(self) -> str | None:
        """Why the model should not be kept, if all of the interval after lies beyond all of that before."""
        if self.before is None or self.after is None or self.after.low <= self.before.high:
            return None
        return (
            f"not kept, for it goes away from a retrain: by estimate from at most {self.before.high:.3g} to at least "
            f"{self.after.low:.3g} nats on the records; another --method may come closer"
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """A plan carried out. ``finalized`` is None if there was nothing to unlearn."""

    plan: Plan
    start: str
    finalized: Finalized | None
    posteriors: Posteriors
    """What the model says now, or with finalizer ``none`` the logit processor."""
    measured: Measured
    net: NetworkStack | None
    """What was made of the network; None if it was left as it is."""
    judgement: Judgement
    retrained: Retrained | None = None
    closeness: Predicted | None = None
    """How close to a retrain it is, as far as that can be known without one; None without a prepared state."""
    prepared: Mapping[str, Any] | None = None
    """The prepared state that it started from."""
    audit: Mapping[str, Any] | None = None
    """What an attacker found in networks that were unlearned in the same way; None if there was no audit."""

    @property
    def unlearned(self) -> bool:
        return self.judgement.unlearned

    @property
    def processed(self) -> bool:
        """Whether a logit processor does the unlearning, around the base."""
        return self.finalized is not None and self.plan.settings.finalizer == "none"

    def deployed(self, last: NetworkStack | None) -> NetworkStack | None:
        """The network to use from now on: what was made of it, the base within a processor, or the one that was in use.

        Args:
            last: what the last request left; None where there was none.
        """
        if self.net is not None:
            return self.net
        return self.plan.subject.net if self.processed or last is None else last

    @property
    def reason(self) -> str:
        """Why it is what it is: of what was unlearned, why by this method."""
        return self.plan.choice.reason if self.unlearned else self.judgement.why

    @property
    def warnings(self) -> list[str]:
        """What makes one doubt that the model, the data and the labels belong together."""
        return [*_near_chance(self.plan.subject), *_probabilities(self.plan.subject)]


def make_certificate(outcome: Outcome, described: Described, history: Sequence[dict[str, Any]]) -> Certificate:
    """All that is known of a request, files aside."""
    plan = outcome.plan
    return Certificate.of(
        {
            "outcome": outcome.judgement.outcome,
            "reason": outcome.reason,
            "verdict": _verdict(outcome.judgement),
            "warnings": outcome.warnings,
            "made": _made(plan.settings.seed),
            "model": _model(outcome, described),
            "data": _data(plan),
            "request": _request(plan, described),
            "classes": _classes(plan, described),
            "kind": _kind(plan.verdict),
            "proxy": _proxy(plan),
            "finalizer": _finalizer(outcome),
            "divergence": _divergence(outcome),
            "accuracy": {when: dataclasses.asdict(getattr(outcome.measured, when)) for when in ("before", "after")},
            "attack": _attack(outcome.measured.attacks),
            "stein": stein_range(plan.n_forget),
            "closeness": None if outcome.closeness is None else _closeness(outcome.closeness),
            "prepared": outcome.prepared,
            "retrain": None if outcome.retrained is None else outcome.retrained.entry(plan.n_forget),
            "audit": outcome.audit,
            "history": list(history),
            "not_guaranteed": [
                *BY_OUTCOME[outcome.judgement.outcome],
                *(() if plan.subject.problem.heldout is not None else (NO_HELDOUT,)),
                *NOT_GUARANTEED,
            ],
            "files": [],
        }
    )


def stein_range(n_forget: int) -> dict[str, Any]:
    """Queries that an attacker needs at least, for divergences that one may or may not have reached."""
    return {
        "seen_by_attacker": "labels drawn from the model's posterior",
        "n_forget": n_forget,
        "least_queries": [{"kl": kl, **{f"at_{a:g}": min_queries(kl, a) for a in ALPHAS}} for kl in STEIN_RANGE],
        "indistinguishable_on_forget_below_kl": {
            f"at_{a:g}": (1 - 2 * a) * math.log((1 - a) / a) / n_forget for a in ALPHAS
        },
    }


def _verdict(judgement: Judgement) -> dict[str, Any] | None:
    """What was asked for and achieved on the records; None if there was nothing to judge."""
    if judgement.rule is None:
        return None

    def entry(progress: Progress | None) -> dict[str, Any] | None:
        if progress is None:
            return None
        return {**dataclasses.asdict(progress), "share": progress.share}

    return {
        "rule": judgement.rule,
        "required": REQUIRED,
        "why": judgement.why,
        "records": entry(judgement.records),
        "all_records": entry(judgement.all_records),
        "losses": None if judgement.losses is None else dataclasses.asdict(judgement.losses),
    }


def _attack(attacks: Attacks | None) -> dict[str, Any]:
    if attacks is None:
        return {"what": ATTACK, "why": "no attack was run: there are no held-out rows of the records' classes"}
    return {
        "what": ATTACK,
        "n_records": attacks.n_records,
        "n_heldout": attacks.n_heldout,
        "by_chance": attacks.before.chance,
        "before": attack_entry(attacks.before),
        "after": attack_entry(attacks.after),
    }


def _near_chance(subject: Subject) -> Iterator[str]:
    right = float((subject.train.log_base.argmax(axis=1) == subject.labels).mean())
    guessed = float(subject.problem.class_counts.max() / subject.problem.class_counts.sum())
    if right - guessed < LEAST_SKILL * (1 - guessed):
        yield (
            f"the base is right on {100 * right:.1f} % of the training rows, and guessing the largest class on "
            f"{100 * guessed:.1f} %: labels, the order of classes or features may not be those that it was trained on"
        )


def _probabilities(subject: Subject) -> Iterator[str]:
    logits = subject.train.base_logits
    if logits.min() >= 0 and logits.max() <= 1 and np.allclose(logits.sum(axis=1), 1, atol=1e-3):
        yield (
            "the logits look like probabilities: each row lies in [0, 1] and sums to 1; give what goes into the softmax, or "
            "the logarithms"
        )


def _made(seed: int) -> dict[str, Any]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "software": {name: _version(name) for name in SOFTWARE},
    }


@cache
def _version(name: str) -> str | None:
    """None for a package that is used from its source folder, without being installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _model(outcome: Outcome, described: Described) -> dict[str, Any]:
    subject = outcome.plan.subject
    n_weights = None if subject.net is None else sum(tensor.numel() for tensor in subject.net.state(0).values())
    return {
        "kind": described.model,
        "n_classes": subject.n_classes,
        "n_weights": n_weights,
        "base_sha256": subject.base_sha256,
        "unlearned_sha256": None if outcome.net is None else state_sha256(outcome.net.state(0)),
        "start": outcome.start,
    }


def _data(plan: Plan) -> dict[str, Any]:
    subject = plan.subject
    return {
        "sha256": subject.data_sha256,
        "n_train": subject.problem.n_rows,
        "n_looked_at": len(subject.train),
        "n_heldout": None if subject.heldout is None else len(subject.heldout),
        "n_features": subject.train.features.shape[1],
        "features": subject.seen_by_proxies,
    }


def _request(plan: Plan, described: Described) -> dict[str, Any]:
    return {
        "rows_sha256": arrays_sha256({"rows": plan.subject.problem.train.number[plan.forget]}),
        "n_asked": len(described.rows.asked.rows),
        "n_repeated": len(described.rows.asked.repeated),
        "n_already_forgotten": len(described.rows.already),
        "n_forget": plan.n_forget,
        "n_retain": plan.subject.problem.n_rows - plan.n_forget,
    }


def _classes(plan: Plan, described: Described) -> list[dict[str, Any]]:
    subject = plan.subject
    total = subject.problem.class_counts
    forget = np.bincount(subject.labels[plan.forget], minlength=subject.n_classes)
    retain = total - forget
    names = described.class_names or [str(c) for c in range(subject.n_classes)]
    return [
        {
            "name": names[c],
            "n_train": int(total[c]),
            "n_forget": int(forget[c]),
            "n_retain": int(retain[c]),
            "share_before": float(total[c] / total.sum()),
            "share_after": float(retain[c] / retain.sum()),
        }
        for c in range(subject.n_classes)
    ]


def _closeness(predicted: Predicted) -> dict[str, Any]:
    """Queries are Stein's, for the upper end."""
    return {
        "what": "mean KL(retrain||model) on the records in nats, with an interval of 90 %, without a retrain",
        "of": "a retrain from other initial weights; one from the base's own is closer, and only the upper end holds for it",
        **dataclasses.asdict(predicted),
    }


def _kind(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "kind": str(verdict.kind),
        "why": verdict.why,
        "p_value": verdict.p_value,
        "within_classes": verdict.within_classes,
        "tests": [dataclasses.asdict(test) for test in verdict.tests],
    }


def _proxy(plan: Plan) -> dict[str, Any]:
    chosen, settings = plan.chosen, plan.settings
    return {
        "asked_for": settings.proxy,
        "method": plan.choice.method,
        "why": plan.choice.reason,
        "ridge": settings.ridge,
        "shrinkage": settings.shrinkage,
        "cap": None if chosen is None else settings.cap_of(chosen.target.method),
        "eta_max": None if chosen is None else chosen.search.eta_max,
        "eta_reason": None if chosen is None else eta_reason(chosen),
        "admissible": None if chosen is None else chosen.search.admissible,
        "kl_net_proxy_before": None if chosen is None else chosen.kl_before,
        "kl_net_proxy_after": None if chosen is None else chosen.kl_after,
        "h_curve": [] if chosen is None else chosen.target.h_curve(),
        "candidates": [_candidate(weighed) for weighed in plan.weighed],
        "unusable": [dataclasses.asdict(unusable) for unusable in plan.unusable],
    }


def eta_reason(weighed: Weighed) -> str:
    """Why eta is what it is, and where that says nothing of the proxy, that."""
    vacuous = weighed.search.admissible and methods.find_proxy(weighed.target.method).vacuous
    return VACUOUS if vacuous else weighed.search.reason


def _candidate(weighed: Weighed) -> dict[str, Any]:
    return {
        "method": weighed.target.method,
        "admissible": weighed.search.admissible,
        "eta_max": weighed.search.eta_max,
        "reason": eta_reason(weighed),
        "kl_net_proxy_before": weighed.kl_before,
        "kl_net_proxy_after": weighed.kl_after,
        "loss": weighed.candidate.loss,
    }


def _finalizer(outcome: Outcome) -> dict[str, Any]:
    settings, done = outcome.plan.settings, outcome.finalized
    entry: dict[str, Any] = {"name": settings.finalizer}
    if done is None:
        return entry
    return entry | {
        "ended": done.ended,
        "scores": list(done.scores),
        "attacks": list(done.attacks),
        "best_epoch": done.best_epoch,
        "stopping": dataclasses.asdict(settings.stopping) if done.watched else None,
        "watched": None if done.watched is None else dataclasses.asdict(done.watched),
        "optimization": None if done.optimization is None else dataclasses.asdict(done.optimization),
        "seconds": done.seconds,
    }


def _divergence(outcome: Outcome) -> dict[str, Any]:
    planned, left = outcome.measured.planned, outcome.measured.from_target
    return {
        "unit": "nats",
        "base_to_unlearned": dataclasses.asdict(outcome.measured.from_base),
        "base_to_target": None if planned is None else dataclasses.asdict(planned),
        "target_to_unlearned": None if left is None else dataclasses.asdict(left),
    }
