"""What a deletion request may ask for. Light: nothing here imports torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from unlearn_core.errors import BadInput
from unlearn_core.finalizers import FINALIZERS
from unlearn_core.spec import AUTO_CANDIDATES, PROXIES, TRAINING_POINT_PROXIES, ProxySettings

AUTO = "auto"
NAMED_PROXIES: tuple[str, ...] = PROXIES
"""What can be asked for by name."""
SHRINKAGES: tuple[str, ...] = ("ridge", "ledoit-wolf", "oas")


@dataclass(frozen=True)
class Stopping:
    """When distillation ends: after ``patience`` epochs in which KL to the target did not materially fall.

    It is taken on the forgotten rows and, with the same weight, on ``heldout_share`` of the retained rows, which no epoch
    visits.
    """

    epochs: int = 100
    patience: int = 10
    heldout_share: float = 0.2

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.patience < 1:
            raise BadInput(f"{self.epochs} epochs with patience {self.patience}: both must be at least 1")
        if not 0 < self.heldout_share <= 0.5:
            raise BadInput(
                f"held-out share {self.heldout_share} must lie above 0 and be at most 0.5; 0.2 is the default"
            )


@dataclass(frozen=True)
class ForgetSettings:
    """Choices that are part of the certificate. ``lr`` and ``batch_size`` None: the architecture's own."""

    proxy: str = AUTO
    finalizer: str = "kl"
    ridge: float = 1e-3
    shrinkage: str = "ridge"
    cap: float | None = None
    """The largest eta; None: what is usual for each proxy, 1 for the paper's."""
    seed: int = 0
    lr: float | None = None
    batch_size: int | None = None
    stopping: Stopping = field(default_factory=Stopping)

    def __post_init__(self) -> None:
        for what, value, known in (
            ("proxy", self.proxy, (AUTO, *NAMED_PROXIES)),
            ("finalizer", self.finalizer, FINALIZERS),
            ("shrinkage", self.shrinkage, SHRINKAGES),
        ):
            if value not in known:
                raise BadInput(f"unknown {what} {value!r}; there are {', '.join(known)}")
        if self.finalizer == "none" and self.proxy in TRAINING_POINT_PROXIES:
            raise BadInput(
                f"{self.proxy} speaks of training points only, so that a logit processor of it would forget nothing "
                "elsewhere; choose another proxy or finalizer"
            )
        if not (math.isfinite(self.ridge) and self.ridge >= 0):
            raise BadInput(f"ridge {self.ridge} must be a number of at least 0; 1e-3 is the default")
        if self.lr is not None and not (math.isfinite(self.lr) and self.lr > 0):
            raise BadInput(f"learning rate {self.lr} must be positive; leave it out to have one chosen")
        if self.batch_size is not None and self.batch_size < 1:
            raise BadInput(f"batch size {self.batch_size} must be at least 1")
        if self.cap is not None and not self.cap > 0:
            raise BadInput(f"cap {self.cap} must be positive; the paper's is 1, inf is no limit")

    @property
    def candidates(self) -> tuple[str, ...]:
        """What ``auto`` fits and chooses from; a logit processor needs one that speaks of any point."""
        if self.finalizer != "none":
            return AUTO_CANDIDATES
        return tuple(method for method in AUTO_CANDIDATES if method not in TRAINING_POINT_PROXIES)

    def cap_of(self, method: str) -> float:
        return ProxySettings(cap=self.cap).cap_of(method)
