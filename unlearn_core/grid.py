"""What the paper's grid is: data sets, architectures, forgetting requests, seeds. Light: imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from unlearn_core.errors import BadInput

SEEDS: tuple[int, ...] = (42, 0, 1, 2, 3)  # app:experiments_setup
PAPER_DATASETS: tuple[str, ...] = ("cifar10", "cifar100")
HIDDEN_WIDTH = 256
HIDDEN_LAYERS = {"linear": 0, "mlp1": 1, "mlp2": 2}
HEADS: tuple[str, ...] = tuple(HIDDEN_LAYERS)
"""Networks on frozen features."""
RESNET = "resnet18"
"""The paper's network that is trained end to end on images."""
SMALL_RESNET = "resnet8"
"""One that fits a single core, from random weights; no part of the paper's grid."""
RESNETS: tuple[str, ...] = (RESNET, SMALL_RESNET)
SMALL_CHANNELS = (16, 32, 64)
"""Of the three stages of ``SMALL_RESNET``."""
SMALL_SIZE = 32
"""The side of the images that it sees."""
PAPER_ARCHITECTURES: tuple[str, ...] = (*HEADS, RESNET)
ARCHITECTURES: tuple[str, ...] = (*PAPER_ARCHITECTURES, SMALL_RESNET)


class Scenario(StrEnum):
    """Which rows are forgotten; the key is a fine label, or for ``random`` their number."""

    CLASS = "class"
    SUBCLASS = "subclass"
    RANDOM = "random"


class LabelSpace(StrEnum):
    """What the network predicts."""

    FINE = "fine"
    SUPERCLASS = "superclass"


@dataclass(frozen=True, order=True)
class Variant:
    """One row of the grid. A *cell* is a variant with a seed."""

    dataset: str
    arch: str
    scenario: Scenario
    key: int

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise BadInput(f"unknown architecture {self.arch!r}; there are {', '.join(ARCHITECTURES)}")

    @property
    def label_space(self) -> LabelSpace:
        """Subclass forgetting trains on superclasses, so that the forgotten fine label is a part of a class."""
        return LabelSpace.SUPERCLASS if self.scenario is Scenario.SUBCLASS else LabelSpace.FINE

    def __str__(self) -> str:
        return f"{self.dataset}/{self.arch}/{self.scenario}/{self.key}"


def head_widths(arch: str, dim: int, n_classes: int) -> tuple[int, ...]:
    """Layer widths of a head, from the features to the classes."""
    if arch not in HIDDEN_LAYERS:
        raise BadInput(f"unknown head {arch!r}; there are {', '.join(HIDDEN_LAYERS)}")
    return (dim, *[HIDDEN_WIDTH] * HIDDEN_LAYERS[arch], n_classes)
