"""A model as files, read without unpickling: its weights, or the logits of a black box.

Weights are written again in the format and with the keys that came in. Logits are an ``.npz`` with ``train_logits`` (N, C)
and ``test_logits`` (M, C).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.data.npz import read_npz
from unlearn_core.data.weights import Checkpoint, is_safetensors, read_checkpoint, save_safetensors
from unlearn_core.errors import BadInput, first_line
from unlearn_core.forgetting.certificate import FILE_NAME, PAGE_NAME
from unlearn_core.nets.make import Blueprint, with_state
from unlearn_core.nets.stack import NetworkStack, State

OUTPUT_NAMES: frozenset[str] = frozenset({FILE_NAME, PAGE_NAME, "processor.npz"})
"""What a request writes beside the weights."""


@dataclass(frozen=True, eq=False)
class WeightsFile(Checkpoint):
    """A weights file, as which other weights can be written. ``metadata`` is a safetensors file's own."""

    name: str
    safetensors: bool
    metadata: Mapping[str, str] | None

    def as_stored(self, state: State) -> dict[str, torch.Tensor]:
        """``state`` in the types of the file, in which its numbers may be rounded."""
        return {name: tensor.to(self.state[name].dtype) for name, tensor in state.items()}

    def write(self, folder: Path, state: State) -> Path:
        """Write other weights as this file is written; returns the path."""
        path = folder / self.name
        ordered = {self.prefix + name: state[name] for name in self.state}
        if self.safetensors:
            save_safetensors(path, ordered, self.metadata)
        else:
            # a view would be saved with all of the memory behind it
            tensors = {name: tensor.contiguous().clone() for name, tensor in ordered.items()}
            try:
                torch.save({self.wrapper: tensors} if self.wrapper else tensors, path)
            except RuntimeError as error:  # its way of saying that a disk is full
                raise BadInput(
                    f"cannot write {path} ({first_line(error)}); make room, or name another --out"
                ) from error
        return path


def read_weights_file(path: Path) -> WeightsFile:
    """Read a safetensors file or a PyTorch state dict; a pickle of anything else is refused."""
    if path.name.lower() in OUTPUT_NAMES:
        raise BadInput(
            f"{path}: the unlearned weights keep their file's name, and {path.name} is taken; rename the file"
        )
    stored = read_checkpoint(path)
    safetensors, metadata = is_safetensors(path), None
    if safetensors:
        from safetensors import safe_open

        with safe_open(path, framework="pt") as archive:
            metadata = archive.metadata()
    return WeightsFile(**vars(stored), name=path.name, safetensors=safetensors, metadata=metadata)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A network with what it was made from: ``blueprint`` builds it anew, ``weights`` is the file that it came in."""

    net: NetworkStack
    blueprint: Blueprint
    weights: WeightsFile

    def as_stored(self, net: NetworkStack) -> NetworkStack:
        """The network as the file will hold it, so that what is measured is what is written."""
        return with_state(net, self.weights.as_stored(net.state(0)))


@dataclass(frozen=True, eq=False)
class Logits:
    """Of the training rows (N, C) and of the test rows (M, C)."""

    train: NDArray[np.floating]
    test: NDArray[np.floating]


def load_logits(path: Path, n_train: int, n_test: int) -> Logits:
    """Read the logits of a black box, and check them against the numbers of rows."""
    arrays = read_npz(path, "logits file", ("train_logits", "test_logits"))
    for name, n_rows in (("train_logits", n_train), ("test_logits", n_test)):
        values = arrays[name]
        if values.ndim != 2 or values.dtype.kind != "f" or len(values) != n_rows:
            raise BadInput(
                f"{path}: {name} has shape {values.shape}, dtype {values.dtype}; the data needs floats ({n_rows}, classes)"
            )
    train, test = arrays["train_logits"], arrays["test_logits"]
    if train.shape[1] != test.shape[1]:
        raise BadInput(
            f"{path}: train_logits are of {train.shape[1]} classes, test_logits of {test.shape[1]}; give both of one model"
        )
    return Logits(train, test)
