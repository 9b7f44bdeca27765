"""F(x) = Omega phi(x): a layer in few dimensions, so that proxies can be fitted on it.  [app:random_projection]

phi is a layer of the base network itself, so a sketch belongs to one trained network; Omega is the same for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.errors import BadInput
from unlearn_core.grid import RESNET
from unlearn_core.nets.resnet import RESNET_STACKS, ResNetStack
from unlearn_core.seeding import derive_seed

LAYER = "layer3"
DIM = 512
SEED = 0


@dataclass(frozen=True, eq=False)
class Sketch:
    """What the proxies of a ResNet see in the place of features.

    Attributes:
        train: (N, k) float32.
        test: (N_test, k) float32.
    """

    train: NDArray[np.float32]
    test: NDArray[np.float32]


def semi_orthogonal(dim: int, width: int, seed: int = SEED) -> NDArray[np.float32]:
    """Omega (dim, width) with Omega Omega^T = I: the orthogonal factor of a Gaussian matrix, the same for the same seed.

    Args:
        dim: of the sketch.
        width: of the layer that is sketched.
    """
    if not 1 <= dim <= width:
        raise BadInput(
            f"cannot sketch a layer of {width} numbers in {dim} dimensions; choose 1 to {width}, or larger images"
        )
    rng = np.random.default_rng(derive_seed(seed, "sketch", "gaussian"))
    q, r = np.linalg.qr(rng.normal(size=(width, dim)))
    # LAPACK is free to choose the signs: fixing them makes Omega a function of the seed alone, and Haar distributed
    return np.ascontiguousarray((q * np.sign(np.diag(r))).T.astype(np.float32))


def sketch_width(image_size: int, layer: str = LAYER, arch: str = RESNET) -> int:
    """How many numbers a layer of a ResNet gives for one image of that size."""
    net = RESNET_STACKS[arch].unfilled(n_classes=2)  # whatever its weights are, a layer is as wide
    blank = torch.zeros(1, image_size, image_size, 3, dtype=torch.uint8)
    return net.activations(blank, layer, lambda activation: activation).shape[1]


def sketch(
    net: ResNetStack, inputs: torch.Tensor, omega: NDArray[np.float32], layer: str = LAYER
) -> NDArray[np.float32]:
    """(N, k) Omega phi(x) of every image."""
    projection = torch.from_numpy(omega.T.copy()).to(net.device)
    return net.activations(inputs, layer, lambda activation: activation @ projection).cpu().numpy()
