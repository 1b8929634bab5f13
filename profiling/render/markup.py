"""HTML and SVG built from nested calls, safe by construction: whatever is not `Markup` is escaped on its way in."""

from html import escape
from typing import TypeAlias

VOID = frozenset({"br", "hr", "meta", "link"})


class Markup(str):
    """Text that is HTML already. Only the functions of this folder make it; user text never is."""

    __slots__ = ()


Attribute: TypeAlias = str | int | float | None


def tag(name: str, /, *children: object, **attributes: Attribute) -> Markup:
    """`tag("p", "a < b", class_="note")` -> `<p class="note">a &lt; b</p>`.

    Attribute names lose a trailing underscore and turn inner ones into hyphens; None leaves the attribute out.
    """
    inner = join(*children)
    opening = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Markup(opening if name in VOID else f"{opening}{inner}</{name}>")


def join(*children: object) -> Markup:
    """Everything one after the other; None and empty strings vanish, lists and tuples are flattened."""
    return Markup("".join(_child(child) for child in children))


def _child(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, list | tuple):
        return join(*child)
    return escape(_printable(str(child)), quote=False)


def _attribute(key: str, value: Attribute) -> str:
    if value is None:
        return ""
    name = key.rstrip("_").replace("_", "-") if key not in ("viewBox", "preserveAspectRatio") else key
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(_printable(text), quote=True)}"'


def _printable(text: str) -> str:
    """Control characters and lone surrogates (file names, binary output) are no legal HTML: shown as U+FFFD."""
    return "".join(char if char.isprintable() or char in "\n\t\u00a0" else "\ufffd" for char in text)
