"""Whole pages of HTML: every text is escaped unless it is marked as HTML, and the style stands in the page itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib import resources

VOID: frozenset[str] = frozenset({"img", "meta"})


class Html(str):
    """Markup that is whole and safe."""

    __slots__ = ()


def tag(element: str, *children: str, **attributes: str | bool | None) -> Html:
    """An element. ``class_`` is ``class``, ``aria_sort`` is ``aria-sort``; True is a bare attribute, None is none."""
    parts = [f"<{element}"]
    for name, value in attributes.items():
        if value is not None and value is not False:
            shown = "" if value is True else f'="{escape(value)}"'
            parts.append(f" {name.rstrip('_').replace('_', '-')}{shown}")
    parts.append(">")
    if element not in VOID:
        parts += (child if isinstance(child, Html) else escape(child, quote=False) for child in children)
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
    (re.compile(r"\bx (floor|short)\b"), "\N{MULTIPLICATION SIGN} \\1"),
    (re.compile(r"(?<=\d) %"), "\N{NARROW NO-BREAK SPACE}%"),
)


def typeset(text: str) -> Html:
    """Escaped, with subscripts and signs in their proper form."""
    escaped = escape(text, quote=False)
    for pattern, replacement in _TYPESET:
        escaped = pattern.sub(replacement, escaped)
    return Html(escaped)


def asset(name: str) -> Html:
    """A style sheet or script of ``tracking/page``, to stand inside a page."""
    return Html((resources.files("tracking") / "page" / name).read_text())


VIEWPORT = tag("meta", name="viewport", content="width=device-width, initial-scale=1")


def document(title: str, style: Html, body: Sequence[Html], head: Sequence[Html] = (VIEWPORT,)) -> str:
    """A page that needs no other file."""
    parts = (tag("meta", charset="utf-8"), *head, tag("title", title), tag("style", style))
    return f"<!DOCTYPE html>\n{tag('html', tag('head', joined(parts)), tag('body', *body), lang='en')}\n"
