"""Names close to a mistyped one, for messages."""

import difflib
from collections.abc import Sequence


def nearest(text: str, known: Sequence[str]) -> str:
    return ", ".join(difflib.get_close_matches(text, known, n=3) or known)
