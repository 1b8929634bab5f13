"""Counts in words; text from files that others wrote, made fit for a terminal, a name and a line.

Standard library only.
"""

import re

UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Control characters (escape sequences begin with one), line ends of any kind, marks that turn text around, and
halves of characters and others that are none, which no encoding or no XML takes."""


def count_of(number: int, noun: str) -> str:
    """1 worker, 2 workers; 1,000 classes."""
    hisses = noun.endswith(("s", "x", "ch", "sh")) and not noun.endswith("epoch")
    ending = "" if number == 1 else "es" if hisses else "s"
    return f"{number:,} {noun}{ending}"


def is_printable(text: str) -> bool:
    """`str.isprintable` says no to every space but one; this does not."""
    return text.isprintable() or UNPRINTABLE.search(text) is None


def printable(text: str, keep: str = "") -> str:
    """The text with what is unprintable, but for the characters in `keep`, as Python would escape it."""
    if text.isprintable():
        return text
    return UNPRINTABLE.sub(lambda mark: mark[0] if mark[0] in keep else repr(mark[0])[1:-1], text)
