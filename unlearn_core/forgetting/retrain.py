"""Was it enough? Retrain without the forgotten rows, twice, and measure how far the unlearned model is from that."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from unlearn_core.audit.bounds import tight_bound
from unlearn_core.audit.divergence import mean_kl
from unlearn_core.audit.stein import stein_block
from unlearn_core.errors import BadInput
from unlearn_core.eta import mean_lse_shift
from unlearn_core.forgetting.measure import network_posteriors
from unlearn_core.forgetting.networks import Blueprint
from unlearn_core.forgetting.plan import Change, Plan, Target, base_posteriors
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.proxies.training_rows import training_posteriors
from unlearn_core.seeding import derive_seed
from unlearn_core.spec import Optimization, Visit, training_recipe
from unlearn_core.training import Member, train


@dataclass(frozen=True)
class RetrainSettings:
    """``pairs`` retrains, each with a second one for the floor. None: the architecture's own."""

    pairs: int = 1
    epochs: int | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise BadInput(f"{self.pairs} retrains are no check; ask for at least 1")
        if self.epochs is not None and self.epochs < 1:
            raise BadInput(f"{self.epochs} epochs train nothing; ask for at least 1")
        if self.lr is not None and not (math.isfinite(self.lr) and self.lr > 0):
            raise BadInput(f"learning rate {self.lr} of the retrain must be positive")


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

    def entry(self, n_forget: int) -> dict[str, Any]:
        """As a certificate holds it, with Stein's bound for the measured divergences."""
        models = {name: dataclasses.asdict(getattr(self, name)) for name in ("base", "target", "unlearned", "floor")}
        scores = {"kl_f": self.unlearned.forget, "kl_t": self.unlearned.heldout}
        return {
            "seed": self.seed,
            "kl_f": self.unlearned.forget,
            "kl_t": self.unlearned.heldout,
            "kl_retrain_to": models,
            "bound": self.bound,
            "stein": stein_block(scores, n_forget),
            "n_forget": n_forget,
            "seconds": self.seconds,
        }


def check_by_retraining(
    plan: Plan, unlearned: Target, how: Blueprint, settings: RetrainSettings
) -> tuple[list[RetrainCheck], Optimization, int]:
    """Retrain ``settings.pairs`` times, each with its floor; also returns how and for how many epochs."""
    optimization, epochs = how.training
    if settings.lr is not None:
        optimization = dataclasses.replace(optimization, lr=settings.lr)
    epochs = settings.epochs or epochs
    checks = []
    for k in range(settings.pairs):
        started = time.perf_counter()
        seed = plan.settings.seed + k
        retrain, floor = (
            network_posteriors(plan, _train(plan, how, optimization, epochs, seed, role))
            for role in ("retrain", "floor")
        )
        checks.append(
            RetrainCheck(
                seed=seed,
                base=plan.divergence(retrain, base_posteriors(plan.subject)),
                target=plan.divergence(retrain, plan.target or base_posteriors(plan.subject)),
                unlearned=plan.divergence(retrain, unlearned),
                floor=plan.divergence(retrain, floor),
                bound=_bound(plan, retrain),
                seconds=time.perf_counter() - started,
            )
        )
    return checks, optimization, epochs


def _train(plan: Plan, how: Blueprint, optimization: Optimization, epochs: int, seed: int, role: str) -> NetworkStack:
    part, base = plan.subject.train, plan.subject.net
    if part.inputs is None or base is None:
        raise BadInput("a black box cannot be retrained; leave --verify-retrain out, or give the network")
    net = how.fresh(base, part.inputs[:2], derive_seed(seed, role, "weights"))
    if net.n_classes != base.n_classes:
        raise BadInput(
            f"{how.name} builds {net.n_classes} classes and the model has {base.n_classes}; mend the function"
        )
    labels = torch.from_numpy(part.labels).to(part.inputs.device)
    member = Member(seed, role, labels, torch.from_numpy(plan.forget))
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, role, "noise"))  # dropout draws from torch's own stream
        train(net, part.inputs, [member], training_recipe(Visit.RETAIN, epochs), optimization)
    net.use_batch_statistics(False)
    return net


def _bound(plan: Plan, retrain: Target) -> dict[str, float] | None:
    chosen = plan.chosen
    if chosen is None or plan.target is None:
        return None
    logits, eta = plan.subject.train.logits, chosen.search.eta_max
    log_base = base_posteriors(plan.subject).train
    log_proxy, log_retain_proxy = training_posteriors(chosen.proxy, plan.subject.train.features, log_base)
    h = mean_lse_shift(eta, logits, chosen.signal)
    bound = tight_bound(eta, h, log_base, retrain.train, log_proxy, log_retain_proxy)
    return {**dataclasses.asdict(bound), "measured": mean_kl(retrain.train, plan.target.train)}
