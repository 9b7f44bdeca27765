"""The one training loop: bases, retrains, baselines and distillation are all recipes that it runs.

It sees a network only as (K, B, C) logits in and a gradient out, and each member's rows come from that member's own
generator, so that a member trains alike alone and in a stack.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from unlearn_core.arithmetic import denormals_flushed
from unlearn_core.clock import clock_for
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.optimizers import SGD, Adam
from unlearn_core.recipes import Algorithm, ForgetLabels, Optimization, Pass, Recipe, Term, Toward, Visit
from unlearn_core.seeding import derive_seed


@dataclass(frozen=True, eq=False)
class Member:
    """What one member of the stack trains on.

    Attributes:
        seed: of the cell; its streams are derived from it by purpose.
        stream: names the streams of row orders and labels. Methods of one cell share it, so that they visit the same rows.
        forget: (N,) bool mask over the training rows, or None where nothing is forgotten.
        soft: (N, C) float32 distributions for the terms that need them (teacher logits, proxy target).
        chances: (N,) how often a pass that draws rows draws each, in any unit (``Visit.RETAIN_DRAWN``).
    """

    seed: int
    stream: str
    labels: torch.Tensor
    forget: torch.Tensor | None = None
    soft: Mapping[Toward, torch.Tensor] = field(default_factory=dict)
    chances: torch.Tensor | None = None

    def generator(self, purpose: str) -> torch.Generator:
        """A CPU generator, so that the draws do not depend on the device."""
        return torch.Generator().manual_seed(derive_seed(self.seed, self.stream, purpose))


EpochEnd = Callable[[float, float], bool | None]
"""Called after every epoch with its number (from 1) and the training seconds so far, per member and without the calls; or
where the recipe says, with a fraction of an epoch.

An answer of True ends the training there.
"""


@denormals_flushed()
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
    warm_up()
    now = clock_for(net.device)
    started = now()
    run = _Run(net, inputs, members, recipe, recipe.optimization or optimization)
    spent, epoch = 0.0, 0

    def record(at: float) -> bool:
        nonlocal spent, started
        spent += now() - started
        with run.averaged_weights(), denormals_flushed(False):
            ended = on_epoch is not None and on_epoch(at, spent / net.n_members)
        started = now()
        return bool(ended)

    for phase in recipe.phases:
        for _ in range(phase.epochs):
            epoch += 1
            run.begin_epoch(epoch)
            for sweep in phase.passes:
                for _step in run.sweep(sweep):
                    if (at := run.marks.get(run.steps)) is not None and record(at):
                        return run.end(spent)
            run.end_epoch()
            if not run.marks and record(epoch):
                return run.end(spent)
    spent += now() - started
    return run.end(spent)


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
def warm_up() -> None:
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
        self.members: Sequence[Member] = members
        self.recipe: Recipe = recipe
        self.optimization: Optimization = optimization
        self.orders: list[torch.Generator] = [member.generator("order") for member in members]
        self.label_draws: list[torch.Generator] = [member.generator("labels") for member in members]
        self.labels: torch.Tensor = torch.stack([member.labels for member in members]).to(net.device)
        self.rows: dict[Visit, list[torch.Tensor]] = _rows(members, len(inputs))
        drawn = any(sweep.visit is Visit.RETAIN_DRAWN for phase in recipe.phases for sweep in phase.passes)
        self.chances: list[torch.Tensor] = _chances_of_retained(members, self.rows) if drawn else []
        self.stands_for: torch.Tensor | None = self._stands_for() if drawn else None
        self.soft: dict[tuple[Toward, float], list[torch.Tensor]] = {
            (term.toward, term.temperature): [_distribution(m, term).to(net.device) for m in members]
            for term in recipe.terms
            if term.toward is not Toward.LABELS
        }
        self.parameters: list[list[torch.Tensor]] = [list(tensors) for tensors in net.parameters()]
        self.moving: list[list[torch.Tensor]] | None = None
        if recipe.saliency_share is not None:
            self.moving = self._salient_weights(recipe.saliency_share)
        # the optimiser would decay masked weights too, so that a masked run adds its decay to the gradient
        self.decay_in_gradient: float = 0.0 if self.moving is None else optimization.weight_decay
        self.l1: float = 0.0
        in_optimizer = replace(optimization, weight_decay=0.0) if self.decay_in_gradient else optimization
        self.optimizer: Adam | SGD = _optimizer(self.parameters, in_optimizer)
        net.use_batch_statistics(recipe.batch_statistics)
        self.steps: int = 0
        per_epoch = sum(self._n_steps(sweep) for sweep in recipe.phases[0].passes)
        self.marks: dict[int, float] = {max(1, round(at * per_epoch)): at for at in recipe.record_at}
        self.step_decay: float = recipe.last_rate ** (1 / (per_epoch * recipe.epochs))
        self.averaging: float | None = recipe.averaging
        tensors = [*(t for member in self.parameters for t in member), *net.running_statistics()]
        self.averages: list[tuple[torch.Tensor, torch.Tensor]] = (
            [] if self.averaging is None else [(tensor, torch.zeros_like(tensor)) for tensor in tensors]
        )

    def _n_steps(self, sweep: Pass) -> int:
        """How many updates a pass makes."""
        rows = {visit: len(members[0]) for visit, members in self.rows.items()}
        if sweep.visit is Visit.RETAIN_DRAWN:
            visited = rows[Visit.RETAIN]
        elif sweep.visit in rows:
            visited = rows[sweep.visit]
        else:
            visited = sweep.retained(rows[Visit.FORGET], rows[Visit.RETAIN])
            visited += 0 if sweep.visit is Visit.RETAIN_SAMPLE else rows[Visit.FORGET]
        return -(-visited // (sweep.batch_size or self.optimization.batch_size))

    def sweep(self, sweep: Pass) -> Iterator[None]:
        """One pass over the visited rows, in each member's own fresh order; yields after every step."""
        batches = self._batches(sweep)
        beside = None if sweep.beside is None else itertools.cycle(self._batches(sweep.beside))
        for rows in batches:
            if sweep.beside is None or beside is None:
                gradient = self._loss_gradient(sweep, self.net.forward(self.inputs, rows), rows)
            else:
                others = next(beside)
                both = self.net.forward(self.inputs, torch.cat([rows, others], 1))
                logits, other_logits = both.split([rows.shape[1], others.shape[1]], 1)
                parts = (
                    self._loss_gradient(sweep, logits, rows),
                    self._loss_gradient(sweep.beside, other_logits, others),
                )
                gradient = torch.cat(parts, 1)
            self.net.backward(gradient)
            self._step()
            yield

    def _batches(self, sweep: Pass) -> tuple[torch.Tensor, ...]:
        """(K, B) row numbers of each step."""
        return self._visited(sweep).split(sweep.batch_size or self.optimization.batch_size, 1)

    def _loss_gradient(self, sweep: Pass, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        gradient = loss_gradient(logits, sweep.loss, [self._towards(term, rows) for term in sweep.loss])
        if sweep.visit is Visit.RETAIN_DRAWN and self.stands_for is not None:
            gradient *= torch.gather(self.stands_for, 1, rows)[:, :, None]
        return gradient

    def _stands_for(self) -> torch.Tensor:
        """(K, N) how many retained rows a drawn one stands for; 0 for those that are never drawn."""
        table = torch.zeros(self.labels.shape)
        for k, chances in enumerate(self.chances):
            table[k, self.rows[Visit.RETAIN][k]] = (1 / (len(chances) * chances)).float()
        return table.to(self.net.device)

    def begin_epoch(self, epoch: int) -> None:
        """``epoch`` counts from 1."""
        self.l1 = self.recipe.l1 * (1 - (epoch - 1) / self.recipe.epochs)
        drawn = self.recipe.forget_labels
        if drawn is ForgetLabels.ANY_EACH_EPOCH or (drawn is ForgetLabels.OTHER_ONCE and epoch == 1):
            pairs = zip(self.members, self.label_draws, strict=True)
            labels = [_draw_labels(member, drawn, self.net.n_classes, generator) for member, generator in pairs]
            self.labels = torch.stack(labels).to(self.net.device)

    def end_epoch(self) -> None:
        self._decay(self.optimization.decay)

    def _decay(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= factor

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """The network with its averaged weights, if there are any, for as long as it is looked at."""
        current = [tensor.detach().clone() for tensor, _ in self.averages]
        self._take(average for _, average in self.averages)
        yield
        self._take(current)

    def _take(self, values: Iterable[torch.Tensor]) -> None:
        for (tensor, _), value in zip(self.averages, values, strict=True):
            tensor.detach().copy_(value)

    def end(self, spent: float) -> float:
        """Leave the averaged weights in the network; the seconds per member."""
        self._take(average for _, average in self.averages)
        return spent / self.net.n_members

    def _step(self) -> None:
        for k, tensors in enumerate(self.parameters):
            for i, tensor in enumerate(tensors):
                if tensor.grad is None:
                    continue
                if self.l1:
                    tensor.grad.add_(tensor.detach().sign(), alpha=self.l1)
                if self.decay_in_gradient:
                    tensor.grad.add_(tensor.detach(), alpha=self.decay_in_gradient)
                if self.moving is not None:
                    tensor.grad *= self.moving[k][i]
        self.optimizer.step()
        self.steps += 1
        if self.step_decay != 1.0:
            self._decay(self.step_decay)
        if self.averaging is not None:
            share = (self.averaging + 1) / (self.steps + self.averaging)
            for tensor, average in self.averages:
                average.lerp_(tensor.detach(), share)

    def _visited(self, sweep: Pass) -> torch.Tensor:
        """(K, n) row numbers in visiting order."""
        if sweep.visit is Visit.RETAIN_DRAWN:
            retained = self.rows[Visit.RETAIN]
            drawn = [retained[k][_draw_by(self.chances[k], order)] for k, order in enumerate(self.orders)]
        else:
            drawn = [_draw(sweep, self.rows, k, order) for k, order in enumerate(self.orders)]
        return torch.stack(drawn).to(self.net.device)

    def _towards(self, term: Term, rows: torch.Tensor) -> torch.Tensor:
        if term.toward is Toward.LABELS:
            return torch.gather(self.labels, 1, rows)
        tables = self.soft[term.toward, term.temperature]
        return torch.stack([table.index_select(0, rows[k]) for k, table in enumerate(tables)])

    def _salient_weights(self, share: float) -> list[list[torch.Tensor]]:
        """For each member, 1 at the ``share`` of its weights with the largest |sum of forget-loss gradients|, else 0."""
        self.net.use_batch_statistics(False)  # the gradient of the network as it stands, which measuring must not move
        sums = [[torch.zeros_like(tensor) for tensor in tensors] for tensors in self.parameters]
        forget = torch.stack(self.rows[Visit.FORGET]).to(self.net.device)
        for start in range(0, forget.shape[1], self.optimization.batch_size):
            rows = forget[:, start : start + self.optimization.batch_size]
            logits = self.net.forward(self.inputs, rows)
            # a sum over samples, so undo the averaging that a loss does
            true = torch.gather(self.labels, 1, rows)
            gradient = loss_gradient(logits, (Term(Toward.LABELS),), [true]) * rows.shape[1]
            self.net.backward(gradient)
            for total, tensors in zip(sums, self.parameters, strict=True):
                for accumulated, tensor in zip(total, tensors, strict=True):
                    if tensor.grad is not None:
                        accumulated += tensor.grad
        return [_top_share(total, share) for total in sums]


def _draw_labels(member: Member, drawn: ForgetLabels, n_classes: int, generator: torch.Generator) -> torch.Tensor:
    """(N,) the true labels, with drawn ones on the forgotten rows."""
    if member.forget is None:
        return member.labels
    if n_classes < 2:
        raise ValueError("random labelling needs at least two classes")
    labels = member.labels.clone()
    true = labels[member.forget]
    if drawn is ForgetLabels.OTHER_ONCE:
        offset = torch.randint(1, n_classes, true.shape, generator=generator)
        labels[member.forget] = (true + offset.to(true.device)) % n_classes
    else:
        labels[member.forget] = torch.randint(0, n_classes, true.shape, generator=generator).to(true.device)
    return labels


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
    sample = _shuffled(retain, generator)[: sweep.retained(len(forget), len(retain))]
    if visit is Visit.RETAIN_SAMPLE:
        return sample
    return _shuffled(torch.cat([forget, sample]), generator)


def _chances_of_retained(members: Sequence[Member], rows: Mapping[Visit, Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """(n,) of each member's retained rows, which add up to 1."""
    found = []
    for k, member in enumerate(members):
        if member.chances is None:
            raise ValueError("rows are drawn by chances, and a member has none")
        chances = member.chances.double()[rows[Visit.RETAIN][k]]
        found.append(chances / chances.sum())
    return found


def _draw_by(chances: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """(n,) places among n rows, in random order: each as often as n times its chance, rounded up or down.

    A comb with one tooth in every n-th of the way (systematic sampling): less noise than n draws one by one.
    """
    count = len(chances)
    first = torch.rand((), generator=generator, dtype=torch.float64)
    # how many teeth lie before the end of each row's part
    passed = (chances.cumsum(0) * count - first).ceil_().clamp_(0, count).long()
    passed[-1] = count
    places = torch.repeat_interleave(torch.arange(count), torch.diff(passed, prepend=passed.new_zeros(1)))
    return _shuffled(places, generator)


def _shuffled(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return rows[torch.randperm(len(rows), generator=generator)]


def _distribution(member: Member, term: Term) -> torch.Tensor:
    """(N, C) what ``term`` compares with: logits of teachers become probabilities at its temperature."""
    table = member.soft[term.toward]
    return table if term.toward is Toward.TARGET else torch.softmax(table / term.temperature, dim=1)


def _top_share(tensors: Sequence[torch.Tensor], share: float) -> list[torch.Tensor]:
    """0/1 masks that keep the ``share`` of all entries largest in absolute value, ranked across the tensors."""
    flat = torch.cat([tensor.abs().flatten() for tensor in tensors])
    kept = torch.zeros_like(flat)
    kept[torch.topk(flat, int(len(flat) * share)).indices] = 1.0
    pieces = torch.split(kept, [tensor.numel() for tensor in tensors])
    return [piece.view_as(tensor) for piece, tensor in zip(pieces, tensors, strict=True)]


def _optimizer(parameters: Sequence[Sequence[torch.Tensor]], how: Optimization) -> Adam | SGD:
    tensors = [tensor for member in parameters for tensor in member]
    if how.algorithm is Algorithm.SGD:
        return SGD(tensors, lr=how.lr, momentum=how.momentum, weight_decay=how.weight_decay, fused=True)
    return Adam(tensors, lr=how.lr, weight_decay=how.weight_decay)
