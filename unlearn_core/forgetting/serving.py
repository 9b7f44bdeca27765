"""A folder from which the unlearned model answers: weights as safetensors, a logit processor as plain arrays, no pickle.

This module is also what MLflow loads such a folder with: its ``loader_module`` calls ``_load_pyfunc``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.data.weights import save_safetensors
from unlearn_core.finalize import LogitProcessor, load_processor
from unlearn_core.forgetting.subject import LayerFeatures
from unlearn_core.nets.make import blueprint
from unlearn_core.nets.stack import NetworkStack
from unlearn_core.problem import as_inputs

DESCRIPTION, WEIGHTS, PROCESSOR, PROJECTION = "served.json", "weights.safetensors", "processor.npz", "projection.npy"


@dataclass(frozen=True, eq=False)
class Served:
    """Rows in, logits (N, C) out.

    A network takes its inputs; a logit processor takes ``{"logits", "features"}``, or beside a network ``{"inputs",
    "features"}`` where its features are not the inputs or a layer's.

    Attributes:
        architecture: a name or address that ``blueprint`` knows; None for a black box.
        features: the layer that the processor reads; None where it reads what it is given.
    """

    net: NetworkStack | None
    architecture: str | None
    processor: LogitProcessor | None
    features: LayerFeatures | None = None

    def __call__(self, given: NDArray | Mapping[str, NDArray]) -> NDArray[np.floating]:
        named: Mapping[str, NDArray] = given if isinstance(given, Mapping) else {"inputs": given}
        if self.net is None:
            if self.processor is None:
                raise ValueError("there is neither a network nor a logit processor")
            return self.processor(named["logits"], named["features"])
        inputs = as_inputs(np.asarray(named["inputs"]), self.net.device)
        logits = self.net.logits(0, inputs).cpu().numpy()
        if self.processor is None:
            return logits
        seen = named.get("features", named["inputs"]) if self.features is None else self.features(self.net, inputs)
        return self.processor(logits, seen)

    def predict(self, model_input: NDArray | Mapping[str, NDArray]) -> NDArray[np.floating]:
        """The same, under the name that MLflow calls."""
        return self(model_input)

    def save(self, folder: Path, row: NDArray | None) -> None:
        """Write what ``load_served`` reads. ``row``: one input of the network, for its shape and type."""
        description = {
            "architecture": self.architecture,
            "layer": None if self.features is None else self.features.layer,
            "row": None if row is None else {"shape": list(row.shape), "dtype": row.dtype.str},
        }
        (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
        if self.net is not None:
            save_safetensors(folder / WEIGHTS, self.net.state(0))
        if self.processor is not None:
            self.processor.save(folder / PROCESSOR)
        if self.features is not None and self.features.projection is not None:
            np.save(folder / PROJECTION, self.features.projection, allow_pickle=False)


def load_served(folder: Path) -> Served:
    """The model that a folder holds; the package of a factory must be importable."""
    from safetensors.torch import load_file

    known = json.loads((folder / DESCRIPTION).read_text())
    net, features = None, None
    if known["architecture"] is not None:
        sample = torch.from_numpy(np.zeros((2, *known["row"]["shape"]), dtype=np.dtype(known["row"]["dtype"])))
        net = blueprint(known["architecture"]).restore(load_file(folder / WEIGHTS), sample)
    if known["layer"] is not None:
        projection = folder / PROJECTION
        features = LayerFeatures(
            known["layer"], np.load(projection, allow_pickle=False) if projection.exists() else None
        )
    processor = load_processor(folder / PROCESSOR) if (folder / PROCESSOR).exists() else None
    return Served(net, known["architecture"], processor, features)


def _load_pyfunc(path: str) -> Served:
    """The name is MLflow's."""
    return load_served(Path(path))
