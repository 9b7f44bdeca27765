"""The one training loop: bases, retrains, baselines and distillation are all recipes that it runs.

It sees a network only as (K, B, C) logits in and a gradient out, and each member's rows come from that member's own
generator, so that a member trains alike alone and in a stack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from unlearn_core.clock import clock_for
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.recipes import Algorithm, Optimization, Pass, Recipe, Term, Toward, Visit
from unlearn_core.seeding import derive_seed


@dataclass(frozen=True, eq=False)
class Member:
    """What one member of the stack trains on.

    Attributes:
        seed: of the cell; its streams are derived from it by purpose.
        stream: names the streams of row orders and labels. Methods of one cell share it, so that they visit the same rows.
        forget: (N,) bool mask over the training rows, or None where nothing is forgotten.
        soft: (N, C) float32 distributions for the terms that need them (teacher logits, proxy target).
    """

    seed: int
    stream: str
    labels: torch.Tensor
    forget: torch.Tensor | None = None
    soft: Mapping[Toward, torch.Tensor] = field(default_factory=dict)

    def generator(self, purpose: str) -> torch.Generator:
        """A CPU generator, so that the draws do not depend on the device."""
        return torch.Generator().manual_seed(derive_seed(self.seed, self.stream, purpose))


EpochEnd = Callable[[int, float], bool | None]
"""Called after every epoch with its number (from 1) and the training seconds so far, per member and without the calls.

An answer of True ends the training there.
"""


def train(
    net: NetworkStack,
    inputs: torch.Tensor,
    members: Sequence[Member],
    recipe: Recipe,
    optimization: Optimization,
    on_epoch: EpochEnd | None = None,
) -> float:
    """Train every member of ``net`` in place and return the seconds per member, calls to ``on_epoch`` excluded.

    Args:
        inputs: the training inputs, rows of which the network fetches by number.
        optimization: how weights move; ``recipe.optimization`` goes before it.
    """
    _warm_up()
    now = clock_for(net.device)
    started = now()
    run = _Run(net, inputs, members, recipe, recipe.optimization or optimization)
    spent = now() - started
    epoch = 0
    for phase in recipe.phases:
        for _ in range(phase.epochs):
            epoch += 1
            started = now()
            for sweep in phase.passes:
                run.sweep(sweep)
            run.end_epoch()
            spent += now() - started
            if on_epoch is not None and on_epoch(epoch, spent / net.n_members):
                return spent / net.n_members
    return spent / net.n_members


def loss_gradient(logits: torch.Tensor, loss: Sequence[Term], q: Sequence[torch.Tensor]) -> torch.Tensor:
    """Gradient of the summed terms at (K, B, C) logits, averaged over the batch: weight * T * (softmax(logits/T) - q) / B.

    Args:
        q: for each term, (K, B) labels or (K, B, C) distributions.
    """
    total: torch.Tensor | None = None
    for term, towards in zip(loss, q, strict=True):
        # Over a class-major copy torch's CPU softmax is vectorised along the batch: 20 times as fast for 10 classes
        scaled = logits.transpose(1, 2).contiguous()
        if term.temperature != 1.0:
            scaled = scaled / term.temperature
        gradient = torch.softmax(scaled, dim=1).transpose(1, 2)
        if towards.dim() == 2:
            gradient.scatter_add_(2, towards[..., None], torch.full_like(towards[..., None], -1, dtype=gradient.dtype))
        else:
            gradient -= towards
        gradient *= term.weight * term.temperature / logits.shape[1]
        total = gradient if total is None else total + gradient
    if total is None:
        raise ValueError("a loss needs at least one term")
    return total


@functools.cache
def _warm_up() -> None:
    """Make torch load its optimisers now: the first use in a process takes seconds that are no method's."""
    for algorithm in Algorithm:
        parameter = torch.zeros(1)
        parameter.grad = torch.zeros(1)
        _optimizer([[parameter]], Optimization(lr=1e-3, batch_size=1, algorithm=algorithm)).step()


class _Run:
    """The state of one call of ``train``."""

    def __init__(
        self,
        net: NetworkStack,
        inputs: torch.Tensor,
        members: Sequence[Member],
        recipe: Recipe,
        optimization: Optimization,
    ) -> None:
        if len(members) != net.n_members:
            raise ValueError(f"{net.n_members} networks but {len(members)} members")
        self.net: NetworkStack = net
        self.inputs: torch.Tensor = inputs
        self.optimization: Optimization = optimization
        self.orders: list[torch.Generator] = [member.generator("order") for member in members]
        self.labels: torch.Tensor = torch.stack([_labels(m, recipe, net.n_classes) for m in members]).to(net.device)
        self.rows: dict[Visit, list[torch.Tensor]] = _rows(members, len(inputs))
        self.soft: dict[tuple[Toward, float], list[torch.Tensor]] = {
            (term.toward, term.temperature): [_distribution(m, term).to(net.device) for m in members]
            for phase in recipe.phases
            for sweep in phase.passes
            for term in sweep.loss
            if term.toward is not Toward.LABELS
        }
        self.parameters: list[list[torch.Tensor]] = [list(tensors) for tensors in net.parameters()]
        self.moving: list[list[torch.Tensor]] | None = None
        if recipe.saliency_share is not None:
            true_labels = torch.stack([member.labels for member in members]).to(net.device)
            self.moving = self._salient_weights(recipe.saliency_share, true_labels)
        self.optimizer: torch.optim.Optimizer = _optimizer(self.parameters, optimization)
        net.use_batch_statistics(recipe.batch_statistics)

    def sweep(self, sweep: Pass) -> None:
        """One pass over the visited rows, in each member's own fresh order."""
        order = self._visited(sweep)
        size = sweep.batch_size or self.optimization.batch_size
        for start in range(0, order.shape[1], size):
            rows = order[:, start : start + size]
            logits = self.net.forward(self.inputs, rows)
            towards = [self._towards(term, rows) for term in sweep.loss]
            self.net.backward(loss_gradient(logits, sweep.loss, towards))
            self._step()

    def end_epoch(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= self.optimization.decay

    def _step(self) -> None:
        if self.moving is not None:
            for tensors, masks in zip(self.parameters, self.moving, strict=True):
                for tensor, mask in zip(tensors, masks, strict=True):
                    if tensor.grad is not None:
                        tensor.grad *= mask
        self.optimizer.step()

    def _visited(self, sweep: Pass) -> torch.Tensor:
        """(K, n) row numbers in visiting order."""
        return torch.stack([_draw(sweep, self.rows, k, generator) for k, generator in enumerate(self.orders)]).to(
            self.net.device
        )

    def _towards(self, term: Term, rows: torch.Tensor) -> torch.Tensor:
        if term.toward is Toward.LABELS:
            return torch.gather(self.labels, 1, rows)
        tables = self.soft[term.toward, term.temperature]
        return torch.stack([table.index_select(0, rows[k]) for k, table in enumerate(tables)])

    def _salient_weights(self, share: float, labels: torch.Tensor) -> list[list[torch.Tensor]]:
        """For each member, 1 at the ``share`` of its weights with the largest |sum of forget-loss gradients|, else 0."""
        self.net.use_batch_statistics(False)  # the gradient of the network as it stands, which measuring must not move
        sums = [[torch.zeros_like(tensor) for tensor in tensors] for tensors in self.parameters]
        forget = torch.stack(self.rows[Visit.FORGET]).to(self.net.device)
        for start in range(0, forget.shape[1], self.optimization.batch_size):
            rows = forget[:, start : start + self.optimization.batch_size]
            logits = self.net.forward(self.inputs, rows)
            # a sum over samples, so undo the averaging that a loss does
            gradient = loss_gradient(logits, (Term(Toward.LABELS),), [torch.gather(labels, 1, rows)]) * rows.shape[1]
            self.net.backward(gradient)
            for total, tensors in zip(sums, self.parameters, strict=True):
                for accumulated, tensor in zip(total, tensors, strict=True):
                    if tensor.grad is not None:
                        accumulated += tensor.grad
        return [_top_share(total, share) for total in sums]


def _labels(member: Member, recipe: Recipe, n_classes: int) -> torch.Tensor:
    """(N,) the labels that this run trains on; a random-labelling recipe redraws the forget ones among the others."""
    if not recipe.random_forget_labels or member.forget is None:
        return member.labels
    if n_classes < 2:
        raise ValueError("random labelling needs at least two classes")
    relabelled = member.labels.clone()
    true = relabelled[member.forget]
    offset = torch.randint(1, n_classes, true.shape, generator=member.generator("labels"))
    relabelled[member.forget] = (true + offset.to(true.device)) % n_classes
    return relabelled


def _rows(members: Sequence[Member], n_rows: int) -> dict[Visit, list[torch.Tensor]]:
    """Each member's row numbers on either side of its forget mask, on the CPU where the draws are made."""
    everything = torch.arange(n_rows)
    rows: dict[Visit, list[torch.Tensor]] = {Visit.ALL: [everything] * len(members)}
    if any(member.forget is not None for member in members):
        masks = [torch.zeros(n_rows, dtype=torch.bool) if m.forget is None else m.forget.cpu() for m in members]
        rows[Visit.FORGET] = [everything[mask] for mask in masks]
        rows[Visit.RETAIN] = [everything[~mask] for mask in masks]
        sizes = {len(forget) for forget in rows[Visit.FORGET]}
        if len(sizes) > 1:
            raise ValueError(
                f"members of one stack forget {sorted(sizes)} rows; stack members with requests of one size"
            )
    return rows


def _draw(
    sweep: Pass, rows: Mapping[Visit, Sequence[torch.Tensor]], k: int, generator: torch.Generator
) -> torch.Tensor:
    visit = sweep.visit
    if visit in (Visit.ALL, Visit.RETAIN, Visit.FORGET):
        return _shuffled(rows[visit][k], generator)
    forget, retain = rows[Visit.FORGET][k], rows[Visit.RETAIN][k]
    sample = _shuffled(retain, generator)[: max(len(forget), sweep.least_retained)]
    if visit is Visit.RETAIN_SAMPLE:
        return sample
    return _shuffled(torch.cat([forget, sample]), generator)


def _shuffled(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return rows[torch.randperm(len(rows), generator=generator)]


def _distribution(member: Member, term: Term) -> torch.Tensor:
    """(N, C) what ``term`` compares with: teacher logits become probabilities at its temperature."""
    table = member.soft[term.toward]
    return torch.softmax(table / term.temperature, dim=1) if term.toward is Toward.TEACHER else table


def _top_share(tensors: Sequence[torch.Tensor], share: float) -> list[torch.Tensor]:
    """0/1 masks that keep the ``share`` of all entries largest in absolute value, ranked across the tensors."""
    flat = torch.cat([tensor.abs().flatten() for tensor in tensors])
    kept = torch.zeros_like(flat)
    kept[torch.topk(flat, int(len(flat) * share)).indices] = 1.0
    pieces = torch.split(kept, [tensor.numel() for tensor in tensors])
    return [piece.view_as(tensor) for piece, tensor in zip(pieces, tensors, strict=True)]


def _optimizer(parameters: Sequence[Sequence[torch.Tensor]], how: Optimization) -> torch.optim.Optimizer:
    tensors = [tensor for member in parameters for tensor in member]
    if how.algorithm is Algorithm.SGD:
        return torch.optim.SGD(tensors, lr=how.lr, momentum=how.momentum, weight_decay=how.weight_decay, fused=True)
    return torch.optim.Adam(tensors, lr=how.lr, weight_decay=how.weight_decay, fused=True)
