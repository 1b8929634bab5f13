"""Labels as people write them, and the classes they mean: one rule for every source that has labels of its own.

Labels in digits are the labels themselves; leading zeros are allowed (`00` to `99`). Labels in words are classes in
text order. A source has either. One odd label among them (`unknown` among numbers, `1.0`, `07` beside `7`) must not
renumber the others, nor become one of them: it is refused, as is a column of floats, until the user says what labels
are:

    labels=numbers   whole numbers (also `1.0`, and `07` is 7); a sample with another label goes to quarantine
    labels=words     every label is a class name, as it is written (without blanks around it)
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from feedline.pipeline.base.errors import SourceError
from feedline.pipeline.base.text import count_of
from feedline.preprocess.sources.base import Classes

NUMBER = re.compile(r"-?[0-9]{1,18}")
LIKE_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
WNID = re.compile(r"n\d{8}")
CLASSES_MAX = 100_000
"""A larger label number is taken for something else than a class."""


def class_entry(name: str, words: str = "") -> dict[str, Any]:
    """One of `Classes`; `words` are ImageNet's, comma-separated."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    entry: dict[str, Any] = {"name": names[0] if names else name}
    if WNID.fullmatch(name):
        entry["wnid"] = name
    return entry | ({"names": names} if names else {})


def class_id(entry: Mapping[str, Any]) -> str:
    """What no other class of the dataset is called: its wnid, or its name where it has none."""
    return str(entry.get("wnid", entry["name"]))


def label_by_name(classes: Classes) -> dict[str, int]:
    """By every name and wnid of a class, its label; a wnid goes before a name."""
    return {str(entry[key]): label for key in ("name", "wnid") for label, entry in enumerate(classes) if key in entry}


def are_numbers(labels: Iterable[str]) -> bool:
    return all(kind_of(label) == "number" for label in labels)


def kind_of(label: str) -> str:
    if NUMBER.fullmatch(label):
        return "number"
    return "unclear" if LIKE_NUMBER.fullmatch(label) else "word"


def whole_number(label: str) -> int | None:
    """Also of `1.0`; None for what is none."""
    if NUMBER.fullmatch(label):
        return int(label)
    number = float(label) if LIKE_NUMBER.fullmatch(label) else 0.5
    return int(number) if number.is_integer() and abs(number) < 1e18 else None


def odd_label(counts: Mapping[str, int]) -> tuple[str, str] | None:
    """(a label that does not fit, one of the others: of another kind, where there is one) where they are not all
    numbers or all words."""
    by_kind = {kind: [label for label in counts if kind_of(label) == kind] for kind in ("unclear", "word", "number")}
    by_value: dict[int, str] = {}
    for label in sorted(by_kind["number"], key=lambda label: (len(label), label)):
        if (other := by_value.setdefault(int(label), label)) != label:
            return label, other
    kinds = [kind for kind, labels in by_kind.items() if labels]
    if len(kinds) <= 1 and "unclear" not in kinds:
        return None
    rarest = min(kinds, key=lambda kind: (kind != "unclear", sum(counts[label] for label in by_kind[kind])))
    odd = min(by_kind[rarest], key=lambda label: (counts[label], label))
    return odd, max(counts, key=lambda label: (kind_of(label) != kind_of(odd), label != odd, counts[label], label))


def class_names(counts: Mapping[str, int], numbers: bool, place: Callable[[str], str]) -> tuple[list[str], list[str]]:
    """(names by label, notes on what a user may not expect of classes that the labels alone tell).

    Raises SourceError for a number too large to be a class; `place` says where a label stands.
    """
    if not numbers:
        names = sorted(counts)
        span = f"{names[0]!r} to {names[-1]!r}" if names else "none"
        return names, [f"labels are words: {count_of(len(names), 'class')} in text order, {span}"]
    largest = max(counts, key=lambda label: whole_number(label) or 0, default="-1")
    most = whole_number(largest) or 0
    if most >= CLASSES_MAX:
        raise SourceError(
            f"{place(largest)}: a label of {most} is no class number (under {CLASSES_MAX:,}): mend it, or say "
            "--source-option labels=words if each is a class of its own"
        )
    names = [str(label) for label in range(most + 1)]
    used = {str(whole_number(label)) for label in counts}
    empty = [name for name in names if name not in used]
    if not empty:
        return names, []
    return names, [
        f"labels are numbers: {count_of(len(names), 'class')}, {len(empty):,} of them without a sample (first: "
        f"{empty[0]})"
    ]


def number_in(label: str, classes: int) -> int | str:
    """The label, -1 for none, or why it is none of so many classes."""
    number = whole_number(label)
    if number is None:
        return "label is no number"
    return number if -1 <= number < classes else "label out of range"
