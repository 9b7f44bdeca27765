"""What several captions and legends say."""

from __future__ import annotations

from collections.abc import Sequence

from tracking.tree import Entry

ALPHA = "\N{GREEK SMALL LETTER ALPHA}"  # by name: in an editor it is easily taken for an a


def seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def with_seeds(name: str, count: int, of: int) -> str:
    """A name as it is in a legend: how many seeds it has where others have more."""
    return name if count == of else f"{name} ({count} of {seeds(of)})"


def listed(names: Sequence[object]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    first, last = ", ".join(map(str, names[:-1])), "".join(map(str, names[-1:]))
    return f"{first} and {last}" if first else last


def unlearned_nothing(entry: Entry, method: str) -> bool:
    """Whether the proxy was not admissible, so that the base stands for its result."""
    return entry[method].get("target", {}).get("eta_max") == 0
