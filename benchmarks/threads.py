"""What does it cost to share this machine with other work, and what does ``OMP_WAIT_POLICY`` change?

The same head is trained with all cores, each time in a process of its own: alone, and beside as many busy processes as there
are cores; once as OpenMP comes, and once with ``passive``, which ``unlearn`` leaves to its users:
alone it takes longer. Seconds, the best of some turns, and their ratio. Threads
that turn in circles while they wait take the time of those they wait for.

    python -m benchmarks.threads
"""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.saving import show

TURNS = 3
POLICY = "OMP_WAIT_POLICY"
TRAINING = """
import time, torch
from unlearn_core.grid import head_widths
from unlearn_core.nets.heads import HeadStack
from unlearn_core.recipes import HEAD_TRAINING, Visit, training_recipe
from unlearn_core.training import Member, train

generator = torch.Generator().manual_seed(0)
inputs, labels = torch.randn(20_000, 384, generator=generator), torch.randint(0, 10, (20_000,), generator=generator)

def run(epochs):
    net = HeadStack.initialise(head_widths("mlp1", 384, 10), [torch.Generator()])
    train(net, inputs, [Member(0, "base", labels, None)], training_recipe(Visit.ALL, epochs), HEAD_TRAINING)

run(1)
started = time.perf_counter()
run(20)
print(time.perf_counter() - started)
"""


def seconds(policy: str | None) -> float:
    environment = {name: value for name, value in os.environ.items() if name not in (POLICY, "OMP_NUM_THREADS")}
    if policy is not None:
        environment[POLICY] = policy
    return float(subprocess.check_output([sys.executable, "-c", TRAINING], env=environment, text=True))


def main() -> None:
    rows = []
    for others in (0, os.cpu_count() or 1):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
        try:
            turns = [(seconds(None), seconds("passive")) for _ in range(TURNS)]
        finally:
            for process in busy:
                process.kill()
                process.wait()
        default, passive = (min(column) for column in zip(*turns, strict=True))
        told = {"as OpenMP comes, s": f"{default:.2f}", "passive, s": f"{passive:.2f}"}
        rows.append({"busy processes": others, **told, "ratio": f"{default / passive:.2f}"})
    show(rows)


if __name__ == "__main__":
    main()
