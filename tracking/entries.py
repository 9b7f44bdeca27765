"""One seed's entry of the results tree: its fields, what is wrong with them, and its numbers over seeds.

The fields are those of the dataclasses in ``unlearn_core.records``, as ``reference_entry`` and ``method_entry`` write them:
scores stand beside the other fields of their owner, and null stands for an infinite or undefined number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from unlearn_core import methods
from unlearn_core.audit.bounds import Bound
from unlearn_core.audit.stein import ALPHAS, UNBOUNDED, stein_block
from unlearn_core.records import EpochMetrics, Finite, MethodRecord, ReferenceRecord, Scores, TargetRecord

if TYPE_CHECKING:
    from pydantic_core import CoreSchema, SchemaValidator

Entry = dict[str, Any]
"""The JSON of one seed; see ``records.cell_entry``."""
Fields = Mapping[str, Any]
"""Name -> type, as the dataclasses declare it."""
Report = Callable[[str, str], None]
"""Takes a key and what is wrong there."""

REFERENCES: tuple[str, ...] = ("base", "retrain", "floor")
ASSESSED: Fields = {"kept_answers": float, "assessed_as": str, "assessment_seconds": float}
"""What may be known of a request before a method is chosen."""
COUNTS: Fields = {"seed": int, "n_forget": int, "n_retain": int, **ASSESSED}
"""What an entry says of its request."""


def _fields(record: type) -> Fields:
    fields: dict[str, Any] = {}
    for name, kind in get_type_hints(record, include_extras=True).items():
        fields |= _fields(kind) if kind is Scores else {name: kind}
    return fields


SCORES: Fields = _fields(Scores)
EPOCH: Fields = _fields(EpochMetrics)
TARGET: Fields = {**SCORES, **_fields(TargetRecord)}
METHOD: Fields = {name: kind for name, kind in _fields(MethodRecord).items() if name != "method"}
REFERENCE: Fields = {**_fields(ReferenceRecord), "rte": Finite}
BOUND: Fields = {**_fields(Bound), "measured": float}
STEIN: Fields = {f"n_{where}_at_{alpha:g}": int | None for alpha in ALPHAS for where in "tf"} | {
    f"indistinguishable_at_{alpha:g}": bool | None for alpha in ALPHAS
}
WITH_ETA: Fields = {"eta_max": Finite, "admissible": bool}
WITHOUT_ETA: Fields = {"eta_max": None, "admissible": None}
"""What a target must say of eta: the closed forms have none, and every other proxy has one."""
LATER: tuple[str, ...] = ("cost", "preparation")
"""Fields of a method's row that older trees lack."""
OPTIONAL: tuple[str, ...] = (*LATER, "mia_two_sided", *ASSESSED)
"""All that they lack, in whatever part of a row."""
WHOLE: tuple[str, ...] = ("rte", *LATER)
"""What is said of a method as a whole, not of one of its epochs."""


def gaussian_proxies() -> tuple[str, ...]:
    """The paper's proxies that have an eta, for its claims and figures about those."""
    lines = map(methods.find_proxy, methods.proxies())
    return tuple(line.name for line in lines if line.paper and not line.closed_form)


def sound_entry(entry: Any, at: str, report: Report) -> Entry | None:
    """The entry without the rows that are damaged, which are reported by their key.

    Returns None if it is not clear which seed it is or how many rows were forgotten. Nothing is raised: a tree may be cut
    off, edited or written by another version.
    """
    if not isinstance(entry, dict):
        report(at, f"{_short(entry)} is not a seed entry")
        return None
    wrong = _problems(_counts_check(), entry, at)
    for key, what in wrong:
        report(key, what)
    if wrong:
        return None
    for name in REFERENCES:
        if name not in entry:
            report(f"{at}.{name}", "missing")
    sound: Entry = {}
    for name, value in entry.items():
        problems = [] if name in COUNTS else _row_problems(name, value, f"{at}.{name}")
        if problems:
            key, what = problems[0]
            report(key, what + (f" (and {len(problems) - 1} more in this row)" if problems[1:] else ""))
        else:
            sound[name] = value
    return sound


def _row_problems(name: str, value: Any, at: str) -> list[tuple[str, str]]:
    if name == "provenance":
        return [] if isinstance(value, dict) else [(at, f"{_short(value)} should be a valid dictionary")]
    if name in REFERENCES:
        return _problems(_reference_check(), value, at)
    if name not in methods.names():
        return [(at, f"unknown method; there are {', '.join(methods.names())}")]
    check = _method_check(name in methods.proxies(), name in methods.closed_forms())
    return _problems(check, value, at)


def _problems(check: SchemaValidator, value: Any, at: str) -> list[tuple[str, str]]:
    from pydantic_core import ValidationError

    try:
        check.validate_python(value)  # for its errors only: numbers stay as they were written
    except ValidationError as error:
        return [(at + _key(e["loc"]), _what(e["type"], e["msg"], e["input"])) for e in error.errors(include_url=False)]
    return []


def _key(place: Iterable[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)


def _what(kind: str, message: str, value: Any) -> str:
    return "missing" if kind == "missing" else message.replace("Input", _short(value), 1)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


@cache
def _counts_check() -> SchemaValidator:
    return _validator(_object(COUNTS))


@cache
def _reference_check() -> SchemaValidator:
    return _validator(_object(REFERENCE, stein=_object(STEIN)))


@cache
def _method_check(proxy: bool, closed_form: bool) -> SchemaValidator:
    """For a baseline, a proxy with eta, or a closed form."""
    row = {name: _schema(kind) for name, kind in METHOD.items() if name != "target"}
    row["best"] = _object({**EPOCH, "rte": METHOD["rte"]})
    row["epochs"]["min_length"] = 1
    if proxy:
        row["target"] = _object({**TARGET, **(WITHOUT_ETA if closed_form else WITH_ETA)})
    return _validator(_object(row, stein=_object(STEIN)))


def _validator(schema: CoreSchema) -> SchemaValidator:
    from pydantic_core import SchemaValidator  # only here and below: most commands read no tree

    return SchemaValidator(schema)


def _object(declared: Fields, **optional: CoreSchema) -> CoreSchema:
    """An object with these fields; others are let through. Optional is what trees of older versions lack."""
    from pydantic_core import core_schema as core

    fields = {
        name: core.typed_dict_field(_schema(kind), required=name not in OPTIONAL) for name, kind in declared.items()
    }
    fields |= {name: core.typed_dict_field(schema, required=False) for name, schema in optional.items()}
    return core.typed_dict_schema(fields)


def _schema(kind: Any) -> Any:
    """What a declared type is in JSON. A schema is its own."""
    from pydantic_core import core_schema as core

    number = core.float_schema(strict=True, allow_inf_nan=False)
    plain = {
        Finite: number,
        float: core.nullable_schema(number),
        int: core.int_schema(strict=True, ge=0, le=UNBOUNDED),
        bool: core.bool_schema(strict=True),
        str: core.str_schema(strict=True),
        None: core.none_schema(),
    }
    if isinstance(kind, dict):
        return kind
    if kind in plain:
        return plain[kind]
    arguments, origin = get_args(kind), get_origin(kind)
    if type(None) in arguments:
        return core.nullable_schema(_schema(arguments[0]))
    if origin is tuple:
        return core.tuple_schema([_schema(part) for part in arguments])
    if origin is Sequence:
        return core.list_schema(_schema(arguments[0]))
    return _object(BOUND if origin is Mapping else _fields(kind))


@dataclass(frozen=True)
class Spread:
    """Mean and population standard deviation (ddof 0, as in the paper) over seeds; the paper prints some means alone."""

    mean: float
    std: float | None


def spread(values: Iterable[float | None]) -> Spread | None:
    """None if there is no value or any seed has no number: a mean over some seeds would not be comparable."""
    known = list(values)
    numbers = [float(value) for value in known if value is not None]
    if not numbers or len(numbers) < len(known):
        return None
    mean = math.fsum(numbers) / len(numbers)
    return Spread(mean, math.sqrt(math.fsum((n - mean) ** 2 for n in numbers) / len(numbers)))


def number(entry: Entry, row: str, block: str, name: str) -> float | None:
    """A number of an entry that has this row; ``block`` is last (the last epoch), best (the oracle's) or target.

    References have no epochs: their own numbers stand for both. What they cost is what the paper's RTE says.
    """
    record = entry[row]
    if row not in REFERENCES:
        return (record if name in WHOLE else record.get(block, {})).get(name)
    # the base's own training time is nobody's cost of unlearning
    if block == "target" or (row == "base" and name in WHOLE):
        return None
    return record.get("rte" if name == "cost" else name)


def preset_of(entry: Entry) -> str:
    """How its baselines were run; what does not say is taken for the paper's way."""
    settings = entry.get("provenance", {}).get("settings")
    return settings.get("preset", "paper") if isinstance(settings, dict) else "paper"


def stein_of(entry: Entry, row: str) -> Mapping[str, Any]:
    """How many queries an attacker needs, from the last epoch's KL; older trees have recorded that of the oracle's epoch."""
    scores = {name: number(entry, row, "last", name) for name in ("kl_t", "kl_f")}
    return stein_block(scores, entry["n_forget"])


def unlearned_nothing(entry: Entry, row: str) -> bool:
    """Whether the proxy was not admissible, so that the base stands for its result; False for every other row."""
    return number(entry, row, "target", "eta_max") == 0


def mean_over_seeds(entries: Sequence[Entry], row: str, block: str, name: str) -> float | None:
    """Over all of ``entries``; None if one of them lacks the row or the number."""
    over_seeds = spread(number(entry, row, block, name) if row in entry else None for entry in entries)
    return None if over_seeds is None else over_seeds.mean


def ratio(value: float | None, to: float | None) -> float | None:
    """None if it is not known or has no meaning."""
    return None if value is None or not to else value / to


CLOCK_TOLERANCE = 0.25
"""Of the floor's run time over the retrain's, which is 1 on a machine that is left alone: both are the same work."""


def floor_over_retrain(entries: Sequence[Entry]) -> float | None:
    """How long the floor took, if all of these seeds say so."""
    return mean_over_seeds(entries, "floor", "last", "rte")


def clock_is_steady(entries: Sequence[Entry]) -> bool:
    """Whether run times over the retrain's mean anything, as far as the floor can tell."""
    seen = floor_over_retrain(entries)
    return seen is None or 1 / (1 + CLOCK_TOLERANCE) <= seen <= 1 + CLOCK_TOLERANCE
