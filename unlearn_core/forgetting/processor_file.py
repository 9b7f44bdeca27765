"""A logit processor as a file: plain arrays in an ``.npz``, nothing pickled."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unlearn_core.errors import BadInput
from unlearn_core.finalizers.logit_processor import LogitProcessor
from unlearn_core.proxies import GaussianProxy, Proxy
from unlearn_core.proxies.gaussian import Components
from unlearn_core.proxies.probe import ProbeFit, ProbeProxy
from unlearn_core.spec import PROBE

GAUSSIAN = "gaussian"


def save_processor(path: Path, processor: LogitProcessor) -> None:
    """Write what ``load_processor`` reads."""
    arrays: dict[str, NDArray] = {
        "eta": np.array(processor.eta),
        "lost_classes": processor.lost_classes,
        **_proxy_arrays(processor.proxy),
    }
    np.savez(path, allow_pickle=False, **arrays)


def load_processor(path: str | Path) -> LogitProcessor:
    """A processor from its file. Nothing in it is unpickled."""
    path = Path(path)
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise BadInput(f"no logit processor at {path}; 'unlearn forget --finalizer none' writes one as an .npz")
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if absent := [name for name in ("eta", "lost_classes", "kind", "method") if name not in arrays]:
        raise BadInput(f"{path} is no logit processor: array {absent[0]!r} is missing")
    return LogitProcessor(_proxy(arrays, path), float(arrays["eta"]), arrays["lost_classes"])


def _proxy_arrays(proxy: Proxy) -> dict[str, NDArray]:
    """A proxy as arrays. A new kind of proxy gets a branch here and one below."""
    if isinstance(proxy, GaussianProxy):
        parts = {f"components.{name}": value for name, value in vars(proxy.components).items() if value is not None}
        return {"kind": np.array(GAUSSIAN), "method": np.array(proxy.method), "reference": proxy.reference, **parts}
    if isinstance(proxy, ProbeProxy):
        return {
            "kind": np.array(PROBE),
            "method": np.array(proxy.method),
            "centre": proxy.fit.centre,
            "scale": np.array(proxy.fit.scale),
            "weights": proxy.fit.weights,
            "retain_weights": proxy.retain_weights,
            "retain_lost_classes": proxy.lost_classes,
        }
    raise BadInput(
        f"a logit processor of {proxy.method} cannot be saved; choose another proxy, or the finalizer kl or mse"
    )


def _proxy(arrays: dict[str, NDArray], path: Path) -> Proxy:
    kind, method = str(arrays["kind"]), str(arrays["method"])
    if kind == PROBE:
        # what a further fit would start from is not part of the file
        fit = ProbeFit(arrays["centre"], float(arrays["scale"]), arrays["weights"], np.empty(0), np.empty(0))
        return ProbeProxy(fit, arrays["retain_weights"], arrays["retain_lost_classes"])
    if kind != GAUSSIAN:
        raise BadInput(
            f"{path} holds a proxy of the unknown kind {kind!r}; a newer version of this package may know it"
        )
    parts = {field.name: arrays.get(f"components.{field.name}") for field in dataclasses.fields(Components)}
    return GaussianProxy(method, arrays["reference"], Components(**parts))  # pyright: ignore[reportArgumentType]
