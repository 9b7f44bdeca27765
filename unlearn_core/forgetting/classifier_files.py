"""scikit-learn's linear and MLP classifiers as files: plain arrays (``.npz``) or ``skops``, and never a pickle.

An ``.npz`` holds ``coef_`` and ``intercept_``, or ``coefs_0``, ``intercepts_0``, ``coefs_1``, ... of an MLP, and optionally
``classes_``. Both kinds are written again as they came in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unlearn_core.data.npz import check_memory, opened_zip, read_npz
from unlearn_core.errors import BadInput, first_line
from unlearn_core.nets.head_layout import HeadLayout, layout_in_order
from unlearn_core.nets.stack import State

ONE_LAYER = ("coef_", "intercept_")
MLP = ("coefs_", "intercepts_")
CLASSES = "classes_"
SCHEMA = "schema.json"
"""What every skops archive holds."""
TRUSTED = tuple(f"sklearn.neural_network._stochastic_optimizers.{name}" for name in ("AdamOptimizer", "SGDOptimizer"))
"""Types beyond those that skops trusts by itself: what an MLP was trained with. Plain numbers, and they are dropped."""
FITTED = (
    *(*ONE_LAYER, "coefs_", "intercepts_", CLASSES, "n_features_in_", "feature_names_in_"),
    *("n_layers_", "n_outputs_", "out_activation_", "_label_binarizer", "n_iter_", "t_"),
)
"""What a fitted classifier needs in order to answer; all else that fitting left in it has seen the data."""
LARGEST_FLOAT = 8
"""Bytes: torch has no larger one."""
ALONE = "save the fitted classifier alone"


@dataclass(frozen=True, eq=False)
class ClassifierFile:
    """The layers of a classifier, first to last, as tensors (out, in) and (out,); ``write`` takes such tensors."""

    tensors: State
    naming: HeadLayout
    write: Callable[[Path, State], None]
    dropped: tuple[str, ...] = ()
    note: str = ""


def read_classifier(path: Path) -> ClassifierFile | None:
    """A classifier of scikit-learn from its file; None if the file is none of these."""
    if path.suffix.lower() not in (".npz", ".skops"):
        return None
    if not path.is_file():
        raise BadInput(f"no weights at {path}; give an .npz with {', '.join(ONE_LAYER)}, or a .skops file")
    return _read_arrays(path) if path.suffix.lower() == ".npz" else _read_skops(path)


def _read_arrays(path: Path) -> ClassifierFile:
    with opened_zip(path) as archive:
        n_layers = sum(name.startswith("coefs_") for name in archive.namelist())
    pairs = [(f"coefs_{i}", f"intercepts_{i}") for i in range(n_layers)] or [ONE_LAYER]
    arrays = read_npz(path, "classifier", [name for pair in pairs for name in pair], (CLASSES,))
    classes = {CLASSES: arrays[CLASSES]} if CLASSES in arrays else {}
    transposed = n_layers > 0  # an MLP's are (in, out)
    tensors, naming = _layers(path, pairs, arrays, transposed)

    def write(place: Path, changed: State) -> None:
        np.savez(place, allow_pickle=False, **_as_arrays(changed, pairs, arrays, transposed), **classes)

    _check_classes(path, naming, classes.get(CLASSES))
    return ClassifierFile(tensors, naming, write)


def _layers(
    path: Path, pairs: Sequence[tuple[str, str]], arrays: Mapping[str, NDArray], transposed: bool
) -> tuple[dict[str, torch.Tensor], HeadLayout]:
    tensors: dict[str, torch.Tensor] = {}
    for weight, bias in pairs:
        for name, n_dims in ((weight, 2), (bias, 1)):
            dtype = arrays[name].dtype
            if arrays[name].ndim != n_dims or dtype.kind != "f" or dtype.itemsize > LARGEST_FLOAT:
                raise BadInput(
                    f"{path}: {name} has shape {arrays[name].shape}, dtype {dtype}; it must be floats of at most "
                    f"64 bits and {n_dims} dimension{'s' if n_dims > 1 else ''}, as scikit-learn has it"
                )
            if not np.isfinite(arrays[name]).all():  # behind a ReLU it would not show in what the classifier says
                raise BadInput(
                    f"{path}: {name} holds NaN or infinite numbers; give a classifier whose weights are finite"
                )
        values = arrays[weight].T if transposed else arrays[weight]
        for name, array in ((weight, values), (bias, arrays[bias])):  # torch knows this machine's order of bytes only
            tensors[name] = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    return tensors, layout_in_order(pairs, tensors)


def _as_arrays(
    tensors: State, pairs: Sequence[tuple[str, str]], like: Mapping[str, NDArray], transposed: bool
) -> dict[str, NDArray]:
    """Tensors as the arrays that they came from, in their types."""
    arrays = {}
    for weight, bias in pairs:
        values = tensors[weight].numpy()
        arrays[weight] = np.array(values.T if transposed else values, dtype=like[weight].dtype, order="C")
        arrays[bias] = np.array(tensors[bias].numpy(), dtype=like[bias].dtype)
    return arrays


def _check_classes(path: Path, naming: HeadLayout, classes: NDArray | None) -> None:
    n_classes = 2 if naming.one_output else naming.widths[-1]
    if classes is not None and classes.shape != (n_classes,):
        raise BadInput(
            f"{path}: classes_ has shape {classes.shape} and there are {n_classes} outputs; give those of one classifier"
        )
    if classes is not None and len(np.unique(classes)) != n_classes:
        raise BadInput(
            f"{path}: classes_ names {len(np.unique(classes))} of {n_classes} classes; each needs a name of its own"
        )


def _read_skops(path: Path) -> ClassifierFile:
    classifier = _load_skops(path)
    kind, is_mlp = type(classifier).__name__, hasattr(classifier, MLP[0])
    try:
        _check_kind(path, classifier)
        pairs = [(f"{MLP[0]}{i}", f"{MLP[1]}{i}") for i in range(len(classifier.coefs_))] if is_mlp else [ONE_LAYER]
        arrays = {name: np.asarray(getattr(classifier, name)) for name in ONE_LAYER if not is_mlp}
        arrays |= {
            f"{name}{i}": np.asarray(a) for name in MLP if is_mlp for i, a in enumerate(getattr(classifier, name))
        }
        tensors, naming = _layers(path, pairs, arrays, transposed=is_mlp)
        _check_classes(path, naming, np.asarray(classifier.classes_))
    except (AttributeError, TypeError, KeyError) as error:
        raise BadInput(f"{path}: the {kind} is not fitted ({first_line(error)}); {ALONE}") from error
    note = f"a {kind}"
    if (
        kind == "SGDClassifier" and not naming.one_output
    ):  # a sigmoid a class; a softmax has the same order, not the values
        note += ", one against all: its decisions are taken for the logits of a softmax"
    kept = {*FITTED, *vars(_unfitted(classifier))}
    dropped = tuple(sorted(name for name in vars(classifier) if name not in kept))

    def write(place: Path, changed: State) -> None:
        import skops.io

        skops.io.dump(_with_layers(classifier, _as_arrays(changed, pairs, arrays, transposed=is_mlp)), place)

    return ClassifierFile(tensors, naming, write, dropped, note)


def _check_kind(path: Path, classifier: Any) -> None:
    """Refuse what answers by other than the softmax of a head with ReLU."""
    match type(classifier).__name__:
        case "MLPClassifier" if classifier.activation != "relu":
            raise BadInput(
                f"{path}: the MLPClassifier has the activation {classifier.activation!r}; only relu can be read"
            )
        case "MLPClassifier" if classifier.out_activation_ != "softmax" and classifier.n_outputs_ != 1:
            raise BadInput(f"{path}: the MLPClassifier gives several labels at once; only one of several can be read")
        case "SGDClassifier" if classifier.loss != "log_loss":
            raise BadInput(
                f"{path}: the SGDClassifier has the loss {classifier.loss!r}, which gives no probabilities; only log_loss "
                "can be read"
            )


def _load_skops(path: Path) -> Any:
    """A classifier of one of three types, and of types that are known to be harmless."""
    try:
        import skops.io
    except ImportError as error:
        raise BadInput(
            f"{path} needs the package skops, which is not installed; pip install skops, or save the classifier's arrays "
            "with numpy.savez"
        ) from error
    from sklearn.linear_model import LogisticRegression, SGDClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import Pipeline

    with opened_zip(path, "skops.io.dump") as archive:
        if SCHEMA not in archive.namelist():
            raise BadInput(f"{path} is no skops file: it has no {SCHEMA}; write it with skops.io.dump")
        check_memory(archive.infolist(), path)
    try:
        untrusted = sorted(set(skops.io.get_untrusted_types(file=path)) - set(TRUSTED))
        classifier = None if untrusted else skops.io.load(path, trusted=list(TRUSTED))
    except Exception as error:  # a damaged file ends in almost any exception
        raise BadInput(
            f"{path} is a damaged skops file ({type(error).__name__}: {first_line(error)}); write it again"
        ) from error
    if untrusted:
        raise BadInput(f"{path} holds the type {untrusted[0]}, which is not trusted and not loaded; {ALONE}")
    if isinstance(classifier, Pipeline):
        raise BadInput(
            f"{path} holds a Pipeline: what it does before its classifier cannot be read; save its last step, and give the "
            "data as that step sees it"
        )
    if type(classifier) not in (LogisticRegression, SGDClassifier, MLPClassifier):
        raise BadInput(
            f"{path} holds a {type(classifier).__name__}; only LogisticRegression, SGDClassifier and MLPClassifier can be "
            "read"
        )
    return classifier


def _unfitted(classifier: Any) -> Any:
    return type(classifier)(**classifier.get_params(deep=False))


def _with_layers(classifier: Any, arrays: Mapping[str, NDArray]) -> Any:
    """A classifier that answers by other layers, and holds nothing else that was fitted."""
    other = _unfitted(classifier)
    for name in FITTED:
        if hasattr(classifier, name):
            setattr(other, name, getattr(classifier, name))
    if hasattr(classifier, MLP[0]):
        for name in MLP:
            setattr(other, name, [arrays[f"{name}{i}"] for i in range(len(getattr(classifier, name)))])
    else:
        for name in ONE_LAYER:
            setattr(other, name, arrays[name])
    return other
