"""What would the paper's grid take on one A10G and on one A100? Counted here, without a GPU; only rates are assumed.

One training step of each network is run on tensors without numbers, in the very code that trains. Counted: floating-point
operations (``torch.utils.flop_counter``), bytes (what every kernel reads and writes, nothing fused or cached), and kernels
(operations that are no view and no allocation; the backward pass of a convolution is two). Steps are counted from the
recipes. A step takes as long as the slowest of three: arithmetic, memory, and the host that launches its kernels.

    python -m benchmarks.gpu_plan [--save docs/data]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.saving import save, show
from unlearn_core import methods
from unlearn_core.arithmetic import arithmetic
from unlearn_core.grid import HEADS, RESNET, SEEDS, head_widths
from unlearn_core.nets.heads import HeadStack
from unlearn_core.nets.resnet import ResNetStack
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.precision import Precision
from unlearn_core.recipes import (
    CROSS_ENTROPY,
    Recipe,
    Visit,
    training_epochs,
    training_optimization,
    training_recipe,
)
from unlearn_core.run_settings import RunSettings, what_is_run
from unlearn_core.training import loss_gradient
from workflows.sources import KEYS_PER_SCENARIO, RANDOM_SIZES

N, DIM, IMAGE_SIDE = 50_000, 384, 64
DATASETS = {"cifar10": 10, "cifar100": 100}
STACKED = len(SEEDS)


@dataclass(frozen=True)
class Gpu:
    """Published peaks, without sparsity, and the share of them that is assumed to be reached."""

    name: str
    teraflops: dict[Precision, float]
    gigabytes_per_second: float
    arithmetic_share: float = 0.5
    memory_share: float = 0.7
    microseconds_per_kernel: float = 10.0
    """Python, torch and the driver together, on the host; 5 to 25 are usual."""


A10G = Gpu("A10G", {Precision.FLOAT32: 35, Precision.TF32: 35, Precision.BF16: 70}, 600)
A100 = Gpu("A100", {Precision.FLOAT32: 19.5, Precision.TF32: 156, Precision.BF16: 312}, 1555)


@dataclass(frozen=True)
class Count:
    """What one training step of a whole stack does."""

    flops: float
    bytes: float
    kernels: int

    def totals(self, steps: Steps, gpu: Gpu, precision: Precision) -> dict[str, float]:
        """Seconds of many steps by what limits them; a full batch takes as long as the slowest, a small one its launches."""
        arithmetic_seconds = self.flops / (1e12 * gpu.teraflops[precision] * gpu.arithmetic_share)
        memory = self.bytes / (1e9 * gpu.gigabytes_per_second * gpu.memory_share)
        launches = 1e-6 * gpu.microseconds_per_kernel * self.kernels
        full = min(steps.full, steps.updates)
        return {
            "arithmetic": steps.full * arithmetic_seconds,
            "memory": steps.full * memory,
            "launches": steps.updates * launches,
            "step": full * max(arithmetic_seconds, memory, launches) + (steps.updates - full) * launches,
        }


NO_KERNEL = ("empty", "new_empty", "detach", "alias", "_record_function", "device")
TWO_KERNELS = ("convolution_backward", "baddbmm")  # gradients of input and weight; a product and what is added to it


class _Kernels(TorchDispatchMode):
    """Counts operations that move numbers, and how many bytes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: int = 0
        self.bytes: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.__name__
        if not (func.is_view or name.startswith(NO_KERNEL)):
            self.kernels += 2 if name.startswith(TWO_KERNELS) else 1
            touched = tree_leaves((args, result))  # with ``out=`` the result is what was given
            if name.startswith(("index", "gather")):  # of the table only the rows that are asked for
                touched = [*tree_leaves(args[1:]), *2 * tree_leaves(result)]
            elif name.startswith("_fused_adam"):  # weights and both moments are written, too
                touched += tree_leaves((args[0], args[2], args[3]))
            self.bytes += sum(t.numel() * t.element_size() for t in touched if isinstance(t, torch.Tensor))
        return result


def count_step(arch: str, n_classes: int, members: int, batch: int, precision: Precision) -> Count:
    """One step of training ``members`` networks on labels."""
    # a module without numbers cannot be moved, and is where it should be
    still = mock.patch.object(nn.Module, "to", lambda self, *_args, **_kwargs: self)
    with FakeTensorMode(), arithmetic(precision), still:
        net: NetworkStack
        if arch == RESNET:
            net = ResNetStack.initialise(n_classes, torch.Generator())
            inputs = torch.zeros(N, IMAGE_SIDE, IMAGE_SIDE, 3, dtype=torch.uint8)
        else:
            net = HeadStack(head_widths(arch, DIM, n_classes), members)
            inputs = torch.zeros(N, DIM)
        net.use_batch_statistics(True)
        optimizer = torch.optim.Adam([tensor for member in net.parameters() for tensor in member], fused=True)
        rows, labels = torch.zeros(members, batch, dtype=torch.long), torch.zeros(members, N, dtype=torch.long)

        def step() -> None:
            net.backward(loss_gradient(net.forward(inputs, rows), CROSS_ENTROPY, [torch.gather(labels, 1, rows)]))
            optimizer.step()

        step()  # makes the optimiser's state
        with FlopCounterMode(display=False) as flops, _Kernels() as counted:
            step()
    return Count(flops.get_total_flops(), counted.bytes, counted.kernels)


@dataclass(frozen=True)
class Steps:
    """Updates of weights: all of them, and how many full batches their rows would fill."""

    updates: int = 0
    full: float = 0.0

    def __add__(self, other: Steps) -> Steps:
        return Steps(self.updates + other.updates, self.full + other.full)


def steps_of_recipe(recipe: Recipe, batch: int, full_batch: int, n_forget: int) -> Steps:
    """What a recipe makes for one request."""
    n_retain, total = N - n_forget, Steps()
    for phase in recipe.phases:
        for sweep in phase.passes:
            visited = {Visit.ALL: N, Visit.RETAIN: n_retain, Visit.FORGET: n_forget}.get(sweep.visit)
            if visited is None:
                visited = sweep.retained(n_forget, n_retain)
                visited += 0 if sweep.visit is Visit.RETAIN_SAMPLE else n_forget
            updates = -(-visited // (sweep.batch_size or batch))
            total += Steps(phase.epochs * updates, phase.epochs * visited / full_batch)
    return total


def steps_of_cell(arch: str, n_forget: int) -> Steps:
    """Retrain, floor and the paper's methods, for one seed; the base is shared by variants, and counted apart."""
    full = training_optimization(arch).batch_size
    retrain = steps_of_recipe(training_recipe(Visit.RETAIN, training_epochs(arch)), full, full, n_forget)
    total = retrain + retrain
    for name in methods.paper_methods():
        run = what_is_run(name, arch, RunSettings())
        if run.optimization is None:
            raise ValueError(f"{name} does not train")
        recipe, how = run.recipe, run.optimization
        if recipe is None:
            if run.schedule is None:
                raise ValueError(f"{name} distils without a schedule")
            recipe, how = run.schedule.build(how, n_forget)
        total += steps_of_recipe(recipe, how.batch_size, full, n_forget)
    return total


def steps_of_grid(arch: str, n_classes: int) -> Steps:
    """All steps of one architecture on one data set, of one seed: 14 variants, and a base in each label space."""
    requests = [N // n_classes] * 2 * KEYS_PER_SCENARIO + list(RANDOM_SIZES)  # class, subclass, random
    full = training_optimization(arch).batch_size
    base = steps_of_recipe(training_recipe(Visit.ALL, training_epochs(arch)), full, full, 0)
    return sum((steps_of_cell(arch, n_forget) for n_forget in requests), base + base)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="folder to keep both tables in, such as docs/data")
    folder = parser.parse_args().save
    shown = [
        ("84 head variants", HEADS, Precision.FLOAT32, STACKED),
        *(("28 ResNet-18 variants", (RESNET,), precision, 1) for precision in Precision),
    ]
    steps_table: list[dict[str, object]] = []
    hours_table: list[dict[str, object]] = []
    for title, archs, precision, members in shown:
        hours: dict[str, dict[str, float]] = {gpu.name: {} for gpu in (A10G, A100)}
        for arch in archs:
            for dataset, n_classes in DATASETS.items():
                count = count_step(arch, n_classes, members, training_optimization(arch).batch_size, precision)
                steps = steps_of_grid(arch, n_classes)
                steps_table.append(
                    {
                        "network": f"{arch}, {dataset}",
                        "precision": precision,
                        "networks a step": members,
                        "GFLOP": f"{count.flops / 1e9:.2f}",
                        "MB": f"{count.bytes / 1e6:.0f}",
                        "kernels": count.kernels,
                        "updates, one seed": f"{steps.updates:,}",
                        "full batches": f"{steps.full:,.0f}",
                    }
                )
                for gpu in (A10G, A100):
                    for name, seconds in count.totals(steps, gpu, precision).items():
                        before = hours[gpu.name].get(name, 0.0)
                        hours[gpu.name][name] = before + STACKED / members * seconds / 3600
        for name, spent in hours.items():
            limits = {f"{limit}, h": f"{spent[limit]:.2f}" for limit in ("arithmetic", "memory", "launches")}
            busy = max(spent["arithmetic"], spent["memory"]) / spent["step"]
            hours_table.append(
                {
                    "all five seeds": title,
                    "precision": precision,
                    "GPU": name,
                    **limits,
                    "one worker, h": f"{spent['step']:.2f}",
                    "GPU busy": f"{busy:.0%}",
                }
            )
    for name, table in (("gpu_steps", steps_table), ("gpu_hours", hours_table)):
        show(table)
        if folder is not None:
            save(folder / f"{name}.csv", table, "python -m benchmarks.gpu_plan --save docs/data")


if __name__ == "__main__":
    main()
