"""A page as one self-contained HTML document: style inline, no script, no network. Pure.

A content security policy in the page forbids it to fetch anything, so "works offline" is the browser's promise.
`page.html` is the document; `parts.html` has a macro for every kind of part, named like its class.
Numbers to draw come from `charts.py`.
Jinja escapes whatever they are given.
"""

import re
from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from feedline.pipeline.base.text import count_of, printable
from feedline.profiling.record import units
from feedline.profiling.record.recording import Line
from feedline.profiling.render import charts, sections

MOST_LINES = 40  # of one function


def document(page: sections.Page) -> str:
    """The whole document."""
    return _templates().get_template("page.html").render(page=page)


def framed(page: str) -> str:
    """A whole document as a part of another one, whose styles and scripts it neither sees nor touches."""
    style = "width: 100%; height: 640px; border: 0; resize: vertical"
    return str(Markup('<iframe title="feedline" sandbox="" style="{}" srcdoc="{}"></iframe>').format(style, page))


def part(shown: sections.Part) -> Markup:
    """A fragment of the document."""
    return getattr(_templates().get_template("parts.html").module, type(shown).__name__.lower())(shown)


@cache
def _templates() -> Environment:
    filters: dict[str, Any] = {"pct": "{:.3f}%".format, "g": "{:.6g}".format, "together": together,
                               "unbroken": unbroken, "base64": b64encode}  # fmt: skip
    known: dict[str, Any] = {"charts": charts, "functions": functions, "part": part, "units": units,
                             "count_of": count_of}  # fmt: skip
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, finalize=_shown,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    templates.filters.update(filters)
    templates.globals.update(known)
    return templates


def _shown(value: Any) -> Any:
    """Control characters and halves of characters (file names, binary output) are no legal HTML."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, "\n\t")
    return "" if value is None else value


def together(words: str) -> str:
    """A number, its per cent sign and its error stay on one line."""
    return words.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0").replace("± ", "±\u00a0")


def unbroken(words: str) -> Markup:
    """Each word in an element of its own, so that a line does not end within `--size`."""
    return Markup("").join(
        Markup("<span>{}</span>").format(word) if word.strip() else word
        for word in re.split(r"(\s+)", printable(words, "\n"))
    )


def functions(lines: Iterable[Line]) -> list[list[Line]]:
    """The lines of each function, the function that took most first."""
    bodies: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        bodies.setdefault((line.file, line.function, line.where), []).append(line)
    ranked = sorted(bodies.values(), key=lambda body: -sum(line.seconds for line in body))
    return [sorted(body, key=lambda line: line.line)[:MOST_LINES] for body in ranked]
