"""A model as files, read without unpickling: its weights, or the logits of a black box.

Weights are written again in the format and with the names that came in. Logits are an ``.npz`` with ``train_logits`` (N, C)
and, if the data has test rows, ``test_logits`` (M, C).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.data.npz import read_npz
from unlearn_core.data.weights import Checkpoint, is_safetensors, read_checkpoint, save_safetensors
from unlearn_core.errors import BadInput, first_line
from unlearn_core.forgetting.certificate import FILE_NAME, PAGE_NAME
from unlearn_core.forgetting.classifier_files import read_classifier
from unlearn_core.forgetting.envelope import ENVELOPE_NAME
from unlearn_core.nets.make import Blueprint, infer_head, with_state
from unlearn_core.nets.naming import Naming
from unlearn_core.nets.stack import NetworkStack, State

OUTPUT_NAMES: frozenset[str] = frozenset({FILE_NAME, PAGE_NAME, ENVELOPE_NAME, "processor.npz"})
"""What a request writes beside the weights."""


@dataclass(frozen=True, eq=False)
class WeightsFile:
    """A weights file, as which other weights can be written.

    Attributes:
        tensors: under the names that the file has for them.
        dropped: what else it holds that is not written again.
        write: writes other tensors of these names to a path, as this file is written.
        naming: which tensor is which of the network's, if the format says so.
        note: what else there is to say of it.
    """

    path: Path
    tensors: State
    dropped: tuple[str, ...]
    write: Callable[[Path, State], None]
    naming: Naming | None = None
    note: str = ""

    @property
    def name(self) -> str:
        return self.path.name


def read_weights_file(path: Path) -> WeightsFile:
    """Read a safetensors file, a PyTorch state dict or a classifier of scikit-learn; a pickle of anything is refused."""
    if path.name.lower() in OUTPUT_NAMES:
        raise BadInput(
            f"{path}: the unlearned weights keep their file's name, and {path.name} is taken; rename the file"
        )
    if (classifier := read_classifier(path)) is not None:
        return WeightsFile(
            path, classifier.tensors, classifier.dropped, classifier.write, classifier.naming, classifier.note
        )
    stored = read_checkpoint(path)
    if not is_safetensors(path):
        return WeightsFile(path, stored.state, stored.dropped, partial(_save_state_dict, stored))
    from safetensors import safe_open

    with safe_open(path, framework="pt") as archive:
        metadata = archive.metadata()

    def write(place: Path, tensors: State) -> None:
        save_safetensors(place, tensors, metadata)

    return WeightsFile(path, stored.state, stored.dropped, write)


def _save_state_dict(stored: Checkpoint, path: Path, tensors: State) -> None:
    # a view would be saved with all of the memory behind it
    state = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    try:
        torch.save({**stored.settings, stored.wrapper: state} if stored.wrapper else state, path)
    except RuntimeError as error:  # its way of saying that a disk is full
        raise BadInput(f"cannot write {path} ({first_line(error)}); make room, or name another --out") from error


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A network with what it was made from.

    Attributes:
        blueprint: builds it anew.
        weights: the file that it came in.
        naming: how that file names the network's weights.
        understood: what was made of the file, for people; empty if there is nothing to say.
    """

    net: NetworkStack
    blueprint: Blueprint
    weights: WeightsFile
    naming: Naming
    understood: str = ""

    def as_stored(self, net: NetworkStack) -> NetworkStack:
        """The network as the file will hold it, so that what is measured is what is written."""
        return with_state(net, self.naming.to_network(self._tensors(net)))

    def holds(self, net: NetworkStack) -> bool:
        """Whether it is the network of the file."""
        now = net.state(0)
        return all(torch.equal(now[name], tensor) for name, tensor in self.net.state(0).items())

    def write(self, folder: Path, net: NetworkStack) -> Path:
        """Another network of this kind, written as the file is; the file itself, to the byte, if nothing moved."""
        place = folder / self.weights.name
        if self.holds(net):
            return Path(shutil.copyfile(self.weights.path, place))
        self.weights.write(place, self._tensors(net))
        shutil.copymode(self.weights.path, place)  # safetensors gives its files to their owner alone
        return place

    def _tensors(self, net: NetworkStack) -> dict[str, torch.Tensor]:
        """The network's weights under the file's names and in its types, in which numbers may be rounded."""
        named = self.naming.to_file(net.state(0))
        return {name: named[name].to(tensor.dtype) for name, tensor in self.weights.tensors.items()}


def load_model(path: Path, plan: Blueprint | None, sample: torch.Tensor) -> LoadedModel:
    """The network whose weights a file holds.

    Args:
        plan: what they are weights of; None: a head, which follows from their shapes.
        sample: a few rows that the network must be able to read, on its device.
    """
    weights = read_weights_file(path)
    chosen = plan or infer_head(weights.tensors, sample, weights.naming, str(path))
    net, naming = chosen.read(weights.tensors, sample, weights.naming)
    inferred = "--arch was left out, and follows from the shapes" if plan is None else ""
    said = (str(naming), chosen.note, weights.note, inferred)
    return LoadedModel(net, chosen, weights, naming, "; ".join(text for text in said if text))


@dataclass(frozen=True, eq=False)
class Logits:
    """Of the training rows (N, C) and of the test rows (M, C), if there are any."""

    train: NDArray[np.floating]
    test: NDArray[np.floating] | None


def load_logits(path: Path, n_train: int, n_test: int | None) -> Logits:
    """Read the logits of a black box, and check them against the numbers of rows; ``n_test`` None: there are none."""
    n_rows_of = {"train_logits": n_train} | ({} if n_test is None else {"test_logits": n_test})
    arrays = read_npz(path, "logits file", tuple(n_rows_of))
    for name, n_rows in n_rows_of.items():
        values = arrays[name]
        if values.ndim != 2 or values.dtype.kind != "f" or len(values) != n_rows:
            raise BadInput(
                f"{path}: {name} has shape {values.shape}, dtype {values.dtype}; the data needs floats ({n_rows}, classes)"
            )
    train, test = arrays["train_logits"], arrays.get("test_logits")
    if test is not None and train.shape[1] != test.shape[1]:
        raise BadInput(
            f"{path}: train_logits are of {train.shape[1]} classes, test_logits of {test.shape[1]}; give both of one model"
        )
    return Logits(train, test)
