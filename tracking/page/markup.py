"""HTML in which every text is escaped unless it is said to be HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping

VOID: frozenset[str] = frozenset({"img", "meta"})


class Html(str):
    """Markup that is whole and safe."""

    __slots__ = ()


def tag(element: str, *children: str, **attributes: str | bool | None) -> Html:
    """An element. ``class_`` is ``class``, ``aria_sort`` is ``aria-sort``; True is a bare attribute, None is none."""
    parts = [f"<{element}"]
    for name, value in attributes.items():
        if value is not None and value is not False:
            shown = "" if value is True else f'="{html.escape(value)}"'
            parts.append(f" {name.rstrip('_').replace('_', '-')}{shown}")
    parts.append(">")
    if element not in VOID:
        parts += (child if isinstance(child, Html) else html.escape(child, quote=False) for child in children)
        parts.append(f"</{element}>")
    return Html("".join(parts))


def joined(parts: Iterable[Html], by: str = "\n") -> Html:
    return Html(by.join(parts))


# the plain spellings of tables and captions, which terminals and LaTeX share, as a book would set them
_TYPESET: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\b(KL|Acc|N|D|P)_(last|[tfr])\b"), r"\1<sub>\2</sub>"),
    (re.compile(r"\beta_max\b"), "\N{GREEK SMALL LETTER ETA}<sub>max</sub>"),
    (re.compile(r"\|\|"), "\N{DOUBLE VERTICAL LINE}"),
    (re.compile(r"&lt;="), "\N{LESS-THAN OR EQUAL TO}"),
    (re.compile(r"\bx floor\b"), "\N{MULTIPLICATION SIGN} floor"),
    (re.compile(r"(?<=\d) %"), "\N{NARROW NO-BREAK SPACE}%"),
)


def typeset(text: str) -> Html:
    """Escaped, with subscripts and signs in their proper form."""
    escaped = html.escape(text, quote=False)
    for pattern, replacement in _TYPESET:
        escaped = pattern.sub(replacement, escaped)
    return Html(escaped)


def definitions(terms: Mapping[str, str]) -> Html:
    """A list of names and what they are."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in terms.items()))
