"""Score models beside the retrain of their cell: KL both ways, accuracies, fast membership inference.

Distributions are float64 and class-major (C, N), where torch reduces over classes along memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.audit.membership import threshold_attack
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.records import Scores


@dataclass(frozen=True, eq=False)
class EvaluationData:
    """Where the models of one cell are compared.

    Attributes:
        test_inputs, test_labels: the full test set.
        train_inputs: all training inputs; the forgotten ones are fetched by number, never held twice.
        forget_rows, forget_labels: which of them are forgotten.
        heldout: (N_test,) bool, the test rows whose (fine) class has forgotten rows: the non-members of the attack.
    """

    test_inputs: torch.Tensor
    test_labels: torch.Tensor
    train_inputs: torch.Tensor
    forget_rows: torch.Tensor
    forget_labels: torch.Tensor
    heldout: torch.Tensor


@dataclass(frozen=True, eq=False)
class Posteriors:
    """Log posteriors of one model on test and forget rows, (C, N) each, float64."""

    test: torch.Tensor
    forget: torch.Tensor


class Scorer:
    """Scores against one retrained network."""

    def __init__(self, data: EvaluationData, retrain: NetworkStack, member: int) -> None:
        self.data: EvaluationData = data
        self.retrain: Posteriors = self.posteriors(retrain, member)

    def posteriors(self, net: NetworkStack, member: int) -> Posteriors:
        return Posteriors(
            log_posterior(net.logits(member, self.data.test_inputs)),
            log_posterior(net.logits(member, self.data.train_inputs, self.data.forget_rows)),
        )

    def score(self, net: NetworkStack, member: int) -> Scores:
        """Score one member of a stack."""
        return self.score_posteriors(self.posteriors(net, member))

    def score_arrays(self, log_test: NDArray[np.float64], log_forget: NDArray[np.float64]) -> Scores:
        """Score (N, C) log posteriors, as targets are."""
        device = self.data.test_inputs.device
        to_tensor = lambda log_p: torch.from_numpy(np.ascontiguousarray(log_p.T)).to(device)  # noqa: E731
        return self.score_posteriors(Posteriors(to_tensor(log_test), to_tensor(log_forget)))

    def score_posteriors(self, model: Posteriors) -> Scores:
        data = self.data
        test_confidence = _confidence(model.test, data.test_labels)
        attack = threshold_attack(
            _confidence(model.forget, data.forget_labels).cpu().numpy(), test_confidence[data.heldout].cpu().numpy()
        )
        return Scores(
            kl_t=_mean_kl(self.retrain.test, model.test),
            kl_f=_mean_kl(self.retrain.forget, model.forget),
            kl_t_reverse=_mean_kl(model.test, self.retrain.test),
            kl_f_reverse=_mean_kl(model.forget, self.retrain.forget),
            acc_t=_accuracy(model.test, data.test_labels),
            acc_f=_accuracy(model.forget, data.forget_labels),
            mia_auc=attack.auc,
            mia_balanced_accuracy=attack.balanced_accuracy,
            mia_two_sided=attack.two_sided_accuracy,
        )


def log_posterior(logits: torch.Tensor) -> torch.Tensor:
    """(C, N) float64 log softmax of (N, C) logits."""
    return torch.log_softmax(logits.T.contiguous().double(), dim=0)


def _mean_kl(log_p: torch.Tensor, log_q: torch.Tensor) -> float:
    p = log_p.exp()
    return float(torch.where(p > 0, p * (log_p - log_q), 0.0).sum(0).mean())


def _accuracy(log_p: torch.Tensor, labels: torch.Tensor) -> float:
    return float((log_p.argmax(0) == labels).double().mean())


def _confidence(log_p: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return log_p.gather(0, labels[None])[0]
