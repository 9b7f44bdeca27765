"""What a worker holds of 50,000 images: one copy, mapped, at the network's size."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.processes import run

ROOT = Path(__file__).resolve().parent.parent.parent

# In a process of its own, as a worker is. Memory that is not a mapped file is sampled while each part runs.
SCRIPT = """
import json, sys, threading, time
from pathlib import Path
import torch
from tasks.compute.data import load_arrays
from tasks.step import Kind, Step
from tasks.store import Store
from tasks.worker import Worker
from unlearn_core.data.datasets import load_images
from unlearn_core.data.feature_set import fingerprint
from unlearn_core.nets.autograd import EVALUATION_ROWS
from unlearn_core.nets.resnet import ResNetStack
from unlearn_core.problem import Inputs, make_problem
from unlearn_core.grid import LabelSpace
from unlearn_core.recipes import RESNET_TRAINING, Visit, training_recipe
from unlearn_core.training import Member, train

def own_memory():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024

peak, running, lock = {}, True, threading.Lock()
def sample():
    with lock:
        peak[part] = max(peak.get(part, 0.0), own_memory())
def begin(name):
    global part
    with lock:  # or a late sample of one part would be written down for the next
        part = name
    sample()
def watch():
    while running:
        sample()
        time.sleep(0.005)

source, root = Path(sys.argv[1]), Path(sys.argv[2])
worker, store = Worker(root), Store(root)
ResNetStack(2)
begin("start")
threading.Thread(target=watch, daemon=True).start()

begin("images")
images = Step(Kind.IMAGES, {"dataset": "x", "fingerprint": fingerprint(load_images(str(source), root))},
              hints={"source": str(source), "data_root": str(root), "image_size": None})
resized = Step(Kind.RESIZED, {"size": 64}, {"images": images})
assert worker.run([images]).error is None
begin("resized")  # what was read is given back now
assert worker.run([resized]).error is None

begin("network")
problem = make_problem(Inputs(load_arrays(resized, store)), LabelSpace.FINE)
net = ResNetStack.initialise(2, torch.Generator().manual_seed(0))
forget = torch.zeros(len(problem.train), dtype=torch.bool)
forget[::len(forget) // 128] = True
member = Member(0, "unlearn", problem.train.label_tensor, forget)
train(net, problem.train.inputs, [member], training_recipe(Visit.FORGET, 1), RESNET_TRAINING)
net.logits(0, problem.train.inputs, torch.arange(0, len(forget), len(forget) // EVALUATION_ROWS))  # a whole batch
running = False
print(json.dumps(peak))
"""


@pytest.mark.slow
def test_nothing_holds_the_images_twice(tmp_path):
    n_train, n_test = 50_000, 10_000
    tile = np.random.default_rng(0).integers(0, 256, (1000, 32, 32, 3), dtype=np.uint8)
    source = tmp_path / "generated.npz"
    np.savez(
        source,
        train_images=np.tile(tile, (n_train // 1000, 1, 1, 1)),
        test_images=np.tile(tile, (n_test // 1000, 1, 1, 1)),
        train_y=np.arange(n_train) % 2,
        test_y=np.arange(n_test) % 2,
    )
    result = run([sys.executable, "-c", SCRIPT, source, tmp_path / "store"], ROOT, seconds=900)
    assert result.returncode == 0, result.stderr
    peak = json.loads(result.stdout)
    print(peak)  # MiB, for the documentation
    originals, at_64 = ((n_train + n_test) * side**2 * 3 / 2**20 for side in (32, 64))
    assert peak["images"] - peak["start"] < 1.15 * originals, "read once, written from there"
    # the copy that was read is given back, and resizing holds chunks
    assert peak["resized"] - peak["start"] < 150
    # mapped: weights, gradients, Adam's moments and the activations of one batch of 128, far from 703 MiB of images
    assert at_64 > 700
    assert peak["network"] - peak["start"] < 700
