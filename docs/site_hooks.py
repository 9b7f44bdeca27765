"""What MkDocs does not do by itself: pages made from the code, formulas without a script, links to the sources."""

from __future__ import annotations

import argparse
import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

from workflows.publishing import STAMP, stamp_problem
from workflows.quoting import quoted_problem

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
UPWARDS = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<to>\.\./[^)#]+)\)")


def on_config(config: Any) -> Any:
    """Results that were not written yet are left out."""
    for part in config.nav:
        if "Results" in part:
            part["Results"] = [page for page in part["Results"] if all((DOCS / p).exists() for p in page.values())]
    return config


def on_files(files: Files, config: Any) -> Files:
    """The reference of commands, from the commands; the changelog, from where it is kept."""
    for place, text in (("reference/commands.md", commands()), ("changelog.md", (ROOT / "CHANGELOG.md").read_text())):
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Old numbers stop the build; links to files that are no pages, such as sources, become names, if the files exist.

    What is folded is Markdown too: GitHub takes it so by itself, MkDocs has to be told.
    """
    document = DOCS / page.file.src_uri
    if document.exists() and (problem := quoted_problem(document, ROOT) or old_numbers(document)):
        raise ValueError(f"{page.file.src_uri}: {problem}")
    here = document.parent

    def named(link: re.Match[str]) -> str:
        place = (here / link["to"]).resolve()
        if place.is_relative_to(DOCS):
            return link[0]
        if not place.exists():
            raise FileNotFoundError(f"{page.file.src_uri} links {link['to']}, which is not there")
        name = f"`{place.relative_to(ROOT)}`"
        return name if link["text"] == place.name else f"{link['text']} ({name})"

    return UPWARDS.sub(named, markdown).replace("<details><summary>", "<details markdown><summary>")


def old_numbers(document: Path) -> str | None:
    return stamp_problem(document) if STAMP.search(document.read_text()) else None


def on_page_content(html_text: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw themselves."""

    def drawn(found: re.Match[str]) -> str:
        inner = html.unescape(found[2].strip())
        block = inner.startswith(r"\[")
        return convert(inner[2:-2], display="block" if block else "inline")

    return FORMULA.sub(drawn, html_text)


def commands() -> str:
    """Every command with its options, as its ``--help`` has them."""
    from workflows.cli import COMMANDS, build_parser

    found = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    parts = [
        "# Commands",
        "",
        "`unlearn COMMAND --help` prints the same. `python -m workflows` is the same as `unlearn`.",
    ]
    for purpose, group in COMMANDS:
        parts += ["", f"## To {purpose}"]
        for command in group:
            name = command.__name__.rpartition(".")[2]
            parser = found.choices[name]
            command.add_options(parser)
            summary, description, example = str(command.__doc__).strip().split("\n\n")
            parts += ["", f"### unlearn {name}", "", f"*{summary}*", "", _prose(description), "", f"    {example}", ""]
            parts += ["| option | |", "| :-- | :-- |", *map(_option, parser._actions[1:])]
    return "\n".join(parts) + "\n"


def _option(action: argparse.Action) -> str:
    text = " ".join(str(action.help or "").split()).replace("%%", "%")
    default = action.default
    if default is not None and default is not False and default != argparse.SUPPRESS and "(default:" not in text:
        text += f" (default: {default})"
    value = f" {action.metavar or action.dest.upper()}" if action.nargs != 0 and action.option_strings else ""
    shown = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    return f"| `{shown}{value}` | {_prose(text)} |"


def _prose(text: str) -> str:
    return html.escape(text, quote=False).replace("|", r"\|").replace("*", r"\*").replace("_", r"\_")
