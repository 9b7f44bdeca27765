"""Weights: which published model a name means, where its file lies, and how any weights file is read: tensors only.

Importing this loads no torch, so that plans are made without it.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import pickle
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from unlearn_core.errors import BadInput, first_line
from unlearn_core.writing import give_usual_mode

if TYPE_CHECKING:
    import torch

Library = Literal["timm", "torchvision"]

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
HUB_FILE = "model.safetensors"
CONNECT_SECONDS = 5.0
WRAPPERS = ("state_dict", "model")
"""Entries of a training checkpoint that may hold the weights."""
PREFIXES = ("module.", "_orig_mod.", "model.")
"""What ``DataParallel``, ``torch.compile`` and a Lightning module put before every name."""
SETTINGS = ("pytorch-lightning_version", "hparams_name", "hyper_parameters")
"""Entries beside the weights that Lightning needs to load a checkpoint, and that are no more than what was asked for."""
TENSORS_ONLY = "save it again with torch.save(model.state_dict(), FILE) or as safetensors"


@dataclass(frozen=True)
class PublishedModel:
    """A model of a library under the library's own full name, and the resolution if it is not the model's own."""

    library: Library
    model: str
    resolution: int | None = None


# 224 is a multiple of the patch size 14 too, and costs a fifth of the tokens of the model's own 518
ALIASES: Mapping[str, PublishedModel] = MappingProxyType(
    {
        f"dinov2-{size}": PublishedModel("timm", f"vit_{size}_patch14_dinov2.lvd142m", 224)
        for size in ("small", "base", "large", "giant")
    }
)


def find_model(name: str) -> PublishedModel:
    """The model that ``name`` means: an alias, ``timm/NAME``, ``torchvision/NAME``, or NAME of timm, else of torchvision."""
    if name in ALIASES:
        return ALIASES[name]
    import timm
    from torchvision import models

    # without its module argument, it lists detectors and segmenters as well
    of_torchvision = models.list_models(module=models)
    library, _, model = name.rpartition("/")
    architecture, _, tag = model.partition(".")
    if library in ("", "timm") and architecture in timm.list_models():
        tags = timm.list_pretrained(f"{architecture}.*")
        if tag and model not in tags:
            raise BadInput(f"{architecture} has no weights {tag!r} in timm; there are {', '.join(tags) or 'none'}")
        default_tag = timm_config(architecture).tag
        return PublishedModel("timm", model if tag or not default_tag else f"{architecture}.{default_tag}")
    if library in ("", "torchvision") and model in of_torchvision:
        return PublishedModel("torchvision", model)
    nearest = difflib.get_close_matches(name, {*ALIASES, *timm.list_models(), *of_torchvision}, cutoff=0.5)
    raise BadInput(
        f"unknown backbone {name!r}; the nearest are {', '.join(nearest)}"
        if nearest
        else f"unknown backbone {name!r}; take {', '.join(ALIASES)}, timm/NAME or torchvision/NAME"
    )


def timm_config(model: str) -> Any:
    """What timm knows of a model and its weights, without building it: a ``timm.models.PretrainedCfg``."""
    import timm

    if (config := timm.get_pretrained_cfg(model)) is None:
        raise BadInput(f"timm does not say how images are made ready for {model}; choose another model")
    return config


def torchvision_weights(model: str) -> Any:
    """The weights that torchvision publishes for a model: an entry of its ``WeightsEnum``."""
    from torchvision.models import get_model_weights

    return get_model_weights(model)["DEFAULT"]


def find_weights(name: str, given: Path | None, data_root: Path, download: bool) -> Path:
    """The weights file of a named backbone: the one given, else the one under ``data_root``, fetched there if asked."""
    if given is not None:
        if not given.is_file():
            raise BadInput(f"no weights at {given}; --weights takes a .safetensors file or a state dict (.pth)")
        return given
    published = find_model(name)
    folder = data_root / "weights"
    for suffix in SUFFIXES:
        if (path := folder / f"{published.model}{suffix}").is_file():
            return path
    source = _source(published)
    by_hand = f"put {source.url} at {folder / published.model}{Path(source.file).suffix}, or give it as --weights FILE"
    if not download:
        raise BadInput(f"no weights for {name}; {by_hand}, or let --download fetch it")
    try:
        state = _download(published, source)
    except _network_errors() as error:
        reason = first_line(error) or type(error).__name__
        raise BadInput(f"the download of the weights for {name} failed ({reason}); {by_hand}") from error
    place = folder / f"{published.model}.safetensors"
    _store(state, place)
    return place


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The weights of a file under the names that it has for them, and what surrounded them there.

    Attributes:
        wrapper: the entry that held the weights, or None.
        settings: entries beside the weights that are written again: plain numbers and texts under a name of ``SETTINGS``.
        dropped: the other entries. They are never written: an optimiser's state has seen the data.
    """

    state: dict[str, torch.Tensor]
    wrapper: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """The named tensors of a safetensors file or a PyTorch state dict, without what wrappers put before every name."""
    tensors = read_checkpoint(path).state
    prefix = stripped_prefixes(tensors)[-1]
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def stripped_prefixes(names: Iterable[str]) -> list[str]:
    """What wrappers may have put before every one of these names: nothing, then one prefix, then two."""
    names, found = list(names), [""]
    while names and (
        more := next((one for one in PREFIXES if all(name.startswith(found[-1] + one) for name in names)), "")
    ):
        found.append(found[-1] + more)
    return found


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a safetensors file or a PyTorch state dict, also one level down, as training checkpoints have it.

    A pickle of anything but tensors and plain values is refused, and never run.
    """
    import torch

    if not path.is_file():
        raise BadInput(f"no weights at {path}; give a .safetensors file or a state dict (.pth)")
    with path.open("rb") as file:
        start = file.read(2)
    if is_safetensors(path):
        state = _read_safetensors(path)
    elif start.startswith((b"PK", b"\x80")):  # a zip archive, or a pickle as torch wrote before 1.6
        state = _read_state_dict(path)
    else:
        raise BadInput(f"{path} is neither safetensors nor a PyTorch state dict; {TENSORS_ONLY}")
    wrapper, settings, dropped = None, {}, ()
    if isinstance(state, Mapping):
        wrapper = next((name for name in WRAPPERS if isinstance(state.get(name), Mapping)), None)
    if wrapper is not None:
        settings = {name: state[name] for name in SETTINGS if name in state and _is_plain(state[name])}
        dropped = tuple(str(name) for name in state if name != wrapper and name not in settings)
        state = state[wrapper]
    if not isinstance(state, Mapping) or not state:
        raise BadInput(f"{path} holds no named tensors but a {type(state).__name__}; {TENSORS_ONLY}")
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, torch.Tensor):
            raise BadInput(f"{path}: entry {key!r} has type {type(value).__name__}, not Tensor; {TENSORS_ONLY}")
    return Checkpoint(dict(state), wrapper, settings, dropped)


def _is_plain(value: object) -> bool:
    """Numbers, texts, and dicts and lists of them."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(one) for name, one in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def is_safetensors(path: Path) -> bool:
    """Whether the file is safetensors, whole or not: by its name or by how it begins."""
    with path.open("rb") as file:
        start = file.read(9)
    # the length of its JSON header comes first, which may well look like the start of another format
    begins_so = start[8:] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size
    return begins_so or path.suffix == ".safetensors"


def weights_fingerprint(path: Path) -> str:
    """SHA-256 of the file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_safetensors(
    path: Path,
    state: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str] | None = None,
    private: bool = False,
) -> None:
    """Write named tensors, in whatever memory format they are: a GPU's ResNet is channels-last.

    ``private``: leave the file to its owner alone, as safetensors makes it; otherwise its mode is what the umask gives, so
    that colleagues can read a shared store.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # safetensors refuses tensors that share memory, have gaps or are not in the order of their shape
    tensors = {name: tensor.contiguous().clone() for name, tensor in state.items()}
    try:
        save_file(tensors, path, metadata=dict(metadata) if metadata else None)
        if not private:
            give_usual_mode(path)
    except SafetensorError as error:  # its way of saying that a disk is full
        raise BadInput(f"cannot write {path} ({first_line(error)}); make room, or name another folder") from error


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise BadInput(f"{path} is not a whole safetensors file ({error}); fetch or write it again") from error


def _read_state_dict(path: Path) -> Any:
    import torch

    try:
        with warnings.catch_warnings(action="ignore"):  # of odd pickles and TorchScript archives, which it then refuses
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadInput(f"{path} holds pickled objects, which are not loaded; {TENSORS_ONLY}") from error
    except Exception as error:  # the byte code of a damaged file ends in almost any exception
        raise BadInput(
            f"{path} is a damaged state dict ({type(error).__name__}: {first_line(error)}); fetch or write it again"
        ) from error


@dataclass(frozen=True)
class _Source:
    """Where a library gets a model's weights."""

    url: str
    repository: str | None = None
    """On the Hugging Face hub; None for a plain address."""

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


def _source(published: PublishedModel) -> _Source:
    if published.library == "torchvision":
        return _Source(torchvision_weights(published.model).url)
    from huggingface_hub import hf_hub_url

    config = timm_config(published.model)
    if config.hf_hub_id:
        return _Source(hf_hub_url(config.hf_hub_id, config.hf_hub_filename or HUB_FILE), config.hf_hub_id)
    if config.url:
        return _Source(config.url)
    raise BadInput(f"timm publishes no weights for {published.model}; give your own as --weights FILE")


def _download(published: PublishedModel, source: _Source) -> dict[str, torch.Tensor]:
    """The weights as the library itself fetches and loads them."""
    _reach(source)
    if published.library == "torchvision":
        from torchvision.models import get_model

        return get_model(published.model, weights="DEFAULT").state_dict()
    import timm

    return timm.create_model(published.model, pretrained=True).state_dict()


def _reach(source: _Source) -> None:
    """Fail in seconds without a network: torch.hub would wait without limit, the Hugging Face client most of a minute.

    An answer of any kind is enough here, for the download itself will say what is wrong.
    """
    if source.repository is None:
        import torch

        if (Path(torch.hub.get_dir()) / "checkpoints" / source.file).is_file():
            return
        try:
            urlopen(Request(source.url, method="HEAD"), timeout=CONNECT_SECONDS).close()
        except HTTPError as answer:
            answer.close()
        return
    from huggingface_hub import get_hf_file_metadata, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    if not isinstance(try_to_load_from_cache(source.repository, source.file), str):
        with contextlib.suppress(HfHubHTTPError):
            get_hf_file_metadata(source.url, timeout=CONNECT_SECONDS)


def _network_errors() -> tuple[type[Exception], ...]:
    """What a download ends in without a network; httpx's errors, unlike those of requests and urllib, are no OSErrors."""
    clients = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    return (OSError, HTTPException, *[client.HTTPError for client in clients])


def _store(state: Mapping[str, torch.Tensor], place: Path) -> None:
    """Write under another name first: the place holds a whole file or none."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".download-") as unfinished:
            written = Path(unfinished, place.name)
            save_safetensors(written, state)
            written.replace(place)
    except (OSError, BadInput) as error:
        raise BadInput(f"cannot write {place} ({error}); make room or name another folder with --data-root") from error
