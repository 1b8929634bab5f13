"""HTML and SVG built from nested calls, safe by construction: whatever is not `Markup` is escaped on its way in."""

from html import escape
from typing import TypeAlias

VOID = frozenset({"br", "hr", "img", "meta", "link"})
CAMEL_CASE = ("viewBox", "preserveAspectRatio")
Attribute: TypeAlias = str | int | float | None


class Markup(str):
    """Text that is HTML already. Only the functions of this folder make it; user text never is."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: Attribute) -> Markup:
    """`tag("p", "a < b", class_="note")` -> `<p class="note">a &lt; b</p>`.

    Attribute names lose a trailing underscore and turn inner ones into hyphens; None leaves the attribute out.
    """
    opening = f"<{name}"
    for key, value in attributes.items():
        if value is not None:
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            attribute = key if key in CAMEL_CASE else key.rstrip("_").replace("_", "-")
            opening += f' {attribute}="{escape(_printable(text), quote=True)}"'
    return Markup(f"{opening}>" if name in VOID else f"{opening}>{join(*children)}</{name}>")


def join(*children: object) -> Markup:
    """Everything one after the other; None and empty strings vanish, lists and tuples are flattened."""
    text = ""
    for child in children:
        if isinstance(child, list | tuple):
            text += join(*child)
        elif child is not None:
            text += child if isinstance(child, Markup) else escape(_printable(str(child)), quote=False)
    return Markup(text)


def _printable(text: str) -> str:
    """Control characters and lone surrogates (file names, binary output) are no legal HTML: shown as U+FFFD."""
    return "".join(char if char.isprintable() or char in "\n\t\u00a0" else "\ufffd" for char in text)
