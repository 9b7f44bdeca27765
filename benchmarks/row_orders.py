"""How far does each baseline move the base network, and how much of that is the order of its rows?

Forgets subclass 0 of mlp1 on digits by every baseline, in both presets, from one base network with five streams of row
orders (and of labels, if it draws any). Prints KL(base || unlearned) in nats after the last epoch, mean over rows: its
mean and standard deviation over the streams, on the forgotten and on the test rows.

    python -m benchmarks.row_orders
"""

from __future__ import annotations

import torch

from unlearn_core import methods
from unlearn_core.data.digits import load_digits
from unlearn_core.grid import head_widths
from unlearn_core.methods import Family
from unlearn_core.nets.heads import HeadStack
from unlearn_core.recipes import HEAD_TRAINING, HEAD_UNLEARNING, Recipe, Start, Toward, Visit, training_recipe
from unlearn_core.training import Member, train

STREAMS, SEED, SUBCLASS, EPOCHS = 5, 0, 0, 50


def divergence(before: torch.Tensor, after: torch.Tensor) -> float:
    """Mean KL(softmax(before) || softmax(after)) over rows."""
    log_p, log_q = torch.log_softmax(before, 1), torch.log_softmax(after, 1)
    return (log_p.exp() * (log_p - log_q)).sum(1).mean().item()


def main() -> None:
    torch.set_num_threads(1)
    data = load_digits()
    if data.superclass is None:
        raise ValueError("digits have superclasses")
    inputs, labels = torch.from_numpy(data.train_x), torch.from_numpy(data.superclass[data.train_y])
    test, forget = torch.from_numpy(data.test_x), torch.from_numpy(data.train_y == SUBCLASS)
    widths = head_widths("mlp1", inputs.shape[1], int(labels.max()) + 1)
    base = HeadStack.initialise(widths, [torch.Generator().manual_seed(SEED)])
    train(base, inputs, [Member(SEED, "base", labels)], training_recipe(Visit.ALL, EPOCHS), HEAD_TRAINING)
    teacher = base.logits(0, inputs)
    untrained = HeadStack.initialise(widths, [torch.Generator().manual_seed(SEED + 1)]).logits(0, inputs)
    soft = {Toward.TEACHER: teacher, Toward.TWO_TEACHERS: torch.where(forget[:, None], untrained, teacher)}

    def moved(recipe: Recipe) -> tuple[list[float], list[float]]:
        """By stream, on the forgotten and on the test rows."""
        streams = [f"unlearn {i}" for i in range(STREAMS)]
        members = [Member(SEED, stream, labels, forget, soft) for stream in streams]
        net = base.select([0] * STREAMS)
        train(net, inputs, members, recipe, HEAD_UNLEARNING)
        on_forgotten = [divergence(teacher[forget], net.logits(k, inputs[forget])) for k in range(STREAMS)]
        on_test = [divergence(base.logits(0, test), net.logits(k, test)) for k in range(STREAMS)]
        return on_forgotten, on_test

    print(f"KL(base || unlearned) over {STREAMS} row orders, mlp1 on digits, subclass {SUBCLASS}")
    for name in methods.baselines():
        line = methods.find(name)
        if line.family is not Family.BASELINE:
            continue
        for preset, recipe in line.presets.items():
            if recipe.start is not Start.BASE:
                continue
            cells = [f"{t.mean():9.3g} ± {t.std():8.2g}" for t in map(torch.tensor, moved(recipe))]
            print(
                f"{name:11} {preset:9} forgotten {cells[0]}   test {cells[1]}   {methods.note_on(name, preset) or ''}"
            )


if __name__ == "__main__":
    main()
